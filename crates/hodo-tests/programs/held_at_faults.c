// Instructions of many kinds that fault, with numbers in all general registers and all combinations of flags. The handler
// looks at the registers and the flags, and continues after the instruction.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

extern const struct {
    const char *at, *next;
    unsigned long flags;
} places[];
void faults(void *page);
unsigned long after[4096];
static volatile long seen, wrong;
static char *page;

static const int held[] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_R8,  REG_R9, REG_R10,
                           REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RBP, REG_RSI};
enum { FLAGS = 0x8D5 };

static void check(int signal, siginfo_t *info, void *context)
{
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const char *pc = (const char *)regs[REG_RIP];
    (void)info;
    for (unsigned i = 0; i < sizeof held / sizeof *held; i++)
        if (regs[held[i]] != 0x123456789AB00 + (int)i)
            wrong++, printf("signal %d at %d: register %u is %llx\n", signal, (int)seen, i, regs[held[i]]);
    if (regs[REG_RDI] != (greg_t)page)
        wrong++, printf("the pointer is %llx\n", regs[REG_RDI]);
    if (pc != places[seen].at)
        wrong++, printf("the fault %d is at %p, not %p\n", (int)seen, (void *)pc, (void *)places[seen].at);
    if (((unsigned long)regs[REG_EFL] & FLAGS) != places[seen].flags)
        wrong++, printf("flags of %d: %llx, not %lx\n", (int)seen, regs[REG_EFL] & FLAGS, places[seen].flags);
    regs[REG_RIP] = (greg_t)places[seen++].next;
}

__asm__(".macro place flags, insn:vararg\n"
        // Something that reads and changes registers, and changes nothing.
        "pushq %rax\n addq %rbx, %rax\n popq %rax\n xchgq %rcx, %rdx\n xchgq %rcx, %rdx\n"
        "pushq $\\flags\n popfq\n"
        "movq %r8, %r8\n leaq 1(%r9), %r9\n leaq -1(%r9), %r9\n"
        "1: \\insn\n"
        "2: movdqu %xmm1, %xmm2\n"
        // The flags are still the same.
        "pushfq\n popq after+8*number(%rip)\n"
        ".set number, number + 1\n"
        ".pushsection .data.rel.local.places, \"aw\"\n .quad 1b, 2b, \\flags & 0x8D5\n .popsection\n"
        ".endm\n"
        ".macro kinds flags\n"
        "place \\flags, movq (%rdi), %rax\n"
        "place \\flags, movzbl (%rdi), %r12d\n"
        "place \\flags, addq %rbx, (%rdi)\n"
        "place \\flags, adcq (%rdi), %rcx\n"
        "place \\flags, cmpq (%rdi), %rdx\n"
        "place \\flags, movups (%rdi), %xmm0\n"
        "place \\flags, pushq (%rdi)\n"
        "place \\flags, cmovzq (%rdi), %rsi\n"
        "place \\flags, setc (%rdi)\n"
        "place \\flags, movb %al, 1(%rdi)\n"
        "place \\flags, incq (%rdi)\n"
        "place \\flags, xchgq %r15, (%rdi)\n"
        "place \\flags, mulq 8(%rdi)\n"
        "place \\flags, cmpxchgq %rbp, (%rdi)\n"
        "place \\flags, lodsq (%rsi)\n"
        "place \\flags, ud2\n"
        "place \\flags, hlt\n"
        ".endm\n"
        ".data\n.pushsection .data.rel.local.places, \"aw\"\n .globl places\n places:\n .popsection\n"
        ".text\n.set number, 0\n"
        ".globl faults\n faults:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "movabs $0x123456789AB00, %rax\n leaq 1(%rax), %rbx\n leaq 2(%rax), %rcx\n leaq 3(%rax), %rdx\n"
        "leaq 4(%rax), %r8\n leaq 5(%rax), %r9\n leaq 6(%rax), %r10\n leaq 7(%rax), %r11\n leaq 8(%rax), %r12\n"
        "leaq 9(%rax), %r13\n leaq 10(%rax), %r14\n leaq 11(%rax), %r15\n leaq 12(%rax), %rbp\n"
        "leaq 13(%rax), %rsi\n"
        "kinds 0x202\n kinds 0x203\n kinds 0x206\n kinds 0x212\n kinds 0x242\n kinds 0x282\n kinds 0xA02\n"
        "kinds 0xAD7\n kinds 0xA97\n kinds 0x2D7\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

int main(void)
{
    struct sigaction action = {.sa_sigaction = check, .sa_flags = SA_SIGINFO};
    const int signals[] = {SIGSEGV, SIGILL, SIGBUS};
    for (int i = 0; i < 3; i++)
        sigaction(signals[i], &action, 0);
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    faults(page);
    for (long i = 0; i < seen; i++)
        if ((after[i] & FLAGS) != places[i].flags)
            wrong++, printf("flags after %ld: %lx, not %lx\n", i, after[i] & FLAGS, places[i].flags);
    printf("%ld faults, %ld wrong\n", seen, wrong);
    return 0;
}
