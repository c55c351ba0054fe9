/* Instructions of all kinds, legal and not, each executed once with known registers and memory: prefixes, maps, opcodes and
 * operands at random. All bytes after an operand are breakpoints, so where it traps shows how long it is.
 * Arguments: seed, first, count, and
 *   "show": prints what each did: signal, code, address, where, registers, memory;
 *   "pages": prints which of the pages of memory each reads and writes, if it executes: those that make it fault if they
 *            cannot be read, or written;
 *   "cut": prints what each did whose code ends somewhere in it, at a page that is inaccessible;
 *   "quiet": nothing of that. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 6, SLOT = 128, AT = 64, STACK = 512, ARITHMETIC = 0x8d5 };
#define MEMORY 0x50000000ul
/* A displacement of breakpoints leads from here, and from the code, to the memory. */
#define FAR 0x33333334ul
#define CODE ((MEMORY + 0x100000 + FAR) & -PAGE)
/* A page of breakpoints to which returns lead. As flags, the address has none that matter later. */
#define LANDING (CODE - 3 * PAGE)
/* Pages of code that is cut, each before an inaccessible one. */
#define CUTS (CODE + 0x1000000)
#define SEGMENT 0x40ul

typedef unsigned char Bytes[16];
static uint64_t state[18];
static struct {
    long signal, code;
    uint64_t address, rip, general[16], flags, vectors;
} seen;
uint64_t own_stack, start, own_base, set_base = SEGMENT;
static unsigned char clean[8192] __attribute__((aligned(64)));
static unsigned offsets[16];
static uint64_t components;
static unsigned long count, first;
static int is_cut;

static uint64_t seed = 1;
static uint64_t number(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1dul >> 16;
}
static unsigned below(unsigned end) { return number() % end; }
static uint64_t mix(uint64_t sum, uint64_t value) { return (sum ^ value) * 0x100000001b3ul ^ sum >> 29; }

/* Registers from `state`, in the order of their numbers; then the flags. */
__asm__(".text\n.globl run, resume\nrun: push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, own_stack(%rip); push %rdi\n"
        "mov $0xe7, %eax; xor %edx, %edx; xrstor64 (%rsi)\n"
        "mov $158, %eax; mov $0x1002, %edi; mov set_base(%rip), %rsi; syscall\n"
        "pop %rdi; push 128(%rdi); popfq\n"
        "mov (%rdi), %rax; mov 8(%rdi), %rcx; mov 16(%rdi), %rdx; mov 24(%rdi), %rbx; mov 32(%rdi), %rsp\n"
        "mov 40(%rdi), %rbp; mov 48(%rdi), %rsi; mov 64(%rdi), %r8; mov 72(%rdi), %r9; mov 80(%rdi), %r10\n"
        "mov 88(%rdi), %r11; mov 96(%rdi), %r12; mov 104(%rdi), %r13; mov 112(%rdi), %r14; mov 120(%rdi), %r15\n"
        "mov 56(%rdi), %rdi; jmp *start(%rip)\n"
        "resume: cld; fninit; push $0x1f80; ldmxcsr (%rsp); pop %rax; xor %eax, %eax; mov %eax, %ds; mov %eax, %es\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");
void run(uint64_t *state, void *clean);
extern char resume[];

/* What the thread has in the registers that the kernel saves with `xsave`, without addresses of instructions. */
static uint64_t vectors(const unsigned char *area) {
    uint64_t sum = 0, there, word;
    const struct { unsigned from, upto; } legacy[] = {{0, 5}, {24, 28}, {32, 416}};
    for (int part = 0; part < 3; part++)
        for (unsigned at = legacy[part].from; at < legacy[part].upto; at++)
            if (area[at]) sum = mix(sum, at << 8 | area[at]);
    memcpy(&there, area + 512, 8);
    for (int component = 2; component < 8; component++) {
        unsigned a, size, c, d;
        if (!(there & components >> component << component & 0xe4 & 1ul << component)) continue;
        __cpuid_count(13, component, size, a, c, d);
        for (unsigned at = 0; at < size; at += 8) {
            memcpy(&word, area + offsets[component] + at, 8);
            if (word) sum = mix(sum, mix(component << 16 | at, word));
        }
    }
    return sum;
}

