// Functions to probe: with arguments, with pointers that may be invalid, with a loop, in eight threads.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct s {
    int a;
    short b;
    const char *name;
};

__attribute__((noipa)) int work(struct s *p, long n, const char *text, double d) {
    return p ? p->a + (int)n + (int)strlen(text) + (int)d : 0;
}

__attribute__((noipa)) long loop(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i ^ (sum >> 3);
    return sum;
}

static void *run(void *unused) {
    struct s v = {-5, 7, "name"};
    int sum = 0;
    (void)unused;
    for (int i = 0; i < 1000; i++)
        sum += work(&v, i, "text", 1.5);
    return (void *)(long)sum;
}

int main(void) {
    pthread_t threads[8];
    long sum = 0;
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    work(NULL, 1, "null", 0);
    printf("%ld %ld\n", sum, loop(1000));
    return 0;
}
