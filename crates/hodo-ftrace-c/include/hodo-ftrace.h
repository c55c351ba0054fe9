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

/* The version of this header. That of the library is hodo_ftrace_version(), in the same form; while the first number is 0, both must agree
 * in the second one. */
#define HODO_FTRACE_VERSION "0.1.0"
#define HODO_FTRACE_VERSION_NUMBER 100 /* 10,000 times the first number + 100 times the second one + the third one */
const char *hodo_ftrace_version(void);

/* Registers. All general ones are kept around hooks. What else is kept depends on the hooks' code, which is read when they
 * are set, with all that it calls: nothing, if it uses only general registers; those of ordinary floating-point code; or all
 * floating-point and vector registers. If the code cannot be followed (a call through a pointer, or of a library whose
 * addresses are not bound yet: link with -z now), all are kept, which took 190 ns with AVX-512. docs/ftrace.md has figures.
 *
 * In flags, instead: all are kept, or the hooks promise to use general registers only, and nothing is read. */
#define HODO_FTRACE_VECTORS 1ul
#define HODO_FTRACE_GENERAL_REGISTERS 32ul

/* The hook for entries. frompc: where the function will return to. selfpc: the call of mcount or __fentry__ in it. */
struct hodo_ftrace_entry_ops {
    void (*func)(unsigned long frompc, unsigned long selfpc);
    unsigned long flags;
};

/* Returns 0, or -1 if a call site could not be changed. */
int hodo_ftrace_set_entry(const struct hodo_ftrace_entry_ops *ops);

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

/* Returns 0, or -1 if a call site could not be changed. */
int hodo_ftrace_set_graph(const struct hodo_ftrace_graph_ops *ops);

/* The hooks for -finstrument-functions: the function, and where it was called. They may use all registers. */
struct hodo_ftrace_cyg_ops {
    void (*enter)(unsigned long function, unsigned long call_site);
    void (*exit)(unsigned long function, unsigned long call_site);
};

void hodo_ftrace_set_cyg(const struct hodo_ftrace_cyg_ops *ops);

/* ---- Tracers with filters ----
 *
 * Call sites are switched off when the library starts: a function whose entry nobody wants to see calls nobody. Sites are
 * the calls of mcount and __fentry__, what -mnop-mcount leaves in their place, and the room that
 * -fpatchable-function-entry makes. Each tracer has a filter, and any number of tracers can see a function. A change
 * writes all sites that it concerns together, while threads run; each thread calls the old or the new tracers.
 *
 * These functions return -1 if they fail, and hodo_ftrace_error() says why. They cannot be called in hooks and signal
 * handlers. */

/* In flags: func is given the registers. Where functions call _mcount on RISC-V (AArch64), a0 (x0) is what
 * is passed to _mcount, and nothing may be changed. */
#define HODO_FTRACE_SAVE_REGISTERS 2ul
/* In flags: func is given the registers, and may change them and where execution goes on. Only one such tracer can see a
 * function. */
#define HODO_FTRACE_IP_MODIFY 4ul
/* In flags: only threads that have called hodo_ftrace_set_thread are traced. */
#define HODO_FTRACE_PER_THREAD 8ul
/* In flags: func is given the registers, and misses no call when other tracers are added to a function or taken away. On
 * x86-64, the sites of such functions look up whom they call. Elsewhere no tracer misses a call. */
#define HODO_FTRACE_EVERY_CALL 16ul

/* The registers of a function at its entry. */
#if defined(__x86_64__)
struct hodo_ftrace_registers {
    unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
    unsigned long ip;    /* where execution goes on: after the call */
    unsigned long flags;
    unsigned long rsp;   /* before the call */
};
#elif defined(__riscv)
struct hodo_ftrace_registers {
    unsigned long ip;    /* where execution goes on: after the call */
    unsigned long x[32]; /* x[0] and x[2], the stack pointer: changes have no effect */
};
#elif defined(__aarch64__)
struct hodo_ftrace_registers {
    unsigned long ip;    /* where execution goes on: after the call */
    unsigned long x[31]; /* x[30] is the return address of the function; x[9], x[16], x[17]: changes have no effect */
    unsigned long sp;    /* changes have no effect */
};
#endif
struct hodo_ftrace_registers;

