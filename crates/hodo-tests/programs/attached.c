// Threads in all kinds of places: in waiting system calls, deep in recursion, in signal handlers. Each reports what it
// finds wrong. Ends when its input does.
#define _GNU_SOURCE
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_int ending;
static atomic_int wrong;

static void expect(const char *what, long got, long wanted) {
    if (got != wanted) {
        printf("%s: %ld (%s), not %ld\n", what, got, strerror(errno), wanted);
        wrong++;
    }
}

__attribute__((noipa)) long deep(long n) {
    volatile long local = n;
    return n ? deep(n - 1) + local : 0;
}

__attribute__((noipa)) long leaf(long n) { return n * 3 + 1; }

static void *recursion(void *unused) {
    (void)unused;
    while (!ending)
        expect("deep", deep(1000), 500500);
    return NULL;
}

static void *leaves(void *unused) {
    (void)unused;
    while (!ending)
        for (long i = 0; i < 1000; i++)
            expect("leaf", leaf(i), i * 3 + 1);
    return NULL;
}

static __thread volatile long handled;

__attribute__((noipa)) void handler(int signal) {
    (void)signal;
    expect("deep in a handler", deep(300), 45150);
    handled++;
}

static void *signals(void *unused) {
    (void)unused;
    long sent = 0;
    while (!ending) {
        pthread_kill(pthread_self(), SIGUSR1);
        expect("signals", handled, ++sent);
    }
    return NULL;
}

static void *sleeping(void *unused) {
    (void)unused;
    struct timespec time = {0, 3000000};
    while (!ending)
        expect("nanosleep", nanosleep(&time, NULL), 0);
    return NULL;
}

static void *epolling(void *unused) {
    (void)unused;
    struct epoll_event event;
    int fd = epoll_create1(0);
    while (!ending)
        expect("epoll_wait", epoll_wait(fd, &event, 1, 5), 0);
    return NULL;
}

static int wakeup;

static void *waiting(void *unused) {
    (void)unused;
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(0);
    epoll_ctl(fd, EPOLL_CTL_ADD, wakeup, &event);
    long got;
    int error;
    // Even if it is interrupted, which is reported, the thread stays.
    do {
        got = epoll_wait(fd, &event, 1, -1);
        error = errno;
        expect("epoll_wait for ever", got, 1);
    } while (got == -1 && error == EINTR);
    return NULL;
}

static void *selecting(void *unused) {
    (void)unused;
    while (!ending) {
        struct timeval time = {0, 4000};
        expect("select", select(0, NULL, NULL, NULL, &time), 0);
        expect("poll", poll(NULL, 0, 3), 0);
    }
    return NULL;
}

static struct timespec soon(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += 4000000;
    if (time.tv_nsec >= 1000000000) {
        time.tv_nsec -= 1000000000;
        time.tv_sec++;
    }
    return time;
}

static void *locking(void *unused) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    sem_t semaphore;
    (void)unused;
    sem_init(&semaphore, 0, 0);
    while (!ending) {
        struct timespec time = soon();
        pthread_mutex_lock(&mutex);
        expect("timedwait", pthread_cond_timedwait(&condition, &mutex, &time), ETIMEDOUT);
        pthread_mutex_unlock(&mutex);
        time = soon();
        expect("sem_timedwait", sem_timedwait(&semaphore, &time), -1);
        expect("sem_timedwait", errno, ETIMEDOUT);
    }
    return NULL;
}

static void *receiving(void *unused) {
    int pair[2];
    char byte;
    struct timeval time = {0, 5000};
    struct timespec wait = {0, 5000000};
    sigset_t set;
    (void)unused;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    while (!ending) {
        expect("recv", recv(pair[0], &byte, 1, 0), -1);
        expect("recv", errno, EAGAIN);
        expect("sigtimedwait", sigtimedwait(&set, NULL, &wait), -1);
        expect("sigtimedwait", errno, EAGAIN);
    }
    return NULL;
}

int main(void) {
    static void *(*const all[])(void *) = {recursion, leaves,    signals, sleeping, epolling,
                                           waiting,   selecting, locking, receiving};
    enum { COUNT = sizeof all / sizeof *all };
    pthread_t threads[COUNT];
    char byte;
    long got;
    setvbuf(stdout, NULL, _IONBF, 0);
#ifdef __GLIBC__
    // A thread that prints maps no memory of its own.
    mallopt(M_ARENA_MAX, 1);
#endif
    signal(SIGUSR1, handler);
    wakeup = eventfd(0, 0);
    for (int i = 0; i < COUNT; i++)
        pthread_create(&threads[i], NULL, all[i], NULL);
    puts("begun");
    while ((got = read(0, &byte, 1)) > 0)
        ;
    expect("read", got, 0);
    ending = 1;
    expect("write", write(wakeup, &(long){1}, 8), 8);
    for (int i = 0; i < COUNT; i++)
        pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
