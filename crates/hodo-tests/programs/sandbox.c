// Installs a seccomp filter and keeps making calls. The argument: `kill`: everything is forbidden except write and
// exit; `errno`: the same, with an error instead of death; `strict`: the kernel's own strict mode; `threads`: a filter
// for all threads, one of which keeps making calls.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// The parts of the kernel's headers that are needed: not every libc's compiler finds the headers.
struct sock_filter {
    unsigned short code;
    unsigned char jt, jf;
    unsigned k;
};
struct sock_fprog {
    unsigned short len;
    struct sock_filter *filter;
};
enum {
    LOAD_WORD = 0x20,
    JUMP_IF_EQUAL = 0x15,
    RETURN = 0x06,
    SECCOMP_MODE_STRICT = 1,
    SECCOMP_SET_MODE_FILTER = 1,
    SECCOMP_FILTER_FLAG_TSYNC = 1,
};
#define SECCOMP_RET_KILL_PROCESS 0x80000000u
#define SECCOMP_RET_ERRNO 0x00050000u
#define SECCOMP_RET_ALLOW 0x7fff0000u

__attribute__((noipa)) int next(int n) { return n + 1; }

__attribute__((noipa)) int many(int rounds) {
    int n = 0;
    for (int i = 0; i < rounds; i++)
        n = next(n);
    return n;
}

__attribute__((noipa)) long descend(long n) {
    volatile long here = n;
    return n == 0 ? 0 : descend(n - 1) + (here & 1);
}

static void allow_only_write_and_exit(unsigned otherwise, unsigned flags) {
    struct sock_filter code[] = {
        {LOAD_WORD, 0, 0, 0}, // the system call's number
        {JUMP_IF_EQUAL, 3, 0, SYS_write},
        {JUMP_IF_EQUAL, 2, 0, SYS_exit},
        {JUMP_IF_EQUAL, 1, 0, SYS_exit_group},
        {RETURN, 0, 0, otherwise},
        {RETURN, 0, 0, SECCOMP_RET_ALLOW},
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static volatile int started, go, result;

static void *thread(void *unused) {
    started = 1;
    while (!go)
        ;
    result = many(200000) + descend(2000);
    go = 2;
    for (;;)
        ;
}

static void say(const char *text) { syscall(SYS_write, 1, text, strlen(text)); }

int main(int argc, char **argv) {
    const char *how = argv[1];
    pthread_t other;
    if (!strcmp(how, "threads")) {
        pthread_create(&other, NULL, thread, NULL);
        while (!started)
            ;
    }
    if (!strcmp(how, "strict"))
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    else if (!strcmp(how, "errno"))
        allow_only_write_and_exit(SECCOMP_RET_ERRNO | EPERM, 0);
    else if (!strcmp(how, "threads"))
        allow_only_write_and_exit(SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
    else
        allow_only_write_and_exit(SECCOMP_RET_KILL_PROCESS, 0);
    int right = many(200000) == 200000 && descend(2000) == 1000;
    say(right ? "right\n" : "wrong\n");
    if (!strcmp(how, "errno"))
        say(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EPERM ? "EPERM\n" : "?\n");
    if (!strcmp(how, "threads")) {
        go = 1;
        while (go != 2)
            ;
        say(result == 201000 ? "right\n" : "wrong\n");
    }
    if (!strcmp(how, "forbidden"))
        syscall(SYS_getpid);
    syscall(strcmp(how, "threads") ? SYS_exit : SYS_exit_group, 7);
}
