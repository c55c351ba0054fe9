// Recursion, as deep as the argument says.
#include <stdio.h>
#include <stdlib.h>

__attribute__((noipa)) long descend(long n) {
    volatile long here = n;
    return n == 0 ? 0 : descend(n - 1) + (here & 1);
}

int main(int argc, char **argv) {
    printf("%ld\n", descend(atol(argv[1])));
    return 0;
}
