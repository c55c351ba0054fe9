// Has so much memory below its libraries that nothing else fits within their reach there; makes calls until the input
// ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int ending, wrong;

__attribute__((noipa)) long leaf(long n) { return n * 3; }

static void *calls(void *unused) {
    for (long n = 0; !ending; n++)
        if (leaf(n) != n * 3)
            wrong++;
    return NULL;
}

int main(void) {
    pthread_t thread;
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    if (mmap(NULL, 5L << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        return 1;
    pthread_create(&thread, NULL, calls, NULL);
    puts("begun");
    while (read(0, &byte, 1) > 0)
        ;
    ending = 1;
    pthread_join(thread, NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
