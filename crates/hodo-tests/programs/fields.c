/* Variables with parts. */
#include <stdio.h>

struct inner {
    int first;
    struct {
        short second, third;
    };
};

struct outer {
    struct inner inner[3];
    int grid[2][3];
    const volatile struct inner *pointer;
    char text[8];
};

struct outer table[2];
static volatile long number;
static __thread volatile long own;

int main(void) {
    number++;
    own++;
    printf("%p %ld\n", (void *)&table[1].inner[1], number + own);
    return 0;
}
