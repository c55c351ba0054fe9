// Sends itself SIGTRAP, handled, by default, ignored and blocked, while it executes code for the first time, also in other
// threads. hodo stops threads by that signal, too.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t handled, code, value;

static void on_trap(int signal, siginfo_t *info, void *context) {
    handled++;
    code = info->si_code;
    value = info->si_value.sival_int;
}

// Functions that are executed once each.
#define ONE(n) \
    __attribute__((noinline, noclone)) static int fresh##n(int x) { __asm__ volatile(""); return x * n + 1; }
ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12)
static int (*volatile const fresh[])(int) = {fresh1, fresh2, fresh3, fresh4,  fresh5,  fresh6,
                                             fresh7, fresh8, fresh9, fresh10, fresh11, fresh12};
static int next;

// Executes what was not executed before.
static void anew(void) { fresh[next++](3); }

static void handle(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
}

static void show(const char *when) {
    sigset_t mask, waiting;
    struct sigaction now;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigpending(&waiting);
    sigaction(SIGTRAP, NULL, &now);
    const char *action = now.sa_handler == SIG_DFL ? "default" : now.sa_handler == SIG_IGN ? "ignored" : "handled";
    printf("%s: %s, blocked %d, waits %d, came %d, code %d, value %d\n", when, action, sigismember(&mask, SIGTRAP),
           sigismember(&waiting, SIGTRAP), (int)handled, (int)code, (int)value);
}

static void *thread(void *set) {
    if (set) pthread_sigmask(SIG_BLOCK, set, NULL);
    anew();
    char text[64];
    snprintf(text, sizeof text, "%d %s", getpid(), strerror(3));
    return NULL;
}

static void in_thread(sigset_t *set) {
    pthread_t other;
    pthread_create(&other, NULL, thread, set);
    pthread_join(other, NULL);
}

static void on_user(int signal) {
    anew();
    show("in a handler that blocks it");
}

static void child(const char *when) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        anew();
        show(when);
        fflush(stdout);
        raise(SIGTRAP);
        anew();
        show(when);
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("%s: %#x\n", when, status);
}

int main(void) {
    sigset_t set, other;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    struct timespec now = {0, 0};
    handle();
    in_thread(NULL);
    raise(SIGTRAP);
    show("after a thread");
    in_thread(&set);
    pthread_kill(pthread_self(), SIGTRAP);
    show("after a thread that blocks it");
    sigqueue(getpid(), SIGTRAP, (union sigval){.sival_int = 17});
    show("queued");
    child("handled in a child");

    sigprocmask(SIG_BLOCK, &set, NULL);
    anew();
    kill(getpid(), SIGTRAP);
    anew();
    show("blocked");
    child("blocked in a child");
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    show("unblocked");

    signal(SIGTRAP, SIG_DFL);
    sigprocmask(SIG_SETMASK, &set, NULL);
    anew();
    show("by default, blocked");
    raise(SIGTRAP);
    anew();
    show("by default, blocked");
    siginfo_t info;
    printf("waited: %d\n", sigtimedwait(&set, &info, &now));
    child("by default in a child");
    // The set cannot be read.
    printf("%d\n", (int)syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, (sigset_t *)8, NULL, 8));
    printf("%d\n", (int)syscall(SYS_rt_sigprocmask, 77, &set, &other, 8));
    sigprocmask(SIG_UNBLOCK, &set, NULL);

    signal(SIGTRAP, SIG_IGN);
    anew();
    raise(SIGTRAP);
    in_thread(&set);
    show("ignored");
    child("ignored in a child");

    handle();
    struct sigaction action = {.sa_handler = on_user};
    sigaddset(&action.sa_mask, SIGTRAP);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    raise(SIGTRAP);
    show("after the handler");
    return 0;
}
