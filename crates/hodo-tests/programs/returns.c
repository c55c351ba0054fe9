// Functions whose returns are probed, and that count them: ordinary, recursive, left by longjmp, left by a jump to
// another function, in threads and in children. Prints the counts by name.
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION __attribute__((noipa))

struct pair {
    long a, b;
};

static jmp_buf place;
static volatile int sink;

FUNCTION int negative(int n) { return -n; }
FUNCTION signed char small(int n) { return (signed char)n; }
FUNCTION struct pair both(long n) { return (struct pair){n, ~n}; }
FUNCTION double half(double x) { return x / 2; }
FUNCTION const char *text(int n) { return n ? "yes" : NULL; }

FUNCTION long deep(long n) {
    long below = n ? deep(n - 1) : 0;
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}

FUNCTION int leaves(int n) {
    if (n % 4 == 3)
        longjmp(place, 1);
    sink = n;
    return n;
}

FUNCTION int last(int n) { return n + 1; }

// With -O2 these end in a jump to the last function that they call.
FUNCTION int middle(int n) {
    sink = n;
    return last(n * 2);
}
FUNCTION int first(int n) {
    sink = n;
    return middle(n + 7);
}

FUNCTION long in_thread(long n) {
    sink = (int)n;
    return n;
}

// A loop that begins at the function's first instruction.
__attribute__((naked, noipa)) long begins_with_a_loop(long n) {
#if defined(__riscv)
    __asm__("addi a0, a0, -1; addi t0, t0, 1; bgtz a0, begins_with_a_loop; li a0, 1; ret");
#elif defined(__aarch64__)
    __asm__("sub x0, x0, #1; add x9, x9, #1; cmp x0, #0; b.gt begins_with_a_loop; mov x0, #1; ret");
#else
    __asm__("dec %rdi; lea 1(%rax), %rax; jg begins_with_a_loop; ret");
#endif
}

static void *thread(void *unused) {
    (void)unused;
    for (long i = 0; i < 1000; i++)
        in_thread(i);
    return NULL;
}

int main(void) {
    long sum = 0;
    volatile int left = 0;
    for (int i = 0; i < 300; i++) {
        sum += negative(i - 100) + small(i) + (long)half(i) + (text(i % 2) != NULL);
        struct pair pair = both(i);
        sum += pair.a ^ pair.b;
        sum += first(i);
    }
    sum += last(3);
    for (volatile int i = 0; i < 100; i++) {
        if (setjmp(place) == 0)
            sum += leaves(i);
        else
            left++;
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    sum += deep(20000);
    sum += begins_with_a_loop(50) > 0;
    fflush(stdout);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit((int)in_thread(i) & 0);
        int status;
        waitpid(child, &status, 0);
        sum += status;
    }
    printf("%ld %d\n", sum, left);
    return 0;
}
