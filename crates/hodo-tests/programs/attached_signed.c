// Recursion that begins at a byte of input, and waits at its deepest point until the input ends.
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) long await_end(void) {
    char byte;
    write(1, "deep\n", 5);
    while (read(0, &byte, 1) > 0)
        ;
    return 7;
}

long odd(long depth);

__attribute__((noipa)) long even(long depth) {
    long below = depth == 0 ? await_end() : odd(depth - 1);
    return below * 3 + depth;
}

// Its frame has another size at each depth.
__attribute__((noipa)) long odd(long depth) {
    char room[depth * 24];
    __asm__ volatile("" : : "r"(room) : "memory");
    return even(depth - 1) ^ depth;
}

int main(void) {
    char byte;
    puts("begun");
    fflush(stdout);
    read(0, &byte, 1);
    printf("%ld\n", even(20));
    return 0;
}
