// Calls with vector registers in use, on stacks that have not been used before: those of RISC-V's V and AArch64's SVE,
// which system calls forget.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__riscv)
#define HAS_VECTORS (1ul << ('V' - 'A'))
// PR_RISCV_V_SET_CONTROL: off after the next exec; on.
#define SET_CONTROL 69
#define NEXT_OFF (1 << 2)
#define ON 2
#else
#define HAS_VECTORS (1ul << 22) // HWCAP_SVE
#endif

// Far from the program, its libraries and its stack, with room for their shadow below.
#if defined(__riscv)
#define STACKS 0x3000000000ul
#define DISTANCE 0x2000000840ul
#else
#define STACKS 0x6000000000ul
#define DISTANCE 0x4000000840ul
#endif
// Each stack is in a different megabyte.
#define STEP (3ul << 20)
#define SIZE (1ul << 16)

volatile long sink;

__attribute__((noinline, noclone)) long touched(long x) {
    sink += x;
    return x * 3 + sink % 2;
}

// Control registers, which only RISC-V has: length, type, rounding and saturation, first element. The registers follow,
// one after the other.
enum { CONTROL = 32, LONGEST = 32 * 8192 };
// The bytes of all registers, if one has this length. On AArch64, 16 predicates and FFR come last.
#if defined(__riscv)
#define REGISTERS(len) (32 * (len))
#else
#define REGISTERS(len) (32 * (len) + 17 * ((len) / 8))
#endif

// with_vectors(before, after, stack, x): calls touched(x) on that stack, with these registers. Returns what it returns.
long with_vectors(const void *before, void *after, void *stack, long x);
long on_stack(void *stack, long x);
long vector_len(void);

#if defined(__riscv)
asm(".text\n"
    ".option push\n"
    ".option arch, +v\n"
    ".macro each instruction, base\n"
    "csrwi vstart, 0\n"
    "csrr t1, vlenb\n"
    "slli t1, t1, 3\n"
    "addi t2, \\base, 32\n"
    ".irp number, 0, 8, 16, 24\n"
    "\\instruction v\\number, (t2)\n"
    "add t2, t2, t1\n"
    ".endr\n"
    ".endm\n"
    ".globl with_vectors\n"
    ".type with_vectors, @function\n"
    "with_vectors:\n"
    "addi sp, sp, -32\n"
    "sd ra, 24(sp)\n"
    "sd s0, 16(sp)\n"
    "sd s1, 8(sp)\n"
    "mv s0, sp\n"
    "mv s1, a1\n"
    "mv sp, a2\n"
    "each vl8re8.v, a0\n"
    "ld t0, 0(a0)\n"
    "ld t1, 8(a0)\n"
    "vsetvl zero, t0, t1\n"
    "ld t0, 16(a0)\n"
    "csrw vcsr, t0\n"
    "ld t0, 24(a0)\n"
    "csrw vstart, t0\n"
    "mv a0, a3\n"
    "call touched\n"
    "csrr t0, vl\n"
    "sd t0, 0(s1)\n"
    "csrr t0, vtype\n"
    "sd t0, 8(s1)\n"
    "csrr t0, vcsr\n"
    "sd t0, 16(s1)\n"
    "csrr t0, vstart\n"
    "sd t0, 24(s1)\n"
    "each vs8r.v, s1\n"
    "mv sp, s0\n"
    "ld ra, 24(sp)\n"
    "ld s0, 16(sp)\n"
    "ld s1, 8(sp)\n"
    "addi sp, sp, 32\n"
    "ret\n"
    ".size with_vectors, . - with_vectors\n"
    ".globl on_stack\n"
    ".type on_stack, @function\n"
    "on_stack:\n"
    "addi sp, sp, -16\n"
    "sd ra, 8(sp)\n"
    "sd s0, 0(sp)\n"
    "mv s0, sp\n"
    "mv sp, a0\n"
    "mv a0, a1\n"
    "call touched\n"
    "mv sp, s0\n"
    "ld ra, 8(sp)\n"
    "ld s0, 0(sp)\n"
    "addi sp, sp, 16\n"
    "ret\n"
    ".size on_stack, . - on_stack\n"
    ".globl vector_len\n"
    ".type vector_len, @function\n"
    "vector_len:\n"
    "csrr a0, vlenb\n"
    "ret\n"
    ".size vector_len, . - vector_len\n"
    ".option pop\n");
