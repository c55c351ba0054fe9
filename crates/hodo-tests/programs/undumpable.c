/* Lets nobody look into it, then starts threads, forks, and executes code for the first time. */
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static void *square(void *number) {
    return (void *)((long)number * (long)number);
}

__attribute__((noinline)) static int child(int depth) {
    int status;
    if (depth == 0)
        return prctl(PR_GET_DUMPABLE) == 0 ? 3 : 99;
    pid_t next = fork();
    if (next == 0)
        _exit(child(depth - 1));
    waitpid(next, &status, 0);
    return WEXITSTATUS(status) + 1;
}

int main(void) {
    long sum = 0;
    prctl(PR_SET_DUMPABLE, 0);
    for (long number = 0; number < 10; number++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, 0, square, (void *)number);
        pthread_join(thread, &result);
        sum += (long)result;
    }
    printf("%ld %d %d\n", sum, child(3), prctl(PR_GET_DUMPABLE));
    return 0;
}
