/* A debugger: traces a child that has asked for it, or that it has attached to, after fork and after vfork. It has another
   thread, and asks to be traced itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int asks(void) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
        return 90;
    execl("/bin/sh", "sh", "-c", "exit 5", (char *)0);
    return 91;
}

/* Lets the child run to its end, and counts its stops. */
static void follow(const char *how, pid_t child) {
    int status, stops = 0;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        stops++;
        ptrace(PTRACE_CONT, child, 0, 0);
    }
    printf("%s: %s, status %d\n", how, stops > 0 ? "stops" : "no stop", WEXITSTATUS(status));
}

static void *idles(void *unused) {
    for (;;)
        usleep(100);
    return unused;
}

/* A million rounds. */
static unsigned busy(void) {
    unsigned sum = 0;
    for (int i = 0; i < 1000000; i++)
        __asm__ volatile("" : "+r"(sum));
    return sum;
}

int main(void) {
    int status;
    pthread_t thread;
    pid_t child = fork();
    if (child == 0)
        _exit(asks());
    follow("fork", child);

    child = vfork();
    if (child == 0)
        _exit(asks());
    follow("vfork", child);
    pthread_create(&thread, NULL, idles, NULL);
    child = vfork();
    if (child == 0)
        _exit(asks());
    follow("beside a thread", child);
    printf("busy: %u\n", busy());

    child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        _exit(6);
    }
    waitpid(child, &status, WUNTRACED);
    printf("seized: %ld\n", ptrace(PTRACE_SEIZE, child, 0, 0));
    kill(child, SIGCONT);
    follow("stopped", child);

    child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    usleep(20000);
    printf("attached: %ld\n", ptrace(PTRACE_ATTACH, child, 0, 0));
    waitpid(child, &status, 0);
    printf("stopped: %d\n", WIFSTOPPED(status) ? WSTOPSIG(status) : -1);
    printf("detached: %ld\n", ptrace(PTRACE_DETACH, child, 0, 0));
    kill(child, SIGTERM);
    waitpid(child, &status, 0);
    printf("ended: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    printf("asks: %ld\n", ptrace(PTRACE_TRACEME, 0, 0, 0));
    printf("asks again: %ld\n", ptrace(PTRACE_TRACEME, 0, 0, 0));
    printf("because of: %d\n", errno);
    return 0;
}
