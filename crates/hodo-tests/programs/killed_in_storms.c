// Calls small functions while a timer sends signals without pause: most of them come in a recorder's code. Goes on when
// the recorder is killed, until its input ends; then it says what was wrong.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

__attribute__((noinline)) static void note(void) { signals++; }

static void handler(int signal) {
    (void)signal;
    note();
}

__attribute__((noinline)) unsigned leaf(unsigned x) { return x * 3 + 1; }

__attribute__((noinline)) unsigned middle(unsigned x) { return leaf(x) + leaf(x + 1); }

static int round_of_calls(void) {
    unsigned sum = 0;
    for (unsigned i = 0; i < 20000; i++)
        sum += middle(i);
    return sum != 1200040000u;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 400}, {0, 400}};
    setitimer(ITIMER_REAL, &timer, 0);
    int wrong = 0;
    struct pollfd input = {0, POLLIN, 0};
    for (int i = 0; i < 40 || poll(&input, 1, 0) <= 0; i++)
        wrong += round_of_calls();
    // Signals still come, and none is blocked.
    int before = signals;
    for (int i = 0; i < 4000 && signals == before; i++)
        wrong += round_of_calls();
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, 0, &blocked);
    for (int signal = 1; signal < 32; signal++)
        wrong += sigismember(&blocked, signal) == 1;
    wrong += signals == before;
    printf("wrong: %d\n", wrong);
    return 0;
}
