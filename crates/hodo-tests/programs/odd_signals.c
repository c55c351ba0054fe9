#include "odd.h"
#include "machine.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/eventfd.h>
#include <sys/epoll.h>
#include <stddef.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#define HAS_COUNTER 1
#elif defined(__aarch64__)
#define HAS_COUNTER 1
static inline __attribute__((always_inline)) unsigned long __rdtsc(void) {
    unsigned long time;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(time));
    return time;
}
#define __rdtscp(x) __rdtsc()
#endif

static volatile int hits, last, code;
static sigjmp_buf env;
static void count(int signal) { hits++; last = signal; work(3); }
static void info(int signal, siginfo_t *i, void *u) { hits++; last = signal; code = i->si_code; work(3); }
static void leave(int signal) { work(3); siglongjmp(env, signal); }
static void handle(int signal, void *handler, int flags) {
    struct sigaction action = {.sa_flags = flags};
    if (flags & SA_SIGINFO) action.sa_sigaction = handler;
    else action.sa_handler = handler;
    sigaction(signal, &action, 0);
}
static void block(int signal, int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(how, &set, 0);
}
static void state(int signal) {
    struct sigaction action;
    sigset_t set;
    sigaction(signal, 0, &action);
    sigprocmask(SIG_BLOCK, 0, &set);
    say("default", action.sa_handler == SIG_DFL);
    say("ignored", action.sa_handler == SIG_IGN);
    say("blocked", sigismember(&set, signal));
}

