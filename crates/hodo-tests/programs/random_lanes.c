// Executes instructions with vector registers, each with given registers and pages of memory that cannot be accessed, and
// writes what the registers and the memory are whenever one faults and at the end of each: tests/lanes.rs makes these
// cases, and compares.
//
// The first argument is the file with the cases. Its code is mapped from there, at a fixed address.
#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 4

// Fixed addresses, which tests/lanes.rs knows, too.
#define CODE ((uint8_t *)0x10000000)
#define AREA ((uint8_t *)0x30000000)
// Words by which the code at CODE comes back, and gets and leaves a register and the flags; and a stack.
#define SHARED ((volatile uint64_t *)0x20000000)
#define SHARED_LEN 0x10000

enum page { FREE, CLOSED, READ_ONLY, UNMAPPED, CUT_OFF };

struct state {
    uint64_t general[16];
    uint64_t masks[8];
    uint8_t vectors[32][64];
};

struct test_case {
    uint64_t code;
    uint8_t pages[PAGES];
    // After a fault: whether it continues after the page has been made accessible.
    uint16_t repairs;
    uint16_t stores;
    struct state state;
};

struct head {
    // Whether there are the registers of AVX-512.
    uint32_t wide;
    uint32_t count;
    // Offset of the cases; the code is before them, after the memory's content and this page.
    uint64_t cases;
};

struct stop {
    uint32_t number;
    // The signal; 0 at the end.
    int32_t signal;
    int64_t signal_code;
    uint64_t address, pc, flags;
};

static int input, cut_off;
static const struct test_case *running;
static uint32_t number;
static uint8_t pages[PAGES];
static sigjmp_buf out;

static void need(int is_fine, const char *what) {
    if (!is_fine) {
        perror(what);
        _exit(9);
    }
}

static void make(int page, enum page kind) {
    uint8_t *at = AREA + PAGE * page;
    int is_new = pages[page] == UNMAPPED || pages[page] == CUT_OFF;
    switch (kind) {
    case FREE:
        if (is_new) {
            void *got = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            need(got == at && pread(input, at, PAGE, PAGE + PAGE * page) == PAGE, "page");
        } else
            need(!mprotect(at, PAGE, PROT_READ | PROT_WRITE), "mprotect");
        break;
    case CLOSED:
        need(!mprotect(at, PAGE, PROT_NONE), "mprotect");
        break;
    case READ_ONLY:
        need(!mprotect(at, PAGE, PROT_READ), "mprotect");
        break;
    case UNMAPPED:
        need(!munmap(at, PAGE), "munmap");
        break;
    case CUT_OFF:
        need(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, cut_off, 0) == at, "mmap");
        break;
    }
    pages[page] = kind;
}

// What is accessible. The kernel reads it: so the program itself makes few accesses.
static void write_memory(void) {
    struct iovec parts[PAGES];
    int count = 0;
    size_t len = 0;
    for (int page = 0; page < PAGES; page++)
        if (pages[page] == FREE || pages[page] == READ_ONLY) {
            parts[count++] = (struct iovec){AREA + PAGE * page, PAGE};
            len += PAGE;
        }
    need(writev(1, parts, count) == (ssize_t)len, "writev");
}

static void write_stop(const struct stop *stop, const struct state *state) {
    struct iovec parts[] = {{(void *)stop, sizeof *stop}, {(void *)state, sizeof *state}};
    need(writev(1, parts, 2) == sizeof *stop + sizeof *state, "writev");
    if (running->stores)
        write_memory();
}

// Where each part of the registers is in a signal's frame: 0 if there is none.
static unsigned offsets[8];

static void copy(uint8_t *to, const uint8_t *from, size_t len) {
    for (size_t at = 0; at < len; at += 8)
        *(volatile uint64_t *)(to + at) = *(const uint64_t *)(from + at);
}

