// Handlers of SIGSEGV and SIGTRAP that stay, while code is executed for the first time with these signals blocked.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t faults, traps;
static sigjmp_buf place;

static void on_fault(int signal) {
    faults++;
    siglongjmp(place, 1);
}

static void on_trap(int signal) { traps++; }

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static const char *action(int signal) {
    struct sigaction now;
    sigaction(signal, NULL, &now);
    return now.sa_handler == SIG_DFL ? "default" : now.sa_handler == SIG_IGN ? "ignored" : "handled";
}

static void show(const char *when) {
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    printf("%s: SIGSEGV %s, SIGTRAP %s, blocked %d\n", when, action(SIGSEGV), action(SIGTRAP), sigismember(&mask, SIGSEGV));
}

int main(void) {
    sigset_t all, before;
    sigfillset(&all);
    signal(SIGSEGV, on_fault);
    signal(SIGTRAP, on_trap);
    sigprocmask(SIG_BLOCK, &all, &before);
    // Enough accesses to fill a buffer.
    static volatile long sums[64];
    for (long i = 0; i < 50000; i++) sums[i * 7 % 64] += i;
    // Callbacks, and returns to places that were never calls.
    int numbers[] = {5, 3, 9, 1};
    qsort(numbers, 4, sizeof *numbers, compare);
    char *text = NULL;
    int length = asprintf(&text, "%d %.3f %s", numbers[0], 1.5, strerror(2));
    show("blocked");
    raise(SIGTRAP);
    sigset_t waiting;
    sigpending(&waiting);
    int waits = sigismember(&waiting, SIGTRAP);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (sigsetjmp(place, 1) == 0) *(volatile int *)8 = 1;
    printf("%d %s, waits %d, %d traps, %d faults\n", length, text, waits, (int)traps, (int)faults);
    show("after");
    signal(SIGTRAP, SIG_IGN);
    raise(SIGTRAP);
    char *number = strdup("17");
    printf("%lu\n", strtoul(number, NULL, 10));
    show("ignored");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        show("child");
        signal(SIGTRAP, SIG_DFL);
        show("child");
        fflush(stdout);
        raise(SIGTRAP);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    printf("child ended by %d\n", WTERMSIG(status));
    show("maker");
    return 0;
}
