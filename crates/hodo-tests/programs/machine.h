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
/* Bytes that are no instruction, and how many. */
#define ILLEGAL "c.unimp"
#define ILLEGAL_LENGTH 2
#elif defined(__aarch64__)
#define CONTEXT_PC(context) (((ucontext_t *)(context))->uc_mcontext.pc)
#define CONTEXT_RESULT(context) (((ucontext_t *)(context))->uc_mcontext.regs[0])
#define BREAKPOINT "brk #0"
#define BREAKPOINT_STAYS 4
#define ILLEGAL "udf #0"
#define ILLEGAL_LENGTH 4
#else
#define CONTEXT_PC(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RIP])
#define CONTEXT_RESULT(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RAX])
#define BREAKPOINT "int3"
#define BREAKPOINT_STAYS 0
#define ILLEGAL "ud2"
#define ILLEGAL_LENGTH 2
#endif
#endif
