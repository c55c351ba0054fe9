// System calls that the kernel refuses because the memory is that of code, which an engine may have protected.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

typedef int function(void);

enum { ALL = PROT_READ | PROT_WRITE | PROT_EXEC };

// mov eax, NUMBER; ret
static int called(unsigned char *at, int number) {
    static const unsigned char code[] = {0xB8, 0, 0, 0, 0, 0xC3};
    memcpy(at, code, sizeof code);
    memcpy(at + 1, &number, 4);
    return ((function *)at)();
}

// A page with code that has been executed.
static unsigned char *page(void) {
    unsigned char *page = mmap(0, 4096, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d ", called(page, 7));
    return page + 64;
}

static volatile int seen, errors;

static void look(int signal, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    seen++;
    errors += interrupted->uc_mcontext.gregs[REG_RAX] == -EFAULT;
}

// The call lets the signal come before it is refused: the handler finds no error.
static void signal_before_the_result(void) {
    sigset_t some, none;
    sigemptyset(&none);
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    for (int round = 0; round < 20; round++) {
        sigprocmask(SIG_SETMASK, &some, 0);
        raise(SIGUSR1);
        struct timespec *left = (struct timespec *)page();
        long result = syscall(SYS_ppoll, 0, 0, &(struct timespec){5, 0}, &none, 8);
        // What is left of the time is the code's page.
        left->tv_sec = result;
        uint64_t *old = (uint64_t *)page();
        sigprocmask(SIG_SETMASK, &some, 0);
        raise(SIGUSR1);
        result = syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, old, 8);
        printf("%ld %lx\n", result, (long)*old);
    }
    printf("seen %d, errors %d\n", seen, errors);
}

// What was there before is written, though the call has changed it.
static void former_values(void) {
    struct itimerval timer = {{0, 0}, {1000, 0}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, 0);
    struct itimerval *old = (struct itimerval *)page();
    printf("%d", setitimer(ITIMER_REAL, &none, old));
    printf(" %d\n", old->it_value.tv_sec > 900);
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    struct rlimit *before = (struct rlimit *)page();
    printf("%d", prlimit(0, RLIMIT_CORE, &limit, before));
    printf(" %ld\n", (long)before->rlim_cur);
    struct sigaction action = {.sa_handler = SIG_IGN};
    unsigned char *kept = page();
    printf("%d", sigaction(SIGUSR2, &action, 0));
    printf(" %ld", syscall(SYS_rt_sigaction, SIGUSR2, &(uint64_t[4]){0}, kept, 8));
    printf(" %d\n", *(uint64_t *)kept == (uint64_t)SIG_IGN);
    stack_t *stack = (stack_t *)page(), new = {.ss_sp = malloc(65536), .ss_size = 65536};
    printf("%d", sigaltstack(&new, stack));
    printf(" %d\n", stack->ss_flags);
}

// Calls that take something.
static void taken(void) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets))
        abort();
    for (int i = 0; i < 8; i++)
        if (write(sockets[0], &i, 4) != 4)
            abort();
    unsigned char *to = page();
    printf("%zd", recv(sockets[1], to, 4, 0));
    printf(" %d\n", *(int *)to);
    to = page();
    struct iovec vectors[2] = {{to, 2}, {to + 8, 2}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    printf("%zd", recvmsg(sockets[1], &message, 0));
    printf(" %d %d\n", *(short *)to, *(short *)(to + 8));
    struct mmsghdr *messages = (struct mmsghdr *)page();
    int numbers[2];
    struct iovec each[2] = {{&numbers[0], 4}, {&numbers[1], 4}};
    for (int i = 0; i < 2; i++)
        messages[i] = (struct mmsghdr){{.msg_iov = &each[i], .msg_iovlen = 1}, 0};
    printf("%d ", called((unsigned char *)messages + 1024, 8));
    printf("%d", recvmmsg(sockets[1], messages, 2, 0, 0));
    printf(" %d %d %d\n", numbers[0], numbers[1], messages[1].msg_len);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, 0);
    raise(SIGUSR2);
    siginfo_t *info = (siginfo_t *)page();
    printf("%d", sigwaitinfo(&set, info));
    printf(" %d\n", info->si_signo);
    int child = fork();
    if (child == 0)
        _exit(5);
    int *status = (int *)page();
    printf("%d", wait4(child, status, 0, 0) == child);
    printf(" %d\n", WEXITSTATUS(*status));
}

// A call that is refused for a reason of the program's own is made once: it takes one message, whatever is in registers
// that are no arguments.
static void own_errors(void) {
    int sockets[2], number;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets))
        abort();
    for (int i = 0; i < 8; i++)
        if (write(sockets[0], &i, 4) != 4)
            abort();
    unsigned char *code = page();
    printf("%ld", syscall(SYS_read, sockets[1], 1, 4, code, 4096, code));
    printf(" %d", errno);
    printf(" %zd", read(sockets[1], &number, 4));
    printf(" %d %d\n", number, called(code, 9));
}

