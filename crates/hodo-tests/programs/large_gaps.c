// Reserves almost as much as an address space has room for, and maps memory at round addresses of its choice.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE (1ul << 20)

__attribute__((noipa)) int fib(int n) { return n < 2 ? 1 : fib(n - 1) + fib(n - 2); }

int main(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // Alone, 86 TiB are possible: all that is below the program.
    unsigned long large = 78ul << 40;
    void *reserved = mmap(NULL, large, PROT_NONE, flags, -1, 0);
    printf("reserved %d\n", reserved != MAP_FAILED);
    if (reserved != MAP_FAILED)
        munmap(reserved, large);
    for (unsigned long top = 0x0800; top < 0x5000; top += 0x0800) {
        char *wanted = (char *)(top << 32);
        char *got = mmap(wanted, SIZE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0);
        if (got != wanted)
            printf("not at %p\n", wanted);
        else
            memset(got, 0x55, SIZE);
    }
    printf("%d\n", fib(20));
    return 0;
}
