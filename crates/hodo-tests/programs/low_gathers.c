// Gathers and scatters without a base register: the addresses are indices and a number, which is that of a table at a low
// address. Prints what was loaded and what is in the table then.
#include <stdint.h>
#include <stdio.h>

int32_t table[64];
int64_t wide[64];
static int32_t index32[16] __attribute__((aligned(64))) = {3, 10, 7, 2, 50, 51, 9, 20, 1, 5, 63, 4, 22, 60, 0, 33};
static int64_t index64[8] __attribute__((aligned(64))) = {5, 9, 1, 30, 8, 7, 6, 40};
static int32_t mask[16] __attribute__((aligned(64))) = {-1, 0, -1, -1, 0x7fffffff, -1, 0, -1};

static void show(const char *name, const void *at, int words) {
    printf("%s", name);
    for (int i = 0; i < words; i++)
        printf(" %lx", ((const long *)at)[i]);
    puts("");
}

__attribute__((target("avx2"), noipa)) static void avx2(int32_t *to) {
    __asm__ volatile("vpxor %%xmm2, %%xmm2, %%xmm2\n\tvmovdqa %1, %%ymm3\n\tvmovdqa %2, %%ymm4\n\t"
                     "vpgatherdd %%ymm4, table(,%%ymm3,4), %%ymm2\n\tvmovdqu %%ymm2, (%0)"
                     :
                     : "r"(to), "m"(*(char(*)[32])index32), "m"(*(char(*)[32])mask)
                     : "memory", "xmm2", "xmm3", "xmm4");
    show("gather", to, 4);
    __asm__ volatile("vpxor %%xmm2, %%xmm2, %%xmm2\n\tvmovdqa %1, %%ymm3\n\tvpcmpeqd %%ymm4, %%ymm4, %%ymm4\n\t"
                     "vpgatherqq %%ymm4, wide+8(,%%ymm3,8), %%ymm2\n\tvmovdqu %%ymm2, (%0)"
                     :
                     : "r"(to), "m"(*(char(*)[32])index64)
                     : "memory", "xmm2", "xmm3", "xmm4");
    show("gather", to, 4);
}

__attribute__((target("avx512f"), noipa)) static void avx512(int32_t *to) {
    __asm__ volatile("vmovdqu32 (%0), %%zmm18\n\tvmovdqa32 %1, %%zmm19\n\tmovl $0xb35d, %%eax\n\tkmovw %%eax, %%k1\n\t"
                     "vpscatterdd %%zmm18, table(,%%zmm19,4)%{%%k1%}"
                     :
                     : "r"(to), "m"(*(char(*)[64])index32)
                     : "memory", "eax");
    show("scatter", table, 32);
}

int main(void) {
    static int32_t to[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    for (int i = 0; i < 64; i++) {
        table[i] = i * 0x1010101;
        wide[i] = i * 0x101010101010101;
    }
    if (__builtin_cpu_supports("avx512f"))
        avx512(to);
    if (__builtin_cpu_supports("avx2"))
        avx2(to);
    return 0;
}
