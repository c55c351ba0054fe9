// For each number that is read, makes that many rounds of calls; two other threads make calls all the time. Ends when
// its input does.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_int ending;
static atomic_int wrong;

__attribute__((noipa)) long gamma_(long x) { return x * 3; }
__attribute__((noipa)) long beta(long x) { return gamma_(x) + 1; }
__attribute__((noipa)) long alpha(long x) { return beta(x) + 1; }
__attribute__((noipa)) int slow(void) {
    volatile int got = usleep(1500);
    return got;
}

__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long busy(long x) { return leaf(x) + leaf(x + 1); }

static void *run(void *unused) {
    (void)unused;
    for (long i = 0; !ending; i++) {
        if (busy(i) != 2 * i + 3)
            wrong++;
        // To keep traces small.
        if (i % 100 == 0)
            usleep(100);
    }
    return NULL;
}

__attribute__((noipa)) void rounds(long count) {
    for (long i = 0; i < count; i++) {
        if (alpha(i) != i * 3 + 2)
            wrong++;
        slow();
    }
}

int main(void) {
    pthread_t threads[2];
    long count;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    puts("begun");
    while (scanf("%ld", &count) == 1) {
        rounds(count);
        printf("did %ld\n", count);
    }
    ending = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
