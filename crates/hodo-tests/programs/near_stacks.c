// Threads with small adjacent stacks, far from where stacks usually are, reach their first traced function at the same
// time.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { THREADS = 2, ROUNDS = 480 };
static const uintptr_t PIECE = 1 << 20, PLACE = 0x500000000000;
static atomic_int there;

__attribute__((noipa)) long touched(long n) { return n + 1; }

static void *run(void *round) {
    int all = ((int)(intptr_t)round + 1) * THREADS;
    atomic_fetch_add(&there, 1);
    for (long spin = 0; atomic_load(&there) < all && spin < 1000000; spin++)
        ;
    return (void *)touched((intptr_t)round);
}

int main(void) {
    long sum = 0;
    for (intptr_t round = 0; round < ROUNDS; round++) {
        char *stacks = mmap((void *)(PLACE + round * 2 * PIECE), PIECE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            pthread_attr_t attr;
            pthread_attr_init(&attr);
            pthread_attr_setstack(&attr, stacks + i * (PIECE / THREADS), PIECE / THREADS);
            pthread_create(&threads[i], &attr, run, (void *)round);
        }
        for (int i = 0; i < THREADS; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (intptr_t)result;
        }
    }
    printf("%ld\n", sum);
    return 0;
}