static void handler(int signal, siginfo_t *info, void *context) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    ucontext_t *u = context;
    greg_t *regs = u->uc_mcontext.gregs;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(158), "D"(0x1002), "S"(own_base) : "rcx", "r11", "memory");
    seen.signal = signal;
    seen.code = info->si_code;
    seen.address = signal == SIGTRAP ? 0 : (uint64_t)info->si_addr;
    seen.rip = regs[REG_RIP];
    for (int i = 0; i < 16; i++) seen.general[i] = regs[order[i]];
    seen.flags = regs[REG_EFL] & 0x244cd5;
    seen.vectors = vectors((void *)u->uc_mcontext.fpregs);
    regs[REG_RIP] = (uint64_t)resume;
    regs[REG_RSP] = own_stack;
    regs[REG_EFL] = 0x202;
}

/* Those whose results are not the same each time, that wait, that lead into the kernel by a way that 64-bit programs do
 * not survive (sysenter, on some processors), or that take the thread's registers of segments from the C library. */
static int is_left_out(const unsigned char *bytes) {
    int is_short = 0;
    while (strchr("\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3", *bytes) || (*bytes & 0xf0) == 0x40)
        is_short |= *bytes++ == 0x66;
    unsigned modrm = bytes[1], field = modrm >> 3 & 7, memory = modrm < 0xc0;
    if (*bytes == 0x8e) return field == 4 || field == 5;
    if (*bytes == 0xc7) return modrm == 0xf8;
    /* With the prefix 66, on some processors: the end of the cache's address is pushed. */
    if (*bytes == 0xff && field == 2) return is_short;
    if (*bytes == 0xd9 || *bytes == 0xdd) return memory && field == 6;
    if (*bytes != 0x0f) return 0;
    modrm = bytes[2], field = modrm >> 3 & 7, memory = modrm < 0xc0;
    switch (bytes[1]) {
    case 0x01: return memory ? field < 2 : !!memchr("\xc1\xd0\xd9\xef\xf9\xfb\xfd", modrm, 7);
    case 0x31: case 0x33: case 0x34: case 0xa1: case 0xa2: case 0xa9: case 0xb4: case 0xb5: return 1;
    case 0xae: return memory ? field == 0 || field == 4 || field == 6 : field < 4 || field == 6;
    case 0xc7: return memory ? field == 4 : field > 5;
    }
    return 0;
}

