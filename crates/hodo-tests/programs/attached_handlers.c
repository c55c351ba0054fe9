// Signal handlers that run all the time, also nested, while they interrupt system calls. Checks what the calls return.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long handled;
static volatile int ending;
static int wrong;
static pthread_t first;

__attribute__((noinline)) long work(long n) { return n * 3 + handled; }

// Calls with frames of several sizes, so that many kinds of remains are left on the stack.
__attribute__((noinline)) long deep(long n) {
    volatile long room[3] = {n, n + 1, n + 2};
    return n == 0 ? work(room[1]) : deep(n - 1) + room[2] - n - 2;
}

__attribute__((noinline)) static void handler(int signal) {
    (void)signal;
    handled += work(handled) == handled * 4 + 1;
    handled++;
}

static void check(const char *what, long got, int broken) {
    if (got == 0 || (broken && got == -1 && errno == EINTR)) return;
    fprintf(stderr, "%s: %ld, %s\n", what, got, strerror(errno));
    wrong++;
}

static void *sending(void *unused) {
    while (!ending) {
        const struct timespec pause = {0, 300000};
        nanosleep(&pause, NULL);
        pthread_kill(first, SIGUSR1);
    }
    return unused;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    const struct itimerval often = {{0, 2000}, {0, 2000}};
    const struct timespec pause = {0, 3000000};
    struct pollfd input = {0, POLLIN, 0};
    struct epoll_event event;
    pthread_t sender;
    sigset_t all, none;
    int queue = epoll_create1(0);
    sigfillset(&all);
    sigemptyset(&none);
    setvbuf(stdout, NULL, _IONBF, 0);
    sigaction(SIGALRM, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    first = pthread_self();
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_create(&sender, NULL, sending, NULL);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    puts("begun");
    for (;;) {
        int got = poll(&input, 1, 0);
        if (got == 1) break;
        check("poll", got, 1);
        check("nanosleep", nanosleep(&pause, NULL), 1);
        check("epoll_wait", epoll_wait(queue, &event, 1, 3), 1);
        check("sigsuspend", sigsuspend(&none) == -1 && errno == EINTR ? 0 : 1, 0);
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, NULL, &blocked);
        check("blocked", sigismember(&blocked, SIGALRM) || sigismember(&blocked, SIGINT), 0);
        long before = handled;
        long sum = deep(5);
        check("deep", sum < before || sum > handled + 4, 0);
    }
    ending = 1;
    pthread_join(sender, NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
