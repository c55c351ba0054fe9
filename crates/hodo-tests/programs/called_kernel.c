// Calls the kernel where the number of a call is easily lost: signal handlers that make calls of their own interrupt calls,
// threads begin and end, and children share memory with their parents, or do not. With an argument, two threads call it
// until standard input ends.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    int before = errno;
    handled++;
    syscall(SYS_getuid);
    syscall(SYS_close, -1);
    errno = before;
}

static void *called(void *argument) {
    (void)argument;
    for (int i = 0; i < 2000; i++) {
        syscall(SYS_gettid);
        sched_yield();
    }
    return NULL;
}

static void *calling(void *argument) {
    (void)argument;
    printf("%ld\n", syscall(SYS_gettid));
    fflush(stdout);
    for (;;) {
        syscall(SYS_getppid);
        usleep(1000);
    }
    return NULL;
}

static void timer(int microseconds) {
    struct itimerval time = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &time, NULL);
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t threads[4];
    if (argc > 1) {
        char c;
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, calling, NULL);
        while (read(0, &c, 1) > 0)
            ;
        _exit(0);
    }
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    int ends[2], interrupted = 0;
    if (pipe(ends) != 0)
        return 1;
    timer(200);
    for (int i = 0; i < 300; i++) {
        char c;
        interrupted += syscall(SYS_read, ends[0], &c, 1) == -1 && errno == EINTR;
    }
    timer(0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, called, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 20; i++) {
        pid_t child = i % 2 ? fork() : vfork();
        if (child == 0) {
            if (i % 2)
                syscall(SYS_getpgid, 0);
            else
                execl("/bin/true", "true", NULL);
            _exit(0);
        }
        while (waitpid(child, NULL, 0) != child)
            ;
    }
    printf("interrupted %d, handled %s\n", interrupted, handled >= interrupted ? "all" : "too few");
    return 0;
}
