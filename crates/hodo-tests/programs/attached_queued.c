// Signals with values, each of which must arrive once and unchanged, until the input ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/select.h>
#include <unistd.h>

static volatile int ending, wrong;
static __thread volatile long seen;

__attribute__((noipa)) long leaf(long n) { return n * 3 + 1; }

__attribute__((noipa)) long recursion(long depth) {
    long below = depth ? recursion(depth - 1) : 0;
    __asm__ volatile("");
    return below + leaf(depth);
}

static void handler(int signal, siginfo_t *info, void *context) {
    if (info->si_code != SI_QUEUE || info->si_pid != getpid() || info->si_value.sival_int != seen++)
        wrong++;
    if (recursion(3) != 22)
        wrong++;
}


// Receives signals while it makes calls.
static void *calls(void *count) {
    while (!ending)
        if (recursion(6) != 70)
            wrong++;
    // The last signals may still be pending.
    for (int i = 0; i < 5000 && *(volatile long *)count != seen; i++)
        usleep(1000);
    if (*(volatile long *)count != seen)
        wrong++;
    return NULL;
}

int main(void) {
    static long sent[2];
    pthread_t threads[2];
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    sigaction(SIGRTMIN + 3, &action, NULL);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, calls, &sent[i]);
    puts("begun");
    while (1) {
        fd_set input;
        struct timeval time = {0, 200};
        FD_ZERO(&input);
        FD_SET(0, &input);
        if (select(1, &input, NULL, NULL, &time) == 1 && read(0, &byte, 1) <= 0)
            break;
        for (int i = 0; i < 2; i++) {
            union sigval value = {.sival_int = (int)sent[i]};
            if (pthread_sigqueue(threads[i], SIGRTMIN + 3, value) == 0)
                sent[i]++;
        }
    }
    ending = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
