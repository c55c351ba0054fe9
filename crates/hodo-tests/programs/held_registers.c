// A loop that keeps numbers in all general registers while it accesses memory in ways that are compared and recorded
// differently. A timer interrupts it all the time, and the handler looks at the registers.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

extern const char loop[], after_compare[], after_jump[], end[];
static char from[8192] __attribute__((aligned(4096)));
static char to[8192] __attribute__((aligned(4096)));
static volatile long signals, inside, compared, wrong;

static const int held[] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_R8,  REG_R9, REG_R10,
                           REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RBP};

// One signal at a time: else there may be nothing but signals.
static void arm(void)
{
    struct itimerval timer = {{0, 0}, {0, 20 + signals++ * 37 % 500}};
    setitimer(ITIMER_REAL, &timer, 0);
}

static void check(int signal, siginfo_t *info, void *context)
{
    const greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const char *pc = (const char *)regs[REG_RIP];
    (void)signal, (void)info;
    arm();
    if (pc < loop || pc >= end)
        return;
    inside++;
    for (unsigned i = 0; i < sizeof held / sizeof *held; i++)
        wrong += regs[held[i]] != 0x1234567800 + (int)i;
    wrong += regs[REG_RDI] != (greg_t)from || regs[REG_RSI] != (greg_t)to;
    // The program reads the flags here: the numbers were equal.
    if (pc >= after_compare && pc < after_jump) {
        compared++;
        wrong += !(regs[REG_EFL] & 0x40);
    }
    // What the handler uses is not what the loop uses.
    memset(to + 4096, 1, 4096);
}

// Does a number of rounds.
void rounds(char *from, char *to, long number);
__asm__(".globl rounds, loop, after_compare, after_jump, end\n"
        "rounds:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rdx, 128(%rsi)\n"
        "movabs $0x1234567800, %rax\n"
        "lea 1(%rax), %rbx\n lea 2(%rax), %rcx\n lea 3(%rax), %rdx\n lea 4(%rax), %r8\n lea 5(%rax), %r9\n"
        "lea 6(%rax), %r10\n lea 7(%rax), %r11\n lea 8(%rax), %r12\n lea 9(%rax), %r13\n lea 10(%rax), %r14\n"
        "lea 11(%rax), %r15\n lea 12(%rax), %rbp\n"
        "loop:\n"
        // Of two lines, and of two pages.
        "movdqu 60(%rdi), %xmm0\n movdqu 4092(%rdi), %xmm1\n movups %xmm0, 60(%rsi)\n"
        "addq $1, 192(%rsi)\n"
        // The same set in turn.
        "movq 256(%rdi), %xmm2\n movq 256(%rsi), %xmm2\n movq 4352(%rdi), %xmm2\n"
        // All registers are used, so that none is free.
        "cmpq %rbx, %rbx\n cmpq %rcx, %rcx\n cmpq %rdx, %rdx\n cmpq %r8, %r8\n cmpq %r9, %r9\n cmpq %r10, %r10\n"
        "cmpq %r11, %r11\n cmpq %r12, %r12\n cmpq %r13, %r13\n cmpq %r14, %r14\n cmpq %r15, %r15\n cmpq %rbp, %rbp\n"
        "movups 320(%rdi), %xmm0\n"
        "cmpq %rax, %rax\n"
        "after_compare:\n"
        // Processors are interrupted where they wait. Without this, some never are between comparison and jump.
        "sqrtsd %xmm2, %xmm2\n"
        "movups 384(%rdi), %xmm0\n"
        "movups %xmm0, 448(%rsi)\n"
        "jne 2f\n"
        "after_jump:\n"
        "subq $1, 128(%rsi)\n"
        "jne loop\n"
        "end:\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
        "2: ud2\n");

// The argument: how many signals, wherever in the loop they come. Without it, some must come between comparison and jump,
// if the processor lets them.
int main(int argc, char **argv)
{
    long wanted = argc > 1 ? atol(argv[1]) : 2000;
    struct sigaction action = {.sa_sigaction = check, .sa_flags = SA_SIGINFO};
    struct itimerval never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, 0);
    arm();
    while (inside < wanted || (argc == 1 && compared < 20 && signals < 10 * wanted))
        rounds(from, to, 200);
    setitimer(ITIMER_REAL, &never, 0);
    printf("%ld\n", wrong);
    return 0;
}
