// Threads that are cancelled in a system call below traced frames, and threads that end with pthread_exit.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int cleaned;

static void cleanup(void *unused) { cleaned++; }

__attribute__((noipa)) void wait_long(void) {
    for (;;)
        pause();
}

__attribute__((noipa)) void *cancelled(void *unused) {
    pthread_cleanup_push(cleanup, NULL);
    wait_long();
    pthread_cleanup_pop(0);
    return NULL;
}

__attribute__((noipa)) void leave(void) { pthread_exit((void *)42); }

__attribute__((noipa)) void *leaving(void *unused) {
    leave();
    return NULL;
}

int main(void) {
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, cancelled, NULL);
        if (i % 2)
            usleep(200);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            return 1;
        pthread_create(&thread, NULL, leaving, NULL);
        pthread_join(thread, &result);
        if (result != (void *)42)
            return 2;
    }
    printf("%s\n", cleaned <= 50 ? "joined" : "too often");
    fflush(stdout);
    pthread_exit(NULL);
}
