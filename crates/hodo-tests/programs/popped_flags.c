// Pops flags while signals come: the flag of steps is in no handler's frame, and in no register, if the program has not
// set it.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t handled, stepping;

static void on_signal(int signal, siginfo_t *info, void *context) {
    ucontext_t *state = context;
    if (state->uc_mcontext.gregs[REG_EFL] & 0x100) stepping++;
    handled++;
}

// Pops flags 64 times, and pushes them as often. Returns those that were pushed, all together.
static unsigned long pops(void) {
    unsigned long all = 0;
    __asm__ volatile("sub $128, %%rsp\n"
                     ".rept 64\n"
                     "\tpushq $0x202\n"
                     "\tpopfq\n"
                     "\tpushfq\n"
                     "\tpop %%rcx\n"
                     "\tor %%rcx, %0\n"
                     ".endr\n"
                     "\tadd $128, %%rsp"
                     : "+r"(all)
                     :
                     : "rcx", "cc", "memory");
    return all;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    unsigned long all = 0;
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < 100) all |= pops();
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%#lx, stepping %d\n", all & 0x100, (int)stepping);
    return 0;
}
