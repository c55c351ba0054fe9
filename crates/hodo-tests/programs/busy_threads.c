// Eight threads that call at the same time.
#include <pthread.h>
#include <stdio.h>

__attribute__((noipa)) long leaf(long x) { return x ^ 0x55; }
__attribute__((noipa)) long middle(long x) { return leaf(x) + leaf(x + 1); }

__attribute__((noipa)) void *run(void *argument) {
    long sum = 0;
    for (long i = 0; i < 50000; i++)
        sum += middle(i + (long)argument);
    return (void *)sum;
}

int main(void) {
    pthread_t threads[8];
    long sum = 0;
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, run, (void *)i);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("%ld\n", sum);
    return 0;
}
