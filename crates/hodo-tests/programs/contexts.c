/* Handlers that read and change the context that they have interrupted. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include "machine.h"
#include <unistd.h>

int load(int *);
int illegal(void);
int divide(int, int);
/* Not through the GOT: AArch64's linker would give local labels the address of their section. */
#pragma GCC visibility push(hidden)
extern char load_at[], load_next[], illegal_at[], illegal_next[], divide_at[], divide_next[];
#pragma GCC visibility pop
#if defined(__riscv)
/* Division does not fault there. */
#define FAULTS_OF_DIVISION 20
__asm__(".text\n"
        ".globl load\n.type load, @function\nload: .cfi_startproc\n mv a5, a0\n"
        "load_at: .option push; .option norvc\n lw a0, 0(a5); .option pop\nload_next: addi a0, a0, 1\n ret\n .cfi_endproc\n"
        ".size load, .-load\n"
        ".globl illegal\n.type illegal, @function\nillegal: .cfi_startproc\n li a0, 7\n"
        "illegal_at: c.unimp\nillegal_next: addi a0, a0, 1\n ret\n .cfi_endproc\n.size illegal, .-illegal\n"
        ".globl divide\n.type divide, @function\ndivide: .cfi_startproc\n"
        "divide_at: divw a0, a0, a1\ndivide_next: ret\n .cfi_endproc\n.size divide, .-divide\n");
#elif defined(__aarch64__)
/* Nor here. */
#define FAULTS_OF_DIVISION 20
__asm__(".text\n"
        ".globl load\n.type load, @function\nload: .cfi_startproc\n mov x5, x0\n"
        "load_at: ldr w0, [x5]\nload_next: add w0, w0, #1\n ret\n .cfi_endproc\n.size load, .-load\n"
        ".globl illegal\n.type illegal, @function\nillegal: .cfi_startproc\n mov w0, #7\n"
        "illegal_at: udf #0\nillegal_next: add w0, w0, #1\n ret\n .cfi_endproc\n.size illegal, .-illegal\n"
        ".globl divide\n.type divide, @function\ndivide: .cfi_startproc\n"
        // By 0, it gives 0 here, and -1 elsewhere.
        " cmp w1, #0\n csinv w2, w0, wzr, ne\n csinc w1, w1, wzr, ne\n"
        "divide_at: sdiv w0, w2, w1\ndivide_next: ret\n .cfi_endproc\n.size divide, .-divide\n");
#else
#define FAULTS_OF_DIVISION 0
__asm__(".text\n"
        ".globl load\n.type load, @function\nload: .cfi_startproc\n xor %eax, %eax\n"
        "load_at: movl (%rdi), %eax\nload_next: add $1, %eax\n ret\n .cfi_endproc\n.size load, .-load\n"
        ".globl illegal\n.type illegal, @function\nillegal: .cfi_startproc\n mov $7, %eax\n"
        "illegal_at: ud2\nillegal_next: add $1, %eax\n ret\n .cfi_endproc\n.size illegal, .-illegal\n"
        ".globl divide\n.type divide, @function\ndivide: .cfi_startproc\n mov %edi, %eax\n cltd\n"
        "divide_at: idivl %esi\ndivide_next: ret\n .cfi_endproc\n.size divide, .-divide\n");
#endif

static volatile int seen, wrong;
static sigjmp_buf point;
static char *page;

static void fault(int signal, siginfo_t *info, void *context) {
    char *at = (char *)CONTEXT_PC(context);
    seen++;
    if (signal == SIGSEGV && at == load_at && info->si_addr == NULL) {
        CONTEXT_PC(context) = (greg_t)load_next;
        CONTEXT_RESULT(context) = 41;
    } else if (signal == SIGILL && at == illegal_at)
        CONTEXT_PC(context) = (greg_t)illegal_next;
    else if (signal == SIGFPE && at == divide_at) {
        CONTEXT_PC(context) = (greg_t)divide_next;
        CONTEXT_RESULT(context) = -1;
    } else {
        wrong++;
        _exit(9);
    }
}

