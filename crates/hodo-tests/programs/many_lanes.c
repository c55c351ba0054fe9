// Many gathers and masked loads and stores, with other masks each time.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int32_t table[128] __attribute__((aligned(64))), place[128], masks[24], out[8];

__attribute__((target("avx2"), noipa)) static void work(int rounds) {
    __m256i index = _mm256_setr_epi32(3, 90, 17, 17, 64, 5, 127, 0), sum = _mm256_setzero_si256();
    for (int i = 0; i < rounds; i++) {
        __m256i mask = _mm256_loadu_si256((void *)(masks + i % 16));
        sum = _mm256_add_epi32(sum, _mm256_mask_i32gather_epi32(sum, table, index, mask, 4));
        sum = _mm256_add_epi32(sum, _mm256_maskload_epi32(table + i % 100, mask));
        _mm256_maskstore_epi32(place + i % 100, mask, sum);
    }
    _mm256_storeu_si256((void *)out, sum);
}

int main(int argc, char **argv) {
    for (int i = 0; i < 128; i++) table[i] = i * i;
    for (int i = 0; i < 24; i++) masks[i] = 0x5b3a71c4 << i % 24;
    if (__builtin_cpu_supports("avx2")) work(argc > 1 ? atoi(argv[1]) : 1000);
    uint32_t sum = 0;
    for (int i = 0; i < 8; i++) sum = sum * 31 + out[i];
    for (int i = 0; i < 128; i++) sum = sum * 31 + place[i];
    printf("%08x\n", sum);
    return 0;
}
