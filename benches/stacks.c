/* Calls leaf() as often as the argument says, twenty frames deep. */
#include <stdlib.h>

static volatile long sum;

__attribute__((noinline)) void leaf(long n) { sum += n; }

__attribute__((noinline)) void down(int depth, long calls) {
    if (depth > 0)
        down(depth - 1, calls);
    else
        for (long n = 0; n < calls; n++)
            leaf(n);
    sum++;
}

int main(int count, char **arguments) {
    down(17, count > 1 ? atol(arguments[1]) : 1);
    return 0;
}
