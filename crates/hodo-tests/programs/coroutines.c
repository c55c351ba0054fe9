// Three coroutines by swapcontext, one on a small stack, with traced frames open across every switch.
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static ucontext_t back, routines[3];
static int steps;

__attribute__((noipa)) int step(int i) { return ++steps + i - i; }

__attribute__((noipa)) void pause_in(int id, int depth) {
    if (depth == 0)
        swapcontext(&routines[id], &back);
    else
        pause_in(id, depth - 1);
    __asm__ volatile("");
}

__attribute__((noipa)) void routine(int id) {
    for (int i = 0; i < 1000; i++) {
        step(i);
        pause_in(id, i % 5);
    }
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        size_t size = i == 0 ? 16384 : 1 << 20;
        getcontext(&routines[i]);
        routines[i].uc_stack.ss_sp = malloc(size);
        routines[i].uc_stack.ss_size = size;
        routines[i].uc_link = &back;
        makecontext(&routines[i], (void (*)(void))routine, 1, i);
    }
    for (int round = 0; round <= 1000; round++)
        for (int i = 0; i < 3; i++)
            swapcontext(&back, &routines[i]);
    printf("%d\n", steps);
    return 0;
}
