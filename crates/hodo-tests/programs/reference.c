/* A bit of everything that makes code branch, so that each instruction has its own count. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf point;
static char place[4096];

__attribute__((noinline)) static int choose(int n) {
    switch (n) {
    case 0: return 11;
    case 1: return n * 3;
    case 2: return -n;
    case 3: return n << 4;
    case 4: return n / 3 + 1;
    case 5: return n ^ 0x55;
    default: return n % 7;
    }
}

__attribute__((noinline)) static unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}

static int twice(int n) { return 2 * n; }
static int square(int n) { return n * n; }
static int (*volatile table[])(int) = {twice, square, choose};

__attribute__((noinline)) static void leave(int n) {
    if (n == 0) longjmp(point, 5);
    leave(n - 1);
}

__attribute__((noinline)) static double mean(int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)choose(i) / (i + 1);
    return sum;
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(void) {
    int sum = 0, numbers[64];
    for (int i = 0; i < 64; i++) sum += choose(i & 7), numbers[i] = i * 37 % 64;
    for (int i = 0; i < 30; i++) sum += table[i % 3](i);
    sum += (int)ackermann(2, 4);
    qsort(numbers, 64, sizeof *numbers, by_number);
    int came = setjmp(point);
    if (came == 0) leave(20);
    memset(place, 7, sizeof place);
    size_t count = 700;
    char *to = place + 1000, *from = place;
    __asm__ volatile("rep movsb" : "+c"(count), "+D"(to), "+S"(from) : : "memory");
    unsigned long rest = 9;
    __asm__ volatile("1: dec %%eax; loop 1b" : "+c"(rest) : : "eax", "cc");
    rest = 7;
    __asm__ volatile("1: loop 1b" : "+c"(rest));
    printf("%d %d %d %.3f %zu\n", sum, came, numbers[10], mean(40), strlen(place));
    return 0;
}
