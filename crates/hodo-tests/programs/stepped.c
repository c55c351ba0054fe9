// Single-steps through calls: a signal handler runs between any two instructions, and makes a call of its own where a
// record is being made. Many calls that are not stepped come in between, so that all of this happens where one chunk of
// the trace ends and the next begins. The argument is the number of records between two such places.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static volatile long sum, handled;

__attribute__((noinline, noclone)) int leaf(int x) {
    sum += x;
    return x + 1;
}

__attribute__((noinline, noclone)) void in_handler(void) { handled++; }

static void on_step(int signal, siginfo_t *info, void *context) {
    // cmp rcx, gs:[…]: the stub has reserved a place for the record, and checks whether it is inside the chunk.
    const unsigned char compare[] = {0x65, 0x48, 0x3B, 0x0C, 0x25};
    ucontext_t *state = context;
    if (!memcmp((void *)state->uc_mcontext.gregs[REG_RIP], compare, sizeof compare))
        in_handler();
}

int main(int argc, char **argv) {
    long period = atol(argv[1]), calls = 0;
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    int wrong = 0;
    for (int round = 0; round < 100; round++) {
        // A call makes two records, or six with those of the handler.
        long fill = round == 0 ? period - 80 : period - 4 * 6;
        for (long i = 0; i < fill / 2; i++, calls++)
            wrong += leaf(7) != 8;
        __asm__ volatile("pushfq\n\torl $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
        for (int i = 0; i < 4; i++, calls++)
            wrong += leaf(7) != 8;
        __asm__ volatile("pushfq\n\tandl $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
    }
    fprintf(stderr, "hodo: %ld %ld\n", calls, handled);
    printf("%d wrong\n", wrong);
    return 0;
}
