// Children with threads that are killed while they start: at every point of a thread's life.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long sink;

__attribute__((noinline, noclone)) int leaf(int x) {
    sink += x;
    return x + 1;
}

static void *run(void *argument) {
    for (;;)
        leaf(1);
}

int main(void) {
    int wrong = 0;
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            for (int k = 0; k < 8; k++)
                pthread_create(&thread, 0, run, 0);
            usleep(i * 10);
            if (i % 3 == 0)
                _exit(3);
            if (i % 3 == 1)
                kill(getpid(), SIGKILL);
            abort();
        }
        int status;
        waitpid(child, &status, 0);
        int expected[] = {3 << 8, SIGKILL, SIGABRT};
        wrong += status != expected[i % 3];
    }
    printf("%d wrong\n", wrong);
    return wrong;
}