#ifdef HAS_COUNTER
static void skip(int signal, siginfo_t *i, void *u) {
    hits++;
    code = i->si_code;
    work(5);
#ifdef __x86_64__
    CONTEXT_PC(u) += ((unsigned char *)CONTEXT_PC(u))[1] == 0x31 ? 2 : 3;
#else
    CONTEXT_PC(u) += 4;
#endif
}
static void time_counter(void) {
    int mode = 0;
    unsigned x;
    handle(SIGSEGV, skip, SA_SIGINFO);
    tell("forbid", prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    say("work", work(10));
    __rdtsc();
    __rdtscp(&x);
    say("hits", hits);
    say("code", code);
    prctl(PR_GET_TSC, &mode);
    say("mode", mode);
    if (!fork()) { __rdtsc(); say("in the child", hits); _exit(4); }
    await(-1, 0);
    tell("allow", prctl(PR_SET_TSC, PR_TSC_ENABLE));
    __rdtsc();
    say("hits", hits);
}
static void time_counter_blocked(void) {
    handle(SIGSEGV, skip, SA_SIGINFO);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    work(10);
    block(SIGSEGV, SIG_BLOCK);
    for (int i = 0; i < 10; i++) work(i);
    state(SIGSEGV);
    block(SIGSEGV, SIG_UNBLOCK);
    __rdtsc();
    say("hits", hits);
    signal(SIGSEGV, SIG_IGN);
    for (int i = 0; i < 10; i++) work(i);
    state(SIGSEGV);
}
static void *busy(void *stop) { long n = 0; while (!*(volatile int *)stop) n += work(20) & 1; return 0; }
static void time_counter_threads(void) {
    int stop = 0;
    pthread_t threads[4];
    handle(SIGSEGV, skip, SA_SIGINFO);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, busy, &stop);
    usleep(20000);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    for (int i = 0; i < 1000; i++) work(i);
    __rdtsc();
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    say("hits", hits);
}
static void skip_first(int signal, siginfo_t *i, void *u) {
    hits++;
#ifdef __x86_64__
    CONTEXT_PC(u) += 2;
#else
    CONTEXT_PC(u) += 4;
#endif
}
// Functions that begin with the instruction.
__attribute__((noinline, noclone)) static unsigned long counter(void) { return __rdtsc(); }
static void time_counter_moved(void) {
    handle(SIGSEGV, skip_first, SA_SIGINFO);
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    counter();
    work(9);
    counter();
    say("hits", hits);
    prctl(PR_SET_TSC, PR_TSC_ENABLE);
    say("time", counter() > 0);
    say("hits", hits);
}
static void time_counter_kills(void) { prctl(PR_SET_TSC, PR_TSC_SIGSEGV); work(9); __rdtsc(); }
#endif
#ifdef __x86_64__
static void int80(void) { long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory"); say("getpid", r == getpid()); }
static void vsyscall(void) {
    handle(SIGSEGV, leave, 0);
    if (sigsetjmp(env, 1)) { say("no vsyscall", 1); return; }
    long t = ((long (*)(void *))0xffffffffff600400)(0);
    say("time", t > 1000000000);
}
static void single_steps(void) {
    handle(SIGTRAP, count, 0);
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq; nop; nop; nop; pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    say("hits", hits);
}
static void privileged(void) { handle(SIGSEGV, leave, 0); if (!sigsetjmp(env, 1)) __asm__ volatile("hlt"); say("back", 1); }
#endif
#ifdef __aarch64__
static void privileged(void) { handle(SIGILL, leave, 0); if (!sigsetjmp(env, 1)) __asm__ volatile("msr vbar_el1, xzr"); say("back", 1); }
#endif
static void past(int signal, siginfo_t *i, void *u) { info(signal, i, u); CONTEXT_PC(u) += BREAKPOINT_STAYS; }
static void breakpoint(void) { handle(SIGTRAP, past, SA_SIGINFO); __asm__ volatile(BREAKPOINT); say("hits", hits); say("code", code); }
static void breakpoint_kills(void) { __asm__ volatile(BREAKPOINT); }

static void sent(void) { raise(SIGSEGV); }
static void sent_blocked(void) { block(SIGSEGV, SIG_BLOCK); raise(SIGSEGV); state(SIGSEGV); block(SIGSEGV, SIG_UNBLOCK); }
static void fault_blocked(void) { handle(SIGSEGV, count, 0); block(SIGSEGV, SIG_BLOCK); *(volatile int *)8 = 1; }
static void fault_ignored(void) { signal(SIGSEGV, SIG_IGN); *(volatile int *)8 = 1; }
static void division(void) { handle(SIGFPE, leave, 0); volatile int z = 0; if (!sigsetjmp(env, 1)) { z = 1 / z; } say("z", z); }
static void aborts(void) { abort(); }
static void queue(void) {
    union sigval value;
    int seen = 0;
    siginfo_t i;
    sigset_t set;
    sigemptyset(&set);
    for (int s = SIGRTMIN; s < SIGRTMIN + 4; s++) sigaddset(&set, s);
    sigprocmask(SIG_BLOCK, &set, 0);
    for (int s = SIGRTMIN + 3; s >= SIGRTMIN; s--) for (int v = 0; v < 5; v++) { value.sival_int = v * 10; sigqueue(getpid(), s, value); }
    while (seen < 20 && sigwaitinfo(&set, &i) > 0) { printf(" %d/%d", i.si_signo - SIGRTMIN, i.si_value.sival_int); seen++; }
    printf("\n");
    struct timespec none = {0};
    tell("none left", sigtimedwait(&set, &i, &none));
}
static void by_descriptor(void) {
    sigset_t set;
    struct signalfd_siginfo i;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    int fd = signalfd(-1, &set, 0);
    kill(getpid(), SIGUSR1);
    say("read", read(fd, &i, sizeof i));
    say("signal", i.ssi_signo);
}
static void once(void) { handle(SIGUSR1, count, SA_RESETHAND | SA_NODEFER); raise(SIGUSR1); say("hits", hits); state(SIGUSR1); }
static void again_and_again(int s) { work(2); if (++hits < 50) raise(s); }
static void nested(void) { handle(SIGUSR1, again_and_again, SA_NODEFER); raise(SIGUSR1); say("hits", hits); }
static char stack[65536];
static void on_stack(int s) { stack_t now; sigaltstack(0, &now); say("on stack", now.ss_flags & SS_ONSTACK); say("change", sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, 0)); }
static void alternate(void) {
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&s, 0);
    handle(SIGUSR1, on_stack, SA_ONSTACK);
    raise(SIGUSR1);
    s.ss_size = 10;
    tell("too small", sigaltstack(&s, 0));
}
NEVER static int deep(int n) { volatile char room[4096]; room[n % 4096] = 1; return deep(n + 1) + room[0]; }
static void overflow(void) {
    struct rlimit limit = {1 << 20, 1 << 20};
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    setrlimit(RLIMIT_STACK, &limit);
    sigaltstack(&s, 0);
    handle(SIGSEGV, leave, SA_ONSTACK);
    if (!sigsetjmp(env, 1)) deep(0);
    say("survived", 1);
}
static void stops(void) {
    pid_t child = fork();
    if (!child) { raise(SIGSTOP); work(4); raise(SIGSTOP); _exit(5); }
    await(child, WUNTRACED);
    kill(child, SIGCONT);
    await(child, WUNTRACED);
    kill(child, SIGCONT);
    siginfo_t i = {0};
    tell("waitid", waitid(P_PID, child, &i, WEXITED | WNOWAIT));
    printf("  %d %d\n", i.si_code, i.si_status);
    await(child, 0);
    tell("gone", waitid(P_PID, child, &i, WEXITED));
}
static void pending(void) {
    sigset_t set;
    block(SIGUSR1, SIG_BLOCK);
    raise(SIGUSR1);
    sigpending(&set);
    say("pending", sigismember(&set, SIGUSR1));
    handle(SIGUSR1, count, 0);
    sigemptyset(&set);
    tell("suspend", sigsuspend(&set));
    say("hits", hits);
}
static void interrupted(void) {
    handle(SIGALRM, count, 0);
    struct itimerval t = {.it_value = {0, 20000}};
    setitimer(ITIMER_REAL, &t, 0);
    struct timespec time = {5, 0}, left;
    int r = nanosleep(&time, &left);
    tell("sleep", r);
    say("left", left.tv_sec);
}
static void restarted(void) {
    int p[2];
    char c;
    pipe(p);
    handle(SIGALRM, count, SA_RESTART);
    struct itimerval t = {.it_value = {0, 20000}, .it_interval = {0, 20000}};
    setitimer(ITIMER_REAL, &t, 0);
    if (!fork()) { usleep(100000); write(p[1], "x", 1); _exit(0); }
    say("read", read(p[0], &c, 1));
    say("some hits", hits >= 2);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, 0);
    await(-1, 0);
}
static void thread_timer(void) {
    timer_t timer;
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    e._sigev_un._tid = syscall(SYS_gettid);
    handle(SIGRTMIN, info, SA_SIGINFO);
    timer_create(CLOCK_MONOTONIC, &e, &timer);
    struct itimerspec t = {.it_value = {0, 5000000}};
    timer_settime(timer, 0, &t, 0);
    while (!hits) work(50);
    say("code", code);
    timer_delete(timer);
}
static void descriptors(void) {
    int t = timerfd_create(CLOCK_MONOTONIC, 0), e = eventfd(3, EFD_SEMAPHORE), p = epoll_create1(0);
    struct itimerspec s = {.it_value = {0, 5000000}};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = t}, got;
    uint64_t n;
    timerfd_settime(t, 0, &s, 0);
    epoll_ctl(p, EPOLL_CTL_ADD, t, &event);
    say("events", epoll_wait(p, &got, 1, 2000));
    read(t, &n, 8);
    say("expired", n);
    read(e, &n, 8);
    say("semaphore", n);
}

