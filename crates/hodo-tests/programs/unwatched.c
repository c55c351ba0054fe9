// One thread loads a library; another, which has made no system call since, makes those in the library's code.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

typedef long call(long, char *, long);

static _Atomic(call **) calls;
static atomic_int reading;
static int ends[2];

static void *other(void *none) {
    while (!calls) {
    }
    for (int i = 0; i < 100; i++) calls[0](0, 0, 0);
    char byte;
    reading = 1;
    return (void *)calls[1](ends[0], &byte, 77);
}

int main(int argc, char **argv) {
    pthread_t thread;
    void *result;
    if (pipe(ends)) return 1;
    pthread_create(&thread, 0, other, 0);
    usleep(100000);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return 2;
    usleep(100000);
    calls = (call **)dlsym(library, "calls");
    while (!reading) usleep(1000);
    // These have no effect.
    for (int i = 0; i < 4; i++) {
        usleep(50000);
        pthread_kill(thread, SIGURG);
    }
    usleep(50000);
    if (write(ends[1], "!", 1) != 1) return 3;
    pthread_join(thread, &result);
    printf("%s\n", (long)result == 1 ? "ended" : "wrong");
    return 0;
}
