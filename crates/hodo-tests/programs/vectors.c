// Calls with vector registers in use, on stacks that have not been used before. Only on RISC-V.
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

#define V (1ul << ('V' - 'A'))
// PR_RISCV_V_SET_CONTROL: off after the next exec; on.
#define SET_CONTROL 69
#define NEXT_OFF (1 << 2)
#define ON 2

// Far from the program, its libraries and its stack, with room for their shadow below.
#define STACKS 0x3000000000ul
#define DISTANCE 0x2000000840ul
// Each stack is in a different megabyte.
#define STEP (3ul << 20)
#define SIZE (1ul << 16)

volatile long sink;

__attribute__((noinline, noclone)) long touched(long x) {
    sink += x;
    return x * 3 + sink % 2;
}

// Control registers: length, type, rounding and saturation, first element. The registers follow, one after the other.
enum { CONTROL = 32, LONGEST = 32 * 8192 };

// with_vectors(before, after, stack, x): calls touched(x) on that stack, with these registers. Returns what it returns.
long with_vectors(const void *before, void *after, void *stack, long x);
long on_stack(void *stack, long x);
long vector_len(void);

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
    unsigned long bytes = CONTROL + 32 * vector_len();
    int wrong = 0;
    for (int i = first; i < first + count; i++) {
        char *stack = new_stack(i);
        for (int again = 0; again < 2; again++) {
            const unsigned long *type = types[(i + again) % 3];
            unsigned long control[] = {type[0], type[1], i & 7, i % 2};
            memcpy(before.control, control, sizeof control);
            for (unsigned long n = 0; n < sizeof before.registers; n++)
                before.registers[n] = n * 37 ^ i * 11 ^ again;
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
    int has = (getauxval(AT_HWCAP) & V) != 0;
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