static void filter(int number, unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    tell("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}
static void filter_errno(void) { filter(SYS_getppid, SECCOMP_RET_ERRNO | 77); syscall(SYS_getppid); say("errno", errno); }
static void trapped(int s, siginfo_t *i, void *u) { hits++; code = i->si_code; work(3); say("call", i->si_syscall == SYS_getppid); }
static void filter_trap(void) { handle(SIGSYS, trapped, SA_SIGINFO); filter(SYS_getppid, SECCOMP_RET_TRAP); syscall(SYS_getppid); say("hits", hits); }
static void filter_trap_kills(void) { filter(SYS_getppid, SECCOMP_RET_TRAP); syscall(SYS_getppid); }
static void filter_kill(void) { filter(SYS_getppid, SECCOMP_RET_KILL_PROCESS); syscall(SYS_getppid); }
static void filter_trace(void) { filter(SYS_getppid, SECCOMP_RET_TRACE); syscall(SYS_getppid); say("errno", errno); }
static void strict(void) { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); work(7); write(1, "  strict\n", 9); work(8); syscall(SYS_exit, 6); }
static void strict_kills(void) { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); work(7); syscall(SYS_getpid); }


static const struct odd CASES[] = {
#ifdef HAS_COUNTER
    {"time_counter", time_counter}, {"time_counter_blocked", time_counter_blocked},
    {"time_counter_threads", time_counter_threads}, {"time_counter_kills", time_counter_kills},
    {"time_counter_moved", time_counter_moved},
#endif
#ifndef __riscv
    {"privileged", privileged},
#endif
#ifdef __x86_64__
    {"int80", int80}, {"vsyscall", vsyscall}, {"single_steps", single_steps},
#endif
    {"breakpoint", breakpoint}, {"breakpoint_kills", breakpoint_kills},
    {"sent", sent}, {"sent_blocked", sent_blocked}, {"fault_blocked", fault_blocked}, {"fault_ignored", fault_ignored},
    {"division", division}, {"aborts", aborts}, {"queue", queue}, {"by_descriptor", by_descriptor}, {"once", once},
    {"nested", nested}, {"alternate", alternate}, {"overflow", overflow}, {"stops", stops}, {"pending", pending},
    {"interrupted", interrupted}, {"restarted", restarted}, {"thread_timer", thread_timer}, {"descriptors", descriptors},
    {"filter_errno", filter_errno}, {"filter_trap", filter_trap}, {"filter_trap_kills", filter_trap_kills},
    {"filter_kill", filter_kill}, {"filter_trace", filter_trace}, {"strict", strict}, {"strict_kills", strict_kills},
};

int main(int argc, char **argv) { return odd_main(argc, argv, CASES, sizeof CASES / sizeof *CASES); }
