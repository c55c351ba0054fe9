/* Accesses memory at random addresses near its code, where it has nothing, and counts what can be read there. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define STEP 65536
#define NEAR (1L << 30)

static sigjmp_buf back;
static uintptr_t address;
static int wrong_addresses, wrong_codes;

static void handle(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    wrong_addresses += (uintptr_t)info->si_addr != address;
    wrong_codes += info->si_code != SEGV_MAPERR;
    siglongjmp(back, 1);
}

static int can_read(uintptr_t at) {
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)at, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

int main(void) {
    uintptr_t here = (uintptr_t)main & ~(uintptr_t)(STEP - 1), random = 1;
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    int readable = 0;
    for (uintptr_t at = here > NEAR ? here - NEAR : STEP; at < here + NEAR; at += STEP)
        readable += can_read(at);
    sigaction(SIGSEGV, &action, NULL);
    for (volatile int i = 0; i < 1000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        address = here - NEAR / 2 + random / 8 % NEAR;
        if (!can_read(address) && !sigsetjmp(back, 1))
            *(volatile char *)address = 1;
    }
    printf("wrong addresses: %d, wrong codes: %d\n", wrong_addresses, wrong_codes);
    fprintf(stderr, "readable: %d\n", readable);
    return 0;
}