// A part that is not in use is not in the frame: its registers are zero.
static void copy_part(const uint8_t *saved, int part, size_t at, uint8_t *to, size_t len) {
    uint64_t present = *(const uint64_t *)(saved + 512);
    if (offsets[part] && present >> part & 1)
        copy(to, saved + offsets[part] + at, len);
}

static struct state in_handler;

static void handler(int signal, siginfo_t *info, void *context) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    ucontext_t *uc = context;
    const uint8_t *saved = (const uint8_t *)uc->uc_mcontext.fpregs;
    struct state *state = &in_handler;
    for (int i = 0; i < 16; i++)
        state->general[i] = uc->uc_mcontext.gregs[order[i]];
    for (int i = 0; i < 8; i++) {
        state->masks[i] = 0;
        copy_part(saved, 5, 8 * i, (uint8_t *)&state->masks[i], 8);
    }
    for (int i = 0; i < 32; i++)
        for (int word = 0; word < 8; word++)
            ((uint64_t *)state->vectors[i])[word] = 0;
    for (int i = 0; i < 16; i++) {
        if (*(const uint64_t *)(saved + 512) & 2)
            copy(state->vectors[i], saved + 160 + 16 * i, 16);
        copy_part(saved, 2, 16 * i, state->vectors[i] + 16, 16);
        copy_part(saved, 6, 32 * i, state->vectors[i] + 32, 32);
        copy_part(saved, 7, 64 * i, state->vectors[16 + i], 64);
    }
    struct stop stop = {number, signal, info->si_code, (uint64_t)info->si_addr, uc->uc_mcontext.gregs[REG_RIP],
                        uc->uc_mcontext.gregs[REG_EFL] & 0x8d5};
    write_stop(&stop, state);
    uint64_t page = ((uint64_t)info->si_addr - (uint64_t)AREA) / PAGE;
    if (signal == SIGILL || !running->repairs || page >= PAGES)
        siglongjmp(out, 1);
    make(page, FREE);
}

struct state after;
uint64_t own_stack;
extern char come_back[];
void run(const struct state *state, uint64_t code, int wide);

// The state is in rdi, the code in rsi, and whether there are wide registers in edx.
#define EACH16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define UPPER16(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define EACH8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define WIDE_LOAD(n) "vmovdqu64 192+64*" #n "(%rdi), %zmm" #n "\n\t"
#define LOAD(n) "vmovdqu 192+64*" #n "(%rdi), %ymm" #n "\n\t"
#define MASK_LOAD(n) "kmovq 128+8*" #n "(%rdi), %k" #n "\n\t"
#define WIDE_STORE(n) "vmovdqu64 %zmm" #n ", 192+64*" #n "(%rdi)\n\t"
#define STORE(n) "vmovdqu %ymm" #n ", 192+64*" #n "(%rdi)\n\t"
#define MASK_STORE(n) "kmovq %k" #n ", 128+8*" #n "(%rdi)\n\t"
asm(".text\n"
    "run:\n\t"
    "push %rbx\n\tpush %rbp\n\tpush %r12\n\tpush %r13\n\tpush %r14\n\tpush %r15\n\tpush %rdx\n\t"
    "mov %rsp, own_stack(%rip)\n\t"
    "mov %rsi, 0x20000018\n\t"
    "test %edx, %edx\n\tje 1f\n\t" EACH16(WIDE_LOAD) UPPER16(WIDE_LOAD) EACH8(MASK_LOAD) "jmp 2f\n\t"
    "1:\n\t" EACH16(LOAD) "2:\n\t"
    "mov (%rdi), %rax\n\tmov %rax, 0x20000008\n\t"
    "mov 8(%rdi), %rcx\n\tmov 16(%rdi), %rdx\n\tmov 24(%rdi), %rbx\n\tmov 32(%rdi), %rsp\n\tmov 40(%rdi), %rbp\n\t"
    "mov 48(%rdi), %rsi\n\tmov 64(%rdi), %r8\n\tmov 72(%rdi), %r9\n\tmov 80(%rdi), %r10\n\tmov 88(%rdi), %r11\n\t"
    "mov 96(%rdi), %r12\n\tmov 104(%rdi), %r13\n\tmov 112(%rdi), %r14\n\tmov 120(%rdi), %r15\n\t"
    "mov 56(%rdi), %rdi\n\t"
    "jmp *0x20000018\n"
    "come_back:\n\t"
    "mov %rdi, after+56(%rip)\n\tlea after(%rip), %rdi\n\t"
    "mov 0x20000008, %rax\n\tmov %rax, (%rdi)\n\t"
    "mov %rcx, 8(%rdi)\n\tmov %rdx, 16(%rdi)\n\tmov %rbx, 24(%rdi)\n\tmov %rsp, 32(%rdi)\n\tmov %rbp, 40(%rdi)\n\t"
    "mov %rsi, 48(%rdi)\n\tmov %r8, 64(%rdi)\n\tmov %r9, 72(%rdi)\n\tmov %r10, 80(%rdi)\n\tmov %r11, 88(%rdi)\n\t"
    "mov %r12, 96(%rdi)\n\tmov %r13, 104(%rdi)\n\tmov %r14, 112(%rdi)\n\tmov %r15, 120(%rdi)\n\t"
    "mov own_stack(%rip), %rsp\n\tpop %rdx\n\t"
    "test %edx, %edx\n\tje 1f\n\t" EACH16(WIDE_STORE) UPPER16(WIDE_STORE) EACH8(MASK_STORE) "jmp 2f\n\t"
    "1:\n\t" EACH16(STORE) "2:\n\t"
    "vzeroupper\n\t"
    "pop %r15\n\tpop %r14\n\tpop %r13\n\tpop %r12\n\tpop %rbp\n\tpop %rbx\n\tret\n");

