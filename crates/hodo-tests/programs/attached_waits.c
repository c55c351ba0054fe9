// Waits in vain in a system call that a stop interrupts, for the milliseconds of the second argument.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// Nobody connects, accepts, or receives what is sent.
static int waiting(const char *call, struct timeval *time) {
    static char much[1 << 16];
    struct sockaddr_un any = {AF_UNIX, ""};
    socklen_t size = sizeof any;
    int pair[2], server = socket(AF_UNIX, SOCK_STREAM, 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    // A name that the kernel chooses.
    bind(server, (void *)&any, sizeof any.sun_family);
    getsockname(server, (void *)&any, &size);
    listen(server, 0);
    int fd = !strcmp(call, "accept") ? server : !strcmp(call, "connect") ? socket(AF_UNIX, SOCK_STREAM, 0) : pair[0];
    while (!strcmp(call, "send") && send(fd, much, sizeof much, MSG_DONTWAIT) > 0) {
    }
    if (!strcmp(call, "connect")) connect(pair[0] = socket(AF_UNIX, SOCK_STREAM, 0), (void *)&any, size);
    int option = !strcmp(call, "recv") || !strcmp(call, "accept") ? SO_RCVTIMEO : SO_SNDTIMEO, result = 0;
    setsockopt(fd, SOL_SOCKET, option, time, sizeof *time);
    if (!strcmp(call, "recv")) result = recv(fd, much, 1, 0);
    if (!strcmp(call, "accept")) result = accept(fd, 0, 0);
    if (!strcmp(call, "send")) result = send(fd, much, sizeof much, 0);
    if (!strcmp(call, "connect")) result = connect(fd, (void *)&any, size);
    size = sizeof *time;
    getsockopt(fd, SOL_SOCKET, option, time, &size);
    return result;
}

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
    if (strchr("rac", argv[1][0]) || !strcmp(argv[1], "send")) {
        struct timeval spell = {wait.tv_sec, wait.tv_nsec / 1000};
        result = waiting(argv[1], &spell);
        wait.tv_sec = spell.tv_sec, wait.tv_nsec = spell.tv_usec * 1000;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    semctl(id, 0, IPC_RMID);
    printf("result %d, the time was %s\n", result, wait.tv_sec == time / 1000 && wait.tv_nsec == time % 1000 * 1000000 ? "left alone" : "changed");
    long waited = (to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec);
    if (waited < time * 1000000) printf("%ld ns are too few\n", waited);
    if (argc > 3 && waited >= (time + atol(argv[3])) * 1000000) printf("%ld ns are as many as for a call that has begun anew\n", waited);
    return 0;
}
