// The six kinds of checks that the idea of jump labels came from, and more: what one costs, many in a row.
//
//   jump_labels [ROUNDS]         CPU time of each, in interleaved rounds; ratios to the nop
//   jump_labels ROW LOOPS        executes one row: for an emulator that counts instructions
//   jump_labels model            for each row: its name, and per check: taken jumps, loads whose value the next
//                                instruction uses, cache misses, and mispredicted branches, by construction
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNITS = 16, TABLE = 1 << 20, LARGE = 1 << 27 };

// A flag, and in the same cache line a word that another thread writes.
struct shared {
    uint32_t flag;
    uint32_t beside;
} __attribute__((aligned(128)));

static struct shared alone, disputed;
static unsigned char zeros[TABLE], random_bits[TABLE];
// More than caches hold.
static unsigned char cold_zeros[LARGE], cold_random_bits[LARGE];

#if defined(__x86_64__)
#define NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define JUMP "jmp "
#define IF_ZERO "test %k[zero], %k[zero]\njz "
#define IF_NOT "test %k[zero], %k[zero]\njnz "
#define LOAD_IF_NOT "cmpl $0, (%[flag])\njne "
#define ELEMENT_IF_NOT "cmpb $0, (%[flag], %[at])\njne "
#define NEXT "inc %[at]\nand %[mask], %[at]\n"
#define SOMEWHERE "imul $1664525, %[at], %[at]\nadd $1013904223, %[at]\nand %[large], %[at]\n"
#define LOOP "dec %[loops]\njnz 2b\n"
#elif defined(__riscv)
#define NOP ".option push\n.option norvc\nnop\n.option pop\n"
#define JUMP "j "
#define IF_ZERO "beqz %[zero], "
#define IF_NOT "bnez %[zero], "
#define LOAD_IF_NOT "lw t0, (%[flag])\nbnez t0, "
#define ELEMENT_IF_NOT "add t0, %[flag], %[at]\nlbu t0, (t0)\nbnez t0, "
#define NEXT "addi %[at], %[at], 1\nand %[at], %[at], %[mask]\n"
#define SOMEWHERE "mul %[at], %[at], %[factor]\nadd %[at], %[at], %[summand]\nand %[at], %[at], %[large]\n"
#define LOOP "addi %[loops], %[loops], -1\nbnez %[loops], 2b\n"
#elif defined(__aarch64__)
#define NOP "nop\n"
#define JUMP "b "
#define IF_ZERO "cbz %w[zero], "
#define IF_NOT "cbnz %w[zero], "
#define LOAD_IF_NOT "ldr w9, [%[flag]]\ncbnz w9, "
#define ELEMENT_IF_NOT "ldrb w9, [%[flag], %[at]]\ncbnz w9, "
#define NEXT "add %[at], %[at], #1\nand %[at], %[at], %[mask]\n"
#define SOMEWHERE "madd %[at], %[at], %[factor], %[summand]\nand %[at], %[at], %[large]\n"
#define LOOP "subs %[loops], %[loops], #1\nb.ne 2b\n"
#endif

#if defined(__x86_64__)
#define CLOBBERED "cc", "memory"
#elif defined(__riscv)
#define CLOBBERED "t0", "memory"
#else
#define CLOBBERED "x9", "cc", "memory"
#endif

// A function that executes UNITS copies of an instruction or two in each loop.
#define ROW(NAME, PLACE, TEXT) \
    __attribute__((noinline, aligned(64))) static void NAME(unsigned long loops) { \
        unsigned long at = 0; \
        __asm__ volatile(".balign 64\n2:\n.rept 16\n" TEXT ".endr\n" LOOP \
                         : [loops] "+r"(loops), [at] "+r"(at) \
                         : [flag] "r"(PLACE), [zero] "r"(0UL), [mask] "r"((unsigned long)TABLE - 1), \
                           [large] "r"((unsigned long)LARGE - 1), [factor] "r"(1664525UL), [summand] "r"(1013904223UL) \
                         : CLOBBERED); \
    }

ROW(nothing, &alone.flag, "")
ROW(nop, &alone.flag, NOP)
ROW(jump, &alone.flag, JUMP "3f\n3:\n")
ROW(longer_jump, &alone.flag, JUMP "3f\n.skip 60, 0\n3:\n")
// Each leads to another page, and back.
ROW(far_jump, &alone.flag,
    JUMP "3f\n4:\n.pushsection .text.far, \"ax\"\n.balign 4\n.skip 4160\n3:\n" JUMP "4b\n.popsection\n")
ROW(not_taken, &alone.flag, IF_NOT "3f\n3:\n")
ROW(taken, &alone.flag, IF_ZERO "3f\n3:\n")
ROW(load, &alone.flag, LOAD_IF_NOT "3f\n3:\n")
ROW(missing, &disputed.flag, LOAD_IF_NOT "3f\n3:\n")
ROW(element, zeros, ELEMENT_IF_NOT "3f\n3:\n" NEXT)
ROW(mispredicted, random_bits, ELEMENT_IF_NOT "3f\n3:\n" NEXT)
ROW(cold, cold_zeros, ELEMENT_IF_NOT "3f\n3:\n" SOMEWHERE)
ROW(worst, cold_random_bits, ELEMENT_IF_NOT "3f\n3:\n" SOMEWHERE)

