// All registers live across the stubs: when a function is entered, and when it returns. registers_*.S fills them.
#include "check.h"
#include <string.h>

// What the assembly fills registers from, and stores them to. Sizes and offsets are known there.
extern unsigned char wanted_at_entry[4096], found_at_entry[4096], wanted_at_return[4096], found_at_return[4096];
extern int level, ruins_vectors;
extern int ruin(struct hodo_ftrace_call *call);
#ifdef __x86_64__
// Changes less.
extern int ruin_part(struct hodo_ftrace_call *call);
#else
#define ruin_part ruin
#endif
void call_by_mcount(void), call_by_fentry(void);

#ifdef __riscv
struct part { const char *name; int at, size, at_level; };
// The frame pointer differs, because `_mcount` needs it; the stub may change t0 and t1.
static const struct part parts[] = {{"general", 0, 24 * 8, 0}, {"floating-point", 256, 32 * 8, 0}, {"fcsr", 512, 8, 0}};
enum { FUNCTIONS = 1 };
#elif defined(__aarch64__)
struct part { const char *name; int at, size, at_level; };
// The stub may change x16 and x17.
static const struct part parts[] = {{"general", 0, 27 * 8, 0}, {"vector", 256, 32 * 16, 0}, {"fpcr", 768, 8, 0}, {"fpsr", 776, 8, 0}};
enum { FUNCTIONS = 1 };
#else
struct part { const char *name; int at, size, at_level; };
static const struct part parts[] = {
    {"general", 0, 14 * 8, 0},      {"xmm", 128, 16 * 16, 0},       {"ymm", 128, 16 * 32, 1},
    {"zmm", 128, 32 * 64, 2},       {"masks", 2176, 8 * 8, 2},      {"x87", 2240, 10, 0},
    {"x87 1", 2256, 10, 0},         {"mxcsr", 2272, 4, 0},          {"x87 control", 2276, 2, 0},
};
enum { FUNCTIONS = 2 };
#endif

static unsigned long next = 88172645463325252;
QUIET static unsigned char byte(void) {
    next ^= next << 13, next ^= next >> 7, next ^= next << 17;
    return next >> 32;
}

QUIET static void fill(unsigned char *registers) {
    for (int i = 0; i < 4096; i++) registers[i] = byte();
#ifdef __riscv
    // Rounding up, and all flags clear.
    memcpy(registers + 512, &(long){3 << 5}, 8);
#elif defined(__aarch64__)
    // Rounding up, and a flag.
    memcpy(registers + 768, &(long){1 << 22}, 8);
    memcpy(registers + 776, &(long){1 << 27}, 8);
#else
    // Numbers that are loaded and stored unchanged.
    long double number = 1.0l / (byte() + 3), other = -1.0l / (byte() + 3);
    memcpy(registers + 2240, &number, 10);
    memcpy(registers + 2256, &other, 10);
    // All exceptions masked, rounding down; extended precision, rounding up.
    memcpy(registers + 2272, &(int){0x3F80}, 4);
    memcpy(registers + 2276, &(short){0x0B7F}, 2);
#endif
}

QUIET static void compare(const char *when, const unsigned char *wanted, const unsigned char *found) {
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct part part = parts[i];
        // At a level, vectors are stored as one of these kinds.
        if (level < part.at_level || (part.at == 128 && level != part.at_level)) continue;
        if (memcmp(wanted + part.at, found + part.at, part.size)) {
            int at = 0;
            while (wanted[part.at + at] == found[part.at + at]) at++;
            printf("level %d, ruins vectors: %d, %s: %s registers differ at byte %d\n", level, ruins_vectors, when, part.name, at);
            exit(1);
        }
    }
}

// Hooks that change vectors or do not, and what they say of it.
static const struct kind { int ruins; unsigned long flags; int (*hook)(struct hodo_ftrace_call *); } kinds[] = {
    {0, HODO_FTRACE_GENERAL_REGISTERS, ruin}, {1, HODO_FTRACE_VECTORS, ruin}, {1, 0, ruin}, {1, 0, ruin_part},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct hodo_ftrace_entry_ops *entry(int kind) {
    static struct hodo_ftrace_entry_ops ops[KINDS];
    ops[kind] = (struct hodo_ftrace_entry_ops){(void (*)(unsigned long, unsigned long))kinds[kind].hook, kinds[kind].flags};
    return &ops[kind];
}

static const struct hodo_ftrace_graph_ops *graph(int kind) {
    static struct hodo_ftrace_graph_ops ops[KINDS];
    int (*hook)(struct hodo_ftrace_call *) = kinds[kind].hook;
    ops[kind] = (struct hodo_ftrace_graph_ops){hook, (void (*)(struct hodo_ftrace_call *))hook, kinds[kind].flags};
    return &ops[kind];
}

QUIET int main(void) {
    int highest = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx")) highest = 1;
    if (__builtin_cpu_supports("avx512bw")) highest = 2;
#endif
    void (*const functions[])(void) = {call_by_mcount, call_by_fentry};
    int runs = 0;
    for (level = 0; level <= highest; level++)
        for (int hooks = 0; hooks < 4; hooks++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int function = 0; function < FUNCTIONS; function++)
                    for (int round = 0; round < 10; round++) {
                        ruins_vectors = kinds[kind].ruins;
                        fill(wanted_at_entry);
                        fill(wanted_at_return);
                        memset(found_at_entry, 0, sizeof found_at_entry);
                        memset(found_at_return, 0, sizeof found_at_return);
                        hodo_ftrace_set_entry(hooks & 1 ? entry(kind) : 0);
                        hodo_ftrace_set_graph(hooks & 2 ? graph(kind) : 0);
                        functions[function]();
                        hodo_ftrace_set_graph(0);
                        compare("at the entry", wanted_at_entry, found_at_entry);
                        compare("at the return", wanted_at_return, found_at_return);
                        runs++;
                    }
    struct hodo_ftrace_counts counts;
    hodo_ftrace_counts(&counts);
    CHECK(counts.untraced == 0 && counts.lost == 0 && counts.dropped == 0);
    printf("ok\n");
    return runs == (highest + 1) * 4 * KINDS * FUNCTIONS * 10 ? 0 : 1;
}
