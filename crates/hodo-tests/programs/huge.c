// 5 GiB of data right after the code: almost no room is within 2 GiB of it. Built with the large code model where that
// is needed.
#include <stdio.h>

static char data[5l << 30];

__attribute__((noipa)) long touch(long n) { return ++data[n << 20]; }

int main(void) {
    long sum = 0;
    for (long i = 0; i < 5000; i++)
        sum += touch(i);
    printf("%ld\n", sum);
    return 0;
}
