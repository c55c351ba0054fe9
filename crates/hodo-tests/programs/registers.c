// At a call and at a return every register must be what it would be without tracing. The calls are in registers.S.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __riscv
#include <sys/auxv.h>

struct image {
    uint64_t general[32]; // by number; those that are not compared are 0
    uint64_t floating[32];
    uint64_t fcsr, vtype, vl, vcsr;
    uint8_t vectors[32 * 32];
};
// The length of vector registers in bytes, at most 32; 0 if there are none.
int vectors;
#elif defined(__aarch64__)
#include <sys/auxv.h>

#define HAS_SVE (1ul << 22)
struct image {
    uint64_t general[32]; // x0 to x30 and sp; those that are not compared are 0
    uint64_t flags, fpsr, fpcr, unused;
    uint8_t vectors[32 * 256];
    uint8_t predicates[17 * 32]; // the last is FFR
};
// The length of vector registers in bytes; 0 if there are only those of 16 bytes, and no predicates.
int vectors;
// Where the last call has returned to.
extern uint64_t place;
#else
struct image {
    uint8_t fx[512];
    uint8_t ymm[512];
    uint64_t general[16]; // the last is rsp
};
#endif
extern struct image given, seen, returned, after;
extern int counter;

void probe_long_first(void), probe_short_first(void), probe_marked(void), probe_branch_first(void),
    probe_tests_memory(void), probe_jumps_on(void), probe_only_returns(void), probe_looping(void);
int neighbour(void), vector_bytes(void);
#ifdef __aarch64__
void probe_is_signed(void), probe_signed_by_b(void);
#endif

static const struct {
    const char *name;
    void (*probe)(void);
    int passes; // the callee leaves all registers alone
} probes[] = {
    {"long_first", probe_long_first, 0},     {"short_first", probe_short_first, 0},
    {"marked", probe_marked, 0},             {"branch_first", probe_branch_first, 0},
    {"tests_memory", probe_tests_memory, 0}, {"jumps_on", probe_jumps_on, 0},
    {"only_returns", probe_only_returns, 1}, {"looping", probe_looping, 0},
#ifdef __aarch64__
    {"is_signed", probe_is_signed, 0},       {"signed_by_b", probe_signed_by_b, 0},
#endif
};

static uint64_t state = 88172645463325252u;
static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

#ifdef __riscv
enum { RA = 1, SP, GP, TP, T3 = 28 };

static void fill(struct image *image) {
    for (size_t i = 0; i < sizeof *image / 8; i++)
        ((uint64_t *)image)[i] = next();
    for (int i = 0; i <= TP; i++)
        image->general[i] = 0;
    // See `looping`.
    image->general[T3] >>= 1;
    // Any flags, any of the five rounding modes.
    image->fcsr = (next() & 0x1f) | next() % 5 << 5;
    // Elements of any of four sizes, one register or eight, any part of them.
    uint64_t size = next() % 4, length = vectors ? vectors * 8 / (8 << size) : 0;
    image->vtype = (next() & 3) << 6 | size << 3 | (next() & 1 ? 3 : 0);
    image->vl = vectors ? next() % (length + 1) : 0;
    image->vcsr = next() & 7;
    if (!vectors)
        image->vtype = image->vcsr = 0;
    memset(image->vectors + 32 * vectors, 0, sizeof image->vectors - 32 * (size_t)vectors);
}

// The scratch registers that a function which changes all of them may leave with any value: t0 to t6, and a2 to a7.
#define OF_NO_RESULT 0xf003f0e0u

static int differ(const char *name, const char *when, struct image *want, struct image *got, uint64_t sp) {
    int wrong = 0;
    uint32_t free = want == &returned ? OF_NO_RESULT : 0;
    for (int i = TP + 1; i < 32; i++)
        if (want->general[i] != got->general[i] && !(free >> i & 1))
            wrong |= printf("%s %s: x%d\n", name, when, i);
    if (got->general[SP] != sp)
        wrong |= printf("%s %s: sp\n", name, when);
    for (int i = 0; i < 32; i++)
        if (want->floating[i] != got->floating[i])
            wrong |= printf("%s %s: f%d\n", name, when, i);
    if (want->fcsr != got->fcsr)
        wrong |= printf("%s %s: fcsr\n", name, when);
    if (want->vtype != got->vtype || want->vl != got->vl || want->vcsr != got->vcsr)
        wrong |= printf("%s %s: the state of vectors\n", name, when);
    if (memcmp(want->vectors, got->vectors, sizeof want->vectors))
        wrong |= printf("%s %s: vectors\n", name, when);
    return wrong;
}
#define PUSHED 0
#elif defined(__aarch64__)
enum { X11 = 11, X16 = 16, X17, X29 = 29, X30, SP };

