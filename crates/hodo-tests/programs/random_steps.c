// Random code: once step by step, with a handler that looks at all registers after each instruction, and once at a stretch.
// What it has seen goes into a sum, which is printed. Arguments: a seed, how many pieces of code, whether the code is from a
// file, and whether the handler looks at the flags, too.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { SIZE = 1 << 16, STEP = 0x100, FLAGS = 0x8C5, LEAVES = 4, PIECE = 80 };
static char *const code = (char *)0x200000000, *const data = (char *)0x210000000, *const stack = (char *)0x220000000;
static char *to;
static uint64_t state, sum, steps;
static int looks_at_flags;
static char *leaves[LEAVES];

static uint64_t number(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static unsigned below(unsigned end) { return (number() >> 20) % end; }
static void hash(uint64_t value) { sum = (sum ^ value) * 0x100000001B3; }

static void bytes(int count, ...)
{
    __builtin_va_list list;
    __builtin_va_start(list, count);
    while (count--)
        *to++ = __builtin_va_arg(list, int);
    __builtin_va_end(list);
}
static void four(uint32_t value) { memcpy(to, &value, 4), to += 4; }

// Neither rsp nor rdi, which points to the data.
static int reg(void)
{
    static const int all[] = {0, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15};
    return all[below(sizeof all / sizeof *all)];
}
// An instruction with a register and another one.
static void two(int wide, int prefix, int opcode, int field, int rm)
{
    int rex = 0x40 | wide << 3 | field >> 3 << 2 | rm >> 3;
    if (prefix)
        bytes(1, prefix);
    bytes(1, rex);
    if (opcode > 255)
        bytes(1, opcode >> 8);
    bytes(2, opcode & 255, 0xC0 | (field & 7) << 3 | (rm & 7));
}
// With a register and memory at rdi.
static void memory(int wide, int prefix, int opcode, int field)
{
    if (prefix)
        bytes(1, prefix);
    bytes(1, 0x40 | wide << 3 | field >> 3 << 2);
    if (opcode > 255)
        bytes(1, opcode >> 8);
    bytes(2, opcode & 255, 0x80 | (field & 7) << 3 | 7);
    four(below(4000));
}

// cmp rdi, rdi: returns and indirect calls of the cache do not keep the flags, as programs of the ABI do not need it.
static const unsigned char forget_flags[] = {0x48, 0x39, 0xFF};
static void flags_are_unknown(void) { memcpy(to, forget_flags, 3), to += 3; }

static void plain(void)
{
    static const int alu[] = {0, 1, 2, 3, 4, 5, 6, 7};
    int wide = below(2), a = reg(), b = reg(), op = alu[below(8)] << 3;
    switch (below(24)) {
    case 0: case 1: two(wide, 0, op | 1, a, b); break;
    case 2: two(wide, 0, 0x83, op >> 3, b), bytes(1, below(256)); break;
    case 3: memory(wide, 0, op | 3, a); break;
    case 4: memory(wide, below(2) && op >> 3 != 7 ? 0xF0 : 0, op | 1, a); break;
    case 5: two(1, 0, 0xC7, 0, a), four(number()); break;
    case 6: bytes(2, 0x48 | a >> 3, 0xB8 | (a & 7)), four(number()), four(number()); break;
    case 7: memory(wide, 0, 0x8B, a); break;
    case 8: memory(wide, below(2) ? 0x66 : 0, below(2) ? 0x89 : 0x88, a); break;
    case 9: // lea with base and index
        bytes(5, 0x48 | a >> 3 << 2 | b >> 3 << 1, 0x8D, 0x44 | (a & 7) << 3, below(4) << 6 | (b & 7) << 3 | 7, below(256));
        break;
    case 10: two(wide, 0, 0x0FB6 | below(2) << 3 | below(2), a, b); break;
    case 11: memory(wide, 0, 0x0FB6 | below(2) << 3 | below(2), a); break;
    case 12: two(0, 0, 0x0F90 | below(16), 0, a); break;
    case 13: two(wide, 0, 0x0F40 | below(16), a, b); break;
    case 14: two(wide, 0, 0xFF, below(2), a); break;
    case 15: two(wide, 0, 0xF7, 2 + below(2), a); break;
    case 16: // push, pop
        bytes(4, 0x40 | a >> 3, 0x50 | (a & 7), 0x40 | b >> 3, 0x58 | (b & 7));
        break;
    case 17: two(wide, 0, 0x87, a, b); break;
    case 18: two(wide, 0, 0xD1, (int[]){4, 5, 7}[below(3)], a); break;
    case 19: memory(0, 0xF3, below(2) ? 0x0F6F : 0x0F7F, below(16)); break;
    case 20: two(0, 0x66, (int[]){0x0FFE, 0x0FEF, 0x0FD4, 0x0F6C}[below(4)], below(16), below(16)); break;
    case 21: two(1, 0x66, below(2) ? 0x0F6E : 0x0F7E, below(16), a); break;
    case 22: memory(wide, below(2) ? 0xF0 : 0, below(2) ? 0x0FC1 : 0x0FB1, a); break;
    case 23: bytes(1, below(2) ? 0x9F : (int[]){0xF8, 0xF9, 0xF5}[below(3)]); break; // lahf, clc, stc, cmc
    }
}

static void other(void)
{
    int a = reg();
    char *from, *leaf = leaves[below(LEAVES)];
    switch (below(5)) {
    case 0: // A branch over some instructions.
        bytes(2, 0x70 | below(16), 0), from = to;
        for (int i = below(4); i >= 0; i--)
            plain();
        from[-1] = to - from;
        break;
    case 1:
        bytes(1, 0xE8), four(leaf - to - 4), flags_are_unknown();
        break;
    case 2: // By a register.
        bytes(3, 0x48 | a >> 3 << 2, 0x8D, 5 | (a & 7) << 3), four(leaf - to - 4);
        bytes(3, 0x40 | a >> 3, 0xFF, 0xD0 | (a & 7)), flags_are_unknown();
        break;
    case 3: // To the next instruction.
        bytes(3, 0x48 | a >> 3 << 2, 0x8D, 5 | (a & 7) << 3), four(3);
        bytes(3, 0x40 | a >> 3, 0xFF, 0xE0 | (a & 7));
        break;
    case 4: // Bytes that are stored or copied.
        bytes(1, 0x57), bytes(3, 0x48, 0x8D, 0xB7), four(below(2000)); // push rdi, lea rsi
        bytes(3, 0x48, 0x81, 0xC7), four(2000 + below(1000));          // add rdi
        bytes(1, 0xB9), four(below(9));                                // mov ecx
        bytes(2, 0xF3, below(2) ? 0xAA : 0xA4), bytes(1, 0x5F);        // rep stosb or movsb, pop rdi
        break;
    }
}

static void make(char *at)
{
    to = at;
    for (int i = 0; i < LEAVES; i++) {
        leaves[i] = to;
        flags_are_unknown();
        for (int n = below(6); n > 0; n--)
            plain();
        if (below(2))
            bytes(1, 0xC3);
        else // It takes what was pushed for that, too.
            bytes(7, 0x48, 0x8D, 0x64, 0x24, 0, 0xF3, 0xC3);
    }
}

void go(void *registers, void *start, void *end_of_stack, unsigned long flags);
uint64_t registers[16];
__asm__(".globl go\n go:\n"
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, saved_stack(%rip)\n mov %rsi, start_at(%rip)\n"
        "mov %rdx, %rsp\n push %rcx\n"
        "mov (%rdi), %rax\n mov 8(%rdi), %rcx\n mov 16(%rdi), %rdx\n mov 24(%rdi), %rbx\n mov 40(%rdi), %rbp\n"
        "mov 48(%rdi), %rsi\n mov 64(%rdi), %r8\n mov 72(%rdi), %r9\n mov 80(%rdi), %r10\n mov 88(%rdi), %r11\n"
        "mov 96(%rdi), %r12\n mov 104(%rdi), %r13\n mov 112(%rdi), %r14\n mov 120(%rdi), %r15\n mov 56(%rdi), %rdi\n"
        "popfq\n call *start_at(%rip)\n"
        "mov %rax, registers(%rip)\n mov %rcx, registers+8(%rip)\n mov %rdx, registers+16(%rip)\n"
        "mov %rbx, registers+24(%rip)\n mov %rsp, registers+32(%rip)\n mov %rbp, registers+40(%rip)\n"
        "mov %rsi, registers+48(%rip)\n mov %rdi, registers+56(%rip)\n mov %r8, registers+64(%rip)\n"
        "mov %r9, registers+72(%rip)\n mov %r10, registers+80(%rip)\n mov %r11, registers+88(%rip)\n"
        "mov %r12, registers+96(%rip)\n mov %r13, registers+104(%rip)\n mov %r14, registers+112(%rip)\n"
        "mov %r15, registers+120(%rip)\n"
        "mov saved_stack(%rip), %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
        ".local saved_stack\n .comm saved_stack, 8\n .local start_at\n .comm start_at, 8\n");

static void at_step(int signal, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    greg_t *regs = user->uc_mcontext.gregs;
    (void)signal, (void)info;
    char *pc = (char *)regs[REG_RIP];
    if (pc < code || pc >= code + SIZE) {
        // Before the first instruction, or after the last one.
        if (steps)
            regs[REG_EFL] &= ~STEP;
        return;
    }
    steps++;
    for (int i = REG_R8; i <= REG_RIP; i++)
        hash(regs[i]);
    if (looks_at_flags && memcmp(pc, forget_flags, 3))
        hash(regs[REG_EFL] & FLAGS);
    const uint64_t *vectors = (const uint64_t *)user->uc_mcontext.fpregs->_xmm;
    for (int i = 0; i < 32; i++)
        hash(vectors[i]);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = at_step, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t other_stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    int file = argc > 4 && atoi(argv[3]) ? memfd_create("code", 0) : -1, kind = file < 0 ? MAP_ANONYMOUS | MAP_PRIVATE : MAP_SHARED;
    if (argc < 5)
        return 2;
    looks_at_flags = atoi(argv[4]);
    state = strtoul(argv[1], 0, 0) * 0x9E3779B97F4A7C15 | 1;
    if (file >= 0)
        ftruncate(file, SIZE);
    mmap(data, SIZE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED, -1, 0);
    mmap(stack, SIZE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED, -1, 0);
    sigaltstack(&other_stack, 0);
    sigaction(SIGTRAP, &action, 0);
    for (int piece = atoi(argv[2]); piece > 0; piece--) {
        // Writable while it is made.
        mmap(code, SIZE, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, 0);
        make(code);
        char *start = to;
        flags_are_unknown();
        for (int i = 0; i < PIECE; i++)
            below(6) ? plain() : other();
        // The sum depends on the flags here, too.
        bytes(3, 0x9F, 0x88, 0x07), bytes(1, 0xC3); // lahf, mov [rdi], al
        mprotect(code, SIZE, PROT_READ | PROT_EXEC);
        uint64_t first[16];
        for (int i = 0; i < 16; i++)
            first[i] = number();
        first[7] = (uint64_t)data;
        uint64_t seed = state;
        for (int stepped = 1; stepped >= 0; stepped--) {
            state = seed;
            for (int i = 0; i < SIZE / 16; i++)
                ((uint64_t *)data)[i] = number();
            memset(stack, 0, SIZE);
            __asm__ volatile("pxor %%xmm0, %%xmm0\n pxor %%xmm1, %%xmm1\n pxor %%xmm2, %%xmm2\n pxor %%xmm3, %%xmm3\n"
                             "pxor %%xmm4, %%xmm4\n pxor %%xmm5, %%xmm5\n pxor %%xmm6, %%xmm6\n pxor %%xmm7, %%xmm7\n"
                             "pxor %%xmm8, %%xmm8\n pxor %%xmm9, %%xmm9\n pxor %%xmm10, %%xmm10\n"
                             "pxor %%xmm11, %%xmm11\n pxor %%xmm12, %%xmm12\n pxor %%xmm13, %%xmm13\n"
                             "pxor %%xmm14, %%xmm14\n pxor %%xmm15, %%xmm15\n"
                             ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
            steps = 0;
            go(first, start, stack + SIZE, 0x202 | (stepped ? STEP : 0));
            for (int i = 0; i < 16; i++)
                hash(registers[i]);
            for (int i = 0; i < SIZE / 8; i++)
                hash(((uint64_t *)data)[i]);
            printf("%lu steps: %lx\n", (long)steps, (long)sum);
        }
    }
    return 0;
}
