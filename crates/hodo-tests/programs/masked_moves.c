// Random masked loads and stores of all forms that the processor has, compared with a plain loop. With "faults", they lie
// across two pages of which one cannot be accessed: a handler looks whether anything has been stored by then, and makes
// the page accessible; and where an address must be aligned, it is not in some rounds, and the handler leaves. With a third argument, a timer sends a signal all the time. Prints a sum for each form, and to the
// standard error output, how many elements were accessed.
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#define PAGE 4096

struct vector {
    _Alignas(64) uint8_t bytes[64];
};

typedef void function(uint8_t *base, long index, struct vector *data, struct vector *mask);

// Sets all flags: they must stay as they are.
#define FLAGS "movl $0xd77f, %%eax\n\tincb %%al\n\tsahf\n\t"
#define KEPT "\n\tlahf\n\tmovb %%ah, 63(%3)"

// The data is in zmm18 or ymm2, and the mask in k1 or ymm4.
#define EVEX(name, reg, operands, kind)                                                                                \
    static void name##_##reg##_##kind(uint8_t *base, long index, struct vector *data, struct vector *mask) {           \
        asm volatile("vmovdqu64 (%2), %%zmm18\n\tkmovq (%3), %%k1\n\t" FLAGS #name " " operands                        \
                     "\n\tvmovdqu64 %%zmm18, (%2)\n\tkmovq %%k1, (%3)" KEPT                                            \
                     :                                                                                                 \
                     : "r"(base), "r"(index), "r"(data), "r"(mask)                                                     \
                     : "memory", "eax", "cc");                                                                         \
    }
