// Counts the signals that it receives, and ends when there have been none for a while.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

volatile sig_atomic_t counts[65];

__attribute__((noinline, noclone)) void count(int number) { counts[number]++; }

int main(void) {
    int numbers[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT};
    for (int i = 0; i < 5; i++)
        signal(numbers[i], count);
    puts("ready");
    fflush(stdout);
    for (int quiet = 0; quiet < 200; quiet++)
        if (usleep(10000))
            quiet = 0;
    for (int i = 0; i < 5; i++)
        printf("%d: %d\n", numbers[i], counts[numbers[i]]);
    return 0;
}
