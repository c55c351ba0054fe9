// Loads and unloads a library while a timer sends signals without pause: many of them come while the dynamic linker
// announces it. Goes on when the recorder is killed, until its input ends; then it says what was wrong.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void handler(int signal) {
    (void)signal;
    signals++;
}

__attribute__((noinline)) int load(void) {
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "cos"))
        return 1;
    return dlclose(library) != 0;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &timer, 0);
    int wrong = 0;
    struct pollfd input = {0, POLLIN, 0};
    for (int i = 0; i < 40 || poll(&input, 1, 0) <= 0; i++)
        wrong += load();
    int before = signals;
    for (int i = 0; i < 4000 && signals == before; i++)
        wrong += load();
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, 0, &blocked);
    for (int signal = 1; signal < 32; signal++)
        wrong += sigismember(&blocked, signal) == 1;
    wrong += signals == before;
    printf("wrong: %d\n", wrong);
    return 0;
}
