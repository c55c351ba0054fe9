// A counter for each processor, which threads change in restartable sequences, or with a lock where there are none. Two
// threads share one processor, and a timer interrupts them.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define ROUNDS 100000
#define SIGNATURE 0x53053053

struct area {
    uint32_t cpu_start, cpu;
    uint64_t sequence;
    uint32_t flags;
} __attribute__((aligned(32)));

static volatile long counter;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int without;

// Adds one by a slow sequence: load, wait, store.
static void add(struct area *area) {
    __asm__ volatile(".pushsection __rseq_cs, \"aw\"\n"
                     ".balign 32\n"
                     "1: .long 0, 0\n"
                     ".quad 2f, 3f - 2f, 4f\n"
                     ".popsection\n"
                     "5: lea 1b(%%rip), %%rax\n"
                     "mov %%rax, 8(%0)\n"
                     "2: mov %1, %%rcx\n"
                     "mov $200, %%edx\n"
                     "6: dec %%edx\n"
                     "jnz 6b\n"
                     "inc %%rcx\n"
                     "mov %%rcx, %1\n"
                     "3: jmp 7f\n"
                     ".byte 0x0f, 0xb9, 0x3d\n"
                     ".long 0x53053053\n"
                     "4: jmp 5b\n"
                     "7:\n" ::"r"(area), "m"(counter)
                     : "rax", "rcx", "rdx", "memory", "cc");
}

static void handler(int signal) { (void)signal; }

static void *run(void *unused) {
    static __thread struct area area;
    if (syscall(SYS_rseq, &area, sizeof area, 0, SIGNATURE)) __atomic_add_fetch(&without, 1, __ATOMIC_RELAXED);
    else without = -100;
    for (int i = 0; i < ROUNDS; i++) {
        if (without < 0) {
            add(&area);
        } else {
            pthread_mutex_lock(&lock);
            counter++;
            pthread_mutex_unlock(&lock);
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    (void)argv;
    cpu_set_t one;
    pthread_t threads[2];
    struct itimerval timer = {{0, 2000}, {0, 2000}};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (argc > 1) {
        puts("ready");
        fflush(stdout);
        getchar();
    }
    printf("%ld, the processor is %s\n", counter, sched_getcpu() >= 0 ? "known" : "unknown");
    return 0;
}
