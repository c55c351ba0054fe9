// The addresses that signals tell are those of the program: where a confined system call was made, and where an
// instruction has faulted.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf place;

static void on_call(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    // Sandboxes compare these.
    printf("SIGSYS: %d %d\n", (greg_t)info->si_call_addr == regs[REG_RIP], info->si_syscall == SYS_getpid);
    regs[REG_RAX] = 1234;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    printf("%d: %d, at the instruction %d\n", signal, info->si_code, (greg_t)info->si_addr == regs[REG_RIP]);
    fflush(stdout);
    siglongjmp(place, 1);
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(signal, &action, NULL);
}

int main(void) {
    const int faults[] = {SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGTRAP};
    for (int i = 0; i < 5; i++) handle(faults[i], on_fault);
    volatile int zero = 0;
    for (volatile int i = 0; i < 5; i++) {
        if (sigsetjmp(place, 1)) continue;
        switch (i) {
        case 0: __asm__ volatile("ud2");
        case 1: __asm__ volatile("idivl %0" ::"m"(zero), "a"(1), "d"(0) : "cc");
        case 2: ((void (*)(void))16)();
        case 3: *(volatile int *)8 = 1;
        case 4: __asm__ volatile("pushfq; orl $0x100, (%%rsp); popfq; nop; nop" ::: "memory", "cc");
        }
    }
    handle(SIGSYS, on_call);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    printf("%ld\n", syscall(SYS_getpid));
    return 0;
}
