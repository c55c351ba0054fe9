// Children of vfork that take their time, until the input ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ending, wrong;

__attribute__((noipa)) long leaf(long n) { return n * 3; }

static void check(int child, int code) {
    int status;
    if (waitpid(child, &status, 0) != child || status != code << 8)
        wrong++;
}

static void *slowly(void *unused) {
    while (!ending) {
        int child = vfork();
        if (child == 0) {
            usleep(100000);
            execl("/bin/sh", "sh", "-c", "exit 5", NULL);
            _exit(99);
        }
        check(child, 5);
        usleep(40000);
    }
    return NULL;
}

static void *calls(void *unused) {
    for (long n = 0; !ending; n++)
        if (leaf(n) != n * 3)
            wrong++;
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    pthread_create(&threads[0], NULL, slowly, NULL);
    pthread_create(&threads[1], NULL, calls, NULL);
    puts("begun");
    while (read(0, &byte, 1) > 0)
        ;
    ending = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
