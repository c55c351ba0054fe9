// Calls functions of assembly that return more than a register: a flag, or to another address than that of their call.
#include <stdio.h>

int main(void) {
    long sum = 0, result;
    for (long i = 0; i < 20; i++) {
        unsigned char below;
        __asm__ volatile("sub $128, %%rsp; call is_below; setb %0; lea 128(%%rsp), %%rsp"
                         : "=&q"(below) : "D"(i) : "memory", "cc");
        sum += below;
    }
    printf("%ld\n", sum);
    __asm__ volatile("sub $128, %%rsp; call inline_data; .byte 42; lea 128(%%rsp), %%rsp"
                     : "=a"(result) : : "rdx", "memory", "cc");
    printf("%ld\n", result);
    __asm__ volatile("sub $128, %%rsp; push $3; push $4; call pops_arguments; lea 128(%%rsp), %%rsp"
                     : "=a"(result) : : "memory", "cc");
    printf("%ld\n", result);
    __asm__ volatile("sub $128, %%rsp; mov $5, %%r10; mov $6, %%r11; mov $7, %%rbx; call all_registers; "
                     "lea 128(%%rsp), %%rsp" : "=a"(result) : : "r10", "r11", "rbx", "memory", "cc");
    printf("%ld\n", result);
    return 0;
}