/* A tracer. */
struct hodo_ftrace_ops {
    /* ip: the call site; parent_ip: where the function will return to; registers: null, unless a flag asks for them. */
    void (*func)(unsigned long ip, unsigned long parent_ip, const struct hodo_ftrace_ops *ops,
                 struct hodo_ftrace_registers *registers);
    unsigned long flags;
    void *data; /* for func */
};

/* Registers a tracer, which sees all functions that its filter lets through; without a filter, all. */
int hodo_ftrace_register(const struct hodo_ftrace_ops *ops);
/* Unregisters a tracer, and forgets its filter. */
int hodo_ftrace_unregister(const struct hodo_ftrace_ops *ops);

/* Adds functions to a tracer's filter. A pattern is a name with * ? and [...], or PATTERN:mod:FILE-PATTERN; names are the
 * symbols', and what C++ and Rust call them. With reset, what was there before is forgotten; a null pattern adds
 * nothing. Can be called before the tracer is registered. Returns how many functions the tracer sees now. */
long hodo_ftrace_set_filter(const struct hodo_ftrace_ops *ops, const char *pattern, int reset);
/* Functions that are not wanted. */
long hodo_ftrace_set_notrace(const struct hodo_ftrace_ops *ops, const char *pattern, int reset);
/* Adds the function with this call site to the filter, or takes it away. */
long hodo_ftrace_set_filter_ip(const struct hodo_ftrace_ops *ops, unsigned long ip, int remove, int reset);

/* Filters of the hooks of hodo_ftrace_set_entry and hodo_ftrace_set_graph. */
long hodo_ftrace_set_entry_filter(const char *pattern, int reset);
long hodo_ftrace_set_entry_notrace(const char *pattern, int reset);
long hodo_ftrace_set_graph_filter(const char *pattern, int reset);
long hodo_ftrace_set_graph_notrace(const char *pattern, int reset);

/* Switches a registered tracer with HODO_FTRACE_PER_THREAD on or off in the calling thread. Can be called in hooks. */
int hodo_ftrace_set_thread(const struct hodo_ftrace_ops *ops, int on);

/* Finds the sites of libraries that were loaded since the last call of a function that changes something. Each of these
 * functions does the same. Until then, mcount and __fentry__ call the hooks of hodo_ftrace_set_entry and
 * hodo_ftrace_set_graph in them, and -fpatchable-function-entry has no effect. */
int hodo_ftrace_update(void);

/* A library that is loaded with dlopen contains this in one file, to be traced from its first function on. */
#define HODO_FTRACE_MODULE()                                                                          \
    __attribute__((constructor(101), no_instrument_function)) static void hodo_ftrace_module_in(void) { \
        hodo_ftrace_module_loaded((const void *)hodo_ftrace_module_in);                               \
    }                                                                                                 \
    __attribute__((destructor(101), no_instrument_function)) static void hodo_ftrace_module_out(void) { \
        hodo_ftrace_module_unloaded((const void *)hodo_ftrace_module_in);                             \
    }
void hodo_ftrace_module_loaded(const void *inside);
void hodo_ftrace_module_unloaded(const void *inside);

/* A call site. */
struct hodo_ftrace_site {
    unsigned long ip;
    const char *name;      /* of the function's symbol */
    const char *path;      /* of its file */
    unsigned long tracers; /* how many see it */
};

/* Calls each with all sites until it returns something else than 0. It cannot call functions that change something.
 * Returns how many entries of functions cannot become sites. */
long hodo_ftrace_each_site(int (*each)(const struct hodo_ftrace_site *site, void *data), void *data);

/* ---- Patches ----
 *
 * A patch replaces functions by new versions while threads run. Each thread changes from the old versions of all functions
 * of the patch to the new ones at one moment, at which none of the old ones is on its stack: it never mixes them. Until all
 * threads have changed, the patch is in transition. docs/ftrace.md has the rules and the limits.
 *
 * Threads are asked by a real-time signal that nobody uses, and only by the functions below; so call
 * hodo_ftrace_livepatch_wait. They return -1 if they fail, and hodo_ftrace_error() says why. */

/* A function. It must have its call site at its entry (-fpatchable-function-entry; on x86-64 also -mfentry), and must not be inlined. */
struct hodo_ftrace_patch_function {
    const char *old_name; /* a pattern, as for hodo_ftrace_set_filter, that only one function matches; or null, and */
    const void *old_func; /* the function itself */
    const void *new_func; /* the new version, which must stay loaded */
};

