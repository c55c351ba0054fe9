// Branches on static keys: nops and jumps that the program itself changes, again and again, while a second thread executes them.
// Compiled with -DLIBRARY it is a library with keys and branches of its own; with -DUSER its branches ask keys of that library.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct key {
    uint32_t state, flags;
    const char *name;
    uint64_t length, index;
} __attribute__((aligned(8)));

// Of <linux/membarrier.h>.
enum { SYNC_CORE = 1 << 5, REGISTER_SYNC_CORE = 1 << 6 };

#define ON (1u << 31)
#define KEY(id, on, text)                                               \
    __attribute__((used)) struct key id = {(on) ? ON : 0, (on), text, sizeof text - 1, 0}
#define TRACEPOINT 2
#define ELEMENT(flags, text, index)                                     \
    {0, 4 | (flags), text, sizeof text - 1, index}

// How far the jump's target is tells the assembler which of the two nops, or of the two jumps, it is.
#define NEAR "((%l[yes] - 771b - 2) <= 127) & ((%l[yes] - 771b - 2) >= -128)"
#define FAR "((%l[yes] - 771b - 2) > 127) | ((%l[yes] - 771b - 2) < -128)"
#define NOP                                                             \
    ".skip (" FAR ") & 1, 0x0f\n.skip (" FAR ") & 1, 0x1f\n"            \
    ".skip (" FAR ") & 1, 0x44\n.skip (" FAR ") & 2, 0x00\n"            \
    ".skip (" NEAR ") & 1, 0x66\n.skip (" NEAR ") & 1, 0x90\n"
#define BRANCH(code, id, last)                                          \
    __extension__({                                                     \
        __label__ yes, end;                                             \
        int taken = 0;                                                  \
        asm goto("771:\n" code                                          \
                 ".pushsection hodo_keys,\"aw\",@progbits\n.balign 4\n" \
                 ".long 771b - .\n.long %l[yes] - .\n"                  \
                 ".long " #id "@GOTPCREL\n.long " #last "\n"            \
                 ".popsection" : : : "cc" : yes);                       \
        goto end;                                                       \
    yes:                                                                \
        taken = 1;                                                      \
    end:                                                                \
        taken;                                                          \
    })
// Of a key that is off in the beginning, and of one that is on.
#define UNLIKELY(id, offset) BRANCH(NOP, id, offset)
#define LIKELY(id, offset) (!BRANCH(NOP, id, offset + 1))
#define LIKELY_OFF(id, offset) (!BRANCH("jmp %l[yes]\n", id, offset + 1))
#define UNLIKELY_ON(id, offset) BRANCH("jmp %l[yes]\n", id, offset)
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

extern const int32_t __start_hodo_keys[][4] __attribute__((weak, visibility("hidden")));
extern const int32_t __stop_hodo_keys[][4] __attribute__((weak, visibility("hidden")));

// The branch is the very first instruction.
CODE long first(long x) {
    if (UNLIKELY(verbose, 0))
        return x * 3;
    return x + 1;
}

// It comes behind one instruction of three or four bytes.
CODE long second(long x) {
    x += 5;
    if (LIKELY(fast, 0))
        x ^= 9;
    return x;
}

// The jump is too far for two bytes.
CODE long distant(long x) {
    long y = x + 100;
    if (UNLIKELY(levels, 64))
        return y - x * 7;
    asm volatile(".skip 300, 0x90" : "+r"(y));
    return y;
}

// It is a jump in the file.
CODE long jumps(long x) {
    if (LIKELY_OFF(levels, 96))
        x += 11;
    if (UNLIKELY_ON(fast, 0))
        x += 1000;
    return x;
}

// It is in a loop, and its target is the loop's beginning.
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

// It has a frame and calls.
CODE long calling(long x) {
    long y = first(x) + 1;
    if (UNLIKELY(levels, 0))
        y = distant(y);
    return second(y) + x;
}

// Short enough for every kind of patch to look at what is behind the branch.
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
static int memory = -1;

static void put(unsigned char *at, const unsigned char *bytes, size_t count) {
    if (pwrite(memory, bytes, count, (off_t)(uintptr_t)at) != (ssize_t)count ||
        syscall(SYS_membarrier, SYNC_CORE, 0, 0)) {
        perror("cannot change code");
        exit(1);
    }
}

// Each of the three steps leaves a whole instruction: `test` with any number changes but the flags.
static void change(unsigned char *code, long target, int jump) {
    static const unsigned char nop5[5] = {0x0f, 0x1f, 0x44, 0, 0}, nop2[2] = {0x66, 0x90};
    int size = *code == 0x66 || *code == 0xeb ? 2 : 5;
    unsigned char wanted[5];
    int32_t distance = (int32_t)(target - (long)(code + size));
    wanted[0] = size == 2 ? 0xeb : 0xe9;
    memcpy(wanted + 1, &distance, 4);
    if (!jump)
        memcpy(wanted, size == 2 ? nop2 : nop5, (size_t)size);
    unsigned char test = size == 2 ? 0xa8 : 0xa9;
    if (!memcmp(code, wanted, (size_t)size))
        return;
    put(code, &test, 1);
    put(code + 1, wanted + 1, (size_t)size - 1);
    put(code, wanted, 1);
}

CODE static void set(struct key *key, int on) {
    key->state = on ? ON : 0;
    for (const int32_t(*entry)[4] = __start_hodo_keys; entry < __stop_hodo_keys; entry++) {
        const char *at = (const char *)*entry;
        const char *slot = at + 8 + (*entry)[2];
        uint32_t last = (uint32_t)(*entry)[3];
        if (*(char *const *)slot + (last & ~1u) == (char *)key)
            change((unsigned char *)at + (*entry)[0], (long)(at + 4 + (*entry)[1]), on != (int)(last & 1));
    }
}

static atomic_int stop;

// Nothing that it computes can be told, for it runs while the keys change; but it must come to its end.
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
    memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (memory < 0 || syscall(SYS_membarrier, REGISTER_SYNC_CORE, 0, 0)) {
        perror("cannot change code");
        return 1;
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
