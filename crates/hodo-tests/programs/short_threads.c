// Many threads that each call a few functions, some of them at the same time.
#include <pthread.h>
#include <stdio.h>

#define ROUNDS 1000

__attribute__((noipa)) long leaf(long n) { return n + 1; }

static void *thread(void *number) {
    long sum = 0;
    for (long i = 0; i < 5; i++)
        sum += leaf(i + (long)number);
    return (void *)sum;
}

int main(void) {
    long total = 0;
    for (long round = 0; round < ROUNDS; round++) {
        pthread_t threads[2];
        void *sum;
        for (long i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, thread, (void *)i);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], &sum);
            total += (long)sum;
        }
    }
    printf("%ld\n", total);
    return 0;
}
