/* leaf() is called twenty frames deep: by the first thread, by another thread, in a signal handler, and after fork.
 * Prints the results. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int sum;

__attribute__((noinline)) void leaf(int n) { sum += n; }

__attribute__((noinline)) void down(int depth) {
    if (depth == 0)
        leaf(1);
    else
        down(depth - 1);
    sum++;
}

__attribute__((noinline)) void handler(int number) {
    down(3);
    sum += number - SIGUSR1;
}

__attribute__((noinline)) void interrupted(void) {
    raise(SIGUSR1);
    sum++;
}

static void *thread(void *argument) {
    (void)argument;
    down(18);
    down(0);
    return NULL;
}

int main(void) {
    for (int round = 0; round < 3; round++) {
        down(18);
        pthread_t other;
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, NULL);
    }
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    interrupted();
    fflush(stdout);
    if (fork() == 0) {
        down(18);
        _exit(0);
    }
    wait(NULL);
    printf("%d\n", sum);
    return 0;
}
