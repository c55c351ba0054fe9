// Code that may change at any time, whoever writes it: gcc's nested functions on the stack, system calls, another mapping
// of the same memory, the instruction before.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

typedef int function(void);

enum { ALL = PROT_READ | PROT_WRITE | PROT_EXEC };

// mov eax, NUMBER; ret
static const unsigned char code[] = {0xB8, 0, 0, 0, 0, 0xC3};

static const unsigned char *returning(int number) {
    static unsigned char made[sizeof code];
    memcpy(made, code, sizeof code);
    memcpy(made + 1, &number, 4);
    return made;
}

static unsigned char *pages(int count, int protection) {
    return mmap(0, count * 4096L, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int call(unsigned char *at) { return ((function *)at)(); }

// The kernel writes to a page whose code has been executed.
static void by_system_calls(void) {
    unsigned char *page = pages(1, ALL);
    memcpy(page, returning(1), sizeof code);
    printf("%d", call(page));
    int ends[2];
    if (pipe(ends) || write(ends[1], returning(2), sizeof code) < 0)
        abort();
    ssize_t got = read(ends[0], page, sizeof code);
    printf(" read %zd %d", got, call(page));
    if (write(ends[1], returning(3), sizeof code) < 0)
        abort();
    struct iovec vector = {page, sizeof code};
    got = readv(ends[0], &vector, 1);
    printf(" readv %zd %d", got, call(page));
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) || write(sockets[0], returning(4), sizeof code) < 0)
        abort();
    got = recv(sockets[1], page, sizeof code, 0);
    printf(" recv %zd %d", got, call(page));
    printf(" fstat %d", fstat(0, (struct stat *)(page + 512)));
    printf(" pipe %d", pipe((int *)(page + 2048)));
    printf(" getcwd %d %d\n", getcwd((char *)page + 3000, 1000) != 0, call(page));
}

// The memory is mapped twice; code is written where it cannot be executed.
static void by_another_mapping(void) {
    int file = memfd_create("code", 0);
    if (ftruncate(file, 4096))
        abort();
    unsigned char *write = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unsigned char *run = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    for (int round = 0; round < 30; round++) {
        memcpy(write + 16, returning(round % 3), sizeof code);
        printf("%d ", call(run + 16));
    }
    memcpy(write + 16, returning(77), sizeof code);
    if (pwrite(file, returning(78), sizeof code, 16) < 0)
        abort();
    printf("%d\n", call(run + 16));
}

static unsigned char *both;
static pthread_barrier_t barrier;
static int sums[2];

static void *calls_what_changes(void *sum) {
    for (int round = 0; round < 60; round++) {
        pthread_barrier_wait(&barrier);
        *(int *)sum += call(both);
        pthread_barrier_wait(&barrier);
    }
    return 0;
}

// Two threads find the same change at the same time.
static void by_another_mapping_for_two(void) {
    int file = memfd_create("code", 0);
    if (ftruncate(file, 4096))
        abort();
    unsigned char *write = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    both = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    pthread_barrier_init(&barrier, 0, 3);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, calls_what_changes, &sums[i]);
    for (int round = 0; round < 60; round++) {
        memcpy(write, returning(round * 7 % 40), sizeof code);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    printf("%d %d\n", sums[0], sums[1]);
}

static volatile long signals;
static void count(int signal) { signals++; }

// Code on the stack, which signals and system calls write to.
static void on_the_stack(void) {
    int numbers[1000];
    long calls = 0;
    int compare(const void *one, const void *other) {
        calls++;
        return *(const int *)one - *(const int *)other;
    }
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 20000}, {0, 20000}};
    setitimer(ITIMER_REAL, &timer, 0);
    int ends[2];
    if (pipe(ends))
        abort();
    for (int round = 0; round < 60 || signals < 3; round++) {
        if (round == 60)
            round = 59;
        for (int number = 0; number < 1000; number++)
            numbers[number] = (number * 7919 + round) % 1009;
        long before = calls;
        qsort(numbers, 1000, 4, compare);
        char buffer[64];
        if (write(ends[1], "abc", 3) != 3 || read(ends[0], buffer, 64) != 3)
            puts("short read");
        if (round % 20 == 0)
            printf("%ld ", calls - before);
    }
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_REAL, &timer, 0);
    puts("on the stack");
}

// The stack grows down to where nothing was when the program began.
static int __attribute__((noinline)) deep(int depth, int (*function)(int)) {
    volatile char room[4096];
    room[0] = depth;
    int nested(int number) { return function(number) + room[0]; }
    return depth == 0 ? nested(1) : deep(depth - 1, nested) & 0xFFFF;
}
static int plain(int number) { return number + 1; }

