// Data of 5 GiB right after the code: nearly no room within 2 GiB of it. Built with the large code model where it takes that.
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
