// Tail calls: two functions that jump to each other, and two that jump through pointers, a million times each.
#include <stdio.h>

typedef long (*function)(long);
static function volatile table[2];

__attribute__((noipa)) long even(long n);
__attribute__((noipa)) long odd(long n) { return n == 0 ? 0 : even(n - 1); }
__attribute__((noipa)) long even(long n) { return n == 0 ? 1 : odd(n - 1); }
__attribute__((noipa)) long first(long n) { return n == 0 ? 7 : table[n & 1](n - 1); }
__attribute__((noipa)) long second(long n) { return n == 0 ? 8 : table[n & 1](n - 1); }

int main(void) {
    table[0] = first;
    table[1] = second;
    printf("%ld %ld\n", even(1000000), first(1000000));
    return 0;
}
