/* Repeated string instructions of all kinds and sizes, in both directions, compared with plain loops, also where they
 * fault in the middle: the handler looks at the registers, and mends the page or leaves.
 * Arguments: how many of them; "faults", "timer". */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

enum { PAGE = 4096, FLAGS = 0x8d5, DOWN = 0x400 };
typedef struct { uint64_t rax, rcx, rsi, rdi, flags; } State;
static State start, *volatile now;
static volatile uintptr_t at;
static sigjmp_buf env;
static int mends;
static unsigned long wrong, faults;
static uint64_t sum;
static unsigned char *memory, *places[2];
static unsigned size_now;
static unsigned seed = 1;

static unsigned below(unsigned end) { seed = seed * 1103515245 + 12345; return (seed >> 8) % end; }
static void mix(uint64_t value) { sum = (sum ^ value) * 0x100000001b3; }

#define FORM(name, text) \
    static void name(State *s) { \
        register uint64_t flags __asm__("r8") = s->flags; \
        __asm__ volatile( \
            "lea 1f(%%rip), %%r9; mov %%r9, %[at]; push %%r8; popfq; 1: " text "; pushfq; pop %%r8; cld" \
            : "+a"(s->rax), "+c"(s->rcx), "+S"(s->rsi), "+D"(s->rdi), "+r"(flags), [at] "=m"(at) \
            :: "r9", "memory", "cc"); \
        s->flags = flags; \
    }