static void again(int signal, siginfo_t *info, void *context) {
    /* The same instruction runs again, and then succeeds. */
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    seen++;
}

static void leave(int signal) { siglongjmp(point, 1); }

static struct { uintptr_t start, end; } code[64];
static int ranges;
static uintptr_t strangest;
static volatile int ticks;

static void find_code(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        char flags[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && flags[2] == 'x' &&
            (strchr(line, '/') || strstr(line, "[vdso]")) && ranges < 64)
            code[ranges].start = start, code[ranges++].end = end;
    }
    fclose(maps);
}

static void tick(int signal, siginfo_t *info, void *context) {
    uintptr_t at = CONTEXT_PC(context);
    int known = 0;
    for (int i = 0; i < ranges; i++) known |= at >= code[i].start && at < code[i].end;
    if (!known) wrong++, strangest = at;
    ticks++;
    if (ticks % 10 == 0) raise(SIGUSR1);
}

static void nested(int signal) { seen++; }

static void forks(int signal) {
    pid_t child = fork();
    if (child == 0) seen = 1000;
    else {
        int status;
        waitpid(child, &status, 0);
        seen = WEXITSTATUS(status);
    }
}

static unsigned mix(unsigned x) { return x * 2654435761u ^ x >> 15; }

__attribute__((noinline)) static unsigned work(unsigned rounds) {
    unsigned sum = 0;
    for (unsigned i = 0; i < rounds; i++) sum += mix(i) % (i % 13 + 1);
    return sum;
}

static void handle(int signal, void *handler, int flags) {
    struct sigaction action = {.sa_flags = SA_SIGINFO | flags};
    action.sa_sigaction = handler;
    sigaction(signal, &action, NULL);
}

int main(void) {
    int five = 5;
    find_code();
    handle(SIGSEGV, fault, 0);
    handle(SIGILL, fault, 0);
    handle(SIGFPE, fault, 0);
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += load(i % 2 ? &five : NULL) + illegal() + divide(100, i % 5);
    printf("faults %d %d %d\n", seen + FAULTS_OF_DIVISION, wrong, sum);

    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    handle(SIGSEGV, again, 0);
    seen = 0;
    for (int i = 0; i < 50; i++) {
        mprotect(page, 4096, PROT_NONE);
        page[i]++;
        page[i] += load((int *)page) != 0;
    }
    printf("again %d %d %d\n", seen, page[0], page[49]);

    char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    for (int flags = 0; flags < 2; flags++) {
        volatile int left = 0;
        handle(SIGSEGV, leave, flags ? SA_ONSTACK : 0);
        for (volatile int i = 0; i < 200; i++) {
            if (sigsetjmp(point, 1) == 0) load(NULL);
            else left++;
        }
        printf("left %d\n", left);
    }

    struct itimerval often = {{0, 997}, {0, 997}}, never = {{0, 0}, {0, 0}};
    handle(SIGALRM, tick, SA_RESTART);
    handle(SIGUSR1, nested, 0);
    seen = 0;
    int pipes[2];
    char byte;
    if (pipe(pipes) != 0) return 1;
    setitimer(ITIMER_REAL, &often, NULL);
    unsigned total = 0;
    while (ticks < 300) total = work(20000);
    /* A read that is restarted after each tick. */
    if (fork() == 0) {
        struct timespec wait = {0, 30000000};
        while (nanosleep(&wait, &wait) != 0);
        _exit(write(pipes[1], "x", 1) != 1);
    }
    ssize_t got = read(pipes[0], &byte, 1);
    setitimer(ITIMER_REAL, &never, NULL);
    wait(NULL);
    printf("ticks %u %zd %d %d %lx\n", total, got, seen >= 30, wrong, (unsigned long)strangest);

    fflush(stdout);
    handle(SIGALRM, forks, 0);
    seen = 0;
    /* The alarm may come before the loop. */
    total = work(1000);
    ualarm(2000, 0);
    while (seen == 0) total = work(1000);
    if (seen == 1000) _exit(total == work(1000) ? 55 : 1);
    printf("forked %d\n", seen);
    return 0;
}
