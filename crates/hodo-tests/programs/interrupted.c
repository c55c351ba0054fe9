// Signals that arrive anywhere, and handlers that unwind: crash reports, profilers, cancelled threads.
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

struct item {
    int x;
    char rest[64];
};
volatile long sink;

NOINLINE int first(struct item *item) { return item->x; }

NOINLINE int second(struct item *item, int k) {
    char copy[64];
    memset(copy, k, sizeof copy);
    sink += copy[k & 63];
    return item->x + copy[3];
}

NOINLINE int middle(struct item *item, int k) { return (k ? second(item, k) : first(item)) + 1; }
NOINLINE int outer(struct item *item, int k) { return middle(item, k) * 2; }

int main(int argc, char **argv);

// Returns whether one of the addresses in `frames` is in a function that is no longer than `size`.
static int has(void **frames, int count, void *function, long size) {
    for (int i = 0; i < count; i++)
        if ((char *)frames[i] >= (char *)function && (char *)frames[i] < (char *)function + size)
            return 1;
    return 0;
}

static void on_fault(int signal) {
    void *frames[64];
    int count = backtrace(frames, 64);
    printf("first %d second %d middle %d outer %d main %d\n", has(frames, count, first, 8), has(frames, count, second, 120),
           has(frames, count, middle, 48), has(frames, count, outer, 32), has(frames, count, main, 2000));
    fflush(stdout);
    _exit(3);
}

static volatile long samples, good;

static void on_sample(int signal) {
    int saved = errno;
    void *frames[64];
    int count = backtrace(frames, 64);
    samples++;
    good += has(frames, count, main, 2000);
    errno = saved;
}

static void cleanup(void *count) { ++*(long *)count; }

static long cleaned;
static volatile int begun;

static void *spin(void *argument) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    struct item item = {1};
    pthread_cleanup_push(cleanup, &cleaned);
    begun = 1;
    for (;;)
        outer(&item, 0);
    pthread_cleanup_pop(0);
}

static void on_end(int signal) { pthread_exit(0); }

static void *until_signal(void *argument) {
    struct item item = {1};
    pthread_cleanup_push(cleanup, &cleaned);
    begun = 1;
    for (;;)
        outer(&item, 1);
    pthread_cleanup_pop(0);
}

int main(int argc, char **argv) {
    void *frames[4];
    backtrace(frames, 4); // loads the unwinder
    struct item item = {1};
    if (!strcmp(argv[1], "first") || !strcmp(argv[1], "second")) {
        signal(SIGSEGV, on_fault);
        return outer(0, argv[1][0] == 's');
    }
    if (!strcmp(argv[1], "profile")) {
        struct sigaction action = {.sa_handler = on_sample, .sa_flags = SA_RESTART};
        sigaction(SIGPROF, &action, 0);
        struct itimerval often = {{0, 1000}, {0, 1000}}, never = {};
        setitimer(ITIMER_PROF, &often, 0);
        while (samples < 200)
            sink += outer(&item, sink & 1);
        setitimer(ITIMER_PROF, &never, 0);
        printf("%ld bad\n", samples - good);
    }
    int cancel = !strcmp(argv[1], "cancel");
    if (cancel || !strcmp(argv[1], "exit")) {
        signal(SIGUSR1, on_end);
        for (int i = 0; i < 100; i++) {
            pthread_t thread;
            pthread_create(&thread, 0, cancel ? spin : until_signal, 0);
            while (!begun)
                usleep(10);
            usleep(i % 7 * 50);
            cancel ? pthread_cancel(thread) : pthread_kill(thread, SIGUSR1);
            pthread_join(thread, 0);
            begun = 0;
        }
        printf("%ld cleaned\n", cleaned);
    }
    return 5;
}
