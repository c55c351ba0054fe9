/* Loses memory, beside a thread that has some. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *runs(void *unused) {
    void *volatile kept = malloc(10);
    for (;;)
        usleep(kept ? 100 : 200);
    return unused;
}

static void loses(void) {
    void *volatile lost = malloc(77);
    lost = NULL;
    (void)lost;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, runs, NULL);
    usleep(10000);
    loses();
    puts("done");
    return 0;
}
