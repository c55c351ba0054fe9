// Loops whose cache misses are known: `walk` reads a megabyte once, `again` reads a small array many times.
#include <stdio.h>

static long big[1 << 17] __attribute__((aligned(4096))), small[512] __attribute__((aligned(4096)));

__attribute__((noipa)) long walk(void) {
    long sum = 0;
    for (int i = 0; i < 1 << 17; i++)
        sum += big[i];
    return sum;
}

__attribute__((noipa)) long again(void) {
    long sum = 0;
    for (int round = 0; round < 100; round++)
        for (int i = 0; i < 512; i++)
            sum += small[i]++;
    return sum;
}

int main(void) {
    for (int i = 0; i < 1 << 17; i += 8)
        big[i] = i;
    printf("%ld %ld\n", walk(), again());
    return 0;
}
