// Static keys and branches on them as hodo-keys makes them, and switching while other threads execute the branches.
#pragma once
#define _GNU_SOURCE
#include <fcntl.h>
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

// From <linux/membarrier.h>.
enum { SYNC_CORE = 1 << 5, REGISTER_SYNC_CORE = 1 << 6 };

#define ON (1u << 31)
#define KEY(id, on, text)                                               \
    __attribute__((used)) struct key id = {(on) ? ON : 0, (on), text, sizeof text - 1, 0}
#define TRACEPOINT 2
#define ELEMENT(flags, text, index)                                     \
    {0, 4 | (flags), text, sizeof text - 1, index}

// The distance of the jump's target decides which of the two nops, or of the two jumps, the assembler emits.
#if defined(__riscv)
#ifdef __riscv_compressed
#define NEAR "(((%l[yes] - 771b) <= 2046) & ((%l[yes] - 771b) >= -2048))"
#else
#define NEAR "0"
#endif
// Comparisons yield 0 or -1.
#define NOP                                                             \
    ".skip " NEAR " & 1, 0x01\n.skip " NEAR " & 1, 0x00\n"              \
    ".skip ~" NEAR " & 1, 0x13\n.skip ~" NEAR " & 3, 0x00\n"
#define JUMP ".option push\n.option norelax\nj %l[yes]\n.option pop\n"
// What the intermediate instructions between a nop and a jump change.
#define CHANGED "t6"
#elif defined(__aarch64__)
#define NOP "nop\n"
#define JUMP "b %l[yes]\n"
#define CHANGED "cc"
#else
#define NEAR "((%l[yes] - 771b - 2) <= 127) & ((%l[yes] - 771b - 2) >= -128)"
#define FAR "((%l[yes] - 771b - 2) > 127) | ((%l[yes] - 771b - 2) < -128)"
#define NOP                                                             \
    ".skip (" FAR ") & 1, 0x0f\n.skip (" FAR ") & 1, 0x1f\n"            \
    ".skip (" FAR ") & 1, 0x44\n.skip (" FAR ") & 2, 0x00\n"            \
    ".skip (" NEAR ") & 1, 0x66\n.skip (" NEAR ") & 1, 0x90\n"
#define JUMP "jmp %l[yes]\n"
#define CHANGED "cc"
#endif
#ifdef __x86_64__
#define SLOT_OF(id) #id "@GOTPCREL"
#define SLOT(id) ""
#else
// The word with the key's address, once per key.
#define SLOT_OF(id) ".Lslot_" #id " - ."
#define SLOT(id)                                                        \
    ".ifndef .Lslot_" #id "\n"                                          \
    ".pushsection .data.rel.ro.hodo_keys,\"aw\",@progbits\n.balign 8\n" \
    ".Lslot_" #id ": .quad " #id "\n"                                   \
    ".popsection\n.endif\n"
#endif
#define BRANCH(code, id, last)                                          \
    __extension__({                                                     \
        __label__ yes, end;                                             \
        int taken = 0;                                                  \
        asm goto("771:\n" code                                          \
                 ".pushsection hodo_keys,\"aw\",@progbits\n.balign 4\n" \
                 ".long 771b - .\n.long %l[yes] - .\n"                  \
                 ".long " SLOT_OF(id) "\n.long " #last "\n"             \
                 ".popsection\n" SLOT(id) : : : CHANGED : yes);         \
        goto end;                                                       \
    yes:                                                                \
        taken = 1;                                                      \
    end:                                                                \
        taken;                                                          \
    })
// For a key that is initially off, and for one that is initially on.
#define UNLIKELY(id, offset) BRANCH(NOP, id, offset)
#define LIKELY(id, offset) (!BRANCH(NOP, id, offset + 1))
#define LIKELY_OFF(id, offset) (!BRANCH(JUMP, id, offset + 1))
#define UNLIKELY_ON(id, offset) BRANCH(JUMP, id, offset)

