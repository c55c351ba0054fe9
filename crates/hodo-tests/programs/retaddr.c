// Functions that look at return addresses, their own and others', and replace them through pointers.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef long (*with_slot)(void **slot, void *other);
typedef long (*with_value)(void *value);

// Call the function with where their own return address is kept, or with that address. These have no unwind tables.
long call_with_slot(with_slot function, void *other);
long call_with_value(with_value function);
// The same with a frame of its own: the return address goes back from its slot.
long call_from_frame(with_slot function, void *other);

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".type call_with_slot, @function\n"
        "call_with_slot: lea (%rsp), %rax\n"
        "  xchg %rax, %rdi\n"
        "  jmp *%rax\n"
        ".size call_with_slot, . - call_with_slot\n"
        ".type call_with_value, @function\n"
        "call_with_value: mov (%rsp), %rax\n"
        "  xchg %rax, %rdi\n"
        "  jmp *%rax\n"
        ".size call_with_value, . - call_with_value\n"
        ".type call_from_frame, @function\n"
        "call_from_frame: push %rbx\n"
        "  mov %rdi, %rax\n"
        "  lea 8(%rsp), %rdi\n"
        "  call *%rax\n"
        "  pop %rbx\n"
        "  ret\n"
        ".size call_from_frame, . - call_from_frame\n"
        ".popsection");
#elif defined(__riscv)
__asm__(".pushsection .text\n"
        ".type call_with_slot, @function\n"
        "call_with_slot: addi sp, sp, -16\n"
        "  sd ra, 8(sp)\n"
        "  mv t1, a0\n"
        "  addi a0, sp, 8\n"
        "  jalr t1\n"
        "  ld ra, 8(sp)\n"
        "  addi sp, sp, 16\n"
        "  ret\n"
        ".size call_with_slot, . - call_with_slot\n"
        ".type call_with_value, @function\n"
        "call_with_value: mv t1, a0\n"
        "  mv a0, ra\n"
        "  jr t1\n"
        ".size call_with_value, . - call_with_value\n"
        ".type call_from_frame, @function\n"
        "call_from_frame: addi sp, sp, -32\n"
        "  sd ra, 24(sp)\n"
        "  mv t1, a0\n"
        "  addi a0, sp, 24\n"
        "  jalr t1\n"
        "  ld ra, 24(sp)\n"
        "  addi sp, sp, 32\n"
        "  ret\n"
        ".size call_from_frame, . - call_from_frame\n"
        ".popsection");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".type call_with_slot, @function\n"
        "call_with_slot: str x30, [sp, #-16]!\n"
        "  mov x9, x0\n"
        "  mov x0, sp\n"
        "  blr x9\n"
        "  ldr x30, [sp], #16\n"
        "  ret\n"
        ".size call_with_slot, . - call_with_slot\n"
        ".type call_with_value, @function\n"
        "call_with_value: mov x9, x0\n"
        "  mov x0, x30\n"
        "  br x9\n"
        ".size call_with_value, . - call_with_value\n"
        ".type call_from_frame, @function\n"
        "call_from_frame: sub sp, sp, #32\n"
        "  str x30, [sp, #24]\n"
        "  mov x9, x0\n"
        "  add x0, sp, #24\n"
        "  blr x9\n"
        "  ldr x30, [sp, #24]\n"
        "  add sp, sp, #32\n"
        "  ret\n"
        ".size call_from_frame, . - call_from_frame\n"
        ".popsection");
#endif

static void *seen;
int main(int argc, char **argv);

__attribute__((noinline)) long inner(long n) {
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

// Where in the program an address is.
static long place(void *address) { return (char *)address - (char *)main; }

// Looks at the return address in its caller's slot, which may be its own.
__attribute__((noinline)) long look(void **slot, void *other) {
    (void)other;
    return inner(place(*slot));
}

// The return address of the function that calls it.
__attribute__((noinline)) void *returns_to(void) {
    return __builtin_extract_return_addr(__builtin_return_address(1));
}

__attribute__((noinline)) long compare(void *value) { return inner(returns_to() == value); }

// Has the caller return elsewhere.
__attribute__((noinline)) long replace(void **slot, void *other) {
    inner(1);
    *slot = other;
    return 1;
}

__attribute__((noinline)) long remember(void **slot, void *other) {
    (void)other;
    seen = *slot;
    return inner(1);
}

__attribute__((noinline)) long resume(void **slot, void *other) {
    (void)other;
    *slot = seen;
    return inner(1);
}

// Calls one function, and has others return to where it returned.
__attribute__((noinline)) long again(void) {
    volatile long rounds = 0;
    call_with_slot(remember, NULL);
    rounds++;
    if (rounds < 100) call_with_slot(resume, NULL);
    return rounds;
}

__attribute__((noinline)) long plain(with_slot function, void *other) {
    (void)other;
    return inner(function != NULL);
}

// One call instruction for several functions: they have the same frame and the same return address.
__attribute__((noinline)) long several(int n) {
    long (*volatile functions[2])(with_slot, void *) = {call_with_slot, plain};
    long sum = 0;
    for (int i = 0; i < 2 * n; i++)
        sum += functions[i % 2](look, NULL);
    return sum;
}

// A function that compilers give a frame pointer, and that hands it on.
__attribute__((noinline)) long through_frame(void **frame, void *other) {
#if defined(__riscv)
    frame[-1] = other;
#else
    frame[1] = other;
#endif
    return inner(2);
}

__attribute__((noinline)) long hands_frame_on(void *other) {
    return through_frame(__builtin_frame_address(0), other) + 1;
}

__attribute__((noreturn, used)) static void away(void) {
    printf("away\n");
    fflush(stdout);
    _Exit(7);
}

// Aligns the stack as after a call, where a function returns to it.
__attribute__((naked, used)) static void landing(void) {
#if defined(__x86_64__)
    __asm__("and $-16, %%rsp\n call %P0" : : "i"(away));
#elif defined(__riscv)
    __asm__("call %0" : : "i"(away));
#elif defined(__aarch64__)
    __asm__("bl away");
#endif
}

int main(int argc, char **argv) {
    long sum = 0;
    for (int i = 0; i < 1000; i++) {
        sum += call_with_slot(look, NULL);
        sum += call_from_frame(look, NULL);
    }
    printf("looked: %ld\n", sum);
    printf("own: %ld\n", call_with_value(compare));
    printf("again: %ld\n", again());
    printf("several: %ld\n", several(500));
    fflush(stdout);
    switch (argc > 1 ? atoi(argv[1]) : 0) {
    case 0: call_with_slot(replace, (void *)landing); break;
    case 1: call_from_frame(replace, (void *)landing); break;
    case 2: hands_frame_on((void *)landing); break;
    }
    printf("returned\n");
    return 3;
}
