// Sets limits on address space and data at run time, reads them back, and tests them.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long sink;

__attribute__((noinline, noclone)) int leaf(int x) {
    sink += x;
    return x + 1;
}

static void *many(void *argument) {
    for (int i = 0; i < 1000; i++)
        leaf(i);
    return 0;
}

static void show(const char *when, int resource) {
    struct rlimit one = {1, 1}, other = {1, 1};
    getrlimit(resource, &one);
    int result = prlimit(0, resource, 0, &other);
    printf("%s %d: %llx %llx, %d %llx %llx\n", when, resource, (long long)one.rlim_cur, (long long)one.rlim_max,
           result, (long long)other.rlim_cur, (long long)other.rlim_max);
}

// Returns whether there is room for this many bytes.
static int room(unsigned long bytes) {
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    munmap(p, bytes);
    return 1;
}

static void work(void) {
    int got = 0;
    for (int i = 0; i < 50; i++) {
        char *p = malloc(1 << 20);
        if (p)
            got++, memset(p, i, 1000);
    }
    pthread_t thread;
    int made = pthread_create(&thread, 0, many, 0) == 0;
    if (made)
        pthread_join(thread, 0);
    printf("%d blocks, %d thread, room for 1.2 GiB: %d, for 3 GiB: %d\n", got, made, room(1200ul << 20), room(3ul << 30));
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    int resources[] = {RLIMIT_AS, RLIMIT_DATA, RLIMIT_CORE};
    if (argc > 1) {
        for (int i = 0; i < 3; i++)
            show("executed", resources[i]);
        work();
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        struct rlimit limit = {1ul << 30, 2ul << 30}, old;
        show("at first", resources[i]);
        printf("%d\n", setrlimit(resources[i], &limit));
        show("set", resources[i]);
        limit.rlim_cur = 3ul << 29;
        int result = prlimit(0, resources[i], &limit, &old);
        printf("%d %llx %llx\n", result, (long long)old.rlim_cur, (long long)old.rlim_max);
        limit.rlim_cur = 5ul << 30;
        result = setrlimit(resources[i], &limit);
        printf("%d %d\n", result, errno);
        show("after", resources[i]);
        work();
    }
    int status;
    if (fork() == 0) {
        show("forked", RLIMIT_AS);
        work();
        execl("/proc/self/exe", "limits", "again", (char *)0);
        _exit(9);
    }
    wait(&status);
    printf("%x\n", status);
    return 0;
}
