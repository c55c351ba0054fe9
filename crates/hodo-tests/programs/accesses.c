// Instructions that access memory in all ways that need care: strings in both directions, bit strings, tables, the stack,
// wide and atomic accesses, segments, short addresses, and a handler that lets a fault's instruction run again.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static char a[4096] __attribute__((aligned(64))), b[4096] __attribute__((aligned(64)));
static uint64_t numbers[64];
static __thread int local = 5;
static char *page;

static void on_fault(int signal, siginfo_t *info, void *context) { mprotect(page, 4096, PROT_READ | PROT_WRITE); }

__attribute__((noipa)) static long strings(void) {
    void *to = b, *from = a;
    long count = 100, found = 0;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    count = 20;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    count = 7;
    to = b + 2000, from = a + 2000;
    __asm__ volatile("std; rep movsl; cld" : "+D"(to), "+S"(from), "+c"(count)::"memory");
    count = 0;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0) : "memory");
    count = 30;
    __asm__ volatile("rep stosw" : "+D"(to), "+c"(count) : "a"(0x6161) : "memory");
    count = 1000;
    to = b;
    __asm__ volatile("repne scasb; sete %b2" : "+D"(to), "+c"(count), "+q"(found) : "a"('a') : "memory", "cc");
    count = 50;
    to = b, from = a;
    __asm__ volatile("repe cmpsb" : "+D"(to), "+S"(from), "+c"(count)::"memory", "cc");
    count = 5;
    from = a;
    __asm__ volatile("rep lodsb" : "+S"(from), "+c"(count)::"rax", "memory");
    to = b, from = a;
    __asm__ volatile("movsq; movsb; stosl; scasb; cmpsw; lodsq" : "+D"(to), "+S"(from)::"rax", "memory", "cc");
    return count + found;
}

__attribute__((noipa)) static long bits(long at) {
    unsigned char set;
    __asm__ volatile("btsq %2, %0; setc %1" : "+m"(numbers[32]), "=q"(set) : "r"(at) : "memory", "cc");
    __asm__ volatile("btl %k2, %0; setc %1" : "+m"(numbers[32]), "=q"(set) : "r"(at / 2) : "memory", "cc");
    __asm__ volatile("lock btcq $7, %0" : "+m"(numbers[1])::"memory", "cc");
    return set;
}

__attribute__((noipa)) static long others(void *at, long index) {
    long result = 0, other = 1;
    unsigned char save[512] __attribute__((aligned(64)));
    __asm__ volatile("xlatb" : "+a"(index) : "b"(a));
    __asm__ volatile("push %1; pop %0; pushq 8(%2); popq 16(%2); pushf; popf; push $3; pop %1"
                     : "+r"(result), "+r"(other) : "r"(at) : "memory", "cc");
    __asm__ volatile("lock cmpxchg %1, (%2); lock xadd %1, 8(%2); xchg %1, 16(%2)"
                     : "+a"(result), "+r"(other) : "r"(at) : "memory", "cc");
    __asm__ volatile("movl 8(%k0), %k0" : "+r"(at)::"memory");
    __asm__ volatile("fxsave %0" : "=m"(save));
    __asm__ volatile("fldl %0; fstpl %0; fildl %0; fistpl %0" : "+m"(numbers[5])::"memory");
    __asm__ volatile("enter $32, $0; leave" ::: "memory");
    __asm__ volatile("cmovnzq %1, %0; movnti %0, %1; prefetcht0 %1; lea %1, %0" : "+r"(result) : "m"(numbers[6]) : "memory");
    return result;
}

// Accesses that are not aligned fault for a while; there are none here.
__attribute__((noipa)) static long aligned(long *at, long count) {
    long sum = 0;
    __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf; 1: add 8(%2), %0; mov %0, 16(%2); dec %1; jnz 1b; pushf; andl "
                     "$~0x40000, (%%rsp); popf"
                     : "+r"(sum), "+r"(count) : "r"(at) : "memory", "cc");
    return sum;
}

int main(void) {
    memset(a, 'x', sizeof a);
    page = mmap((void *)0x10000000, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    page[17] = 1;
    page[18]++;
    long sum = strings() + bits(77) + bits(-300) + (others(numbers + 8, 9) != 0) + aligned((long *)numbers, 9);
    for (int i = 0; i < 10; i++) {
        local += i;
        numbers[i] += sum;
    }
    // A repeated instruction that faults in its middle, and goes on.
    mprotect(page, 4096, PROT_NONE);
    char *to = page - 100;
    mmap((void *)0x0ffff000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    long count = 300;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"('z') : "memory");
    char text[40];
    int length = snprintf(text, sizeof text, "%d %d %c\n", local, (int)numbers[3] & 1, page[199]);
    return write(1, text, length) != length;
}
