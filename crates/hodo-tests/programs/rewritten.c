// Code that is made and changed while the program runs.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int function(void);

// mov eax, NUMBER; ret
static void put(unsigned char *at, int number) {
    at[0] = 0xB8;
    memcpy(at + 1, &number, 4);
    at[5] = 0xC3;
}

static unsigned char *page(int protection) {
    return mmap(0, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int __attribute__((noinline, aligned(4096))) victim(void) {
    volatile int one = 1;
    return one;
}

int main(void) {
    unsigned char *both = page(PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int round = 0; round < 5; round++) {
        put(both, round);
        put(both + 64, 10 * round);
        printf("%d %d\n", ((function *)both)(), ((function *)(both + 64))());
    }
    unsigned char *turns = page(PROT_READ | PROT_WRITE);
    for (int round = 0; round < 3; round++) {
        put(turns, 100 + round);
        mprotect(turns, 4096, PROT_READ | PROT_EXEC);
        printf("%d\n", ((function *)turns)());
        mprotect(turns, 4096, PROT_READ | PROT_WRITE);
    }
    printf("%d\n", victim());
    void *text = (void *)((uintptr_t)victim & -4096);
    mprotect(text, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
    put((unsigned char *)victim, 42);
    printf("%d\n", victim());
    mprotect(text, 4096, PROT_READ | PROT_EXEC);
    printf("%d\n", victim());
    // The next code at the same place is another one.
    munmap(turns, 4096);
    turns = mmap(turns, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    put(turns, 7);
    printf("%d\n", ((function *)turns)());
    return 0;
}
