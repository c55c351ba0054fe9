// Returns are traced: values of all classes, recursion, tail calls, longjmp, signals, threads, fork.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// Compilers do not see the calls of hooks.
static _Thread_local volatile long entries, exits, open_calls, deepest;
static _Thread_local volatile int disordered;
static volatile int uninteresting;

HOOK static int entered(struct hodo_ftrace_call *call) {
    entries++;
    open_calls++;
    if ((long)call->depth > deepest) deepest = call->depth;
    if (uninteresting) {
        open_calls--;
        return 0;
    }
    call->data = call->func ^ 0x5555;
    return 1;
}

HOOK static void left(struct hodo_ftrace_call *call) {
    exits++;
    open_calls--;
    if (call->data != (call->func ^ 0x5555)) disordered = 1;
}

static const struct hodo_ftrace_graph_ops ops = {entered, left, FLAGS}, no_entry = {0, left, FLAGS};

struct two { double a, b; };
struct mixed { double a; long b; };
struct big { long a[9]; };
typedef float four __attribute__((vector_size(16)));
APART long one(long a) {
    EFFECT;
    return a * 3;
}
APART __int128 wide(long a) { return (__int128)a << 70 | 5; }
APART struct two twice(double a) { return (struct two){a, -a}; }
APART struct mixed mix(double a, long b) { return (struct mixed){a, b}; }
APART struct big large(long a) { return (struct big){{a, 1, 2, 3, 4, 5, 6, 7, a}}; }
APART long double extended(long double a) { return a / 3; }
APART float single(float a) { return a + 1; }
APART _Complex long double complex_extended(long double a) { return a + 2.0il; }
APART four vector(four a) { return a + a; }
#ifdef __AVX__
typedef double eight __attribute__((vector_size(32)));
APART eight wide_vector(eight a) { return a + a; }
#endif

QUIET static void values(void) {
    CHECK(one(5) == 15);
    CHECK(wide(9) == ((__int128)9 << 70 | 5));
    struct two t = twice(2.5);
    CHECK(t.a == 2.5 && t.b == -2.5);
    struct mixed m = mix(1.5, 77);
    CHECK(m.a == 1.5 && m.b == 77);
    CHECK(large(4).a[8] == 4);
    CHECK(extended(1) == 1.0l / 3);
    CHECK(single(1) == 2);
    _Complex long double c = complex_extended(1);
    CHECK(__real__ c == 1 && __imag__ c == 2);
    four v = vector((four){1, 2, 3, 4});
    CHECK(v[0] == 2 && v[3] == 8);
#ifdef __AVX__
    if (__builtin_cpu_supports("avx")) {
        eight w = wide_vector((eight){1, 2, 3, 4});
        CHECK(w[0] == 2 && w[3] == 8);
    }
#endif
}

APART long fibonacci(long n) {
    EFFECT;
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
APART long deep(long n) {
    long result = n ? deep(n - 1) + 1 : 0;
    EFFECT;
    return result;
}
APART long last(long n) { return n + 1; }
// At -O2 this is a jump.
APART long jumping(long n) { return last(n * 2); }
APART long arguments(int count, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, count);
    long sum = 0;
    for (int i = 0; i < count; i++) sum += __builtin_va_arg(list, long);
    __builtin_va_end(list);
    return sum;
}

static jmp_buf back;
APART long leaving(long n) {
    if (n == 0) longjmp(back, 1);
    long result = leaving(n - 1) + 1;
    EFFECT;
    return result;
}

static volatile sig_atomic_t handled;
APART long in_handler(long n) {
    EFFECT;
    return n + 2;
}
QUIET static void handler(int signal) {
    (void)signal;
    if (in_handler(handled) == handled + 2) handled++;
}

QUIET static void *thread(void *argument) {
    for (int i = 0; i < 200; i++) values();
    CHECK(fibonacci(12) == 144);
    CHECK(deep(50) == 50);
    CHECK(open_calls == 0 && !disordered);
    return argument;
}

QUIET static struct hodo_ftrace_counts counts(void) {
    struct hodo_ftrace_counts result;
    hodo_ftrace_counts(&result);
    return result;
}

QUIET static void signals(int on_own_stack) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    if (on_own_stack) CHECK(sigaltstack(&stack, 0) == 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (on_own_stack ? SA_ONSTACK : 0)};
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    handled = 0;
    setitimer(ITIMER_REAL, &often, 0);
    while (handled < 200) {
        values();
        CHECK(fibonacci(6) == 8);
    }
    setitimer(ITIMER_REAL, &never, 0);
}

QUIET int main(void) {
    hodo_ftrace_set_graph(&ops);
    CHECK(one(2) == 6);
    if (entries != 1 || exits != 1) {
        printf("%ld entries, %ld exits, %ld untraced\n", entries, exits, counts().untraced);
        return 1;
    }
    values();
    CHECK(entries == exits && !disordered);
    CHECK(fibonacci(15) == 610);
    CHECK(jumping(4) == 9);
    CHECK(arguments(3, 1l, 2l, 3l) == 6 && arguments(9, 1l, 2l, 3l, 4l, 5l, 6l, 7l, 8l, 9l) == 45);
    CHECK(entries == exits && open_calls == 0 && !disordered);

    deepest = 0;
    CHECK(deep(500) == 500 && deepest == 500);
    CHECK(counts().too_deep == 0);
    CHECK(deep(2000) == 2000 && deepest == 1023);
    CHECK(counts().too_deep == 2001 - 1024);
    CHECK(entries == exits && open_calls == 0 && !disordered);

    // The calls that longjmp left are dropped at the next entry.
    CHECK(counts().dropped == 0);
    if (setjmp(back) == 0) leaving(20);
    CHECK(one(2) == 6);
    CHECK(counts().dropped == 21 && open_calls == 21);
    open_calls = 0;

    uninteresting = 1;
    long before = exits;
    CHECK(fibonacci(10) == 55 && exits == before && open_calls == 0);
    uninteresting = 0;

    // Hooks are changed while calls are open: nobody sees the return of these.
    hodo_ftrace_set_graph(0);
    CHECK(fibonacci(10) == 55 && exits == before);
    hodo_ftrace_set_graph(&no_entry);
    CHECK(one(2) == 6 && exits == before + 1);
    disordered = 0;
    open_calls = 0;
    hodo_ftrace_set_graph(&ops);

    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], 0, thread, 0) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], 0) == 0);

    pid_t child = fork();
    if (child == 0) {
        values();
        _exit(fibonacci(10) == 55 && open_calls == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    signals(0);
    signals(1);
    CHECK(counts().mismatched == 0);
    hodo_ftrace_set_graph(0);
    puts("ok");
    return 0;
}