static void find_offsets(void) {
    for (int part = 2; part < 8; part++) {
        unsigned size, offset, flags, unused;
        __cpuid_count(0xd, part, size, offset, flags, unused);
        offsets[part] = size ? offset : 0;
    }
}

static void prepare(void) {
    int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    need(mmap((void *)SHARED, SHARED_LEN, rights, flags, -1, 0) == (void *)SHARED, "mmap");
    need(mmap(AREA, PAGES * PAGE, rights, flags, -1, 0) == AREA, "mmap");
    SHARED[0] = (uint64_t)come_back;
    cut_off = memfd_create("empty", 0);
    need(pread(input, AREA, PAGES * PAGE, PAGE) == PAGES * PAGE, "pread");
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGILL, &action, 0);
}

int main(int argc, char **argv) {
    input = open(argv[argc - 1], O_RDONLY);
    struct stat status;
    need(input >= 0 && !fstat(input, &status), argv[1]);
    const uint8_t *file = mmap(0, status.st_size, PROT_READ, MAP_PRIVATE, input, 0);
    need(file != MAP_FAILED, "mmap");
    const struct head *head = (const struct head *)file;
    const struct test_case *cases = (const struct test_case *)(file + head->cases);
    find_offsets();
    prepare();
    size_t before_code = PAGE + PAGES * PAGE;
    void *code = mmap(CODE, head->cases - before_code, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, input,
                      before_code);
    need(code == CODE, "code");
    for (number = 0; number < head->count; number++) {
        running = &cases[number];
        for (int page = 0; page < PAGES; page++)
            if (running->pages[page] != FREE)
                make(page, running->pages[page]);
        if (!sigsetjmp(out, 1)) {
            run(&running->state, running->code, head->wide);
            struct stop stop = {number, 0, 0, 0, 0, SHARED[2]};
            write_stop(&stop, &after);
        }
        for (int page = 0; page < PAGES; page++)
            if (pages[page] != FREE)
                make(page, FREE);
        if (running->stores)
            need(pread(input, AREA, PAGES * PAGE, PAGE) == PAGES * PAGE, "pread");
    }
    return 0;
}
