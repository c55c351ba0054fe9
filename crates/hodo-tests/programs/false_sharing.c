// Threads that begin together and write to the same line: to different words of it, and to the same word. One has a line
// of its own.
#include <pthread.h>
#include <stdio.h>

#ifndef ROUNDS
#define ROUNDS 1000
#endif

static pthread_barrier_t barrier;

static struct {
    volatile long one, other;
    char apart[112];
    volatile long same;
    char more[120];
    volatile long own;
    char end[120];
} words __attribute__((aligned(128)));

static void *first(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) words.one++;
    return unused;
}

static void *second(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) words.other++;
    return unused;
}

static void *together(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) words.same = i;
    return unused;
}

static void *alone(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) words.own++;
    return unused;
}

int main(void) {
    void *(*const functions[])(void *) = {first, second, together, together, alone};
    pthread_t threads[5];
    pthread_barrier_init(&barrier, NULL, 5);
    for (int i = 0; i < 5; i++) pthread_create(&threads[i], NULL, functions[i], NULL);
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    printf("%ld %ld %ld\n", words.one, words.other, words.same);
    return 0;
}
