// Code in a mapping of its own, far from the rest, that is called directly and changes.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, BEFORE = 1000, AFTER = 2000 };

__attribute__((noinline, section(".far"), aligned(4096))) static int value(int x) {
    __asm__ volatile("");
    return x + BEFORE;
}

// It is entered anew each time, from the same place.
__attribute__((noinline)) static long sum(long count) {
    long sum = 0;
    for (long i = 0; i < count; i++)
        sum += value((int)(i & 7));
    return sum;
}

static int replace(uint8_t *code, uint32_t before, uint32_t after) {
    for (int i = 0; i < 32; i++) {
        if (!memcmp(code + i, &before, 4)) {
            memcpy(code + i, &after, 4);
            return 1;
        }
    }
    return 0;
}

int main(void) {
    uint8_t *code = (uint8_t *)value;
    for (int round = 0; round < 3; round++) {
        printf("%ld\n", sum(100000));
        if (mprotect(code, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC))
            return 1;
        if (!replace(code, round % 2 ? AFTER : BEFORE, round % 2 ? BEFORE : AFTER))
            return 2;
        if (round && mprotect(code, PAGE, PROT_READ | PROT_EXEC))
            return 1;
        printf("%ld\n", sum(100000));
    }
}
