/* Probes at any instruction of one's own process. Link with libhodo_probe_c.so or .a.
 *
 * Handlers run wherever the probed instruction does: in signal handlers, with locks held, in the middle of malloc.
 * They must not leave by longjmp or exceptions. Hits in a handler are not answered but counted; a fault in a handler
 * ends it, disables its probe and is counted. A handler must not call any of these functions except
 * hodo_probe_return_now. */
#ifndef HODO_PROBE_H
#define HODO_PROBE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. That of the library is hodo_probe_version(), in the same form; while the first number is 0, both must agree
 * in the second one. */
#define HODO_PROBE_VERSION "0.1.0"
#define HODO_PROBE_VERSION_NUMBER 100 /* 10,000 times the first number + 100 times the second one + the third one */
const char *hodo_probe_version(void);

/* The program's general registers at a probe. Changes take effect; if pc is changed, the program continues there. */
typedef struct hodo_registers {
#if defined(__x86_64__)
    uint64_t rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15, flags, pc;
#elif defined(__riscv) && __riscv_xlen == 64
    /* In the order of the kernel's struct user_regs_struct. */
    uint64_t pc, ra, sp, gp, tp, t0, t1, t2, s0, s1, a0, a1, a2, a3, a4, a5, a6, a7;
    uint64_t s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, t3, t4, t5, t6;
#elif defined(__aarch64__)
    /* As the kernel's struct user_pt_regs. Of pstate, only the flags N, Z, C and V can be changed. */
    uint64_t x[31], sp, pc, pstate;
#else
#error "hodo-probe knows x86-64, RISC-V 64 and AArch64"
#endif
} hodo_registers;

typedef void (*hodo_handler)(hodo_registers *registers, void *data);

/* How an instruction is executed. */
enum hodo_execution {
    HODO_ANY = 0,          /* in a request: the fastest way */
    HODO_OUT_OF_LINE = 1,  /* in a slot that ends in a breakpoint */
    HODO_SIMULATED = 2,    /* on the saved registers */
    HODO_BOOSTED = 3,      /* in a slot that ends in a jump back */
    HODO_OPTIMIZED = 4,    /* in a detour: no signal */
    HODO_CALL_SITE = 5     /* by libhodo_ftrace, whose call site it is: no signal, nothing is written */
};

/* What to probe. addr and a handler, or count, are enough; everything else may be zero. */
typedef struct hodo_request {
    const void *addr;
    /* The function that contains addr. If both are null, the unwind tables are asked. For RISC-V, gcc makes these
     * only with -fasynchronous-unwind-tables. */
    const void *function_start, *function_end;
    hodo_handler before;    /* before the instruction */
    hodo_handler after;     /* after it */
    hodo_handler returning; /* when the function that begins at addr returns */
    void *data;             /* for the handlers */
    int execution;          /* enum hodo_execution */
    int disabled;           /* not 0: registered, but not armed */
    int count;              /* not 0: hits are counted */
} hodo_request;

typedef struct hodo_probe hodo_probe;

/* Registers a probe. Returns null if it is refused; error, a buffer of size bytes that may be null, then has the
 * reason. */
hodo_probe *hodo_probe_register(const hodo_request *request, char *error, size_t size);

/* Registers many together, which is much faster per probe. Those that are refused are null. Returns how many are
 * not. */
size_t hodo_probe_register_all(const hodo_request *requests, size_t count, hodo_probe **probes);

/* Unregisters a probe, which must not be used any more. Once it has returned, its handlers do not run. Returns 0 or
 * -1. */
int hodo_probe_unregister(hodo_probe *probe);

/* Enables or disables probes together. Returns 0 or -1. */
int hodo_probe_set_enabled(hodo_probe *const *probes, size_t count, int enabled);

/* One of enum hodo_execution. */
int hodo_probe_execution(const hodo_probe *probe);
/* Hits, if the probe counts them. */
uint64_t hodo_probe_count(const hodo_probe *probe);
/* Hits that were not answered. */
uint64_t hodo_probe_missed(const hodo_probe *probe);
/* Returns that were not answered. */
uint64_t hodo_probe_missed_returns(const hodo_probe *probe);
/* Faults of its handlers. */
uint64_t hodo_probe_faults(const hodo_probe *probe);

/* Calls each with a line for each registered probe, by address, as in the kernel's kprobes/list, without the symbol:
 * the address; k, or r for a return; [DISABLED], [OPTIMIZED] or [FTRACE], the latter for HODO_CALL_SITE. A probe with
 * handlers for both has two lines. Returns how many there are, or -1. */
long hodo_probe_list(void (*each)(const char *line, void *data), void *data);

/* In a handler at a function's first instruction: makes the function return this value without running. */
void hodo_probe_return_now(hodo_registers *registers, uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
