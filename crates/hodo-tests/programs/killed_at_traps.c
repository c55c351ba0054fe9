// Has functions that are too short for anything but a breakpoint. Calls them in threads and on signals' own stacks when
// its input has ended, after its recorder was killed. Says what was wrong; the argument says what it does then.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A jump over `tiny` would lead to `next`, which others call, and no address is within its reach.
#if defined(__x86_64__)
#define MEETS "int3"
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tiny, next\n"
        ".type tiny, @function\n"
        "tiny: ret\n"
        ".size tiny, .-tiny\n"
        ".type next, @function\n"
        "next: endbr64\n"
        "lea 2(%rdi), %eax\n"
        "ret\n"
        ".size next, .-next\n");
#elif defined(__aarch64__)
#define MEETS "brk #0"
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tiny, next\n"
        ".type tiny, @function\n"
        "tiny: ret\n"
        ".size tiny, .-tiny\n"
        ".type next, @function\n"
        "next: add w0, w0, #2\n"
        "ret\n"
        ".size next, .-next\n");
#else
#define MEETS "ebreak"
__asm__(".text\n"
        ".p2align 4\n"
        ".option push\n"
        ".option rvc\n"
        ".globl tiny, next\n"
        ".type tiny, @function\n"
        "tiny: c.jr ra\n"
        ".size tiny, .-tiny\n"
        ".type next, @function\n"
        "next: c.addi a0, 2\n"
        "c.jr ra\n"
        ".size next, .-next\n"
        ".option pop\n");
#endif
void tiny(void);
int next(int);

static int wrong;

static int flags;

// Does the program see the default action?
static void look(void) {
    struct sigaction action;
    memset(&action, 0xff, sizeof action);
    wrong += sigaction(SIGTRAP, 0, &action) != 0 || action.sa_handler != SIG_DFL;
    flags = action.sa_flags;
}

static int has_handler(void) {
    char line[256];
    unsigned long caught = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        sscanf(line, "SigCgt: %lx", &caught);
    fclose(file);
    return caught >> (SIGTRAP - 1) & 1;
}

static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    tiny();
    handled++;
}

static volatile int goes_on;

// In threads that have begun before: on RISC-V, new ones that nobody traces have no control block.
static void *calls(void *argument) {
    while (!goes_on)
        usleep(1000);
    long sum = 0;
    for (int i = 0; i < 5000; i++) {
        tiny();
        sum += next(i);
    }
    return sum == 12507500 ? argument : 0;
}

int main(int argc, char **argv) {
    look();
    struct sigaction set = {.sa_handler = SIG_DFL}, old;
    if (argc == 1)
        printf("flags: %x\n", flags);
    wrong += sigaction(SIGTRAP, &set, &old) != 0 || old.sa_handler != SIG_DFL;
    wrong += signal(SIGTRAP, SIG_DFL) != SIG_DFL;
    // Others are what they are.
    struct sigaction own = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    wrong += sigaction(SIGUSR1, &own, 0) != 0 || sigaction(SIGUSR1, 0, &old) != 0 || old.sa_handler != handler;
    static char stack[64 << 10];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, calls, &threads[i]);
    printf("begun\n");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    poll(&input, 1, -1);
    look();
    // Otherwise this tests nothing.
    if (argc > 1)
        wrong += has_handler() != (strcmp(argv[1], "detached") != 0);
    goes_on = 1;
    for (int i = 0; i < 100; i++)
        raise(SIGUSR1);
    for (int i = 0; i < 4; i++) {
        void *same;
        pthread_join(threads[i], &same);
        wrong += same != &threads[i];
    }
    wrong += handled != 100;
    look();
    if (argc == 1)
        printf("flags: %x, %x\n", old.sa_flags, flags);
    printf("wrong: %d\n", wrong);
    fflush(stdout);
    if (argc > 1 && strcmp(argv[1], "meets") == 0) {
        __asm__ volatile(MEETS);
    }
    if (argc > 1 && strcmp(argv[1], "sends") == 0)
        raise(SIGTRAP);
    return 0;
}
