/* What differs between architectures in signal contexts and in faulting instructions. */
#ifndef MACHINE_H
#define MACHINE_H
#include <signal.h>
#include <ucontext.h>

#if defined(__riscv)
#define CONTEXT_PC(context) (((ucontext_t *)(context))->uc_mcontext.__gregs[REG_PC])
#define CONTEXT_RESULT(context) (((ucontext_t *)(context))->uc_mcontext.__gregs[REG_A0])
#define BREAKPOINT "c.ebreak"
/* How many bytes a breakpoint's handler must skip itself. */
#define BREAKPOINT_STAYS 2
/* Two bytes that are no instruction. */
#define ILLEGAL "c.unimp"
#else
#define CONTEXT_PC(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RIP])
#define CONTEXT_RESULT(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RAX])
#define BREAKPOINT "int3"
#define BREAKPOINT_STAYS 0
#define ILLEGAL "ud2"
#endif
#endif
