// What gcc's -fipa-ra does with local functions: callers keep values in registers that the ABI calls clobbered, because
// the callee's body does not change them.
#include <stdio.h>

static long memory[64];

static __attribute__((noinline, noclone)) void leaf(void) { memory[0]++; }
static __attribute__((noinline, noclone)) long leaf_with(long a) { return a + memory[1]++; }

__attribute__((noipa)) long mix(long a, long b, long c, long d, long e, long f, double x, double y) {
    long g = a ^ b, h = c ^ d, i = e ^ f, j = a + f, k = b * e;
    double z = x * y, w = x - y;
    leaf();
    long r = leaf_with(a);
    leaf();
    return r + a + b + c + d + e + f + g + h + i + j + k + (long)(z + w + x + y);
}

int main(void) {
    long sum = 0;
    for (long i = 0; i < 100000; i++)
        sum += mix(i, i + 1, i * 2, i ^ 3, i - 4, i * 5, i * 0.5, i * 0.25);
    printf("%ld %ld\n", sum, memory[0]);
    return 0;
}