/* An instruction with an opcode of each map in turn. Returns its bytes up to its operand. */
static int make(unsigned turn, unsigned char *bytes) {
    static const unsigned char prefixes[] = {0x66, 0x66, 0xf2, 0xf3, 0xf3, 0xf0, 0x67, 0x64, 0x2e, 0x3e};
    unsigned map = turn >> 8, opcode = turn & 255;
    int at = 0, many = map < 4 ? (int)below(4) - 1 : (int)below(12) - 10;
    if (!below(300)) many = 8 + below(7);
    for (int i = 0; i < many && at < 13; i++) bytes[at++] = prefixes[below(sizeof prefixes)];
    if (map < 4) {
        if (below(3) == 0) bytes[at++] = 0x40 | below(16);
        if (map) bytes[at++] = 0x0f;
        if (map > 1) bytes[at++] = map == 2 ? 0x38 : 0x3a;
    } else if (map < 7) {
        /* VEX: often with registers of the first half */
        unsigned plain = below(3) ? 0xe0 : 0, second = below(256);
        if (map == 4 && below(2)) bytes[at++] = 0xc5, bytes[at++] = second | (plain & 0x80);
        else bytes[at++] = 0xc4, bytes[at++] = (below(8) << 5 | plain) | (map - 3), bytes[at++] = below(3) ? second | 0x78 : second;
    } else if (map < 12) {
        static const unsigned char maps[] = {1, 2, 3, 5, 6};
        bytes[at++] = 0x62;
        bytes[at++] = (below(3) ? 0xf0 : below(16) << 4) | maps[map - 7];
        bytes[at++] = (below(3) ? below(256) | 0x78 : below(256)) | 4;
        unsigned masks = below(3) ? below(8) : 0, zeros = masks && below(4) == 0;
        bytes[at++] = below(4) ? zeros << 7 | below(3) << 5 | (below(3) == 0) << 4 | 8 | masks : below(256);
    } else {
        bytes[at++] = 0x8f;
        bytes[at++] = (below(3) ? 0xe0 : below(8) << 5) | (map - 4);
        bytes[at++] = below(3) ? below(256) | 0x78 : below(256);
    }
    bytes[at++] = opcode;
    unsigned modrm = below(256);
    switch (below(8)) {
    case 0: case 1: case 2: modrm &= 0x3f; break;
    case 3: modrm = (modrm & 0x38) | 0x05; break;
    case 4: modrm = (modrm & 0x3f) | 0x40; break;
    case 5: modrm |= 0xc0; break;
    }
    /* Short branches lead to breakpoints: elsewhere are instructions, or parts of them, as themselves. */
    if (!map && ((opcode & 0xf0) == 0x70 || opcode == 0xeb || (opcode & 0xfc) == 0xe0))
        modrm = below(2) ? 0x10 + below(32) : 0xd0 + below(16);
    if (at < 15) bytes[at++] = modrm;
    if (at < 15 && modrm < 0xc0 && (modrm & 7) == 4) bytes[at++] = below(256);
    return at;
}
enum { TURNS = 15 << 8 };

static unsigned char *bytes_of(unsigned long which) { return (void *)(CODE + SLOT * (which - first) + AT); }

/* Where it is executed. */
static uint64_t place(unsigned long which) {
    return is_cut ? CUTS + PAGE * (2 * (which - first) + 1) - 1 - which % 15 : (uint64_t)bytes_of(which);
}

/* Whether vectors are indices of its memory. */
static int has_many_addresses(const unsigned char *bytes) {
    while (strchr("\x2e\x3e\x64\x66\x67\xf0\xf2\xf3", *bytes)) bytes++;
    unsigned opcode = bytes[*bytes == 0x62 ? 4 : 3];
    if (*bytes == 0xc4 && (bytes[1] & 31) == 2) return (opcode & 0xfc) == 0x90;
    return *bytes == 0x62 && (bytes[1] & 7) == 2 && ((opcode & 0xcc) == 0x80 || (opcode & 0xfe) == 0xc6);
}

/* A word of a vector. As indices, those that do not lead to the memory lead to where nothing is: another's memory is not to
 * be changed. */
static uint64_t vector(int is_index, uint64_t mask) {
    uint64_t word = number() & (below(3) ? ~0ul : mask);
    if (!is_index) return word;
    return below(3) ? word & 0x0000007f0000007f : (word & 0x0fffffff0fffffff) | 0x8000000080000000;
}

