// A function returns with another frame pointer than its caller's: it is reported, and with ABORTS, the program ends.
#include "check.h"

#ifdef __riscv
// The frame pointer is kept elsewhere by the caller, which is also in assembly.
__asm__(".globl call_wrong\n"
        "wrong: addi sp, sp, -16\n sd ra, 8(sp)\n sd s0, 0(sp)\n addi s0, sp, 16\n mv a0, ra\n call _mcount\n"
        " ld ra, 8(sp)\n addi sp, sp, 16\n ret\n"
        "call_wrong: addi sp, sp, -16\n sd ra, 8(sp)\n sd s0, 0(sp)\n call wrong\n"
        " ld s0, 0(sp)\n ld ra, 8(sp)\n addi sp, sp, 16\n ret\n");
#elif defined(__aarch64__)
__asm__(".globl call_wrong\n"
        "wrong: stp x29, x30, [sp, #-16]!\n mov x29, sp\n mov x0, x30\n bl _mcount\n"
        " ldr x30, [sp, #8]\n add sp, sp, #16\n ret\n"
        "call_wrong: stp x29, x30, [sp, #-16]!\n mov x29, sp\n bl wrong\n ldp x29, x30, [sp], #16\n ret\n");
#else
__asm__(".globl call_wrong\n"
        "wrong: push %rbp\n mov %rsp, %rbp\n call mcount@PLT\n add $8, %rsp\n ret\n"
        "call_wrong: push %rbp\n call wrong\n pop %rbp\n ret\n");
#endif
void call_wrong(void);

static volatile int exits;
QUIET static void left(struct hodo_ftrace_call *call) { exits++, (void)call; }

QUIET int main(void) {
    static const struct hodo_ftrace_graph_ops ops = {0, left, HODO_FTRACE_VECTORS};
    struct hodo_ftrace_counts counts;
    CHECK(hodo_ftrace_set_frame_test(3) == -1 && hodo_ftrace_set_frame_test(-1) == -1);
    hodo_ftrace_set_graph(&ops);
    call_wrong();
    hodo_ftrace_counts(&counts);
    CHECK(exits == 1 && counts.mismatched == 0);
    CHECK(hodo_ftrace_set_frame_test(ABORTS ? HODO_FTRACE_FRAME_ABORT : HODO_FTRACE_FRAME_REPORT) == 0);
    call_wrong();
    hodo_ftrace_counts(&counts);
    CHECK(exits == 2 && counts.mismatched == 1);
    puts("ok");
    return 0;
}
