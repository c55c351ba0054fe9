// Gathers of AVX2 in a loop that does little else: indices are computed in vectors. Arguments: how many, and "all" or
// "some" for the lanes that are active. Prints a sum of what was gathered, and to the standard error output, how many
// gathers and how many accesses of lanes there were.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2"), noinline))

static int32_t table[4096];

// The next indices are bits of random numbers.
#define NEXT(numbers)                                                                                                  \
    _mm256_add_epi32(_mm256_mullo_epi32(numbers, _mm256_set1_epi32(1664525)), _mm256_set1_epi32(1013904223))

AVX2 static long total(__m256i lanes) {
    uint32_t each[8];
    _mm256_storeu_si256((void *)each, lanes);
    long sum = 0;
    for (int lane = 0; lane < 8; lane++)
        sum += each[lane];
    return sum;
}

#define START _mm256_setr_epi32(1, 22, 333, 4444, 55555, 666666, 7777777, 88888888)

AVX2 long gather_all(long count, __m256i *sum) {
    __m256i numbers = START, all = _mm256_setzero_si256();
    for (long i = 0; i < count; i++) {
        numbers = NEXT(numbers);
        __m256i got = _mm256_i32gather_epi32(table, _mm256_srli_epi32(numbers, 20), 4);
        all = _mm256_add_epi32(all, got);
    }
    *sum = all;
    return 8 * count;
}

AVX2 long gather_some(long count, __m256i *sum) {
    __m256i numbers = START, all = _mm256_setzero_si256(), active = all;
    for (long i = 0; i < count; i++) {
        numbers = NEXT(numbers);
        __m256i index = _mm256_and_si256(_mm256_srli_epi32(numbers, 16), _mm256_set1_epi32(4095));
        __m256i got = _mm256_mask_i32gather_epi32(numbers, table, index, numbers, 4);
        all = _mm256_add_epi32(all, got);
        active = _mm256_add_epi32(active, _mm256_srli_epi32(numbers, 31));
    }
    *sum = all;
    return total(active);
}

AVX2 int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000000;
    for (int i = 0; i < 4096; i++)
        table[i] = i * 2654435761u;
    __m256i sum;
    long accesses = argc > 2 && !strcmp(argv[2], "some") ? gather_some(count, &sum) : gather_all(count, &sum);
    printf("%lx\n", total(sum));
    fprintf(stderr, "%ld gathers and scatters, %ld accesses\n", count, accesses);
    return 0;
}
