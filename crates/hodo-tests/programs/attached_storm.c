// Forks while other threads execute ever new code and signals arrive, and checks how the children end, until the input
// ends.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long sink;
static volatile int done;

// Code that is executed by one thread for the first time while another one forks.
#define ONE(n) __attribute__((noipa)) static long new_##n(long x) { return x * n + (x >> 3) - n; }
#define TEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)
#define NAME(n) new_##n,
#define NAMES(n) NAME(n##0) NAME(n##1) NAME(n##2) NAME(n##3) NAME(n##4) NAME(n##5) NAME(n##6) NAME(n##7) NAME(n##8) NAME(n##9)
static long (*const all[])(long) = {NAMES(1) NAMES(2) NAMES(3) NAMES(4) NAMES(5) NAMES(6) NAMES(7) NAMES(8) NAMES(9)};
enum { ALL = sizeof all / sizeof *all };

static long sum(long x) {
    for (int i = 0; i < ALL; i++)
        x += all[i](i);
    return x;
}

static void *works(void *from) {
    for (long i = (long)from; !done; i++) {
        sink += all[i % ALL](i);
        if (i % 7 == 0)
            usleep(200);
    }
    return 0;
}

static void handle(int signal) {
    (void)signal;
    sink += sum(1);
}

int main(void) {
    int wrong = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    const long expected = sum(0);
    struct sigaction action = {0};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &timer, 0);
    pthread_t threads[3];
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, works, (void *)(i * 30));
    puts("begun");
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 0) <= 0) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(sum(0) == expected ? 7 : 1);
        while (waitpid(child, &status, 0) != child)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
            wrong++;
        usleep(1000);
    }
    done = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    printf("wrong: %d\n", wrong);
    return 0;
}