extern const int32_t __start_hodo_keys[][4] __attribute__((weak, visibility("hidden")));
extern const int32_t __stop_hodo_keys[][4] __attribute__((weak, visibility("hidden")));

static int memory = -1;

// Must be called before keys are switched.
__attribute__((unused)) static void begin_switching(void) {
    memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (memory < 0
#ifndef __riscv
        || syscall(SYS_membarrier, REGISTER_SYNC_CORE, 0, 0)
#endif
    ) {
        perror("cannot change code");
        exit(1);
    }
}

// From now on every thread executes what was written.
static long synchronize(unsigned char *at, size_t count) {
#ifdef __riscv
    return syscall(SYS_riscv_flush_icache, at, at + count, 0);
#else
    return syscall(SYS_membarrier, SYNC_CORE, 0, 0);
#endif
}

static void put(unsigned char *at, const unsigned char *bytes, size_t count) {
    if (pwrite(memory, bytes, count, (off_t)(uintptr_t)at) != (ssize_t)count || synchronize(at, count)) {
        perror("cannot change code");
        exit(1);
    }
}

#ifdef __riscv
// Each of the three steps leaves a whole instruction, even if its bytes become visible one by one: `lui x0` with any
// number, `c.nop` with any number, or `c.addi` to t6.
static void change(unsigned char *code, long target, int jump) {
    uint32_t d = (uint32_t)(target - (long)code);
    int size = (*code & 3) == 3 ? 4 : 2;
#define BITS(from, count, to) ((d >> (from) & ((1u << (count)) - 1)) << (to))
    uint32_t wide = 0x6f | BITS(12, 8, 12) | BITS(11, 1, 20) | BITS(1, 10, 21) | BITS(20, 1, 31);
    uint32_t narrow = 0xa001 | BITS(5, 1, 2) | BITS(1, 3, 3) | BITS(7, 1, 6) | BITS(6, 1, 7) | BITS(10, 1, 8) |
                      BITS(8, 2, 9) | BITS(4, 1, 11) | BITS(11, 1, 12);
#undef BITS
    uint32_t word = size == 4 ? jump ? wide : 0x13 : jump ? narrow : 1;
    unsigned char wanted[4], between = size == 4 ? 0x37 : narrow & 0x80 ? 0x0f : 0;
    memcpy(wanted, &word, 4);
    if (!memcmp(code, wanted, (size_t)size))
        return;
    // The byte that distinguishes the instructions.
    int kind = size == 4 ? 0 : 1;
    put(code + kind, &between, 1);
    if (size == 4)
        put(code + 1, wanted + 1, 3);
    else
        put(code, wanted, 1);
    put(code + kind, wanted + kind, 1);
}
#elif defined(__aarch64__)
// One may replace the other at once, while others execute it.
static void change(unsigned char *code, long target, int jump) {
    uint32_t word = jump ? 0x14000000 | (uint32_t)(target - (long)code) >> 2 & 0x3ffffff : 0xd503201f;
    if (memcmp(code, &word, 4))
        put(code, (unsigned char *)&word, 4);
}
#else
// Each of the three steps leaves a whole instruction: `test` with any number changes only the flags.
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
#endif

// Makes all branches on a key match its state.
__attribute__((noipa, unused)) static void apply(struct key *key, int on) {
    for (const int32_t(*entry)[4] = __start_hodo_keys; entry < __stop_hodo_keys; entry++) {
        const char *at = (const char *)*entry;
        const char *slot = at + 8 + (*entry)[2];
        uint32_t last = (uint32_t)(*entry)[3];
        if (*(char *const *)slot + (last & ~1u) == (char *)key)
            change((unsigned char *)at + (*entry)[0], (long)(at + 4 + (*entry)[1]), on != (int)(last & 1));
    }
}

__attribute__((noipa, unused)) static void set(struct key *key, int on) {
    key->state = on ? ON : 0;
    apply(key, on);
}
