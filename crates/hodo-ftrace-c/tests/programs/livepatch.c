// Functions that are replaced while threads are inside them.
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t entered, go;

// The old version may wait inside.
APART static long version(long wait) {
    if (wait) {
        sem_post(&entered);
        while (sem_wait(&go) != 0)
            ;
    }
    EFFECT;
    return 1;
}
APART static long new_version(long wait) {
    if (wait > 1) {
        sem_post(&entered);
        while (sem_wait(&go) != 0)
            ;
    }
    EFFECT;
    return 2;
}
APART static long other(long a) {
    EFFECT;
    return a;
}
APART static long new_other(long a) {
    EFFECT;
    return a + 10;
}
static long (*volatile call_version)(long) = version;
static long (*volatile call_other)(long) = other;

static const struct hodo_ftrace_patch_function functions[] = {
    {"version", 0, (void *)new_version}, {0, (void *)other, (void *)new_other}};
static const struct hodo_ftrace_patch patch = {functions, 2};

#define WAIT(state)                                                                       \
    do {                                                                                  \
        CHECK(hodo_ftrace_livepatch_wait(&patch, 20000) == 1);                            \
        CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_##state);          \
    } while (0)

// What is said about threads that have not changed.
struct said {
    int count;
    long tid;
    char function[40], why[200];
};
QUIET static int say(const struct hodo_ftrace_patch_thread *thread, void *data) {
    struct said *said = data;
    said->count++;
    said->tid = thread->tid;
    strcpy(said->function, thread->function ? thread->function : "?");
    strcpy(said->why, thread->why);
    return 0;
}
QUIET static struct said stragglers(void) {
    struct said said = {0};
    CHECK(hodo_ftrace_livepatch_each_thread(&patch, say, &said) == said.count);
    return said;
}

QUIET static long my_tid(void) {
    return syscall(SYS_gettid);
}

static volatile long tid, result, both;
QUIET static void *sleeper(void *data) {
    tid = my_tid();
    result = call_version((long)data);
    both = call_other(0);
    return 0;
}

// A thread sleeps inside the old version.
QUIET static void a_sleeper_delays(void) {
    pthread_t thread;
    pthread_create(&thread, 0, sleeper, (void *)1);
    sem_wait(&entered);
    CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_OFF);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == -1 && strstr(hodo_ftrace_error(), "enabled already"));
    CHECK(hodo_ftrace_livepatch_wait(&patch, 50) == 0);
    CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_ENABLING);
    struct said said = stragglers();
    CHECK(said.count == 1 && said.tid == tid && strcmp(said.function, "version") == 0);
    CHECK(strstr(said.why, "is inside") != 0);
    // This thread has changed.
    CHECK(call_version(0) == 2 && call_other(1) == 11);
    sem_post(&go);
    pthread_join(thread, 0);
    CHECK(result == 1);
    WAIT(ON);
    CHECK(call_version(1) == 2 && call_other(1) == 11);
    CHECK(stragglers().count == 0);
}

// A thread sleeps inside the new version.
QUIET static void and_the_way_back(void) {
    pthread_t thread;
    pthread_create(&thread, 0, sleeper, (void *)2);
    sem_wait(&entered);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == -1 && strstr(hodo_ftrace_error(), "not enabled"));
    CHECK(hodo_ftrace_livepatch_wait(&patch, 50) == 0);
    CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_DISABLING);
    struct said said = stragglers();
    CHECK(said.count == 1 && said.tid == tid && strcmp(said.function, "version") == 0);
    CHECK(call_version(0) == 1 && call_other(1) == 1);
    sem_post(&go);
    pthread_join(thread, 0);
    CHECK(result == 2);
    WAIT(OFF);
    CHECK(call_version(0) == 1 && call_other(1) == 1);
}

// A transition that cannot end is turned round.
QUIET static void reversed(void) {
    pthread_t thread;
    pthread_create(&thread, 0, sleeper, (void *)1);
    sem_wait(&entered);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
    CHECK(hodo_ftrace_livepatch_wait(&patch, 20) == 0);
    CHECK(call_version(0) == 2);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
    WAIT(OFF);
    CHECK(call_version(0) == 1);
    sem_post(&go);
    pthread_join(thread, 0);
    CHECK(result == 1 && both == 0);
}

QUIET static void *blocked(void *data) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    tid = my_tid();
    sem_post(&entered);
    while (sem_wait(&go) != 0)
        ;
    pthread_sigmask(SIG_UNBLOCK, &all, 0);
    sem_post(&entered);
    while (sem_wait(&go) != 0)
        ;
    return 0;
}

// A thread blocks all signals: nothing is known about it.
QUIET static void blocked_signals_are_unknown(void) {
    pthread_t thread;
    pthread_create(&thread, 0, blocked, 0);
    sem_wait(&entered);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
    CHECK(hodo_ftrace_livepatch_wait(&patch, 300) == 0);
    struct said said = stragglers();
    CHECK(said.count == 1 && said.tid == tid && strcmp(said.function, "?") == 0);
    CHECK(strstr(said.why, "signal") != 0);
    sem_post(&go);
    while (sem_wait(&entered) != 0)
        ;
    WAIT(ON);
    sem_post(&go);
    pthread_join(thread, 0);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
    WAIT(OFF);
}

