// Unwinds from each instruction: the processor single-steps through calls, and the handler takes a backtrace, or throws
// an exception after a number of steps. Threads that profile themselves do the same wherever a timer interrupts them.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define NOIPA __attribute__((noipa))

static volatile int sink;

NOIPA int leaf(int n) { return n * 3 + 1; }
NOIPA int jumps(int n) { return leaf(n + 1); }
NOIPA int saves(int a, int b, int c, int d, int e, int f) {
    return leaf(a + b) * jumps(c + d) + leaf(e) * leaf(f) + a + b + c + d + e + f;
}
NOIPA int with_room(int n) {
    volatile char room[n % 100 + 8];
    room[0] = 1;
    return leaf(n) + room[0];
}
NOIPA int aligned(int n) {
    volatile int __attribute__((aligned(64))) room[16];
    room[n & 15] = n;
    return jumps(n) + room[n & 15];
}
NOIPA int loops(const int *at, int n) {
    do
        n += *at++;
    while (*at);
    return n;
}
NOIPA int outer(int n) {
    static const int numbers[] = {1, 2, 3, 0};
    return saves(n, 1, 2, 3, 4, 5) + with_room(n) + aligned(n) + loops(numbers, n);
}

// The callers that must be seen, and how many there must be above the handler.
static uintptr_t root, root_end;
static volatile int samples, good;

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *found) {
    uintptr_t at = _Unwind_GetIP(context);
    *(int *)found += at > root && at < root_end;
    return _URC_NO_REASON;
}

static void on_sample(int) {
    int found = 0;
    _Unwind_Backtrace(look, &found);
    __atomic_add_fetch(&samples, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&good, found == 1, __ATOMIC_SEQ_CST);
}

static volatile int countdown;

NOIPA bool throws_after(int steps);

static void on_throw(int, siginfo_t *, void *context) {
    // The tables say only for calls where exceptions are expected.
    uintptr_t at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] - (uintptr_t)throws_after;
    if (at > 200 && countdown-- == 0)
        throw 42;
}

static inline void step() { __asm__ volatile("pushfq\n\torl $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc"); }
static inline void go() { __asm__ volatile("pushfq\n\tandl $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc"); }

NOIPA void all_steps() {
    step();
    for (int i = 0; i < 20; i++)
        sink += outer(i);
    go();
}

NOIPA bool throws_after(int steps) {
    countdown = steps;
    try {
        step();
        sink += outer(steps);
        go();
    } catch (int number) {
        return number == 42;
    }
    return false;
}

NOIPA void *samples_itself(void *) {
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = syscall(SYS_gettid);
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec often = {{0, 1000000}, {0, 1000000}}, never = {};
    timer_settime(timer, 0, &often, nullptr);
    while (samples < 2000)
        for (int i = 0; i < 100; i++)
            sink += outer(i);
    timer_settime(timer, 0, &never, nullptr);
    timer_delete(timer);
    return nullptr;
}

int main(int argc, char **argv) {
    // Instructions from one exception to the next.
    int stride = argc > 2 ? atoi(argv[2]) : 7;
    on_sample(0); // loads the unwinder
    samples = good = 0;
    if (!strcmp(argv[1], "step")) {
        root = (uintptr_t)all_steps;
        root_end = root + 150;
        signal(SIGTRAP, on_sample);
        all_steps();
    }
    if (!strcmp(argv[1], "timer")) {
        root = (uintptr_t)samples_itself;
        root_end = root + 500;
        signal(SIGPROF, on_sample);
        pthread_t threads[4];
        for (pthread_t &thread : threads)
            pthread_create(&thread, nullptr, samples_itself, nullptr);
        for (pthread_t thread : threads)
            pthread_join(thread, nullptr);
    }
    if (!strcmp(argv[1], "throw")) {
        struct sigaction action = {};
        action.sa_sigaction = on_throw;
        action.sa_flags = SA_NODEFER | SA_SIGINFO;
        sigaction(SIGTRAP, &action, nullptr);
        for (int steps = 0; throws_after(steps); steps += stride)
            good++;
        fprintf(stderr, "hodo: %d\n", good);
        samples = good;
    }
    fprintf(stderr, "hodo: %d samples\n", samples);
    printf("%d bad, %s\n", samples - good, samples * stride > 105 ? "enough" : "too few");
    return 0;
}