// Calls that send or copy: once, though they say how much beside code.
static void sent(void) {
    int sockets[2], number = 3, got;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets))
        abort();
    struct iovec vector = {&number, 4};
    struct mmsghdr *message = (struct mmsghdr *)page();
    *message = (struct mmsghdr){{.msg_iov = &vector, .msg_iovlen = 1}, 0};
    printf("%d ", called((unsigned char *)message + 1024, 8));
    printf("%d", sendmmsg(sockets[0], message, 1, 0));
    printf(" %d", message->msg_len);
    int count = 0;
    while (recv(sockets[1], &got, 4, MSG_DONTWAIT) == 4) count++;
    printf(" %d\n", count);
    int file = memfd_create("sent", 0), into[2];
    if (write(file, "abcdefgh", 8) != 8 || pipe(into))
        abort();
    off_t *at = (off_t *)page();
    *at = 2;
    printf("%d ", called((unsigned char *)at + 64, 6));
    printf("%zd", sendfile(into[1], file, at, 3));
    printf(" %d", (int)*at);
    char text[32] = "";
    printf(" %zd %s\n", read(into[0], text, sizeof text - 1), text);
}

// Waits that a signal ends: the program sees that.
static void ended_waits(void) {
    struct itimerval soon = {{0, 0}, {0, 20000}};
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO};
    sigaction(SIGALRM, &action, 0);
    struct pollfd *polled = (struct pollfd *)page();
    *polled = (struct pollfd){.fd = -1};
    printf("%d ", called((unsigned char *)polled + 64, 5));
    setitimer(ITIMER_REAL, &soon, 0);
    printf("%d", poll(polled, 1, 5000));
    printf(" %d\n", errno);
    struct timespec *left = (struct timespec *)page();
    setitimer(ITIMER_REAL, &soon, 0);
    printf("%d", nanosleep(&(struct timespec){5, 0}, left));
    printf(" %d %d\n", errno, left->tv_sec == 4);
}

// Code that is moved, and code over which other code is moved.
static void moved(void) {
    unsigned char *from = mmap(0, 8192, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *to = mmap(0, 8192, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d %d ", called(from, 1), called(to, 2));
    mprotect(to, 8192, PROT_READ | PROT_EXEC);
    printf("%d ", ((function *)to)());
    if (mremap(from, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        abort();
    printf("%d ", ((function *)to)());
    printf("%d ", called(to + 4096, 3));
    mprotect(to, 8192, PROT_READ | PROT_EXEC);
    printf("%d %d ", ((function *)to)(), ((function *)(to + 4096))());
    // What was written before it became code.
    unsigned char *data = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(data, (unsigned char[]){0xB8, 4, 0, 0, 0, 0xC3}, 6);
    if (mremap(data, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        abort();
    mprotect(to, 4096, PROT_READ | PROT_EXEC);
    printf("%d ", ((function *)to)());
    unsigned char *grown = mmap(0, 4096, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d ", called(grown, 5));
    grown = mremap(grown, 4096, 1 << 16, MREMAP_MAYMOVE);
    printf("%d %d\n", ((function *)grown)(), called(grown + 40000, 6));
}

static unsigned char *volatile owned;
static volatile int waits = 1;
static pthread_barrier_t barrier;

static __attribute__((noinline)) void wait_beside(void) {
    unsigned char code[512] __attribute__((aligned(16)));
    owned = code;
    __asm__ volatile("" : : "r"(code) : "memory");
    pthread_barrier_wait(&barrier);
    while (waits)
        __asm__ volatile("pause" : : "r"(code) : "memory");
}

// Waits where the stack pointer is in the middle of a page.
static void *owner(void *unused) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    volatile unsigned char *room = __builtin_alloca((here - 3072) % 4096 + 16);
    room[0] = 1;
    wait_beside();
    return 0;
}

// Code on a stack that only another thread executes; a signal for the stack's thread.
static void on_the_stack_of_another(void) {
    pthread_barrier_init(&barrier, 0, 2);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, mmap(0, 1 << 20, ALL, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
    pthread_t thread;
    pthread_create(&thread, &attributes, owner, 0);
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < 5; round++) {
        printf("%d ", called(owned + 16 * round, round));
        int before = seen;
        pthread_kill(thread, SIGUSR1);
        while (seen == before)
            usleep(1000);
    }
    waits = 0;
    pthread_join(thread, 0);
    puts("on the stack of another");
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    if (count > 1) {
        // Receives often while some code is on a page that can be written.
        int sockets[2], number = 0;
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets))
            abort();
        page();
        for (int i = 0; i < 100000; i++)
            if (send(sockets[0], &i, 4, 0) != 4 || recv(sockets[1], &number, 4, 0) != 4 || number != i)
                abort();
        return 0;
    }
    on_the_stack_of_another();
    signal_before_the_result();
    former_values();
    taken();
    own_errors();
    sent();
    ended_waits();
    moved();
    return 0;
}
