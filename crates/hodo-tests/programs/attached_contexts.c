// Coroutines that switch stacks with a jump to swapcontext, so that the saved context continues in their caller; until
// the input ends.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

enum { COUNT = 16, SIZE = 65536 };
static volatile int ending;
static int wrong;

struct routine {
    ucontext_t own, *back;
    long rounds, result;
};
static struct routine all[COUNT];

__attribute__((noipa)) long leaf(long n) { return n * 3 + 1; }

// Nothing follows the call, so compilers make it a jump.
__attribute__((noipa, optimize("O2", "optimize-sibling-calls"))) int yield(struct routine *routine) {
    return swapcontext(&routine->own, routine->back);
}

__attribute__((noipa)) long recursion(struct routine *routine, long depth) {
    if (depth == 0) {
        yield(routine);
        return leaf(0);
    }
    long below = recursion(routine, depth - 1);
    __asm__ volatile("");
    return below + leaf(depth);
}

static void run(int number) {
    struct routine *routine = &all[number];
    for (;;) {
        routine->result = recursion(routine, 6);
        routine->rounds++;
        yield(routine);
    }
}

static void *calls(void *unused) {
    ucontext_t here;
    for (long n = 0; !ending; n++) {
        struct routine *routine = &all[n * 7 % COUNT];
        routine->back = &here;
        swapcontext(&here, &routine->own);
        if (routine->rounds && routine->result != 70)
            wrong++;
        if (n % 1000 == 0)
            usleep(100);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < COUNT; i++) {
        getcontext(&all[i].own);
        all[i].own.uc_stack.ss_sp = malloc(SIZE);
        all[i].own.uc_stack.ss_size = SIZE;
        makecontext(&all[i].own, (void (*)(void))run, 1, i);
    }
    pthread_create(&thread, NULL, calls, NULL);
    puts("begun");
    while (read(0, &byte, 1) > 0)
        ;
    ending = 1;
    pthread_join(thread, NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
