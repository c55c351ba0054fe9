// Code made at run time in the middle of a large reservation, as Erlang's: nothing else can be near it.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

// rdi: a number. Everything is relative to the instruction pointer, and is copied from here.
extern unsigned char code[], code_end[];
__asm__(".text\ncode:\n"
        "  mov number(%rip), %rax\n"
        "  add %rdi, number(%rip)\n"
        "  lea number(%rip), %rcx\n"
        "  add (%rcx), %rax\n"
        "  mov %rax, %rdx\n"
        "  mov number(%rip), %rax\n"
        "  mov $5, %ecx\n"
        "  lock cmpxchg %rcx, number(%rip)\n"
        "  movq number(%rip), %xmm0\n"
        "  movq %xmm0, %rcx\n"
        "  lea (%rax, %rcx, 2), %rax\n"
        "  add %rdx, %rax\n"
        "  call 1f\n"
        "  cmpq $5, number(%rip)\n"
        "  jne 2f\n"
        "  call *place(%rip)\n"
        "  ret\n"
        "1: add $3, %rax\n  ret\n"
        "2: xor %eax, %eax\n  ret\n"
        ".balign 8\nnumber: .quad 11\nplace: .quad 0\ncode_end:\n");

static long twice(void) {
    long number;
    __asm__ volatile("mov %%rax, %0" : "=r"(number));
    return 2 * number;
}

int main(void) {
    uint64_t size = 8ull << 30;
    unsigned char *all = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    unsigned char *at = all + size / 2;
    mprotect(at, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    long sum = 0;
    for (int round = 0; round < 2000; round++) {
        // Across two pages.
        unsigned char *here = at + 4096 - 20 + round % 16;
        memcpy(here, code, code_end - code);
        void *target = (void *)twice;
        memcpy(here + (code_end - code) - 8, &target, 8);
        sum += ((long (*)(long))here)(round);
    }
    printf("%ld\n", sum);
    munmap(all, size);
    return 3;
}
