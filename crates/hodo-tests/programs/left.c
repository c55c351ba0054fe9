// Calls that are left in other ways than by returning, and a tree of them that the program keeps itself: it prints the
// depth and the name of each of its own functions that is called, in order.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
#define EXTERN extern "C"
#else
#define EXTERN
#endif
#define FN EXTERN __attribute__((noinline, noclone)) void

static struct { int depth; const char *name; } tree[10000];
static volatile int count, depth;

#define IN(what) \
    const int mine = depth; \
    tree[count].depth = mine; \
    tree[count].name = what; \
    count++; \
    depth = mine + 1
#define LANDED depth = mine + 1
#define OUT depth = mine

static jmp_buf near_buf;
static sigjmp_buf far_buf;
static volatile int sink;

FN t_leaf(void) { IN("t_leaf"); sink++; OUT; }

FN t_thrower(int n, int big) {
    IN("t_thrower");
    // A frame larger than the range that the bits of the stack pointer in a record tell apart.
    volatile char *room = (volatile char *)__builtin_alloca(big ? 40000 : 64);
    room[0] = (char)n;
    t_leaf();
    if (n) t_thrower(n - 1, big);
    else longjmp(near_buf, 1);
    sink += room[0];
    OUT;
}

FN t_loop(int big) {
    IN("t_loop");
    for (volatile int i = 0; i < 3; i++) {
        if (!setjmp(near_buf)) t_thrower(i * 3, big);
        LANDED;
        t_leaf();
        t_leaf();
    }
    OUT;
}

// The first function called after a jump is setjmp itself.
FN t_anew(void) {
    IN("t_anew");
    for (volatile int i = 0; i < 3; i++) {
        t_leaf();
        if (!setjmp(near_buf)) t_thrower(i, 0);
        LANDED;
    }
    OUT;
}

FN t_deep(int n) {
    IN("t_deep");
    volatile char room[1000];
    room[0] = 1;
    if (n) t_deep(n - 1);
    else t_loop(0);
    sink += room[0];
    OUT;
}

FN t_jumper(void) { IN("t_jumper"); t_leaf(); siglongjmp(far_buf, 1); OUT; }

EXTERN __attribute__((noinline)) void t_handler(int signal) {
    IN("t_handler");
    sink += signal;
    if (signal == SIGUSR1) t_jumper();
    t_leaf();
    OUT;
}

FN t_signalled(int signal) { IN("t_signalled"); raise(signal); t_leaf(); OUT; }

FN t_signals(int jumps) {
    IN("t_signals");
    for (volatile int i = 0; i < 4; i++) {
        if (jumps && !sigsetjmp(far_buf, 1)) t_signalled(SIGUSR1);
        LANDED;
        t_leaf();
        t_signalled(SIGUSR2);
        t_leaf();
    }
    OUT;
}

// Handlers run on a stack that is part of this frame, above the frames of the functions that they interrupt.
FN t_stack_in_frame(void) {
    IN("t_stack_in_frame");
    static const size_t size = 32768;
    stack_t stack, old;
    stack.ss_sp = __builtin_alloca(size);
    stack.ss_size = size;
    stack.ss_flags = 0;
    sigaltstack(&stack, &old);
    // A jump from there to a deeper frame cannot be told from a call.
    t_signals(0);
    t_loop(1);
    sigaltstack(&old, NULL);
    t_leaf();
    OUT;
}

FN t_other_stack(void) {
    IN("t_other_stack");
    stack_t stack, old;
    stack.ss_sp = malloc(65536);
    stack.ss_size = 65536;
    stack.ss_flags = 0;
    sigaltstack(&stack, &old);
    t_signals(1);
    sigaltstack(&old, NULL);
    t_leaf();
    OUT;
}

FN t_main(void) {
    IN("t_main");
    t_loop(0);
    t_loop(1);
    t_anew();
    t_deep(100);
    t_loop(0);
    t_signals(1);
    t_other_stack();
    t_stack_in_frame();
    t_deep(10);
    OUT;
}

#ifndef NO_MAIN
int main(void) {
    struct sigaction action = {0};
    action.sa_handler = t_handler;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    t_main();
    for (int i = 0; i < count; i++) printf("%d %s\n", tree[i].depth, tree[i].name);
    return 0;
}
#endif
