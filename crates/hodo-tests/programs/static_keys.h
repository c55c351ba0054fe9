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

extern const int32_t __start_hodo_keys[][4] __attribute__((weak, visibility("hidden")));
extern const int32_t __stop_hodo_keys[][4] __attribute__((weak, visibility("hidden")));

static int memory = -1;

// Has to be called before keys are switched.
__attribute__((unused)) static void begin_switching(void) {
    memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (memory < 0 || syscall(SYS_membarrier, REGISTER_SYNC_CORE, 0, 0)) {
        perror("cannot change code");
        exit(1);
    }
}

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

// Makes all branches on a key what they are while it is on or off.
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