/* The registers before instruction number `which`, and where it is. */
static void prepare(unsigned long which) {
    /* Kinds of registers: 0 memory, 1 memory behind the displacement of breakpoints, 2 a small number. */
    static const char kinds[] = "0220010002100122";
    static const unsigned sizes[] = {64, 32, 16, 8, 4, 2, 1, 0};
    seed = mix(which + 1, 0x9e3779b97f4a7c15ul) | 1;
    start = place(which);
    int is_index = has_many_addresses(bytes_of(which));
    for (int i = 0; i < 16; i++) {
        uint64_t near = MEMORY + (2 + below(2)) * PAGE - (below(2) ? sizes[below(8)] : 64 * below(30));
        state[i] = kinds[i] == '0' ? near : kinds[i] == '1' ? near + FAR : below(4) ? below(65) : -below(9);
    }
    state[4] = MEMORY + STACK + 8 * below(16);
    state[16] = 2 | (number() & ARITHMETIC) | (below(8) ? 0 : 0x400);
    for (uint64_t *word = (void *)MEMORY; word < (uint64_t *)(MEMORY + PAGES * PAGE); word++)
        *word = (uint64_t)word % 40 ? mix((uint64_t)word, which) : (uint64_t)word % 7;
    for (int i = -64; i < 64; i++) ((uint64_t *)(MEMORY + STACK))[i] = LANDING + 0x20;
    for (int i = 0; i < 16; i++) {
        uint64_t words[2] = {vector(is_index, ~0ul), vector(is_index, 0x0000007f0000007f)};
        memcpy(clean + 160 + 16 * i, words, 16);
    }
    for (int component = 2; component < 8; component++)
        if (components >> component & 1 && component != 3 && component != 4)
            for (int i = 0; i < (component == 5 ? 8 : component == 7 ? 128 : 32); i++) {
                uint64_t word = vector(is_index && component != 5, 0xff);
                memcpy(clean + offsets[component] + 8 * i, &word, 8);
            }
}

/* Under the engine, the word from which an instruction has returned has another address afterward, and arithmetic flags are
 * other ones. What comes before it may be an instruction, too. */
static int returns(const unsigned char *bytes) {
    return memchr(bytes, 0xc2, 15) || memchr(bytes, 0xc3, 15);
}

static uint64_t memory_sum(unsigned long which) {
    uint64_t sum = 0;
    if (returns(bytes_of(which))) memset((void *)(MEMORY + STACK - 512), 0, 1024);
    for (uint64_t *word = (void *)MEMORY; word < (uint64_t *)(MEMORY + PAGES * PAGE); word++) sum = mix(sum, *word);
    if (is_cut) return sum;
    uint64_t near = (start - FAR) & -64;
    for (int i = -128; i < 256; i += 8) sum = mix(sum, *(uint64_t *)(near + i));
    return sum;
}

static void execute(unsigned long which) {
    prepare(which);
    if (!is_cut) memset((void *)((start - FAR - 256) & -8), 0x11, 768);
    run(state, clean);
}

/* What it has done, in a line. */
static void show(unsigned long which) {
    execute(which);
    uint64_t sum = 0;
    int size = is_cut ? 1 + which % 15 : 16;
    if (returns(bytes_of(which))) seen.flags &= ~ARITHMETIC;
    for (int i = 0; i < 16; i++) sum = mix(sum, seen.general[i]);
    printf("%lu ", which);
    for (int i = 0; i < size; i++) printf("%02x", bytes_of(which)[i]);
    printf(" signal %ld %ld at=%lx rip=%ld flags=%lx general=%016lx vectors=%016lx memory=%016lx\n", seen.signal,
           seen.code, seen.address - (seen.address - start < 4096 ? start : 0), seen.rip - start, seen.flags, sum,
           seen.vectors, memory_sum(which));
}

static int faults_at(unsigned long which, int page, int protection) {
    char *at = (char *)MEMORY + page * PAGE;
    prepare(which);
    mprotect(at, PAGE, protection);
    run(state, clean);
    mprotect(at, PAGE, PROT_READ | PROT_WRITE);
    return seen.signal == SIGSEGV && seen.address - (uint64_t)at < PAGE;
}

static void pages(unsigned long which) {
    execute(which);
    if (seen.signal != SIGTRAP || seen.rip == start + 1) return;
    printf("%lu ", which);
    for (int i = 0; i < 16; i++) printf("%02x", ((unsigned char *)start)[i]);
    printf(" ");
    for (int page = 0; page < PAGES; page++) {
        int touched = faults_at(which, page, PROT_NONE), written = faults_at(which, page, PROT_READ);
        printf("%c", written ? 'w' : touched ? 'r' : '-');
    }
    printf("\n");
}

