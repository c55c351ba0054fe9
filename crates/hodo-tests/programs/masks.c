// Instructions that access the elements that a mask selects. Prints what each should access: the address of the
// instruction, 0 for a load or 1 for a store, the address of the access, and its size.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>

static int32_t table[256] __attribute__((aligned(64)));
static int64_t wide[64] __attribute__((aligned(64)));
static int32_t index32[16] __attribute__((aligned(64))) = {3, 100, 7, -2, 50, 51, 9, 200, 1, 2, 3, 4, 90, 80, 70, 60};
static int64_t index64[8] __attribute__((aligned(64))) = {5, 9, -1, 30, 8, 7, 6, 40};
static int32_t mask32[16] __attribute__((aligned(64))) = {-1, 0, -1, -1, 0x7fffffff, -1, 0, 0};
static int64_t mask64[8] __attribute__((aligned(64))) = {0, -1, -1, 0};
static unsigned char mask8[16] __attribute__((aligned(64))) = {0x80, 0x80, 0, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x80};

#define SHOW(label, kind, address, size) \
    do { \
        extern char label[]; \
        printf("%lx %d %lx %d\n", (long)label, kind, (long)(address), size); \
    } while (0)

__attribute__((target("avx2"), noipa)) static void avx2(void) {
    __m256i indices = _mm256_load_si256((void *)index32), mask = _mm256_load_si256((void *)mask32), to = mask;
    __asm__ volatile("gather32: vpgatherdd %1, 8(%2,%3,4), %0" : "+x"(to), "+x"(mask) : "r"(table + 10), "x"(indices) : "memory");
    for (int i = 0; i < 8; i++)
        if (mask32[i] < 0) SHOW(gather32, 0, table + 12 + index32[i], 4);
    __m256i far = _mm256_load_si256((void *)index64);
    mask = _mm256_load_si256((void *)mask64);
    __asm__ volatile("gather64: vpgatherqq %1, (%2,%3,8), %0" : "+x"(to), "+x"(mask) : "r"(wide + 2), "x"(far) : "memory");
    for (int i = 0; i < 4; i++)
        if (mask64[i] < 0) SHOW(gather64, 0, wide + 2 + index64[i], 8);
    __m128i narrow = _mm_load_si128((void *)mask32), got = narrow;
    __asm__ volatile("gathernarrow: vpgatherqd %1, (%3,%2,4), %0" : "+x"(got), "+x"(narrow) : "x"(far), "r"(table) : "memory");
    for (int i = 0; i < 4; i++)
        if (mask32[i] < 0) SHOW(gathernarrow, 0, table + index64[i], 4);
    mask = _mm256_load_si256((void *)mask32);
    __asm__ volatile("maskload: vpmaskmovd 4(%1), %2, %0" : "=x"(to) : "r"(table), "x"(mask) : "memory");
    __asm__ volatile("maskstore: vmaskmovps %0, %2, (%1)" ::"x"(to), "r"(table + 40), "x"(mask) : "memory");
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < 8; i++) {
            int run = i;
            while (run < 8 && mask32[run] < 0) run++;
            if (run == i) continue;
            if (kind) SHOW(maskstore, 1, table + 40 + i, 4 * (run - i));
            else SHOW(maskload, 0, table + 1 + i, 4 * (run - i));
            i = run;
        }
    __m128i bytes = _mm_load_si128((void *)mask8);
    __asm__ volatile("bytes: maskmovdqu %1, %0" ::"x"(bytes), "x"(bytes), "D"(wide + 7) : "memory");
    SHOW(bytes, 1, wide + 7, 2);
    SHOW(bytes, 1, (char *)(wide + 7) + 3, 1);
    SHOW(bytes, 1, (char *)(wide + 7) + 12, 4);
}

__attribute__((target("avx512f,avx512bw"), noipa)) static void avx512(void) {
    __m512i indices = _mm512_load_si512(index32), to = indices;
    __mmask16 some = 0xa5f3, mask = some;
    __asm__ volatile("vmovdqa64 %2, %%zmm20; gather512: vpgatherdd 4(%1,%%zmm20,4), %0%{%3%}" : "+v"(to) : "r"(table), "v"(indices), "Yk"(mask) : "memory", "xmm20");
    for (int i = 0; i < 16; i++)
        if (some >> i & 1) SHOW(gather512, 0, table + 1 + index32[i], 4);
    __asm__ volatile("scatter512: vpscatterdd %0, (%1,%2,4)%{%3%}" ::"v"(to), "r"(table + 2), "v"(indices), "Yk"(mask) : "memory");
    for (int i = 0; i < 16; i++)
        if (some >> i & 1) SHOW(scatter512, 1, table + 2 + index32[i], 4);
    __asm__ volatile("masked512: vmovdqu32 %0, (%1)%{%2%}" ::"v"(to), "r"(table + 64), "Yk"(mask) : "memory");
    SHOW(masked512, 1, table + 64, 8);
    SHOW(masked512, 1, table + 68, 20);
    SHOW(masked512, 1, table + 74, 4);
    SHOW(masked512, 1, table + 77, 4);
    SHOW(masked512, 1, table + 79, 4);
    __asm__ volatile("compress512: vpcompressd %0, (%1)%{%2%}" ::"v"(to), "r"(table + 100), "Yk"(mask) : "memory");
    int at = 0;
    for (int i = 0; i < 16; i++) {
        int run = i;
        while (run < 16 && some >> run & 1) run++;
        if (run > i) SHOW(compress512, 1, table + 100 + at, 4 * (run - i));
        at += run - i;
        i = run;
    }
    __asm__ volatile("full512: vmovdqu64 (%1), %0" : "=v"(to) : "r"(table + 101) : "memory");
    SHOW(full512, 0, table + 101, 64);
}

int main(void) {
    if (__builtin_cpu_supports("avx2")) avx2();
    if (__builtin_cpu_supports("avx512bw")) avx512();
    return 0;
}
