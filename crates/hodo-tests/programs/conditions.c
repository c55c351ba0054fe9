// A function that is called with many values, for conditions on them: large and small ones, signed ones, memory,
// strings, and invalid pointers; in two threads with different names.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>

struct memory {
    uint16_t word;
    int8_t byte;
    uint64_t number;
    char text[16];
};

static volatile unsigned long sum;

__attribute__((noipa)) void values(uint64_t a, int64_t b, uint64_t c, int d, struct memory *m, const char *text) {
    sum += a + b + c + d + (m ? m->number : 0) + (uintptr_t)text;
}

static const uint64_t numbers[] = {0, 1, 2, 3, 5, 7, 31, 100, 255, 256, 65535, 1ull << 31, 1ull << 32, ~0ull >> 1, 1ull << 63, ~0ull, -2ull, -100ull};
static const char *const texts[] = {"", "a", "ab", "abab", "xab", "text", "a much longer text with ab in it, and x"};

static void *run(void *name) {
    const unsigned many = sizeof numbers / sizeof *numbers;
    const unsigned kinds = sizeof texts / sizeof *texts;
    prctl(PR_SET_NAME, name);
    for (unsigned i = 0; i < 60; i++) {
        struct memory m = {numbers[i * 5 % many], (int8_t)numbers[i * 7 % many], numbers[i * 3 % many], ""};
        snprintf(m.text, sizeof m.text, "%s", texts[i * 3 % kinds]);
        values(numbers[i % many], (int64_t)numbers[i * 11 % many], i * 37, (int)numbers[i * 13 % many],
               i % 10 == 9 ? NULL : &m, i % 13 == 12 ? (const char *)8 : texts[i % kinds]);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    run("values");
    pthread_create(&thread, NULL, run, "other");
    pthread_join(thread, NULL);
    printf("%d\n", sum != 0);
    return 0;
}
