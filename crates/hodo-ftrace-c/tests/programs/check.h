// What all programs have in common.
#include <hodo-ftrace.h>
#include <stdio.h>
#include <stdlib.h>

#define QUIET __attribute__((no_instrument_function, patchable_function_entry(0)))
#define APART __attribute__((noinline, noclone))
#ifdef __clang__
#undef APART
#define APART __attribute__((noinline))
#endif

// Hooks without the flag must not use vector registers.
#define HOOK QUIET
#ifdef PLAIN
enum { FLAGS = 0 };
#if defined(__x86_64__) && !defined(__clang__)
#undef HOOK
#define HOOK QUIET __attribute__((target("general-regs-only")))
#endif
#else
enum { FLAGS = HODO_FTRACE_VECTORS };
#endif

// What compilers see must not let them leave out a call.
#define EFFECT __asm__ volatile("" ::: "memory")

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            printf("%s:%d: %s is wrong\n", __FILE__, __LINE__, #condition);               \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)
