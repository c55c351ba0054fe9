/* Functions of several shapes, and calls into the C library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION __attribute__((noinline, noclone))

static volatile int counter;

FUNCTION int empty(void) { return 0; }

FUNCTION int leaf(int a) {
    counter += a;
    return a * 3 + 1;
}

FUNCTION int branches(int a) {
    switch (a) {
    case 0: return leaf(7);
    case 1: return leaf(a + 1) * 2;
    case 2: puts("two"); return 2;
    case 3: return 99;
    case 4: return leaf(4) ^ 3;
    case 5: counter++; return 5;
    default: return leaf(1) + a;
    }
}

FUNCTION int tail(int a) { return leaf(a + counter); }

FUNCTION long loop(const int *p, long n) {
    long sum = 0;
    while (n--)
        sum += *p++;
    return sum;
}

FUNCTION void *caller(void) {
    counter++;
    return __builtin_return_address(0);
}

#ifdef OWN_PROFILER
void __attribute__((no_instrument_function)) __cyg_profile_func_enter(void *f, void *c) { counter += f != c; }
void __attribute__((no_instrument_function)) __cyg_profile_func_exit(void *f, void *c) { counter -= f != c; }
#endif

#ifdef OWN_MCOUNT
void __attribute__((no_instrument_function)) OWN_MCOUNT(void) {}
#endif

int main(int argc, char **argv) {
    int v[4] = {1, 2, 3, argc};
    char *copy = strdup(argv[0]);
    printf("%d %ld %d %d %s\n", branches(argc), loop(v, 4), tail(3), empty(), copy);
    free(copy);
    return caller() == 0;
}
