// A call tree of which filters show parts.
#include <stdio.h>
#include <time.h>

#define FUNCTION __attribute__((noipa))

FUNCTION int small(int n) { return n; }

FUNCTION int slow(int n) {
    struct timespec time = {0, 3000000};
    nanosleep(&time, NULL);
    return small(n);
}

FUNCTION int large(int n) {
    int a = small(n), b = small(n + 1), c = small(n + 2), d = small(n + 3), e = small(n + 4);
    return a * 3 + b * 5 + c * 7 + d * 9 + e * 11 + (a ^ b) + (c ^ d) + (e ^ a) + (a & c) + (b & d) + (c | e);
}

FUNCTION int left(int n) { return large(n) + small(n); }
FUNCTION int right(int n) { return left(n) + small(n) + slow(n); }

FUNCTION int recursive(int n) { return n ? recursive(n - 1) + small(n) : 0; }

int main(void) {
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += left(i) + right(i) + recursive(5);
    printf("%d\n", sum);
    return 0;
}
