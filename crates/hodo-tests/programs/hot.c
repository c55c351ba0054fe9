// Loops that are executed often enough to be translated again: branches that leave them in the middle, pointers that are
// followed, indices of 32 bits with and without a sign, calls, tables of jumps; with signals and faults in between.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct node {
    struct node *next;
    uint32_t key;
    int16_t steps[6];
};

static struct node nodes[512];
static struct node *table[64];
static uint8_t text[4096];
static int32_t sums[256];
static char *page;
static volatile unsigned signals, faults;

static void on_signal(int number) { signals += number == SIGUSR1; }

static void on_fault(int number) {
    (void)number;
    faults++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static uint32_t random_state = 1;
static uint32_t next_random(void) { return random_state = random_state * 1664525 + 1013904223; }

__attribute__((noinline)) static struct node *find(uint32_t key) {
    for (struct node *at = table[key % 64]; at; at = at->next)
        if (at->key == key) return at;
    return NULL;
}

__attribute__((noinline)) static unsigned match(unsigned a, unsigned b) {
    unsigned len = 0;
    while (len < 64 && text[(a + len) & 4095] == text[(b + len) & 4095]) len++;
    return len;
}

__attribute__((noinline)) static long dispatch(const uint8_t *code, int len, long value) {
    for (int i = 0; i < len; i++)
        switch (code[i] & 7) {
        case 0: value += sums[value & 255]; break;
        case 1: value ^= text[i]; break;
        case 2: sums[code[i]] = value; break;
        case 3: value = -value; break;
        case 4: value += nodes[i % 512].steps[i % 6]; break;
        case 5: value -= page[i % 4096]; break;
        case 6: page[(value & 1023) + 8] = i; break;
        default: value *= 3;
        }
    return value;
}

__attribute__((noinline)) static int32_t back(const int32_t *end, int32_t count) {
    int32_t sum = 0;
    for (int32_t i = -count; i < 0; i++) sum += end[i] * (i & 3);
    return sum;
}

static int compare(const void *a, const void *b) {
    const struct node *const *left = a, *const *right = b;
    return ((*left)->key > (*right)->key) - ((*left)->key < (*right)->key);
}

static unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? atoi(argv[1]) : 8;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, on_signal);
    signal(SIGSEGV, on_fault);
    struct node *sorted[512];
    for (unsigned i = 0; i < 512; i++) {
        uint32_t key = next_random() >> 20;
        nodes[i] = (struct node){table[key % 64], key, {1, -2, 3, (int16_t)i, -5, 6}};
        table[key % 64] = &nodes[i];
        sorted[i] = &nodes[i];
    }
    for (unsigned i = 0; i < sizeof text; i++) text[i] = next_random() >> 29;
    long total = 0;
    for (unsigned round = 0; round < rounds; round++) {
        for (int i = 0; i < 400; i++) {
            struct node *found = find(next_random() >> 20);
            total += found ? found->steps[i % 6] : 1;
            total += match(next_random() >> 8, next_random() >> 8);
        }
        if (round % 3 == 1) mprotect(page, 4096, PROT_NONE);
        total = dispatch(text, 2000, total);
        total += back(sums + 256, 200);
        kill(getpid(), SIGUSR1);
        if (round % 4 == 0) qsort(sorted, 512, sizeof *sorted, compare);
        memmove(text + 1, text, 500);
        total += fib(9);
    }
    printf("%ld %u %u\n", total, signals, faults);
    return !(signals == rounds && faults == (rounds + 1) / 3);
}