/* Reserves the addresses below 4 GiB to which operands lead that are not the memory's: sums of two registers, one of them
 * scaled, and of a displacement, cut by the prefix 67. They fault, whatever a kernel or an engine would map there. */
static void reserve_strays(void) {
    static const uint64_t kinds[] = {0, MEMORY, MEMORY + FAR};
    enum { PART = 16 * PAGE };
    for (int base = 0; base < 3; base++)
        for (int index = 0; index < 3; index++)
            for (int scale = 0; scale < 4; scale++)
                for (int far = 0; far < 2; far++) {
                    uint64_t at = (kinds[base] + (kinds[index] << scale) - far * FAR) & 0xfffff000ul;
                    for (uint64_t part = at - PART; part < at + 4 * PART && at > PART; part += PART)
                        mmap((void *)part, PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                }
}

int main(int argc, char **argv) {
    uint64_t base = argc > 1 ? strtoul(argv[1], 0, 0) : 1;
    first = argc > 2 ? strtoul(argv[2], 0, 0) : 0;
    count = argc > 3 ? strtoul(argv[3], 0, 0) : 2 * TURNS;
    const char *what = argc > 4 ? argv[4] : "show";
    is_cut = *what == 'c';
    unsigned a, b, c, d, size = SLOT * (count + 2);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *memory = mmap((void *)MEMORY, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *code = mmap((void *)CODE, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *before = mmap((void *)(((CODE - FAR) & -PAGE) - PAGE), size + 4 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *landing = mmap((void *)LANDING, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED || code == MAP_FAILED || before == MAP_FAILED || landing == MAP_FAILED)
        return perror("mmap"), 2;
    reserve_strays();
    memset(landing, 0xcc, PAGE);
    mprotect(landing, PAGE, PROT_READ | PROT_EXEC);
    memset(code, 0xcc, size);
    for (unsigned long i = 0; i < count; i++) {
        seed = mix(mix(base, first + i), 0x9e3779b97f4a7c15ul) | 1;
        unsigned char bytes[16];
        memset(bytes, 0xcc, 16);
        int len = make((first + i) * 7 % TURNS, bytes);
        if (is_left_out(bytes)) continue;
        memcpy(code + SLOT * i + AT, bytes, len);
    }
    mprotect(code, size, PROT_READ | PROT_EXEC);
    for (unsigned long i = 0; i < count && is_cut; i++) {
        uint64_t at = place(first + i);
        char *page = mmap((void *)(at & -PAGE), PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (page == MAP_FAILED) return perror("mmap"), 2;
        memset(page, 0xcc, PAGE);
        memcpy((void *)at, bytes_of(first + i), (uint64_t)page + PAGE - at);
        mprotect(page, PAGE, PROT_READ | PROT_EXEC);
    }
    __cpuid_count(13, 0, a, b, c, d);
    for (int i = 2; i < 8; i++) __cpuid_count(13, i, a, offsets[i], c, d);
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    components = a & 0xe7;
    __asm__ volatile("xsave64 %0" : "=m"(clean) : "a"(a & 0xe7), "d"(0) : "memory");
    uint64_t all = components;
    memcpy(clean + 512, &all, 8);
    unsigned status = 0x1f80;
    memcpy(clean + 24, &status, 4);
    __asm__ volatile("fninit");
    syscall(SYS_arch_prctl, 0x1003, &own_base);
    static char other[65536];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
    for (int i = 0; i < 5; i++) sigaction(signals[i], &action, 0);
    /* Who has started this may have blocked them; then they would end it. */
    sigprocmask(SIG_SETMASK, &action.sa_mask, 0);
    for (unsigned long i = first; i < first + count; i++) {
        if (*what == 's' || is_cut) show(i);
        else if (*what == 'p') pages(i);
        else execute(i);
    }
    return 0;
}