// Unaligned accesses fault while this is executed, and only those.
static void aligned(void) {
    static const unsigned char strict[] = {
        0x9C, 0x81, 0x0C, 0x24, 0, 0, 4, 0, 0x9D,          // pushf; or dword [rsp], AC; popf
        0xEB, 0, 0xEB, 0, 0x90,                            // jmp; jmp; nop
        0x9C, 0x81, 0x24, 0x24, 0xFF, 0xFF, 0xFB, 0xFF, 0x9D, // pushf; and dword [rsp], ~AC; popf
        0xB8, 9, 0, 0, 0, 0xC3,                            // mov eax, 9; ret
    };
    unsigned char *page = pages(1, ALL);
    int sum = 0;
    for (int offset = 0; offset < 8; offset++) {
        memcpy(page + 100 + offset, strict, sizeof strict);
        sum += call(page + 100 + offset);
    }
    printf("aligned %d\n", sum);
}

static sigjmp_buf back;
static int code_of;
static void jump_back(int signal, siginfo_t *info, void *context) {
    code_of = info->si_code;
    siglongjmp(back, signal);
}

// An instruction that is none, on the stack: the handler's frame is put beside it.
static void invalid(void) {
    unsigned char bad[8] = {0x0F, 0x0B};
    __asm__ volatile("" : : "r"(bad) : "memory");
    int signal = sigsetjmp(back, 1);
    if (signal == 0)
        call(bad);
    printf("signal %d code %d\n", signal, code_of);
    memcpy(bad, returning(6), sizeof code);
    __asm__ volatile("" : : "r"(bad) : "memory");
    printf("%d\n", call(bad));
}

// A branch whose distance is the first byte of a page that is changed, and code that changes what comes next.
extern unsigned char part[];
int across(void);
void itself(void);
uint64_t number(void);
__asm__(".text\n.balign 4096\n.skip 4096 - 7\n"
        ".globl across\nacross: jmp 2f\n1: xor %eax, %eax\nret\nnop\n2: .byte 0xEB\n"
        ".globl part\npart: .byte 1b - part - 1\nmov $1, %eax\nret\n"
        ".globl number\nnumber: lea 3f - 4(%rip), %rax\naddl $3, (%rax)\nmov $0x12345678, %rax\n3: ret\n"
        ".globl itself\nitself: mov $100, %ecx\n4: lea 5f - 4(%rip), %rax\nincl (%rax)\n mov $0, %eax\n5: dec %ecx\njnz 4b\nret\n"
        ".balign 4096\n");

static void by_itself(void) {
    mprotect(part, 4096, ALL);
    printf("%d", across());
    part[0] = 0;
    printf(" %d", across());
    for (int round = 0; round < 20; round++)
        printf(" %lx", number());
    itself();
    printf(" %d\n", ((int (*)(void))itself)());
}

// A jump past what was compared, to code that goes on to what has changed.
static void into_the_middle(void) {
    static const unsigned char branches[] = {
        0x85, 0xFF, 0x74, 10,             // test edi, edi; jz to the end
        0x85, 0xF6, 0x74, 6,              // test esi, esi; jz to the end
        0xB8, 5, 0, 0, 0, 0xC3, 0xC3, 0xC3, // mov eax, 5; ret; ret; ret
    };
    unsigned char *page = pages(1, ALL);
    memcpy(page, branches, sizeof branches);
    int (*all)(int, int) = (int (*)(int, int))page, (*rest)(int, int) = (int (*)(int, int))(page + 4);
    printf("%d", all(1, 1));
    page[9] = 6;
    printf(" %d", rest(1, 1));
    page[9] = 7;
    printf(" %d %d\n", rest(1, 1), all(1, 1));
}

// A page that is never writable and executable at a time; in between, its code cannot be executed.
static void in_turns(void) {
    unsigned char *page = pages(2, PROT_READ | PROT_WRITE);
    for (int round = 0; round < 40; round++) {
        memcpy(page + 4092, returning(round % 10), sizeof code);
        mprotect(page + 4096 * (round % 2), 8192 - 4096 * (round % 2), PROT_READ | PROT_EXEC);
        if (round % 2)
            mprotect(page, 4096, PROT_READ | PROT_EXEC);
        printf("%d ", call(page + 4092));
        mprotect(page, 8192, PROT_READ | PROT_WRITE);
        int signal = sigsetjmp(back, 1);
        if (signal == 0)
            call(page + 4092);
        if (round % 10 == 0)
            printf("(%d) ", signal);
    }
    // The instruction's second half alone cannot be executed.
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    int signal = sigsetjmp(back, 1);
    if (signal == 0)
        call(page + 4092);
    printf("(%d)\n", signal);
}

int main(void) {
    by_system_calls();
    by_another_mapping();
    by_another_mapping_for_two();
    on_the_stack();
    printf("%d\n", deep(300, plain));
    aligned();
    struct sigaction action = {.sa_sigaction = jump_back, .sa_flags = SA_SIGINFO};
    for (int signal = SIGILL; signal <= SIGSEGV; signal++)
        sigaction(signal, &action, 0);
    invalid();
    by_itself();
    into_the_middle();
    in_turns();
    return 0;
}
