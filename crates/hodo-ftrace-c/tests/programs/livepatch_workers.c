// Workers that call an old version and then wait leave addresses of it on their stacks. They change all the same.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

enum { WORKERS = 6, ROUNDS = 20, PATIENCE = 60000 };

APART int deep(int x) {
    EFFECT;
    return x;
}
APART int old_f(int x) {
    int y = deep(x);
    EFFECT;
    return y + 1;
}
QUIET APART int new_f(int x) {
    EFFECT;
    return x + 100;
}
APART int old_leaf(int x) {
    EFFECT;
    return x + 1;
}
QUIET APART int new_leaf(int x) {
    EFFECT;
    return x + 100;
}

static volatile int stop, results[WORKERS][2];
static sem_t never;

QUIET static void pause_by(int kind) {
    struct timespec until;
    switch (kind) {
    case 0: usleep(1000); break;
    case 1: poll(0, 0, 1); break;
    case 2: pthread_testcancel(); break;
    case 3:
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        sem_timedwait(&never, &until);
        break;
    case 4: {
        char text[64];
        snprintf(text, sizeof text, "%d %f", kind, 1.5);
        break;
    }
    default: sched_yield();
    }
}

QUIET static void *work(void *number) {
    int me = (int)(long)number;
    while (!stop) {
        int f = old_f(0), leaf = old_leaf(0);
        results[me][0] = f, results[me][1] = leaf;
        pause_by(me);
    }
    return 0;
}

QUIET static int each(const struct hodo_ftrace_patch_thread *thread, void *data) {
    printf("thread %ld in %s: %s\n", thread->tid, thread->function ? thread->function : "?", thread->why);
    return (void)data, 0;
}

static const struct hodo_ftrace_patch_function functions[] = {{"old_f", 0, (void *)new_f}, {"old_leaf", 0, (void *)new_leaf}};
static const struct hodo_ftrace_patch patch = {functions, 2};

QUIET int main(void) {
    pthread_t threads[WORKERS];
    sem_init(&never, 0, 0);
    for (long i = 0; i < WORKERS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int round = 0; round < ROUNDS; round++) {
        int on = !(round & 1);
        if ((on ? hodo_ftrace_livepatch_enable(&patch) : hodo_ftrace_livepatch_disable(&patch)) < 0) {
            puts(hodo_ftrace_error());
            return 1;
        }
        if (hodo_ftrace_livepatch_wait(&patch, PATIENCE) != 1) {
            printf("round %d does not end\n", round);
            hodo_ftrace_livepatch_each_thread(&patch, each, 0);
            return 1;
        }
        CHECK(old_f(0) == (on ? 100 : 1) && old_leaf(0) == (on ? 100 : 1));
    }
    stop = 1;
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], 0);
    puts("ok");
    return 0;
}
