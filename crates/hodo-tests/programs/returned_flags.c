/* Arithmetic flags pass calls, returns and jumps of all kinds: functions return and take flags, as those of some compilers of
 * other languages do. */
#include <stdio.h>

enum { FLAGS = 0x8d5, DOWN = 0x400 };

__asm__(".text\n"
        "same: ret\n"
        "with_frame: push %rbp; mov %rsp, %rbp; lea -64(%rsp), %rsp; leave; ret\n"
        "tail: jmp same\n"
        "tail_by_register: push %rax; lea same(%rip), %rax; xchg %rax, (%rsp); ret\n"
        "through: call same; ret\n"
        "through_pointer: push %rax; lea with_frame(%rip), %rax; call *%rax; pop %rax; ret\n"
        "through_memory: call *where(%rip); ret\n"
        "carry: stc; ret\n"
        "no_carry: clc; ret\n"
        "turn: cmc; ret\n"
        "by_entry: jc 1f; clc; ret; 1: stc; ret\n"
        "jumps: push %rax; lea 1f(%rip), %rax; jmp *%rax; 1: pop %rax; ret\n"
        "pops: lea -8(%rsp), %rsp; mov %rax, (%rsp); mov 8(%rsp), %rax; xchg %rax, (%rsp); ret $8\n"
        ".data; where: .quad tail; .text\n");

#define CALL(name) { \
        unsigned long after; \
        __asm__ volatile("lea -128(%%rsp), %%rsp; push %1; popfq; call " #name "; pushfq; pop %0; cld; lea 128(%%rsp), %%rsp" \
                         : "=&r"(after) : "r"(before) : "cc", "memory"); \
        sum = sum * 31 + (after & (FLAGS | DOWN)); \
        __asm__ volatile("lea -128(%%rsp), %%rsp; push %1; popfq; call *%2; pushfq; pop %0; cld; lea 128(%%rsp), %%rsp" \
                         : "=&r"(after) : "r"(before), "r"(name##_) : "cc", "memory"); \
        sum = sum * 31 + (after & (FLAGS | DOWN)); \
    }
#define ALL(each) each(same) each(with_frame) each(tail) each(tail_by_register) each(through) each(through_pointer) \
    each(through_memory) each(carry) each(no_carry) each(turn) each(by_entry) each(jumps) each(pops)
#define ADDRESS(name) void *name##_; __asm__("lea " #name "(%%rip), %0" : "=r"(name##_));

int main(void) {
    unsigned long sum = 0;
    ALL(ADDRESS)
    for (int i = 0; i < 3; i++)
        for (unsigned long bits = 0; bits < 128; bits++) {
            /* Each bit is one of the flags. */
            static const unsigned long each[7] = {1, 4, 0x10, 0x40, 0x80, 0x800, DOWN};
            unsigned long before = 2;
            for (int bit = 0; bit < 7; bit++) before |= bits >> bit & 1 ? each[bit] : 0;
            ALL(CALL)
            printf("%lx %016lx\n", before, sum);
        }
    return 0;
}
