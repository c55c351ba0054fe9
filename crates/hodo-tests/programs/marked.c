/* Parts of the run are marked. Each loop is twice as many instructions as its argument, and one more. */
#include "../../hodo-mem-marks/include/hodo-mem.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 1000000

static void loop(long n) {
    __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(n) : : "cc");
}

static void parts(int times, long n) {
    for (int i = 0; i < times; i++) {
        loop(5000);
        hodo_mem_start();
        loop(n);
        hodo_mem_stop();
    }
}

static void nested(void) {
    hodo_mem_stop();
    hodo_mem_start();
    loop(N);
    hodo_mem_start();
    loop(N);
    hodo_mem_stop();
    loop(N);
    hodo_mem_stop();
    loop(N);
    hodo_mem_stop();
    hodo_mem_start();
    loop(N);
    hodo_mem_stop();
}

static pthread_barrier_t barrier;

static void *other(void *unused) {
    for (int i = 0; i < 3; i++) {
        pthread_barrier_wait(&barrier);
        loop(N);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

/* Two threads work before, in and after the part, which the first one marks. */
static void threads(void) {
    pthread_t all[3];
    pthread_barrier_init(&barrier, NULL, 3);
    pthread_create(&all[0], NULL, other, NULL);
    pthread_create(&all[1], NULL, other, NULL);
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            hodo_mem_start();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        if (i == 1)
            hodo_mem_stop();
    }
    for (int i = 0; i < 2; i++)
        pthread_join(all[i], NULL);
}

static volatile int go_on = 1;

static void *marking(void *times) {
    parts(*(int *)times, 2000);
    return NULL;
}

static void *working(void *unused) {
    while (go_on)
        free(malloc(100));
    return unused;
}

/* Two threads mark parts, others work meanwhile. */
static void together(int times) {
    pthread_t all[4];
    for (int i = 0; i < 2; i++) {
        pthread_create(&all[i], NULL, marking, &times);
        pthread_create(&all[2 + i], NULL, working, NULL);
    }
    pthread_join(all[0], NULL);
    pthread_join(all[1], NULL);
    go_on = 0;
    pthread_join(all[2], NULL);
    pthread_join(all[3], NULL);
}

static int ended(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

/* A child that is made in a part is in it. One that was made before is not. */
static void forks(char *self) {
    int pipes[2];
    char byte;
    pipe(pipes);
    pid_t before = fork();
    if (before == 0) {
        close(pipes[1]);
        read(pipes[0], &byte, 1);
        loop(5 * N);
        _exit(4);
    }
    hodo_mem_start();
    pid_t child = fork();
    if (child == 0) {
        loop(N);
        hodo_mem_stop();
        loop(N);
        _exit(5);
    }
    int first = ended(child);
    close(pipes[1]);
    int second = ended(before);
    pid_t program = vfork();
    if (program == 0) {
        execl(self, self, "unmarked", NULL);
        _exit(1);
    }
    int third = ended(program);
    hodo_mem_stop();
    printf("%d %d %d\n", first, second, third);
}

static volatile long signals;

static void tick(int signal) {
    signals++;
}

static void with_signals(int times) {
    struct itimerval time = {{0, 300}, {0, 300}};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &time, NULL);
    parts(times, 20000);
    memset(&time, 0, sizeof time);
    setitimer(ITIMER_REAL, &time, NULL);
    puts(signals > 0 ? "signals came" : "no signals");
}

static void library(const char *path) {
    void *opened = dlopen(path, RTLD_NOW);
    void (*begin)(void) = (void (*)(void))dlsym(opened, "begin");
    void (*end)(void) = (void (*)(void))dlsym(opened, "end");
    for (int i = 0; i < 3; i++) {
        begin();
        loop(N);
        end();
        loop(N);
    }
    dlclose(opened);
}

int main(int count, char **words) {
    const char *what = words[1];
    int times = count > 2 ? atoi(words[2]) : 1;
    loop(N);
    if (!strcmp(what, "parts"))
        parts(times, 1000);
    if (!strcmp(what, "nested"))
        nested();
    if (!strcmp(what, "threads"))
        threads();
    if (!strcmp(what, "together"))
        together(times);
    if (!strcmp(what, "forks"))
        forks(words[0]);
    if (!strcmp(what, "signals"))
        with_signals(times);
    if (!strcmp(what, "library"))
        library(words[2]);
    if (!strcmp(what, "stop"))
        hodo_mem_stop();
    if (!strcmp(what, "open")) {
        hodo_mem_start();
        loop(N);
    }
    if (!strcmp(what, "wait")) {
        puts("ready");
        fflush(stdout);
        getchar();
        parts(times, 1000);
    }
    puts("done");
    return 3;
}
