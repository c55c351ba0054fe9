/* Allocates memory in all ways, and writes a known number of words of it. With an argument: executes itself without it,
 * makes child processes that use and free its memory, or has threads use the same memory one after the other. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline)) static

static void *handed[100];
static pthread_barrier_t barrier;

OWN void touch(volatile long *words, int count) {
    for (int i = 0; i < count; i++)
        words[i] = i;
}

/* The same memory again and again. */
OWN void reuse(void) {
    for (int i = 0; i < 200; i++) {
        long *words = malloc(320);
        touch(words, 40);
        free(words);
    }
}

OWN void array(void) {
    touch(calloc(3, 80), 30);
}

OWN void grow(void) {
    long *words = malloc(800);
    for (int size = 800; size <= 80000; size *= 10) {
        words = realloc(words, size);
        touch(words, size / 8);
    }
    free(words);
}

OWN void aligned(void) {
    void *first = NULL;
    if (posix_memalign(&first, 256, 160) != 0)
        exit(1);
    touch(first, 20);
    touch(aligned_alloc(128, 256), 32);
    touch(memalign(64, 80), 10);
    /* One that fails. */
    if (malloc(~(size_t)0 >> 2))
        exit(1);
}

OWN void *give(void *unused) {
    (void)unused;
    for (int i = 0; i < 100; i++) {
        handed[i] = malloc(80);
        touch(handed[i], 10);
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* Memory of one thread is freed by another. */
OWN void hand_over(void) {
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, give, NULL);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 100; i++)
        free(handed[i]);
    pthread_join(thread, NULL);
}

static void handle(int signal) {
    (void)signal;
    static const char text[] = "signal\n";
    if (write(1, text, sizeof text - 1) < 0)
        _exit(1);
}

OWN int inherit(void) {
    long *words = malloc(800);
    touch(words, 100);
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) {
            touch(words, 100);
            free(words);
            _exit(0);
        }
        wait(NULL);
    }
    if (vfork() == 0) {
        touch(words, 100);
        _exit(0);
    }
    return 0;
}

OWN void *fill(void *memory) {
    touch(memory, 512);
    return NULL;
}

OWN int pass(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *memory = malloc(4096);
        pthread_create(&thread, NULL, fill, memory);
        pthread_join(thread, NULL);
        free(memory);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "pass") == 0)
        return pass();
    if (argc > 1 && strcmp(argv[1], "fork") == 0)
        return inherit();
    if (argc > 1) {
        char *arguments[] = {argv[0], NULL};
        touch(malloc(4096), 512);
        execv(argv[0], arguments);
        return 1;
    }
    reuse();
    array();
    grow();
    aligned();
    hand_over();
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    return 0;
}
