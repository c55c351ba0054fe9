// Random gathers and scatters of all forms that the processor has, compared with a plain loop. With "faults", some lanes
// are in a page that cannot be accessed: a handler looks at what the registers have by then, and either makes the page
// accessible or leaves by siglongjmp. With a third argument, a timer sends a signal all the time. Prints a sum for each form, and how many lanes were accessed, and where.
#define _GNU_SOURCE
#include <cpuid.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#define PAGE 4096
#define PAGES 9

struct vector {
    _Alignas(64) uint8_t bytes[64];
};

// Sets all flags: the handler must see them.
#define FLAGS "movl $0xd77f, %%eax\n\tincb %%al\n\tsahf\n\t"

// The data is in xmm2 or xmm18 and wider, the indices in xmm3 or xmm19, and the mask in xmm4 or k1. The compiler uses none
// of those that it does not know here.
#define GATHER(name, to, from, scale)                                                                                  \
    static void name##_##to##_##from##_##scale(uint8_t *base, struct vector *data, struct vector *index,               \
                                               struct vector *mask) {                                                  \
        asm volatile("vmovdqu (%1), %%ymm2\n\tvmovdqu (%2), %%ymm3\n\tvmovdqu (%3), %%ymm4\n\t" FLAGS #name " %%" #to "4, "  \
                     "24(%0,%%" #from "3," #scale "), %%" #to "2\n\tvmovdqu %%ymm2, (%1)\n\tvmovdqu %%ymm4, (%3)"      \
                     :                                                                                                 \
                     : "r"(base), "r"(data), "r"(index), "r"(mask)                                                     \
                     : "memory", "xmm2", "xmm3", "xmm4", "eax", "cc");                                                              \
    }

#define MASKED(name, operands, reg, idx, scale)                                                                        \
    static void name##_##reg##_##idx##_##scale##_k(uint8_t *base, struct vector *data, struct vector *index,           \
                                                   struct vector *mask) {                                              \
        asm volatile("vmovdqu64 (%1), %%zmm18\n\tvmovdqu64 (%2), %%zmm19\n\tkmovw (%3), %%k1\n\t" FLAGS #name " " operands   \
                     "\n\tvmovdqu64 %%zmm18, (%1)\n\tkmovw %%k1, (%3)"                                                 \
                     :                                                                                                 \
                     : "r"(base), "r"(data), "r"(index), "r"(mask)                                                     \
                     : "memory", "eax", "cc");                                                                         \
    }
