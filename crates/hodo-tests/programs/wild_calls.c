// Calls, jumps and returns to addresses where nothing is, and to words that are no addresses: what a handler sees, but
// for the flags, which are not passed to where a call or return leads.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static sigjmp_buf back;
static unsigned long slot, stack[64];
static const char *what;

static void handler(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned long pc = regs[REG_RIP];
    printf("%s: signal %d, code %d, address %p, %s, stack %ld, rcx %llx, rdx %llx, r11 %llx, r13 %d\n", what, signal,
           info->si_code, info->si_addr, pc == slot ? "there" : "at the instruction",
           (long)regs[REG_RSP] - (long)&stack[32], regs[REG_RCX], regs[REG_RDX], regs[REG_R11],
           regs[REG_R13] == (long)&slot);
    siglongjmp(back, 1);
}

#define TRY(name, instructions)                                                                                      \
    static void __attribute__((noinline)) name(void) {                                                               \
        what = #name;                                                                                                \
        if (sigsetjmp(back, 1)) return;                                                                              \
        __asm__ volatile("mov %0, %%r13; mov $0x1111, %%ecx; mov $0x2222, %%edx; mov $0x3333, %%r11d; mov %1, %%rsp\n" \
                         "mov (%%r13), %%rax\n" instructions "\nud2" ::"r"(&slot), "r"(&stack[32])                    \
                         : "memory", "rax", "rcx", "rdx", "r11", "r13");                                              \
    }
TRY(call_through_memory, "call *(%%r13)")
TRY(call_through_register, "call *%%rax")
TRY(jump_through_memory, "jmp *(%%r13)")
TRY(jump_through_register, "jmp *%%rax")
TRY(returns, "push %%rax; ret")
TRY(returns_and_drops, "push %%rax; ret $8")

int main(void) {
    static char other[65536];
    stack_t alternate = {.ss_sp = other, .ss_size = sizeof other};
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    static const unsigned long words[] = {
        0x8000cccccccccccc, 0xcccccccccccccccc, 0x0000800000000000, 0, 0x10000, 0x00007ffffffff000, 0xffff800000000000,
        0xfffffffffffff000,
    };
    sigaltstack(&alternate, NULL);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        slot = words[i];
        printf("%lx\n", slot);
        for (int round = 0; round < 2; round++) {
            call_through_memory();
            call_through_register();
            jump_through_memory();
            jump_through_register();
            returns();
            returns_and_drops();
        }
    }
    return 0;
}