#else
asm(".text\n"
    ".arch armv8.2-a+sve\n"
    // Leaves the address after the vectors in x9.
    ".macro each instruction, base\n"
    "add x9, \\base, #32\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "\\instruction z\\number, [x9, #\\number, mul vl]\n"
    ".endr\n"
    "addvl x9, x9, #16\n"
    ".irp number, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
    "\\instruction z\\number, [x9, #(\\number - 16), mul vl]\n"
    ".endr\n"
    "addvl x9, x9, #16\n"
    ".endm\n"
    ".macro predicates instruction\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
    "\\instruction p\\number, [x9, #\\number, mul vl]\n"
    ".endr\n"
    ".endm\n"
    ".globl with_vectors\n"
    ".type with_vectors, @function\n"
    "with_vectors:\n"
    "stp x29, x30, [sp, #-96]!\n"
    "str x19, [sp, #16]\n"
    "stp d8, d9, [sp, #32]\n"
    "stp d10, d11, [sp, #48]\n"
    "stp d12, d13, [sp, #64]\n"
    "stp d14, d15, [sp, #80]\n"
    "mov x29, sp\n"
    "mov x19, x1\n"
    "mov sp, x2\n"
    "each ldr, x0\n"
    "ldr p0, [x9, #16, mul vl]\n"
    "wrffr p0.b\n"
    "predicates ldr\n"
    "mov x0, x3\n"
    "bl touched\n"
    "each str, x19\n"
    "predicates str\n"
    "rdffr p0.b\n"
    "str p0, [x9, #16, mul vl]\n"
    "mov sp, x29\n"
    "ldr x19, [sp, #16]\n"
    "ldp d8, d9, [sp, #32]\n"
    "ldp d10, d11, [sp, #48]\n"
    "ldp d12, d13, [sp, #64]\n"
    "ldp d14, d15, [sp, #80]\n"
    "ldp x29, x30, [sp], #96\n"
    "ret\n"
    ".size with_vectors, . - with_vectors\n"
    ".globl on_stack\n"
    ".type on_stack, @function\n"
    "on_stack:\n"
    "stp x29, x30, [sp, #-16]!\n"
    "mov x29, sp\n"
    "mov sp, x0\n"
    "mov x0, x1\n"
    "bl touched\n"
    "mov sp, x29\n"
    "ldp x29, x30, [sp], #16\n"
    "ret\n"
    ".size on_stack, . - on_stack\n"
    ".globl vector_len\n"
    ".type vector_len, @function\n"
    "vector_len:\n"
    "rdvl x0, #1\n"
    "ret\n"
    ".size vector_len, . - vector_len\n");
#endif

static char *new_stack(int number) {
    void *at = (void *)(STACKS + number * STEP);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(at, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0) != at) {
        perror("a stack");
        exit(2);
    }
    return (char *)at + SIZE - 64;
}

// Maps memory of the program where the shadow of a stack would be.
static void occupy(int number) {
    void *at = (void *)((STACKS + number * STEP + SIZE - DISTANCE) & -4096ul);
    mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

static void check(const char *what, int first, int count) {
    static __thread struct {
        unsigned long control[CONTROL / 8];
        unsigned char registers[LONGEST];
    } before, after;
    // 16 bits, two registers; 8 bits, a half; 64 bits, eight.
    static const unsigned long types[][2] = {{5, 0x09}, {3, 0xC7}, {2, 0x1B}};
    unsigned long len = vector_len(), bytes = CONTROL + REGISTERS(len);
    int wrong = 0;
    for (int i = first; i < first + count; i++) {
        char *stack = new_stack(i);
        for (int again = 0; again < 2; again++) {
            const unsigned long *type = types[(i + again) % 3];
            for (unsigned long n = 0; n < sizeof before.registers; n++)
                before.registers[n] = n * 37 ^ i * 11 ^ again;
#if defined(__riscv)
            unsigned long control[] = {type[0], type[1], i & 7, i % 2};
            memcpy(before.control, control, sizeof control);
#else
            // FFR says that the first elements have been loaded.
            unsigned char *first_fault = before.registers + 32 * len + 16 * (len / 8);
            for (unsigned long n = 0; n < len; n++)
                first_fault[n / 8] = first_fault[n / 8] & ~(1 << n % 8) | (n < i % len) << n % 8;
#endif
            memset(&after, 0, bytes);
            sink = 0;
            if (with_vectors(&before, &after, stack, i) != i * 3 + i % 2)
                wrong++;
            if (memcmp(&before, &after, bytes) && wrong++ < 3) {
                unsigned long at = 0;
                while (((char *)&before)[at] == ((char *)&after)[at])
                    at++;
                printf("%s: stack %d, call %d: byte %lu differs\n", what, i, again, at);
            }
        }
    }
    printf("%s: %d calls, %d wrong\n", what, 2 * count, wrong);
    fflush(stdout);
}

static void *thread(void *nothing) {
    check("thread", 60, 20);
    return nothing;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "on";
    int has = (getauxval(AT_HWCAP) & HAS_VECTORS) != 0;
#if defined(__riscv)
    if (!strcmp(how, "forbid")) {
        if (prctl(SET_CONTROL, NEXT_OFF, 0, 0, 0))
            puts("nothing to forbid");
        char *next[] = {argv[0], "forbidden", NULL};
        execv("/proc/self/exe", next);
        return 3;
    }
    if (!strcmp(how, "forbidden")) {
        // Here, instructions that use vectors end the program.
        long sum = 0;
        for (int i = 0; i < 20; i++)
            sum += on_stack(new_stack(i), i);
        printf("%d, %s\n", sum > 0, has ? "allowed" : "not allowed");
        if (prctl(SET_CONTROL, ON, 0, 0, 0))
            return puts("not to be allowed") < 0;
        check("allowed now", 20, 20);
        return 0;
    }
#endif
    for (int i = 0; i < 20; i++)
        on_stack(new_stack(i), i);
    if (!has) {
        puts("there are no vector registers");
        return 0;
    }
    check("main", 20, 20);
    occupy(40);
    check("no shadow", 40, 1);
    pthread_t other;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    if (fork() == 0) {
        check("child", 100, 20);
        return 0;
    }
    wait(NULL);
    return 0;
}
