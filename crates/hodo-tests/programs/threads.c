// Many short-lived threads one after the other, then two hundred at a time.
#include <pthread.h>
#include <stdio.h>

#ifndef THREADS
#define THREADS 10000
#endif

static __thread int own;

__attribute__((noipa)) int count(int n) { return own += n; }

__attribute__((noipa)) void *run(void *unused) { return (void *)(long)count(1); }

int main(void) {
    long sum = 0;
    void *result;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL))
            return 1;
        pthread_join(thread, &result);
        sum += (long)result;
    }
    for (int round = 0; round < 5; round++) {
        pthread_t threads[200];
        for (int i = 0; i < 200; i++)
            if (pthread_create(&threads[i], NULL, run, NULL))
                return 2;
        for (int i = 0; i < 200; i++) {
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
    }
    printf("%ld\n", sum);
    return 0;
}