#define SIZES(name, prefix, text) \
    FORM(name##b, prefix " " text "b") FORM(name##w, prefix " " text "w") \
    FORM(name##l, prefix " " text "l") FORM(name##q, prefix " " text "q")
SIZES(movs, "rep", "movs") SIZES(stos, "rep", "stos") SIZES(lods, "rep", "lods")
SIZES(cmps, "repe", "cmps") SIZES(cmpns, "repne", "cmps") SIZES(scas, "repe", "scas") SIZES(scans, "repne", "scas")
#define ALL(name) { name##b, name##w, name##l, name##q }
static void (*const forms[7][4])(State *) = {
    ALL(movs), ALL(stos), ALL(lods), ALL(cmps), ALL(cmpns), ALL(scas), ALL(scans)};
enum { MOVS, STOS, LODS, CMPS, CMPNS, SCAS, SCANS };

/* What a plain loop makes of the state. Returns how many rounds there are. */
static unsigned loop(int form, unsigned size, State *s, unsigned char *to) {
    unsigned rounds = 0;
    int64_t step = s->flags & DOWN ? -(int64_t)size : size;
    while (s->rcx) {
        uint64_t from = 0, other = 0, mask = size == 8 ? ~0ul : (1ul << 8 * size) - 1;
        if (form != STOS && form < SCAS) { memcpy(&from, (void *)s->rsi, size); s->rsi += step; }
        if (form >= SCAS) from = s->rax & mask;
        if (form == STOS) from = s->rax;
        if (form == MOVS || form == STOS) memcpy(to + (s->rdi - (uint64_t)places[1]), &from, size);
        if (form == LODS) s->rax = size == 4 ? from : (s->rax & ~mask) | from;
        if (form >= CMPS) memcpy(&other, (void *)s->rdi, size);
        if (form != LODS) s->rdi += step;
        s->rcx--;
        rounds++;
        if ((form == CMPS || form == SCAS) && from != other) break;
        if ((form == CMPNS || form == SCANS) && from == other) break;
    }
    return rounds;
}

static int is_there(uint64_t rip) { return at && rip == at; }
static void fault(int signal, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    greg_t *regs = u->uc_mcontext.gregs;
    (void)signal;
    if (!is_there(regs[REG_RIP])) { wrong++; _Exit(9); }
    faults++;
    mix(regs[REG_RCX]);
    mix(regs[REG_RSI] - (uint64_t)places[0]);
    mix(regs[REG_RDI] - (uint64_t)places[1]);
    mix(regs[REG_RAX]);
    mix(regs[REG_EFL] & (FLAGS | DOWN));
    mix((uintptr_t)info->si_addr % PAGE);
    uintptr_t page = (uintptr_t)info->si_addr & -PAGE;
    if (!mends) siglongjmp(env, 1);
    if (mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE)) _Exit(8);
}
/* Between rounds, the registers agree with each other. */
static void timer(int signal, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    greg_t *regs = u->uc_mcontext.gregs;
    (void)signal, (void)info;
    if (!now || !is_there(regs[REG_RIP])) return;
    int64_t step = start.flags & DOWN ? -(int64_t)size_now : size_now;
    int64_t rounds = start.rcx - regs[REG_RCX];
    int64_t from = regs[REG_RSI] - start.rsi, to = regs[REG_RDI] - start.rdi;
    if ((from && from != rounds * step) || (to && to != rounds * step) || (rounds && !from && !to)) wrong++;
}
static void on(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(signal, &action, 0);
}

static unsigned once(int with_faults) {
    static unsigned char expected[3 * PAGE];
    int form = below(7);
    unsigned power = below(4), size = 1 << power, most = PAGE / size;
    for (int i = 0; i < 2; i++) mprotect(places[i], 3 * PAGE, PROT_READ | PROT_WRITE);
    unsigned alike = below(2) ? below(600) : 0;
    for (unsigned i = 0; i < 3 * PAGE; i++) {
        places[0][i] = below(5);
        places[1][i] = i % 700 < alike ? places[0][i] : below(5);
    }
    State s = {.rax = below(5) * 0x0101010101010101, .rcx = below(8) ? below(below(4) ? 20 : most) : 0, .flags = 2};
    if (below(3) == 0) s.flags |= DOWN;
    if (below(2)) s.flags |= 0x8d5 & below(0x1000);
    /* In the middle page, near its ends. */
    unsigned first[2];
    for (int i = 0; i < 2; i++) first[i] = PAGE + (below(2) ? below(64) : PAGE - size - below(200));
    s.rsi = (uint64_t)places[0] + first[0];
    s.rdi = (uint64_t)places[1] + first[1];
    start = s;
    size_now = size;
    /* Without a repeated instruction. */
    for (unsigned i = 0; i < sizeof expected; i++) expected[i] = places[1][i];
    State plain = s;
    static unsigned rounds;
    rounds = loop(form, size, &plain, expected);
    if (with_faults) for (int i = 0; i < 2; i++) {
        int which = below(6);
        if (which < 3) mprotect(places[i] + which * PAGE, PAGE, i && below(2) ? PROT_READ : PROT_NONE);
    }
    mends = below(3) != 0;
    int left = sigsetjmp(env, 1);
    if (!left) {
        now = &s;
        forms[form][power](&s);
    }
    now = 0;
    at = 0;
    for (int i = 0; i < 2; i++) mprotect(places[i], 3 * PAGE, PROT_READ | PROT_WRITE);
    if (left) return 0;
    if (s.rax != plain.rax || s.rcx != plain.rcx || s.rsi != plain.rsi || s.rdi != plain.rdi) wrong++;
    if (memcmp(expected, places[1], sizeof expected)) wrong++;
    mix(s.flags & (FLAGS | DOWN));
    mix(s.rcx);
    mix(s.rsi - start.rsi);
    mix(s.rax);
    return rounds;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100, with_faults = 0;
    unsigned long rounds = 0;
    memory = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 2; i++) places[i] = memory + (i * 4 + 1) * PAGE - (i ? PAGE : 0);
    on(SIGSEGV, fault);
    on(SIGALRM, timer);
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "faults")) with_faults = 1;
        if (!strcmp(argv[i], "timer")) setitimer(ITIMER_REAL, &(struct itimerval){{0, 300}, {0, 300}}, 0);
    }
    for (int i = 0; i < count; i++) rounds += once(with_faults);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, 0);
    printf("wrong %06lu faults %06lu rounds %09lu sum %016lx\n", wrong, faults, rounds, sum);
    return wrong != 0;
}
