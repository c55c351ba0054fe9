// Preloaded into a program under load: enables and disables patches of functions that the program executes, one after
// another, and says how long each took. The new version of a function counts, and goes on in the old one's body.
//
// PATCHES is how many; PATCHES_SKIP has the names of functions that the program never leaves, separated by spaces. Such
// a function cannot be patched while a thread is in it. PATCHES_SEED chooses other functions.
// PATCHES_AFTER is how many milliseconds the program needs until it is busy.
#include <hodo-ftrace.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the new versions are written for x86-64"
#endif

enum { MOST = 256, SEEN = 1 << 16, LIMIT = 1000, SITE = 5, VERSION = 16 };

// The flags mean nothing at the entry of a function. Each version has a symbol with a size.
__attribute__((visibility("hidden"))) unsigned long new_calls[MOST];
__attribute__((visibility("hidden"))) unsigned long new_targets[MOST];
extern const char new_versions[] __attribute__((visibility("hidden")));
__asm__(".pushsection .text, \"ax\", @progbits\n"
        ".altmacro\n"
        ".macro new_version number\n"
        ".balign 16\n"
        ".type new_version_\\number, @function\n"
        "new_version_\\number:\n"
        "lock incq new_calls+8*\\number(%rip)\n"
        "jmp *new_targets+8*\\number(%rip)\n"
        ".size new_version_\\number, . - new_version_\\number\n"
        ".endm\n"
        ".balign 16\n"
        ".globl new_versions\n"
        ".hidden new_versions\n"
        "new_versions:\n"
        ".set number, 0\n"
        ".rept 256\n"
        "new_version %number\n"
        ".set number, number + 1\n"
        ".endr\n"
        ".noaltmacro\n"
        ".popsection\n");

static _Atomic unsigned long seen[SEEN];

static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                struct hodo_ftrace_registers *registers) {
    (void)parent, (void)ops, (void)registers;
    for (unsigned long at = ip / 16;; at++) {
        unsigned long empty = 0;
        _Atomic unsigned long *slot = &seen[at % SEEN];
        if (*slot == ip || atomic_compare_exchange_strong(slot, &empty, ip) || empty == ip)
            return;
    }
}
static const struct hodo_ftrace_ops seer = {see, 0, 0};

struct chosen {
    unsigned long ip;
    char name[100];
};
static struct chosen all[SEEN];
static long count;

static int is_skipped(const char *name) {
    const char *skip = getenv("PATCHES_SKIP");
    size_t length = strlen(name);
    for (; skip && (skip = strstr(skip, name)); skip += length)
        if ((skip == getenv("PATCHES_SKIP") || skip[-1] == ' ') && (!skip[length] || skip[length] == ' '))
            return 1;
    return 0;
}

static int choose(const struct hodo_ftrace_site *site, void *data) {
    (void)data;
    for (unsigned long at = site->ip / 16; seen[at % SEEN]; at++)
        if (seen[at % SEEN] == site->ip && !is_skipped(site->name)) {
            all[count].ip = site->ip;
            snprintf(all[count++].name, sizeof all->name, "%s", site->name);
            break;
        }
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static int say(const struct hodo_ftrace_patch_thread *thread, void *data) {
    printf("    %s: thread %ld %s, %s\n", (const char *)data, thread->tid,
           thread->function ? thread->function : "(unknown function)", thread->why);
    return 0;
}

static void failed(const char *what) {
    printf("%s: %s\n", what, hodo_ftrace_error());
    fflush(stdout);
    _exit(2);
}

static int by_time(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static void pause_for(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time))
        ;
}

// Waits until a patch is on or off. Returns how long it took since `began`; late ones are reported.
static double wait_for(const struct hodo_ftrace_patch *patch, double began, const char *name, long *late) {
    int done = hodo_ftrace_livepatch_wait(patch, LIMIT);
    if (done < 0)
        failed(name);
    if (!done) {
        ++*late;
        hodo_ftrace_livepatch_each_thread(patch, say, (void *)name);
        fflush(stdout);
    }
    return now() - began;
}

static void *patch_all(void *unused) {
    (void)unused;
    long wanted = atol(getenv("PATCHES") ? getenv("PATCHES") : "100"), late = 0, unused_versions = 0;
    pause_for(atol(getenv("PATCHES_AFTER") ? getenv("PATCHES_AFTER") : "500"));
    if (hodo_ftrace_register(&seer))
        failed("the functions cannot be seen");
    pause_for(1000);
    if (hodo_ftrace_unregister(&seer))
        failed("the tracer cannot be removed");
    hodo_ftrace_each_site(choose, 0);
    srand(atoi(getenv("PATCHES_SEED") ? getenv("PATCHES_SEED") : "1"));
    long used = count;
    static double on[MOST], off[MOST];
    double slowest[2] = {0, 0};
    char slow[2][100] = {"", ""};
    if (wanted > count) wanted = count;
    if (wanted > MOST) wanted = MOST;
    if (!wanted)
        failed("the program has executed no function with a call site");
    for (long i = 0; i < wanted; i++) {
        long which = rand() % count;
        struct chosen chosen = all[which];
        all[which] = all[--count];
        new_targets[i] = chosen.ip + SITE;
        struct hodo_ftrace_patch_function function = {0, (const void *)chosen.ip, new_versions + i * VERSION};
        struct hodo_ftrace_patch patch = {&function, 1};
        double began = now();
        if (hodo_ftrace_livepatch_enable(&patch))
            failed(chosen.name);
        on[i] = wait_for(&patch, began, chosen.name, &late);
        if (on[i] > slowest[0]) {
            slowest[0] = on[i];
            strcpy(slow[0], chosen.name);
        }
        pause_for(5);
        unused_versions += !new_calls[i];
        began = now();
        if (hodo_ftrace_livepatch_disable(&patch))
            failed(chosen.name);
        off[i] = wait_for(&patch, began, chosen.name, &late);
        if (off[i] > slowest[1]) {
            slowest[1] = off[i];
            strcpy(slow[1], chosen.name);
        }
        if (hodo_ftrace_livepatch_wait(&patch, 60000) != 1)
            failed("a patch stays in transition");
    }
    qsort(on, wanted, sizeof *on, by_time);
    qsort(off, wanted, sizeof *off, by_time);
    printf("  %ld patches of %ld functions in use; new versions of %ld were called within 5 ms\n", wanted, used,
           wanted - unused_versions);
    printf("  enabled:  median %.1f ms, longest %.1f ms (%s)\n", on[wanted / 2], on[wanted - 1], slow[0]);
    printf("  disabled: median %.1f ms, longest %.1f ms (%s)\n", off[wanted / 2], off[wanted - 1], slow[1]);
    printf("  not complete within %d ms: %ld\n", LIMIT, late);
    fflush(stdout);
    _exit(late != 0);
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, patch_all, 0))
        abort();
}
