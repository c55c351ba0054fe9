// backtrace() in traced frames: the addresses are those of the callers.
#define _GNU_SOURCE
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>

void look(void), second(int), first(void);
int main(void);

static const struct {
    uintptr_t start;
    const char *name;
} functions[] = {{(uintptr_t)look, "look"}, {(uintptr_t)second, "second"}, {(uintptr_t)first, "first"}, {(uintptr_t)main, "main"}};

static const char *name(uintptr_t address) {
    const char *found = "?";
    uintptr_t nearest = 0;
    for (int i = 0; i < 4; i++)
        if (functions[i].start <= address && functions[i].start > nearest && address - functions[i].start < 300) {
            nearest = functions[i].start;
            found = functions[i].name;
        }
    return found;
}

__attribute__((noipa)) void look(void) {
    void *frames[64];
    int count = backtrace(frames, 64);
    for (int i = 0; i < count; i++)
        printf("%d %s\n", i, name((uintptr_t)frames[i]));
}

__attribute__((noipa)) void second(int n) {
    if (n)
        second(n - 1);
    else
        look();
    __asm__ volatile("");
}

__attribute__((noipa)) void first(void) {
    second(3);
    __asm__ volatile("");
}

int main(void) {
    for (int i = 0; i < 3; i++)
        first();
    return 0;
}
