// Waits for nothing in one of the system calls that a stop breaks off, for the milliseconds of the second argument.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long time = argc > 2 ? atol(argv[2]) : 1000;
    struct timespec wait = {time / 1000, time % 1000 * 1000000}, from, to;
    struct epoll_event event;
    sigset_t set;
    int fd = epoll_create1(0), result = 0, id = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf down = {0, -1, 0};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    printf("begun\n");
    fflush(stdout);
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (!strcmp(argv[1], "epoll_wait")) result = epoll_wait(fd, &event, 1, time);
    if (!strcmp(argv[1], "epoll_pwait2")) result = syscall(441, fd, &event, 1, &wait, 0, 8);
    if (!strcmp(argv[1], "sigtimedwait")) result = sigtimedwait(&set, 0, &wait);
    if (!strcmp(argv[1], "semtimedop")) result = semtimedop(id, &down, 1, &wait);
    clock_gettime(CLOCK_MONOTONIC, &to);
    semctl(id, 0, IPC_RMID);
    printf("result %d, the time was %s\n", result, wait.tv_sec == time / 1000 && wait.tv_nsec == time % 1000 * 1000000 ? "left alone" : "changed");
    long waited = (to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec);
    if (waited < time * 1000000) printf("%ld ns are too few\n", waited);
    return 0;
}
