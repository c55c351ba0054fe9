// Calls a small function as many times as its argument says.
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) unsigned leaf(unsigned x) {
    __asm__ volatile("");
    return x * 3 + 1;
}

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 1000;
    unsigned sum = 0;
    for (long i = 0; i < calls; i++)
        sum += leaf((unsigned)i);
    printf("%u\n", sum);
    return 0;
}
