/* See recursion.S. */
#include <stdio.h>

long early(long depth);

int main(void) {
    printf("%ld\n", early(100));
    return 0;
}