// All signals that the program could see are as before.
QUIET static void signals_are_given_back(void) {
    for (int signal = SIGRTMIN; signal <= SIGRTMAX - 2; signal++) {
        struct sigaction now;
        CHECK(sigaction(signal, 0, &now) == 0 && now.sa_handler == SIG_DFL);
    }
    sigset_t pending;
    sigpending(&pending);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        CHECK(sigismember(&pending, signal) != 1);
}

QUIET int main(void);
QUIET static void errors(void) {
    CHECK(hodo_ftrace_livepatch_enable(0) == -1 && strstr(hodo_ftrace_error(), "it is null"));
    struct hodo_ftrace_patch empty = {functions, 0};
    CHECK(hodo_ftrace_livepatch_enable(&empty) == -1 && strstr(hodo_ftrace_error(), "no functions"));
    struct hodo_ftrace_patch_function bad[2] = {{"version", 0, (void *)new_version}, {"nowhere", 0, (void *)new_other}};
    struct hodo_ftrace_patch wrong = {bad, 2};
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1);
    CHECK(strstr(hodo_ftrace_error(), "function 2 of the patch: no function with a call site is called nowhere"));
    bad[1].old_name = "*version";
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "functions are called *version"));
    bad[1].old_name = "version";
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "is in the patch twice"));
    bad[1].old_name = 0;
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "neither old_name nor old_func"));
    bad[1].old_func = &functions;
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "begins at"));
    bad[1].old_func = (void *)other;
    bad[1].new_func = &functions;
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "the new version of other"));
    bad[1].new_func = (char *)main + 4;
    CHECK(hodo_ftrace_livepatch_enable(&wrong) == -1 && strstr(hodo_ftrace_error(), "not its entry"));
    CHECK(hodo_ftrace_livepatch_disable(&wrong) == -1 && strstr(hodo_ftrace_error(), "not enabled"));
    CHECK(call_version(0) == 1 && call_other(1) == 1);
}

// A function is in one patch; a new version can be the old one of another patch.
QUIET static long newest(long a) {
    EFFECT;
    return a + 100;
}
QUIET static void patches_of_patches(void) {
    CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
    WAIT(ON);
    static const struct hodo_ftrace_patch_function second[] = {{"other", 0, (void *)newest}};
    static const struct hodo_ftrace_patch again = {second, 1};
    CHECK(hodo_ftrace_livepatch_enable(&again) == -1);
    CHECK(strstr(hodo_ftrace_error(), "other cannot be patched: another patch") != 0);
    CHECK(call_other(1) == 11);
    static const struct hodo_ftrace_patch_function third[] = {{"new_other", 0, (void *)newest}};
    static const struct hodo_ftrace_patch chain = {third, 1};
    CHECK(hodo_ftrace_livepatch_enable(&chain) == 0);
    CHECK(hodo_ftrace_livepatch_wait(&chain, 20000) == 1);
    CHECK(call_other(1) == 101);
    CHECK(hodo_ftrace_livepatch_disable(&chain) == 0);
    CHECK(hodo_ftrace_livepatch_wait(&chain, 20000) == 1);
    CHECK(call_other(1) == 11);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
    WAIT(OFF);
    CHECK(call_other(1) == 1);
}

// A child has the patch, and goes on with the transition alone.
QUIET static void *forks(void *data) {
    pid_t child = fork();
    if (child == 0) {
        // The thread that was inside does not exist here.
        CHECK(hodo_ftrace_livepatch_wait(&patch, 20000) == 1);
        CHECK(call_version(0) == 2);
        CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
        CHECK(hodo_ftrace_livepatch_wait(&patch, 20000) == 1);
        CHECK(call_version(0) == 1);
        _exit(7);
    }
    int status;
    while (waitpid(child, &status, 0) != child)
        ;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return 0;
}
QUIET static void forked(void) {
    pthread_t thread, forker;
    pthread_create(&thread, 0, sleeper, (void *)1);
    sem_wait(&entered);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
    pthread_create(&forker, 0, forks, 0);
    pthread_join(forker, 0);
    CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_ENABLING);
    sem_post(&go);
    pthread_join(thread, 0);
    WAIT(ON);
    CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
    WAIT(OFF);
}

QUIET int main(void) {
    sem_init(&entered, 0, 0);
    sem_init(&go, 0, 0);
#ifdef FRAMED
    CHECK(hodo_ftrace_livepatch_enable(&patch) == -1);
    CHECK(strstr(hodo_ftrace_error(), "version cannot be patched: its call site is not at its entry") != 0);
    CHECK(call_version(0) == 1 && call_other(1) == 1);
#else
    errors();
    for (int time = 0; time < 2; time++) {
        a_sleeper_delays();
        and_the_way_back();
    }
    reversed();
    signals_are_given_back();
#ifdef __x86_64__
    // An emulator has its own queue of signals, and delivers this one too late.
    blocked_signals_are_unknown();
    signals_are_given_back();
#endif
    patches_of_patches();
    forked();
    signals_are_given_back();
#endif
    puts("ok");
    return 0;
}
