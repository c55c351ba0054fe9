// Signals that come often, to handlers of all kinds: nested, on another stack, left by longjmp, changed in between, for one
// time only, in threads and children. What the program finds in actions and contexts is its own.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t first, second, inside, wrong;
static sigjmp_buf place;
extern char **environ;

static void in_first(int signal, siginfo_t *info, void *context) {
    ucontext_t *state = context;
    first++;
    if (state->uc_mcontext.gregs[REG_EFL] & 0x100) wrong++;
}

static void in_second(int signal) { second++; }

static void in_nested(int signal) {
    inside++;
    raise(SIGUSR2);
    inside++;
}

static void in_jump(int signal) { siglongjmp(place, 1); }

static void in_context(int signal, siginfo_t *info, void *context) {
    // Returns elsewhere.
    ucontext_t *state = context;
    state->uc_mcontext.gregs[REG_RAX] = 77;
}

static void act(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}

static const char *name(void (*handler)(int)) {
    return handler == SIG_DFL ? "default"
           : handler == SIG_IGN ? "ignored"
           : handler == (void (*)(int))in_first ? "first"
           : handler == in_second ? "second"
                                  : "another";
}

static void show(int signal) {
    struct sigaction action, old;
    sigaction(signal, NULL, &action);
    printf("%s, first %d, second %d, inside %d, wrong %d\n", name(action.sa_handler), (int)first, (int)second,
           (int)inside, (int)wrong);
}

static void *thread(void *unused) {
    for (int i = 0; i < 50; i++) pthread_kill(pthread_self(), SIGUSR1);
    return NULL;
}

int main(void) {
    // Again and again, to one handler, and the next.
    act(SIGUSR1, (void (*)(int))in_first, SA_SIGINFO);
    for (int i = 0; i < 100; i++) raise(SIGUSR1);
    show(SIGUSR1);
    struct sigaction action = {.sa_handler = in_second}, old;
    sigaction(SIGUSR1, &action, &old);
    printf("was %s\n", name(old.sa_handler));
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    printf("failed: %d\n", sigaction(SIGKILL, &old, NULL));
    printf("failed: %ld\n", syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8));
    raise(SIGUSR1);
    show(SIGUSR1);
    sigaction(SIGUSR1, &old, NULL);
    raise(SIGUSR1);
    show(SIGUSR1);

    // Nested; on another stack; left by a jump.
    act(SIGUSR2, in_second, 0);
    act(SIGALRM, in_nested, SA_ONSTACK | SA_NODEFER);
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
    for (int i = 0; i < 10; i++) raise(SIGALRM);
    show(SIGALRM);
    act(SIGHUP, in_jump, 0);
    volatile int jumps = 0;
    while (jumps < 10)
        if (sigsetjmp(place, 1))
            jumps++;
        else
            raise(SIGHUP);
    // For one time only.
    act(SIGTERM, in_second, SA_RESETHAND);
    raise(SIGTERM);
    show(SIGTERM);
    // It changes what a call has returned.
    action = (struct sigaction){.sa_sigaction = in_context, .sa_flags = SA_SIGINFO};
    sigaction(SIGCONT, &action, NULL);
    for (int i = 0; i < 3; i++) printf("%ld\n", syscall(SYS_tgkill, getpid(), gettid(), SIGCONT));

    // Threads and children.
    pthread_t threads[4];
    act(SIGUSR1, in_second, SA_RESTART);
    raise(SIGUSR1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("%d\n", second >= 100);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        second = 0;
        raise(SIGUSR1);
        show(SIGUSR1);
        signal(SIGUSR1, SIG_IGN);
        raise(SIGUSR1);
        show(SIGUSR1);
        signal(SIGUSR1, SIG_DFL);
        fflush(stdout);
        raise(SIGUSR1);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%#x\n", status);
    char *command[] = {"/bin/sh", "-c", "kill -USR1 $$; echo no", NULL};
    posix_spawn(&child, command[0], NULL, NULL, command, environ);
    waitpid(child, &status, 0);
    printf("%#x\n", status);
    raise(SIGUSR1);
    second = 0;

    // Faster than they can be delivered: the program comes further nevertheless.
    act(SIGALRM, in_second, SA_RESTART);
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    volatile unsigned sum = 1;
    for (int i = 0; i < 300000; i++) sum = sum * 3 + i;
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%u, some %d\n", sum, second > 0);
    return 0;
}