static const struct row {
    const char *id, *name;
    void (*run)(unsigned long);
    // In each round of the measurement.
    unsigned long loops;
    double jumps, uses, misses, mispredicted;
} rows[] = {
    {"nop", "nop", nop, 100000, 0, 0, 0, 0},
    {"jump", "ubranch", jump, 100000, 1, 0, 0, 0},
    {"longer", "ubranch over 60 bytes", longer_jump, 100000, 1, 0, 0, 0},
    {"far", "ubranch to another page, and back", far_jump, 100000, 2, 0, 0, 0},
    {"not-taken", "branch in bnez (not taken)", not_taken, 100000, 0, 0, 0, 0},
    {"taken", "branch in beqz (taken)", taken, 100000, 1, 0, 0, 0},
    {"load", "load + branch", load, 100000, 0, 1, 0, 0},
    {"miss", "load + branch + line written by another CPU", missing, 1000000, 0, 1, 1, 0},
    {"element", "load + branch, another flag each time", element, 100000, 0, 1, 0, 0},
    {"mispredicted", "  the same, half of them set at random", mispredicted, 100000, 0.5, 1, 0, 0.5},
    {"cold", "load + branch, flags not in caches", cold, 5000, 0, 1, 1, 0},
    {"worst", "  the same, half of them set at random", worst, 5000, 0.5, 1, 1, 0.5},
    {"nothing", "", nothing, 100000, 0, 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof *rows - 1 };

static int stop, started;

static void *dispute(void *nothing_at_all) {
    __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) __atomic_add_fetch(&disputed.beside, 1, __ATOMIC_RELAXED);
    return nothing_at_all;
}

// CPU time of this thread, in nanoseconds.
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double measure(const struct row *row, unsigned long loops) {
    int disputes = row->run == missing;
    pthread_t thread;
    double begin;
    if (disputes) {
        stop = started = 0;
        if (pthread_create(&thread, NULL, dispute, NULL)) exit(1);
        while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {}
    }
    begin = now();
    row->run(loops);
    begin = now() - begin;
    if (disputes) {
        __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
    }
    return begin / (double)(loops * UNITS);
}

static int compare(const void *one, const void *other) {
    double x = *(const double *)one, y = *(const double *)other;
    return (x > y) - (x < y);
}

static double quartile(double *values, int count, int quarter) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[(count - 1) * quarter / 4];
}

static void table(int rounds) {
    double *times = calloc((size_t)rounds * ROWS, sizeof *times), *ratios = calloc((size_t)rounds, sizeof *ratios);
    if (!times || !ratios) exit(1);
    // The first round warms up.
    for (int round = -1; round < rounds; round++)
        for (int row = 0; row < ROWS; row++) {
            double time = measure(&rows[row], rows[row].loops);
            if (round >= 0) times[row * rounds + round] = time;
        }
    printf("%-44s %9s %8s %17s\n", "", "ns", "ratio", "quartiles");
    // The ratio of times in the same round; the nop's own times are sorted last.
    for (int row = ROWS - 1; row >= 0; row--)
        for (int round = 0; round < rounds; round++) times[row * rounds + round] /= row ? times[round] : 1;
    double base = quartile(times, rounds, 2);
    for (int row = 0; row < ROWS; row++) {
        for (int round = 0; round < rounds; round++) ratios[round] = row ? times[row * rounds + round] : 1;
        double low = quartile(ratios, rounds, 1), high = quartile(ratios, rounds, 3);
        double middle = quartile(ratios, rounds, 2);
        printf("%-44s %9.3f %8.2f %8.2f %8.2f\n", rows[row].name, middle * base, middle, low, high);
    }
}

int main(int count, char **arguments) {
    if (count > 2) {
        for (int row = 0; row <= ROWS; row++)
            if (!strcmp(rows[row].id, arguments[1])) return rows[row].run(strtoul(arguments[2], NULL, 0)), 0;
        return fprintf(stderr, "there is no row %s\n", arguments[1]), 2;
    }
    if (count > 1 && !strcmp(arguments[1], "model")) {
        for (int row = 0; row < ROWS; row++)
            printf("%s\t%s\t%g\t%g\t%g\t%g\n", rows[row].id, rows[row].name, rows[row].jumps, rows[row].uses,
                   rows[row].misses, rows[row].mispredicted);
        return 0;
    }
    uint64_t state = 1;
    memset(cold_zeros, 0, sizeof cold_zeros);
    for (int at = 0; at < LARGE; at++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        cold_random_bits[at] = random_bits[at % TABLE] = state >> 63;
    }
    table(count > 1 ? atoi(arguments[1]) : 21);
    return 0;
}
