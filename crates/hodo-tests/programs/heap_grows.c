// Moves the end of its heap as far as an allocator may.
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) void *more(intptr_t bytes) { return sbrk(bytes); }

int main(void) {
    for (int i = 0; i < 6; i++) {
        char *at = more(16 << 20);
        if (at == (char *)-1)
            return printf("%d: the heap does not grow\n", i), 1;
        at[0] = at[(16 << 20) - 1] = 1;
    }
    puts("96 MiB");
    return 0;
}
