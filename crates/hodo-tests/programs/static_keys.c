// Branches on static keys: nops and jumps that the program changes repeatedly while a second thread executes them. With
// -DLIBRARY it is a library with its own keys and branches; with -DUSER its branches use keys of that library.
#include "static_keys.h"

#include <pthread.h>
#include <stdatomic.h>

#define CODE __attribute__((noipa))

#ifdef USER
extern struct key verbose, fast, levels[4];
#else
KEY(verbose, 0, "program::VERBOSE");
KEY(fast, 1, "program::FAST");
__attribute__((used)) struct key levels[4] = {
    ELEMENT(0, "program::LEVELS", 0), ELEMENT(0, "program::LEVELS", 1), ELEMENT(TRACEPOINT, "program::LEVELS", 2),
    ELEMENT(0, "program::LEVELS", 3)};
#endif

// The branch is the very first instruction.
CODE long first(long x) {
    if (UNLIKELY(verbose, 0))
        return x * 3;
    return x + 1;
}

// The branch comes after one short instruction.
CODE long second(long x) {
    x += 5;
    if (LIKELY(fast, 0))
        x ^= 9;
    return x;
}

// Enough bytes that a short jump does not reach across them.
#ifdef __riscv
#define PADDING "j 1f\n.rept 1100\nnop\n.endr\n1:"
#elif defined(__aarch64__)
#define PADDING "b 1f\n.rept 1100\nnop\n.endr\n1:"
#else
#define PADDING ".skip 300, 0x90"
#endif

// The jump is too far for two bytes.
CODE long distant(long x) {
    long y = x + 100;
    if (UNLIKELY(levels, 64))
        return y - x * 7;
    asm volatile(PADDING : "+r"(y));
    return y;
}

// The branch is a jump in the file.
CODE long jumps(long x) {
    if (LIKELY_OFF(levels, 96))
        x += 11;
    if (UNLIKELY_ON(fast, 0))
        x += 1000;
    return x;
}

// The branch is in a loop, and its target is the start of the loop.
CODE long looping(long x) {
    long sum = 0;
    for (long i = 0; i < 10; i++) {
        if (UNLIKELY(verbose, 0))
            continue;
        sum += i * x;
        if (LIKELY(fast, 0))
            sum ^= 1;
    }
    return sum;
}

// It has a frame and makes calls.
CODE long calling(long x) {
    long y = first(x) + 1;
    if (UNLIKELY(levels, 0))
        y = distant(y);
    return second(y) + x;
}

// So short that every kind of patch must look at what follows the branch.
CODE long tiny(long x) {
    asm volatile("nop" : "+r"(x));
    if (UNLIKELY(verbose, 0))
        x = -x;
    return x;
}

CODE long all(long x) {
    return first(x) + second(x) + distant(x) + jumps(x) + looping(x) + calling(x) + tiny(x);
}

#ifndef LIBRARY
static atomic_int stop;

// Its result is unpredictable, because it runs while the keys change; but it must finish.
static void *busy(void *count) {
    while (!atomic_load(&stop)) {
        all(4);
        atomic_fetch_add((atomic_long *)count, 1);
    }
    return 0;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    struct key *keys[] = {&verbose, &fast, &levels[0], &levels[2], &levels[3]};
    static atomic_long count;
    pthread_t thread;
    begin_switching();
    // Until the input ends, everything is switched on, and nothing switches.
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        for (int key = 0; key < 5; key++)
            set(keys[key], key != 1);
        long before = all(1);
        pthread_create(&thread, 0, busy, &count);
        printf("begun\n");
        fflush(stdout);
        while (getchar() != EOF)
            ;
        atomic_store(&stop, 1);
        pthread_join(thread, 0);
        printf(all(1) == before ? "as before\n" : "otherwise\n");
        return 0;
    }
    printf("as it is: %ld\n", all(1));
    pthread_create(&thread, 0, busy, &count);
    for (int round = 0; round < rounds; round++) {
        for (int key = 0; key < 5; key++)
            set(keys[key], (round * 7 + key * 3) >> key & 1);
        printf("%d: %ld %ld %ld %ld %ld %ld %ld\n", round, first(round), second(round), distant(round), jumps(round),
               looping(round), calling(round), tiny(round));
        long before = atomic_load(&count);
        while (atomic_load(&count) < before + 3)
            usleep(100);
    }
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
    for (int key = 0; key < 5; key++)
        set(keys[key], key == 1);
    printf("in the end: %ld\n", all(1));
    return 0;
}
#endif