/* A patch. It is known by its address, and must stay as it is until it is off again. */
struct hodo_ftrace_patch {
    const struct hodo_ftrace_patch_function *functions;
    unsigned long count;
};

enum hodo_ftrace_patch_state {
    HODO_FTRACE_PATCH_OFF = 0,       /* all threads use the old versions */
    HODO_FTRACE_PATCH_ENABLING = 1,  /* threads change to the new versions */
    HODO_FTRACE_PATCH_ON = 2,        /* all threads use the new versions */
    HODO_FTRACE_PATCH_DISABLING = 3, /* threads change back to the old versions */
};

/* Begins the change to the new versions, or back to the old ones, and asks all threads once. Disabling a patch that is
 * being enabled, or the reverse, turns the transition round. Only one patch can be in transition at a time, and a function
 * can be in one enabled patch; a new version can be the old one of another patch. */
int hodo_ftrace_livepatch_enable(const struct hodo_ftrace_patch *patch);
int hodo_ftrace_livepatch_disable(const struct hodo_ftrace_patch *patch);
/* What the patch does now. Asks all threads if it is in transition. */
int hodo_ftrace_livepatch_state(const struct hodo_ftrace_patch *patch);
/* Asks all threads again and again. Returns 1 when the patch is in no transition, and 0 if it still is after that many
 * milliseconds; with a negative number, it waits for ever. */
int hodo_ftrace_livepatch_wait(const struct hodo_ftrace_patch *patch, long milliseconds);

/* A thread that has not changed. */
struct hodo_ftrace_patch_thread {
    long tid;
    const char *function; /* in which it is; null if that is unknown */
    const char *why;
};

/* Asks all threads, and calls each with those that have not changed, until it returns something else than 0. Returns how
 * many there are. */
long hodo_ftrace_livepatch_each_thread(const struct hodo_ftrace_patch *patch,
                                       int (*each)(const struct hodo_ftrace_patch_thread *thread, void *data),
                                       void *data);

/* ---- For those who put breakpoints or jumps into code ----
 *
 * The code of a call site is switched at any time: nobody else may change it, or execute a copy of it. A tracer at the
 * site takes the place of a breakpoint. hodo-probe does all of this itself. */

/* The code of a call site. */
struct hodo_ftrace_reserved_code {
    unsigned long start, end;
    unsigned long flags; /* the two below */
};
#define HODO_FTRACE_HAS_REGISTERS 1ul /* a tracer can be given registers */
#define HODO_FTRACE_IS_FIRST 2ul      /* the function has done nothing yet */

/* Finds the first call site with bytes from start to end (exclusive), and sets *site, which may be null. Returns 1 if there
 * is one, otherwise 0. Call hodo_ftrace_update before, if libraries were loaded. */
int hodo_ftrace_reserved(unsigned long start, unsigned long end, struct hodo_ftrace_reserved_code *site);

/* Has a tracer see the functions with these call sites, too, or no longer. It is registered if it is not, and sees no
 * other functions. All are changed together. Returns 0, or -1 if nothing was changed. */
int hodo_ftrace_set_sites(const struct hodo_ftrace_ops *ops, const unsigned long *ips, unsigned long count, int on);

/* What hodo-probe looks for: this interface. */
struct hodo_ftrace_probing {
    unsigned long version;   /* 1 */
    unsigned long *lock;     /* whoever changes code holds it: process << 32 | thread, or 0 */
    int (*update)(void);
    int (*reserved)(unsigned long start, unsigned long end, struct hodo_ftrace_reserved_code *site);
    int (*set_sites)(const struct hodo_ftrace_ops *ops, const unsigned long *ips, unsigned long count, int on);
    const char *(*error)(void);
    /* For those who look at the process from outside. A module consists of the address of the next one (0 for the last),
     * the address of its sites, and how many these are. A site has site_size bytes; the first word is its address; its
     * code is no longer than site_longest. */
    const void *const *modules;
    unsigned long site_size, site_longest;
};
extern const struct hodo_ftrace_probing hodo_ftrace_probing;

/* Why the last of these functions has failed in the calling thread. Valid until the next one fails. */
const char *hodo_ftrace_error(void);

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