#define WIDE_GATHER(name, reg, idx, scale)                                                                             \
    MASKED(name, "24(%0,%%" #idx "19," #scale "), %%" #reg "18%{%%k1%}", reg, idx, scale)
#define SCATTER(name, reg, idx, scale)                                                                                 \
    MASKED(name, "%%" #reg "18, 24(%0,%%" #idx "19," #scale ")%{%%k1%}", reg, idx, scale)

typedef void function(uint8_t *base, struct vector *data, struct vector *index, struct vector *mask);

struct form {
    const char *name;
    function *run;
    int lanes, size, index_size, scale, len, masked, stores;
};

static struct form forms[256];
static int form_count;

// Each form is a function, and a row. `lanes`, the size of a lane and of an index, and the bytes of the data's register.
#define VEX_FORMS(X)                                                                                                   \
    X(vpgatherdd, xmm, xmm, 4, 4, 4, 4, 16) X(vpgatherdd, ymm, ymm, 1, 8, 4, 4, 32)                                    \
    X(vpgatherdq, xmm, xmm, 8, 2, 8, 4, 16) X(vpgatherdq, ymm, xmm, 2, 4, 8, 4, 32)                                    \
    X(vpgatherqd, xmm, xmm, 4, 2, 4, 8, 16) X(vpgatherqd, xmm, ymm, 1, 4, 4, 8, 16)                                    \
    X(vpgatherqq, xmm, xmm, 8, 2, 8, 8, 16) X(vpgatherqq, ymm, ymm, 1, 4, 8, 8, 32)                                    \
    X(vgatherdps, xmm, xmm, 2, 4, 4, 4, 16) X(vgatherdps, ymm, ymm, 4, 8, 4, 4, 32)                                    \
    X(vgatherdpd, xmm, xmm, 1, 2, 8, 4, 16) X(vgatherdpd, ymm, xmm, 8, 4, 8, 4, 32)                                    \
    X(vgatherqps, xmm, xmm, 1, 2, 4, 8, 16) X(vgatherqps, xmm, ymm, 4, 4, 4, 8, 16)                                    \
    X(vgatherqpd, xmm, xmm, 2, 2, 8, 8, 16) X(vgatherqpd, ymm, ymm, 8, 4, 8, 8, 32)

#define EVEX_SIZES(X, dd, dq, qd, qq)                                                                                  \
    X(dd, xmm, xmm, 4, 4, 4, 4, 16) X(dd, ymm, ymm, 1, 8, 4, 4, 32) X(dd, zmm, zmm, 2, 16, 4, 4, 64)                   \
    X(dq, xmm, xmm, 8, 2, 8, 4, 16) X(dq, ymm, xmm, 2, 4, 8, 4, 32) X(dq, zmm, ymm, 1, 8, 8, 4, 64)                    \
    X(qd, xmm, xmm, 4, 2, 4, 8, 16) X(qd, xmm, ymm, 1, 4, 4, 8, 16) X(qd, ymm, zmm, 4, 8, 4, 8, 32)                    \
    X(qq, xmm, xmm, 8, 2, 8, 8, 16) X(qq, ymm, ymm, 1, 4, 8, 8, 32) X(qq, zmm, zmm, 8, 8, 8, 8, 64)

#define VEX_FUNCTION(name, to, from, scale, ...) GATHER(name, to, from, scale)
#define GATHER_FUNCTION(name, to, from, scale, ...) WIDE_GATHER(name, to, from, scale)
#define SCATTER_FUNCTION(name, to, from, scale, ...) SCATTER(name, to, from, scale)
VEX_FORMS(VEX_FUNCTION)
EVEX_SIZES(GATHER_FUNCTION, vpgatherdd, vpgatherdq, vpgatherqd, vpgatherqq)
EVEX_SIZES(GATHER_FUNCTION, vgatherdps, vgatherdpd, vgatherqps, vgatherqpd)
EVEX_SIZES(SCATTER_FUNCTION, vpscatterdd, vpscatterdq, vpscatterqd, vpscatterqq)
EVEX_SIZES(SCATTER_FUNCTION, vscatterdps, vscatterdpd, vscatterqps, vscatterqpd)

#define ROW(name, to, from, scale, lanes, size, index_size, len, suffix, masked, stores)                               \
    forms[form_count++] = (struct form){#name " " #to " " #from,  name##_##to##_##from##_##scale##suffix,              \
                                        lanes, size, index_size, scale, len, masked, stores};
#define VEX_ROW(...) ROW(__VA_ARGS__, , 0, 0)
#define GATHER_ROW(...) ROW(__VA_ARGS__, _k, 1, 0)
#define SCATTER_ROW(...) ROW(__VA_ARGS__, _k, 1, 1)

static void find_forms(void) {
    if (__builtin_cpu_supports("avx2")) {
        VEX_FORMS(VEX_ROW)
    }
    if (__builtin_cpu_supports("avx512vl")) {
        EVEX_SIZES(GATHER_ROW, vpgatherdd, vpgatherdq, vpgatherqd, vpgatherqq)
        EVEX_SIZES(GATHER_ROW, vgatherdps, vgatherdpd, vgatherqps, vgatherqpd)
        EVEX_SIZES(SCATTER_ROW, vpscatterdd, vpscatterdq, vpscatterqd, vpscatterqq)
        EVEX_SIZES(SCATTER_ROW, vscatterdps, vscatterdpd, vscatterqps, vscatterqpd)
    }
}

static uint64_t seed = 88172645463325252u;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

// Lengths are multiples of eight.
static void fill(void *at, size_t len) {
    for (size_t i = 0; i < len / 8; i++)
        ((uint64_t *)at)[i] = next();
}

static uint64_t sum;

static void add(const void *at, size_t len) {
    for (size_t i = 0; i < len / 8; i++)
        sum = ((sum ^ ((const uint64_t *)at)[i]) * 0x9e3779b97f4a7c15u) ^ (sum >> 29);
}

static uint8_t *area, *guard;
static const struct form *form;
static sigjmp_buf out;
static long faults, left;

static uint8_t *component(uint8_t *state, int number) {
    unsigned a, b, c, d;
    __cpuid_count(0xd, number, a, b, c, d);
    return state + b;
}

// What a thread has that has faulted is in the frame.
static void handler(int signal, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    uint8_t *state = (uint8_t *)uc->uc_mcontext.fpregs;
    (void)signal;
    faults++;
    uint64_t at = (uint8_t *)info->si_addr - area;
    add(&at, 8);
    if (form->masked) {
        uint8_t *data = component(state, 7) + 64 * 2;
        add(data, 64);
        add(component(state, 5) + 8, 8);
    } else {
        // The first sixteen bytes of registers, and the next ones.
        add(state + 160 + 16 * 2, 16);
        add(component(state, 2) + 16 * 2, 16);
        add(state + 160 + 16 * 4, 16);
        add(component(state, 2) + 16 * 4, 16);
    }
    long flags = uc->uc_mcontext.gregs[REG_EFL] & 0x8d5;
    add(&flags, 8);
    if (faults % 3 == 0) {
        left++;
        siglongjmp(out, 1);
    }
    mprotect(guard, PAGE, PROT_READ | PROT_WRITE);
}

static volatile sig_atomic_t alarms;

static void alarmed(int signal) {
    alarms += signal;
}

static void alarm_all_the_time(void) {
    struct sigaction action = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval time = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &time, 0);
}

static long accesses;
static uint64_t addresses;

static int is_active(const struct vector *mask, int lane) {
    if (form->masked)
        return mask->bytes[lane / 8] >> (lane % 8) & 1;
    return mask->bytes[form->size * (lane + 1) - 1] >> 7;
}

// What the form does, in a plain loop.
static void plain(uint8_t *base, struct vector *data, const struct vector *index, struct vector *mask) {
    for (int lane = 0; lane < form->lanes; lane++) {
        int64_t number = 0;
        if (form->index_size == 4)
            number = *(int32_t *)(index->bytes + 4 * lane);
        else
            number = *(int64_t *)(index->bytes + 8 * lane);
        uint8_t *at = base + number * form->scale + 24;
        if (!is_active(mask, lane))
            continue;
        accesses++;
        addresses += (uint64_t)at;
        if (form->stores)
            memcpy(at, data->bytes + form->size * lane, form->size);
        else
            memcpy(data->bytes + form->size * lane, at, form->size);
    }
    if (!form->stores) {
        int used = form->lanes * form->size;
        memset(data->bytes + used, 0, 64 - used);
    }
    memset(mask->bytes, 0, form->masked ? 8 : 32);
}

static void choose(struct vector *index, struct vector *mask, int round) {
    fill(index, 64);
    fill(mask, 64);
    int reach = round % 4 == 3 ? 40 : 3 * PAGE;
    for (int i = 0; i < 64 / form->index_size; i++) {
        int64_t at = ((int64_t)(next() >> 20) % (2 * reach) - reach) / form->scale;
        if (form->index_size == 4)
            ((int32_t *)index->bytes)[i] = at;
        else
            ((int64_t *)index->bytes)[i] = at;
    }
    if (round % 5 == 4)
        memset(mask, round % 2 ? 0xff : 0x7f & (int)next(), 64);
    if (form->masked)
        memset(mask->bytes + 2, 0, 62);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 50;
    int with_faults = argc > 2 && !strcmp(argv[2], "faults");
    find_forms();
    if (argc > 3)
        alarm_all_the_time();
    static uint8_t copy[PAGES * PAGE];
    area = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *base = area + PAGES * PAGE / 2;
    guard = area + 5 * PAGE;
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    // Their values are needed after siglongjmp.
    static int number, round;
    for (number = 0; number < form_count; number++) {
        form = &forms[number];
        sum = 0;
        for (round = 0; round < rounds; round++) {
            struct vector data, index, mask;
            fill(area, PAGES * PAGE);
            fill(&data, 64);
            choose(&index, &mask, round);
            if (!form->masked) {
                // Only half of the register is there.
                memset(data.bytes + 32, 0, 32);
            }
            struct vector plain_data = data, plain_mask = mask;
            memcpy(copy, area, sizeof copy);
            if (with_faults)
                mprotect(guard, PAGE, PROT_NONE);
            int is_left = sigsetjmp(out, 1);
            if (!is_left)
                form->run(base, &data, &index, &mask);
            if (with_faults)
                mprotect(guard, PAGE, PROT_READ | PROT_WRITE);
            add(&data, 64);
            add(&mask, 64);
            add(area, sizeof copy);
            if (is_left)
                continue;
            static uint8_t after[PAGES * PAGE];
            memcpy(after, area, sizeof after);
            memcpy(area, copy, sizeof copy);
            plain(base, &plain_data, &index, &plain_mask);
            if (memcmp(after, area, sizeof after) || memcmp(&data, &plain_data, 64) ||
                memcmp(&mask, &plain_mask, 64)) {
                printf("%s: round %d is wrong\n", form->name, round);
                return 1;
            }
        }
        printf("%s %016lx\n", form->name, sum);
    }
    printf("%d forms, %ld faults, %ld left\n", form_count, faults, left);
    if (!with_faults)
        fprintf(stderr, "%d gathers and scatters, %ld accesses, sum of addresses %#lx\n", rounds * form_count, accesses,
                addresses);
    return 0;
}