static void fill(struct image *image) {
    int length = vectors ? vectors : 16, bits = vectors / 8;
    for (size_t i = 0; i < sizeof *image / 8; i++)
        ((uint64_t *)image)[i] = next();
    image->general[X30] = image->general[SP] = 0;
    // See `looping`.
    image->general[X11] >>= 1;
    image->flags = next() & 0xful << 28;
    // The flags of exceptions, and that of saturation.
    image->fpsr = next() & 0x0800009f;
    // Any of the four rounding modes, and other ways to treat small numbers, NaNs and half precision.
    image->fpcr = next() & 0x1ful << 22;
    image->unused = 0;
    memset(image->vectors + 32 * length, 0, sizeof image->vectors - 32 * (size_t)length);
    memset(image->predicates + 16 * bits, 0, sizeof image->predicates - 16 * (size_t)bits);
    // FFR says that the first elements have been loaded.
    uint64_t loaded = next() % (vectors + 1);
    for (uint64_t i = 0; i < loaded; i++)
        image->predicates[16 * bits + i / 8] |= 1 << i % 8;
}

// What a function which changes all of them may leave with any value: x9 to x15, which have no result.
#define OF_NO_RESULT 0xfe00u

static int differ(const char *name, const char *when, struct image *want, struct image *got, uint64_t sp) {
    int wrong = 0;
    uint32_t free = want == &returned ? OF_NO_RESULT : 0;
    for (int i = 0; i <= X29; i++)
        if (want->general[i] != got->general[i] && !(free >> i & 1))
            wrong |= printf("%s %s: x%d\n", name, when, i);
    if (got == &after && got->general[X30] != place)
        wrong |= printf("%s %s: x30\n", name, when);
    if (got->general[SP] != sp)
        wrong |= printf("%s %s: sp\n", name, when);
    if (got == &after && want->flags != got->flags)
        wrong |= printf("%s %s: flags\n", name, when);
    if (want->fpsr != got->fpsr || want->fpcr != got->fpcr)
        wrong |= printf("%s %s: the state of floating point\n", name, when);
    if (memcmp(want->vectors, got->vectors, sizeof want->vectors))
        wrong |= printf("%s %s: vectors\n", name, when);
    if (memcmp(want->predicates, got->predicates, sizeof want->predicates))
        wrong |= printf("%s %s: predicates\n", name, when);
    return wrong;
}
#define PUSHED 0
#else
static void fill(struct image *image) {
    for (size_t i = 0; i < sizeof *image / 8; i++)
        ((uint64_t *)image)[i] = next();
    memset(image->fx, 0, 32);
    uint16_t control = 0x37f | (next() & 3) << 10; // all exceptions masked, any rounding
    memcpy(image->fx, &control, 2);
    image->fx[4] = 0xff; // eight values on the x87 stack
    uint32_t mxcsr = 0x1f80 | (next() & 3) << 13;
    memcpy(image->fx + 24, &mxcsr, 4);
    for (int i = 0; i < 8; i++)
        memset(image->fx + 32 + 16 * i + 10, 0, 6);
    for (int i = 0; i < 16; i++)
        memcpy(image->fx + 160 + 16 * i, image->ymm + 32 * i, 16);
}

static int differ(const char *name, const char *when, struct image *want, struct image *got, uint64_t rsp) {
    int wrong = 0;
    static const char *const names[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
                                        "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
    for (int i = 0; i < 15; i++)
        if (want->general[i] != got->general[i])
            wrong |= printf("%s %s: %s\n", name, when, names[i]);
    if (got->general[15] != rsp)
        wrong |= printf("%s %s: rsp\n", name, when);
    for (int i = 0; i < 16; i++)
        if (memcmp(want->ymm + 32 * i, got->ymm + 32 * i, 32))
            wrong |= printf("%s %s: ymm%d\n", name, when, i);
    if (memcmp(want->fx, got->fx, 5))
        wrong |= printf("%s %s: x87 control\n", name, when);
    if (memcmp(want->fx + 24, got->fx + 24, 4))
        wrong |= printf("%s %s: mxcsr\n", name, when);
    if (memcmp(want->fx + 32, got->fx + 32, 128))
        wrong |= printf("%s %s: x87 stack\n", name, when);
    return wrong;
}
#define PUSHED 8
#endif

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5000;
    int wrong = 0;
#ifdef __riscv
    vectors = getauxval(AT_HWCAP) >> ('V' - 'A') & 1 ? vector_bytes() : 0;
    if (vectors > 32)
        vectors = 0;
#elif defined(__aarch64__)
    vectors = getauxval(AT_HWCAP) & HAS_SVE ? vector_bytes() : 0;
#endif
    for (size_t p = 0; p < sizeof probes / sizeof *probes && !wrong; p++) {
        for (int i = 0; i < rounds && !wrong; i++) {
            fill(&given);
            fill(&returned);
            memset(&seen, 0, sizeof seen);
            memset(&after, 0, sizeof after);
            counter = i % 7;
            probes[p].probe();
#ifndef __x86_64__
            uint64_t sp = given.general[SP];
#else
            uint64_t sp = given.general[15];
#endif
            if (!probes[p].passes)
                wrong |= differ(probes[p].name, "at entry", &given, &seen, sp - PUSHED);
            wrong |= differ(probes[p].name, "at return", probes[p].passes ? &given : &returned, &after, sp);
        }
        printf("%s %s\n", probes[p].name, wrong ? "WRONG" : "ok");
    }
    printf("%d\n", neighbour());
    return wrong != 0;
}
