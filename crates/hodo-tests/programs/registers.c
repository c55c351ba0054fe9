// Every register at a call and at a return must be what it would be alone. The calls are in registers.S.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct image {
    uint8_t fx[512];
    uint8_t ymm[512];
    uint64_t general[16]; // the last is rsp
};
extern struct image given, seen, returned, after;
extern int counter;

void probe_long_first(void), probe_short_first(void), probe_marked(void), probe_branch_first(void),
    probe_tests_memory(void), probe_jumps_on(void), probe_only_returns(void), probe_looping(void);
int neighbour(void);

static const struct {
    const char *name;
    void (*probe)(void);
    int passes; // the callee leaves all registers alone
} probes[] = {
    {"long_first", probe_long_first, 0},     {"short_first", probe_short_first, 0},
    {"marked", probe_marked, 0},             {"branch_first", probe_branch_first, 0},
    {"tests_memory", probe_tests_memory, 0}, {"jumps_on", probe_jumps_on, 0},
    {"only_returns", probe_only_returns, 1}, {"looping", probe_looping, 0},
};

static uint64_t state = 88172645463325252u;
static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void fill(struct image *image) {
    for (size_t i = 0; i < sizeof *image / 8; i++)
        ((uint64_t *)image)[i] = next();
    memset(image->fx, 0, 32);
    uint16_t control = 0x37f | (next() & 3) << 10; // all exceptions masked, any rounding
    memcpy(image->fx, &control, 2);
    image->fx[4] = 0xff; // eight values on the x87 stack
    uint32_t mxcsr = 0x1f80 | (next() & 3) << 13;
    memcpy(image->fx + 24, &mxcsr, 4);
    for (int i = 0; i < 8; i++)
        memset(image->fx + 32 + 16 * i + 10, 0, 6);
    for (int i = 0; i < 16; i++)
        memcpy(image->fx + 160 + 16 * i, image->ymm + 32 * i, 16);
}

static int differ(const char *name, const char *when, struct image *want, struct image *got, uint64_t rsp) {
    int wrong = 0;
    static const char *const names[] = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8",
                                        "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
    for (int i = 0; i < 15; i++)
        if (want->general[i] != got->general[i])
            wrong |= printf("%s %s: %s\n", name, when, names[i]);
    if (got->general[15] != rsp)
        wrong |= printf("%s %s: rsp\n", name, when);
    for (int i = 0; i < 16; i++)
        if (memcmp(want->ymm + 32 * i, got->ymm + 32 * i, 32))
            wrong |= printf("%s %s: ymm%d\n", name, when, i);
    if (memcmp(want->fx, got->fx, 5))
        wrong |= printf("%s %s: x87 control\n", name, when);
    if (memcmp(want->fx + 24, got->fx + 24, 4))
        wrong |= printf("%s %s: mxcsr\n", name, when);
    if (memcmp(want->fx + 32, got->fx + 32, 128))
        wrong |= printf("%s %s: x87 stack\n", name, when);
    return wrong;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5000;
    int wrong = 0;
    for (size_t p = 0; p < sizeof probes / sizeof *probes && !wrong; p++) {
        for (int i = 0; i < rounds && !wrong; i++) {
            fill(&given);
            fill(&returned);
            memset(&seen, 0, sizeof seen);
            memset(&after, 0, sizeof after);
            counter = i % 7;
            probes[p].probe();
            uint64_t rsp = given.general[15];
            if (!probes[p].passes)
                wrong |= differ(probes[p].name, "at entry", &given, &seen, rsp - 8);
            wrong |= differ(probes[p].name, "at return", probes[p].passes ? &given : &returned, &after, rsp);
        }
        printf("%s %s\n", probes[p].name, wrong ? "WRONG" : "ok");
    }
    printf("%d\n", neighbour());
    return wrong != 0;
}
