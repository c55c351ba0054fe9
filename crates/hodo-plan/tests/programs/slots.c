// Calls into libraries that are built to go through slots, without the procedure linkage table.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A call, and one in a loop.
__attribute__((noinline)) int calls(const char *text, int n) {
    for (int i = 0; i < n; i++)
        puts(text);
    return (int)strlen(text) + n;
}

// A jump.
__attribute__((noinline)) char *jumps(const char *text) {
    return strdup(text);
}

// The address of a function, which is not a call.
__attribute__((noinline)) int (*picks(int n))(const char *) {
    return n ? puts : system;
}

// A pointer that the program may change.
int (*volatile pointer)(void) = getpid;
__attribute__((noinline)) int by_pointer(void) {
    return pointer() + 1;
}

int main(int argc, char **argv) {
    char *text = jumps(argv[0]);
    return calls(text, argc) == by_pointer() || picks(argc) == system;
}
