// Ignored signals, while the first thread waits forever in calls that the kernel does not restart, until the input
// ends.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static volatile int ending;
static int ends[2];

static void *sends(void *unused) {
    for (long n = 0; !ending; n++) {
        kill(getpid(), n % 2 ? SIGCHLD : SIGUSR1);
        usleep(500);
        if (n % 8 == 0 && write(ends[1], "", 1) != 1)
            return NULL;
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    sigset_t all, none;
    int wrong = 0, epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN}, input = {.events = EPOLLIN, .data.fd = 1};
    char bytes[64];
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGUSR1, SIG_IGN);
    if (pipe(ends))
        return 1;
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &input);
    sigfillset(&all);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &all, &none);
    pthread_create(&thread, NULL, sends, NULL);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    puts("begun");
    for (;;) {
        if (epoll_wait(epoll, &event, 1, -1) != 1) {
            if (!wrong++)
                puts(strerror(errno));
            continue;
        }
        if (read(event.data.fd ? 0 : ends[0], bytes, sizeof bytes) <= 0)
            break;
    }
    ending = 1;
    pthread_join(thread, NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
