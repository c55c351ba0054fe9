// Functions that call each other, and lines that are executed, a known number of times.
#include <stdio.h>

static volatile int sum;

__attribute__((noinline)) void inner(int n) {
    sum += n;
}

__attribute__((noinline)) void outer(int n) {
    for (int i = 0; i < 3; i++)
        inner(i);
    if (n == 5)
        sum -= 1; // once
}

int main(void) {
    void (*volatile indirect)(int) = outer;
    for (int i = 0; i < 7; i++)
        indirect(i);
    inner(0);
    printf("%d\n", sum);
    return 0;
}
