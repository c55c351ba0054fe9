// Built with sites that the compiler prepares for tracers: -pg, -fpatchable-function-entry, -finstrument-functions,
// XRay, ….
#include <stdio.h>

__attribute__((noinline)) int leaf(int n) {
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline)) int middle(int n) {
    int m = leaf(n);
    __asm__ volatile("" : "+r"(m));
    return leaf(m);
}

// A body that is long enough for XRay.
__attribute__((noinline)) double average(const double *values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i] * values[i] + i;
#if defined(__riscv)
    __asm__ volatile("" : "+f"(sum));
#elif defined(__aarch64__)
    __asm__ volatile("" : "+w"(sum));
#else
    __asm__ volatile("" : "+x"(sum));
#endif
    return sum / n;
}

int main(int argc, char **argv) {
    int n = 0;
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum = 0;
    for (int i = 0; i < 1000; i++) {
        n = middle(n);
        sum += average(values, 8);
    }
    printf("%d %g\n", n, sum);
    return 0;
}
