// A program that knows nothing of the library, which is preloaded and records it. It prints how often its functions are
// called, in all threads and in a child.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noinline))
#define QUIET __attribute__((no_instrument_function, patchable_function_entry(0)))

static unsigned long leaves, branches, jumpers;

APART long leaf(long a) {
    __atomic_fetch_add(&leaves, 1, __ATOMIC_RELAXED);
    return a + 1;
}

APART long branch(long a) {
    __atomic_fetch_add(&branches, 1, __ATOMIC_RELAXED);
    long sum = leaf(a) + leaf(a + 1);
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

static jmp_buf target;
APART void jumper(int depth) {
    __atomic_fetch_add(&jumpers, 1, __ATOMIC_RELAXED);
    if (depth == 0)
        longjmp(target, 1);
    jumper(depth - 1);
    __asm__ volatile("" ::: "memory");
}

QUIET static void *thread(void *data) {
    for (long i = 0; i < 20000; i++)
        branch(i);
    return 0;
}

QUIET static void print(const char *who) {
    printf("%s leaf %lu\n%s branch %lu\n%s jumper %lu\n", who, leaves, who, branches, who, jumpers);
    fflush(stdout);
}

QUIET int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, thread, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    for (int i = 0; i < 100; i++)
        if (setjmp(target) == 0)
            jumper(i % 10);
    pid_t child = fork();
    if (child == 0) {
        leaves = branches = jumpers = 0;
        for (long i = 0; i < 30000; i++)
            branch(i);
        print("child");
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    print("parent");
    return 7;
}
