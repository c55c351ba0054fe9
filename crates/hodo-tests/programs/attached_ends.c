// The first thread ends at the first byte of input, the others at the end of input.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile int ending, wrong;

__attribute__((noipa)) long leaf(long n) { return n * 3; }

static void *calls(void *unused) {
    for (long n = 0; !ending; n++)
        if (leaf(n) != n * 3)
            wrong++;
    return NULL;
}

static void *reads(void *thread) {
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    ending = 1;
    pthread_join(*(pthread_t *)thread, NULL);
    printf("wrong: %d\n", wrong);
    exit(0);
}

int main(void) {
    static pthread_t threads[2];
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    pthread_create(&threads[0], NULL, calls, NULL);
    puts("begun");
    if (read(0, &byte, 1) != 1)
        return 1;
    pthread_create(&threads[1], NULL, reads, &threads[0]);
    pthread_exit(NULL);
}