#define ALL_EVEX(name, reg)                                                                                            \
    EVEX(name, reg, "24(%0,%1,2), %%" #reg "18%{%%k1%}", merges)                                                       \
    EVEX(name, reg, "-8(%0,%1), %%" #reg "18%{%%k1%}%{z%}", zeroes)                                                    \
    EVEX(name, reg, "%%" #reg "18, 24(%0,%1,2)%{%%k1%}", stores)
#define WIDTHS(name) ALL_EVEX(name, xmm) ALL_EVEX(name, ymm) ALL_EVEX(name, zmm)

#define VEX(name, reg, operands, kind)                                                                                 \
    static void name##_##reg##_##kind(uint8_t *base, long index, struct vector *data, struct vector *mask) {           \
        asm volatile("vmovdqu (%2), %%ymm2\n\tvmovdqu (%3), %%ymm4\n\t" FLAGS #name " " operands                       \
                     "\n\tvmovdqu %%ymm2, (%2)\n\tvmovdqu %%ymm4, (%3)" KEPT                                           \
                     :                                                                                                 \
                     : "r"(base), "r"(index), "r"(data), "r"(mask)                                                     \
                     : "memory", "xmm2", "xmm4", "eax", "cc");                                                         \
    }
#define ALL_VEX(name, reg)                                                                                             \
    VEX(name, reg, "24(%0,%1,2), %%" #reg "4, %%" #reg "2", vex_loads)                                                 \
    VEX(name, reg, "%%" #reg "2, %%" #reg "4, 24(%0,%1,2)", vex_stores)

#define LOADS(name, reg)                                                                                               \
    EVEX(name, reg, "24(%0,%1,2), %%" #reg "18%{%%k1%}", merges)                                                       \
    EVEX(name, reg, "-8(%0,%1), %%" #reg "18%{%%k1%}%{z%}", zeroes)
#define STORES(name, reg) EVEX(name, reg, "%%" #reg "18, 24(%0,%1,2)%{%%k1%}", stores)
#define PACKED(load, store)                                                                                            \
    LOADS(load, xmm) LOADS(load, ymm) LOADS(load, zmm) STORES(store, xmm) STORES(store, ymm) STORES(store, zmm)
PACKED(vpexpandb, vpcompressb) PACKED(vpexpandw, vpcompressw) PACKED(vpexpandd, vpcompressd)
PACKED(vpexpandq, vpcompressq) PACKED(vexpandps, vcompressps) PACKED(vexpandpd, vcompresspd)
WIDTHS(vmovdqa32) WIDTHS(vmovdqa64) WIDTHS(vmovaps) WIDTHS(vmovapd)

// The address is in rdi.
#define BYTES(name)                                                                                                    \
    static void name##_xmm_bytes(uint8_t *base, long index, struct vector *data, struct vector *mask) {                \
        asm volatile("vmovdqu (%2), %%ymm2\n\tvmovdqu (%3), %%ymm4\n\t" FLAGS #name " %%xmm4, %%xmm2"                  \
                     "\n\tvmovdqu %%ymm2, (%2)\n\tvmovdqu %%ymm4, (%3)" KEPT                                           \
                     :                                                                                                 \
                     : "D"(base + 24 + 2 * index), "r"(index), "r"(data), "r"(mask)                                    \
                     : "memory", "xmm2", "xmm4", "eax", "cc");                                                         \
    }
BYTES(maskmovdqu) BYTES(vmaskmovdqu)

WIDTHS(vmovdqu8) WIDTHS(vmovdqu16) WIDTHS(vmovdqu32) WIDTHS(vmovdqu64) WIDTHS(vmovups) WIDTHS(vmovupd)
ALL_VEX(vmaskmovps, xmm) ALL_VEX(vmaskmovps, ymm) ALL_VEX(vmaskmovpd, xmm) ALL_VEX(vmaskmovpd, ymm)
ALL_VEX(vpmaskmovd, xmm) ALL_VEX(vpmaskmovd, ymm) ALL_VEX(vpmaskmovq, xmm) ALL_VEX(vpmaskmovq, ymm)

enum kind { merges, zeroes, stores, vex_loads, vex_stores, bytes };

struct form {
    const char *name;
    function *run;
    int size, len;
    enum kind kind;
    int packed, aligned;
};

#define ONE(name, reg, kind, size, len, ...) {#name " " #reg " " #kind, name##_##reg##_##kind, size, len, kind, __VA_ARGS__}
#define THREE(name, reg, size, len)                                                                                    \
    ONE(name, reg, merges, size, len), ONE(name, reg, zeroes, size, len), ONE(name, reg, stores, size, len)
#define FORMS(name, size) THREE(name, xmm, size, 16), THREE(name, ymm, size, 32), THREE(name, zmm, size, 64)
#define TWO(name, reg, size, len) ONE(name, reg, vex_loads, size, len), ONE(name, reg, vex_stores, size, len)
#define ALIGNED_THREE(name, reg, size, len)                                                                            \
    ONE(name, reg, merges, size, len, 0, 1), ONE(name, reg, zeroes, size, len, 0, 1),                                  \
        ONE(name, reg, stores, size, len, 0, 1)
#define ALIGNED(name, size)                                                                                            \
    ALIGNED_THREE(name, xmm, size, 16), ALIGNED_THREE(name, ymm, size, 32), ALIGNED_THREE(name, zmm, size, 64)
#define PACKED_THREE(load, store, reg, size, len)                                                                      \
    ONE(load, reg, merges, size, len, 1, 0), ONE(load, reg, zeroes, size, len, 1, 0),                                  \
        ONE(store, reg, stores, size, len, 1, 0)
#define PACKED_FORMS(load, store, size)                                                                                \
    PACKED_THREE(load, store, xmm, size, 16), PACKED_THREE(load, store, ymm, size, 32),                                \
        PACKED_THREE(load, store, zmm, size, 64)
#define VEX_FORMS(name, size) TWO(name, xmm, size, 16), TWO(name, ymm, size, 32)

static const struct form forms[] = {
    VEX_FORMS(vmaskmovps, 4), VEX_FORMS(vmaskmovpd, 8), VEX_FORMS(vpmaskmovd, 4), VEX_FORMS(vpmaskmovq, 8),
    FORMS(vmovdqu8, 1),       FORMS(vmovdqu16, 2),      FORMS(vmovdqu32, 4),      FORMS(vmovdqu64, 8),
    FORMS(vmovups, 4),        FORMS(vmovupd, 8),
    ALIGNED(vmovdqa32, 4),    ALIGNED(vmovdqa64, 8),    ALIGNED(vmovaps, 4),      ALIGNED(vmovapd, 8),
    PACKED_FORMS(vpexpandb, vpcompressb, 1), PACKED_FORMS(vpexpandw, vpcompressw, 2),
    PACKED_FORMS(vpexpandd, vpcompressd, 4), PACKED_FORMS(vpexpandq, vpcompressq, 8),
    PACKED_FORMS(vexpandps, vcompressps, 4), PACKED_FORMS(vexpandpd, vcompresspd, 8),
    ONE(maskmovdqu, xmm, bytes, 1, 16), ONE(vmaskmovdqu, xmm, bytes, 1, 16),
};

static uint8_t *pages, copy[3 * PAGE];
static volatile long faults, partial, ticks, misaligned;
static volatile int is_packed, is_bytes;
static sigjmp_buf out;
static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void fill(void *at, size_t size) {
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)at)[i] = next();
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_code == SI_KERNEL) {
        misaligned++;
        siglongjmp(out, 1);
    }
    // Whether maskmovdqu touches a page in which it stores nothing depends on the processor.
    faults += !is_bytes;
    uintptr_t page = (uintptr_t)info->si_addr & -PAGE;
    if (mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE))
        _Exit(9);
    // Processors may store compressed elements one by one.
    partial += !is_packed && memcmp(pages, copy, sizeof copy) != 0;
}

static void tick(int signal) {
    (void)signal;
    ticks++;
}

int main(int count, char **arguments) {
    int rounds = atoi(arguments[1]), with_faults = count > 2 && !strcmp(arguments[2], "faults");
    long elements = 0, wrong = 0, moves = 0;
    pages = mmap(NULL, sizeof copy, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    if (count > 3) {
        struct sigaction ticking = {.sa_handler = tick, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &ticking, NULL);
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 700}, {0, 700}}, NULL);
    }
    int has_avx2 = __builtin_cpu_supports("avx2"), has_avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    int has_vbmi2 = __builtin_cpu_supports("avx512vbmi2");
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        const struct form *f = &forms[form];
        int is_vex = f->kind >= vex_loads, is_store = f->kind == stores || f->kind >= vex_stores;
        if (is_vex ? !has_avx2 : !has_avx512 || f->packed && f->size < 4 && !has_vbmi2)
            continue;
        uint64_t sum = 0;
        is_packed = f->packed;
        is_bytes = f->kind == bytes;
        for (int round = 0; round < rounds; round++) {
            struct vector data, mask, expected, after;
            fill(&data, sizeof data);
            fill(&mask, sizeof mask);
            if (next() % 4 == 0)
                memset(&mask, next() % 2 ? 0xFF : 0, sizeof mask);
            fill(pages, sizeof copy);
            int lanes = f->len / f->size;
            // Around the end of the first page.
            uint8_t *at = pages + PAGE + (long)(next() % 160) - 80;
            long index = (long)(next() % 200) - 100;
            if (f->aligned && !(with_faults && next() % 8 == 0))
                at = (uint8_t *)((uintptr_t)at & -f->len);
            uint8_t *base = f->kind == zeroes ? at + 8 - index : at - 24 - 2 * index;
            expected = data;
            after = mask;
            memcpy(copy, pages, sizeof copy);
            if (!is_store)
                memset(expected.bytes + f->len, 0, 64 - f->len);
            static uint8_t stored[3 * PAGE];
            memcpy(stored, pages, sizeof stored);
            int rank = 0;
            for (int lane = 0; lane < lanes; lane++) {
                int offset = lane * f->size;
                int active = is_vex ? mask.bytes[offset + f->size - 1] >> 7 : mask.bytes[lane / 8] >> lane % 8 & 1;
                int place = f->packed ? f->size * rank : offset;
                elements += active;
                rank += active;
                if (active && is_store)
                    memcpy(stored + (at - pages) + place, data.bytes + offset, f->size);
                else if (active)
                    memcpy(expected.bytes + offset, at + place, f->size);
                else if (f->kind == zeroes || f->kind == vex_loads)
                    memset(expected.bytes + offset, 0, f->size);
            }
            if (is_vex)
                memcpy(expected.bytes + 32, data.bytes + 32, 32);
            if (with_faults)
                mprotect(pages + next() % 2 * PAGE, PAGE, is_store && next() % 2 ? PROT_READ : PROT_NONE);
            if (sigsetjmp(out, 1) == 0)
                f->run(base, index, &data, &mask);
            else
                expected = data, after = mask, memcpy(stored, copy, sizeof copy), mask.bytes[63] = 0xD7;
            mprotect(pages, sizeof copy, PROT_READ | PROT_WRITE);
            after.bytes[63] = 0xD7;
            wrong += memcmp(&data, &expected, sizeof data) != 0 || memcmp(&mask, &after, sizeof mask) != 0;
            wrong += memcmp(pages, is_store ? stored : copy, sizeof copy) != 0;
            moves++;
            for (int i = 0; i < 64; i++)
                sum = sum * 31 + data.bytes[i];
        }
        printf("%s %016lx\n", f->name, sum);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    printf("wrong %ld, partial %ld\n", wrong, partial);
    if (!with_faults)
        fprintf(stderr, "%ld masked loads and stores, %ld accesses\n", moves, elements);
    else
        printf("faults %ld, misaligned %ld\n", faults, misaligned);
    return 0;
}
