// Signals: an interval timer that interrupts stubs, on an alternate stack; a program's own handlers of SIGSEGV and
// SIGTRAP; a handler that changes the interrupted registers.
#define _GNU_SOURCE
#include "machine.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

// Microseconds between signals: longer than a tracer needs for one, or nothing else would ever run. Machines for RISC-V
// and AArch64 may be slow, emulated ones most of all.
#if !defined(__x86_64__)
#define EVERY 20000
#define ROUNDS 200000
#else
#define EVERY 2000
#define ROUNDS 3000000
#endif

static volatile sig_atomic_t ticks, traps, faults;
static sigjmp_buf place;

__attribute__((noipa)) int work(int x) { return x * 3 + 1; }

__attribute__((noipa)) void on_tick(int signal) {
    ticks++;
    work(signal);
}

__attribute__((noipa)) void on_fault(int signal, siginfo_t *info, void *context) {
    if (signal == SIGSEGV && info->si_addr == (void *)8)
        faults++;
    siglongjmp(place, 1);
}

// Steps over the instruction as an emulator would.
__attribute__((noipa)) void on_illegal(int signal, siginfo_t *info, void *context) {
    CONTEXT_PC(context) += ILLEGAL_LENGTH;
    CONTEXT_RESULT(context) = 77;
}

__attribute__((noipa)) void on_trap(int signal, siginfo_t *info, void *context) {
    traps++;
    if (info->si_code != SI_TKILL) CONTEXT_PC(context) += BREAKPOINT_STAYS;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    sigaction(signal, &action, NULL);
}

__attribute__((noipa)) long busy(int rounds) {
    long sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += work(i);
    return sum;
}

__attribute__((noipa)) int illegal(void) {
#if defined(__riscv)
    register int result __asm__("a0") = 0;
#elif defined(__aarch64__)
    register int result __asm__("x0") = 0;
#else
    register int result __asm__("rax") = 0;
#endif
    __asm__ volatile(ILLEGAL : "+r"(result));
    return result;
}

int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
    struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &tick, NULL);
    struct itimerval often = {{0, EVERY}, {0, EVERY}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    long sum = 0;
    do
        sum = busy(ROUNDS);
    while (ticks < 100);
    setitimer(ITIMER_REAL, &never, NULL);

    handle(SIGSEGV, on_fault, SA_ONSTACK | SA_NODEFER);
    for (volatile int i = 0; i < 100; i++)
        if (sigsetjmp(place, 1) == 0)
            *(volatile int *)8 = 1;
    handle(SIGILL, on_illegal, 0);
    int skipped = illegal();
    handle(SIGTRAP, on_trap, 0);
    raise(SIGTRAP);
    __asm__ volatile(BREAKPOINT);
    signal(SIGTRAP, SIG_IGN);
    raise(SIGTRAP);
    sigset_t set, waiting;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1);
    sigpending(&waiting);
    int got = 0;
    sigwait(&set, &got);
    printf("%ld %d %d %d %d %d\n", sum, (int)faults, (int)traps, skipped, sigismember(&waiting, SIGUSR1), got == SIGUSR1);
    return 0;
}
