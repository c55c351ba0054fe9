/* The function tracer inside a program: hooks for programs that were built with -pg, -mfentry or -finstrument-functions.
 *
 * Link the program with libhodo_ftrace.so (or libhodo_ftrace.a), or preload it. Until a hook is set, each call of mcount
 * or __fentry__ compares and returns. docs/ftrace.md has an example, the limits, and the kernel's name for each function.
 *
 * Rules for hooks: they return; they do not throw or longjmp; they leave errno as it is; they are not instrumented
 * themselves (__attribute__((no_instrument_function))). A hook may call instrumented functions: while it runs, no other
 * hook is called in its thread, and what it calls is counted as missed.
 *
 * Structures are not copied. They must stay as they are as long as the process exists. A null pointer unsets hooks;
 * threads that are in one finish it. All functions can be called at any time, in any thread, except in signal handlers.
 */
#ifndef HODO_FTRACE_H
#define HODO_FTRACE_H

#ifdef __cplusplus
extern "C" {
#endif

/* In flags: the hooks may use floating-point and vector registers, and everything that does (most of a C library).
 * Without it, build hooks with -mgeneral-regs-only on x86-64 and AArch64. On RISC-V they must not use floating-point
 * registers. The registers of RISC-V's and Arm's vector extensions (V, SVE) are never kept.
 * Saving vector registers took 155 ns with AVX-512. */
#define HODO_FTRACE_VECTORS 1ul

/* The hook for entries. frompc: where the function will return to. selfpc: the call of mcount or __fentry__ in it. */
struct hodo_ftrace_entry_ops {
    void (*func)(unsigned long frompc, unsigned long selfpc);
    unsigned long flags;
};

void hodo_ftrace_set_entry(const struct hodo_ftrace_entry_ops *ops);

/* A call whose return is traced. */
struct hodo_ftrace_call {
    unsigned long func;   /* the call of mcount or __fentry__ in the function */
    unsigned long parent; /* where the function returns to */
    unsigned long depth;  /* how many traced calls were open at its entry */
    unsigned long data;   /* for the hooks: 0 at the entry; the hook for the return finds what was stored there */
};

/* The hooks for entries and returns. Either may be null. If entry returns 0, exit is not called for this call.
 * A call may be left without a return, by longjmp or an exception: exit is not called for it. */
struct hodo_ftrace_graph_ops {
    int (*entry)(struct hodo_ftrace_call *call);
    void (*exit)(struct hodo_ftrace_call *call);
    unsigned long flags;
};

void hodo_ftrace_set_graph(const struct hodo_ftrace_graph_ops *ops);

/* The hooks for -finstrument-functions: the function, and where it was called. They may use all registers. */
struct hodo_ftrace_cyg_ops {
    void (*enter)(unsigned long function, unsigned long call_site);
    void (*exit)(unsigned long function, unsigned long call_site);
};

void hodo_ftrace_set_cyg(const struct hodo_ftrace_cyg_ops *ops);

/* What happens if a traced function returns with a frame pointer that is not its caller's. */
enum hodo_ftrace_frame_test {
    HODO_FTRACE_FRAME_OFF = 0,    /* nothing is compared; the default */
    HODO_FTRACE_FRAME_REPORT = 1, /* it is counted, with a line on standard error */
    HODO_FTRACE_FRAME_ABORT = 2,  /* it is reported, and abort() is called */
};

/* Returns 0, or -1 if there is no such test. */
int hodo_ftrace_set_frame_test(int test);

/* What was not seen in a thread. */
struct hodo_ftrace_counts {
    unsigned long missed;     /* entries while a hook ran */
    unsigned long too_deep;   /* calls with 1,024 open ones; their returns are not seen */
    unsigned long untraced;   /* calls without memory for them, or whose return address was not found */
    unsigned long dropped;    /* calls that were left without a return */
    unsigned long lost;       /* returns of calls that had been taken for left ones */
    unsigned long mismatched; /* returns with the wrong frame pointer */
};

/* Sets counts to those of the calling thread. */
void hodo_ftrace_counts(struct hodo_ftrace_counts *counts);

/* The return address that belongs to a stack slot, for unwinders that do not read frame tables. */
unsigned long hodo_ftrace_original_return(const unsigned long *slot);

/* Has the return of a running function traced: parent is the stack slot through which it returns, selfpc is passed to
 * the hooks as func, and frame_pointer is for the frame test. On AArch64, the slot must be in a frame record. mcount and __fentry__ do this themselves. */
void hodo_ftrace_prepare_return(unsigned long *parent, unsigned long selfpc, unsigned long frame_pointer);

#ifdef __cplusplus
}
#endif

#endif
