// The registers of RISC-V's V extension and of Arm's SVE are live across the stubs.
#include "check.h"
#include <string.h>
#include <sys/auxv.h>

enum { MOST = 256, ALL = 32 * MOST + 16 * MOST / 8 + MOST / 8, WORDS = 4 };
static unsigned char wanted[ALL], at_entry[ALL], at_return[ALL];
static unsigned long entry_words[WORDS], return_words[WORDS];
static int calls;

#ifdef __riscv
#define LETTERS ".option push\n.option arch, +v\n"
#define END "\n.option pop"
static int is_there(void) { return getauxval(AT_HWCAP) >> ('V' - 'A') & 1; }
// All registers, and then a state that no function leaves behind: seven elements of 16 bits, rounding and saturation.
#define LOAD                                                                                                      \
    __asm__ volatile(LETTERS "vsetvli t1, zero, e8, m8, ta, ma\n vle8.v v0, (%0)\n add %0, %0, t1\n"              \
                             "vle8.v v8, (%0)\n add %0, %0, t1\n vle8.v v16, (%0)\n add %0, %0, t1\n"             \
                             "vle8.v v24, (%0)\n vsetivli zero, 7, e16, m1, ta, ma\n csrwi vcsr, 5" END           \
                     : "+r"(from)::"t1", "memory")
#define STORE(to, words)                                                                                          \
    do {                                                                                                          \
        unsigned char *at = to;                                                                                   \
        __asm__ volatile(LETTERS "csrr t1, vl\n sd t1, 0(%1)\n csrr t1, vtype\n sd t1, 8(%1)\n csrr t1, vcsr\n"   \
                                 "sd t1, 16(%1)\n vsetvli t1, zero, e8, m8, ta, ma\n vse8.v v0, (%0)\n"           \
                                 "add %0, %0, t1\n vse8.v v8, (%0)\n add %0, %0, t1\n vse8.v v16, (%0)\n"         \
                                 "add %0, %0, t1\n vse8.v v24, (%0)" END                                          \
                         : "+r"(at)                                                                               \
                         : "r"(words)                                                                             \
                         : "t1", "memory");                                                                       \
    } while (0)
QUIET static void ruin(void) {
    __asm__ volatile(LETTERS "vsetvli t1, zero, e8, m8, ta, ma\n vmv.v.i v0, -1\n vmv.v.i v8, -1\n vmv.v.i v16, -1\n"
                             "vmv.v.i v24, -1\n csrwi vcsr, 2" END ::: "t1", "memory");
}
#elif defined(__aarch64__)
static int is_there(void) { return getauxval(AT_HWCAP) >> 22 & 1; }
#define SVE ".arch_extension sve\n"
#define Z(what, n) what " z" #n ", [%0, #" #n ", mul vl]\n"
#define P(what, n) what " p" #n ", [%1, #" #n ", mul vl]\n"
#define EACH_Z(what)                                                                                              \
    Z(what, 0) Z(what, 1) Z(what, 2) Z(what, 3) Z(what, 4) Z(what, 5) Z(what, 6) Z(what, 7) Z(what, 8) Z(what, 9) \
    Z(what, 10) Z(what, 11) Z(what, 12) Z(what, 13) Z(what, 14) Z(what, 15) Z(what, 16) Z(what, 17) Z(what, 18)   \
    Z(what, 19) Z(what, 20) Z(what, 21) Z(what, 22) Z(what, 23) Z(what, 24) Z(what, 25) Z(what, 26) Z(what, 27)   \
    Z(what, 28) Z(what, 29) Z(what, 30) Z(what, 31)
#define EACH_P(what)                                                                                              \
    P(what, 0) P(what, 1) P(what, 2) P(what, 3) P(what, 4) P(what, 5) P(what, 6) P(what, 7) P(what, 8) P(what, 9) \
    P(what, 10) P(what, 11) P(what, 12) P(what, 13) P(what, 14) P(what, 15)
// FFR has true elements only at its beginning.
#define LOAD                                                                                                      \
    __asm__ volatile(SVE EACH_Z("ldr") "mov x9, #3\n whilelo p0.b, xzr, x9\n wrffr p0.b\n" EACH_P("ldr")           \
                     ::"r"(from), "r"(from + 32 * MOST) : "x9", "memory")
#define STORE(to, words)                                                                                          \
    __asm__ volatile(SVE EACH_Z("str") EACH_P("str") "rdffr p0.b\n str p0, [%1, #16, mul vl]\n ldr p0, [%1]"      \
                     ::"r"(to), "r"((to) + 32 * MOST) : "memory")
QUIET static void ruin(void) {
    __asm__ volatile(SVE "setffr\n ptrue p0.b\n ptrue p7.b\n pfalse p15.b\n mov z0.b, #-1\n mov z7.b, #-1\n"
                         "mov z8.b, #-1\n mov z31.b, #-1" ::: "memory");
}
#endif

// It is called with the registers loaded, and leaves them alone.
APART void __attribute__((noipa)) called(void) {
    STORE(at_entry, entry_words);
    calls++;
}

static void hook_entry(unsigned long from, unsigned long self) QUIET;
static void hook_entry(unsigned long from, unsigned long self) { (void)from, (void)self, ruin(); }
QUIET static int hook_in(struct hodo_ftrace_call *call) { return (void)call, ruin(), 1; }
QUIET static void hook_out(struct hodo_ftrace_call *call) { (void)call, ruin(); }

static const struct hodo_ftrace_entry_ops entry[] = {{hook_entry, 0}, {hook_entry, HODO_FTRACE_VECTORS}};
static const struct hodo_ftrace_graph_ops graph[] = {{hook_in, hook_out, 0}, {hook_in, hook_out, HODO_FTRACE_VECTORS}};

QUIET __attribute__((noipa)) static void once(void) {
    unsigned char *from = wanted;
    LOAD;
    called();
    STORE(at_return, return_words);
}

QUIET int main(void) {
    if (!is_there()) {
        puts("ok: this processor has none");
        return 0;
    }
    for (int i = 0; i < ALL; i++) wanted[i] = i * 7 + i / 256 + 1;
    // What is there without hooks.
    once();
    static unsigned char plain[ALL];
    static unsigned long plain_entry[WORDS], plain_return[WORDS];
    memcpy(plain, at_entry, ALL);
    memcpy(plain_entry, entry_words, sizeof plain_entry);
    memcpy(plain_return, return_words, sizeof plain_return);
    for (int i = 0; i < 4; i++) {
        memset(at_entry, 0, ALL), memset(at_return, 0, ALL);
        hodo_ftrace_set_entry(i & 2 ? &entry[i & 1] : 0);
        hodo_ftrace_set_graph(i & 2 ? 0 : &graph[i & 1]);
        once();
        hodo_ftrace_set_entry(0), hodo_ftrace_set_graph(0);
        CHECK(!memcmp(plain, at_entry, ALL) && !memcmp(plain_entry, entry_words, sizeof plain_entry));
        CHECK(!memcmp(plain, at_return, ALL) && !memcmp(plain_return, return_words, sizeof plain_return));
    }
    CHECK(calls == 5);
    puts("ok");
    return 0;
}
