// Calls a tiny function as often as the argument says, and prints the CPU time per call in nanoseconds. With a second
// argument, it first waits for a line of input.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((noipa)) long tiny(long n) { return n + 1; }

// For filters that select other functions.
__attribute__((noipa)) long other(long n) { return n + 2; }

__attribute__((noipa)) long calls(long count) {
    long n = 0;
    for (long i = 0; i < count; i++)
        n = tiny(n);
    return n;
}

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    long count = atol(argv[1]);
    if (argc > 2)
        getchar();
    long n = other(calls(1000));
    double start = seconds();
    n += calls(count);
    printf("%.2f\n", (seconds() - start) * 1e9 / count);
    return n == 0;
}
