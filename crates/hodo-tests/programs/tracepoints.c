// Tracepoints as hodo-keys makes them: a branch on a static key around the call of a function with a USDT probe. The
// first argument says what to do; the program reports how often the probes were reached. With -DLIBRARY it is a
// library. With -DUSER it uses keys and probes from another file, which was built with -DSHARED.
#include "static_keys.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define NOTE(section, owner, type, content)                             \
    ".pushsection " section ",\"\",\"note\"\n.balign 4\n"               \
    ".long 992f - 991f, 994f - 993f, " #type "\n"                       \
    "991: .asciz \"" owner "\"\n992: .balign 4\n993: " content          \
    "994: .balign 4\n.popsection\n"
#define BASE                                                            \
    ".ifndef _.stapsdt.base\n"                                          \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"                    \
    "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n"               \
    ".popsection\n.endif\n"
// `places`: the arguments in registers, as USDT has them; `names`: as `NAME:TYPE`.
#define PROBE(group, name, places, names)                               \
    asm volatile("990: nop\n" BASE NOTE(".note.stapsdt", "stapsdt", 3,  \
        ".quad 990b, _.stapsdt.base, 0\n"                               \
        ".asciz \"" group "\"\n.asciz \"" name "\"\n.asciz \"" places "\"\n") \
        NOTE(".note.hodo.tracepoint", "hodo", 1, ".quad 990b\n" \
        ".asciz \"" group "\"\n.asciz \"" name "\"\n.asciz \"" names "\"\n"))
// The registers that functions get their arguments in.
#ifdef __riscv
#define LONG1 "8@a0"
#define LONG2 "8@a1"
#define LONG3 "8@a2"
#define INT1 "-4@a0"
#define BYTE2 "1@a1"
#elif defined(__aarch64__)
#define LONG1 "8@x0"
#define LONG2 "8@x1"
#define LONG3 "8@x2"
#define INT1 "-4@x0"
#define BYTE2 "1@x1"
#else
#define LONG1 "8@%rdi"
#define LONG2 "8@%rsi"
#define LONG3 "8@%rdx"
#define INT1 "-4@%edi"
#define BYTE2 "1@%sil"
#endif
#define TRACEPOINT_KEY(id, text)                                        \
    __attribute__((used, visibility(VISIBLE))) struct key id = {0, TRACEPOINT, text, sizeof text - 1, 0}

#ifdef LIBRARY
#define GROUP "library"
#else
#define GROUP "tests"
#endif
#ifdef SHARED
#define LOCAL
#define VISIBLE "default"
#else
#define LOCAL static
#define VISIBLE "hidden"
#endif
#ifdef USER
extern struct key request_key, done_key;
void request_hit(uint64_t id, const char *path), done_hit(int32_t status, int ok, uint64_t where), tell(void), reset(void);
#else
TRACEPOINT_KEY(request_key, GROUP ":request");
TRACEPOINT_KEY(done_key, GROUP ":done");
static atomic_int requests, dones;

__attribute__((noipa)) LOCAL void request_hit(uint64_t id, const char *path) {
    PROBE(GROUP, "request", LONG1 " " LONG2, "id:u64 path:str");
    requests++;
}

__attribute__((noipa)) LOCAL void done_hit(int32_t status, int ok, uint64_t where) {
    PROBE(GROUP, "done", INT1 " " BYTE2 " " LONG3, "status:i32 ok:bool where:ptr");
    dones++;
}

void tell(void) {
    printf(GROUP ": %d %d\n", requests, dones);
    fflush(stdout);
}

void reset(void) { requests = dones = 0; }
#endif

__attribute__((noipa)) long work(long x) {
    if (UNLIKELY(request_key, 0))
        request_hit((uint64_t)x, x & 1 ? "/odd" : "/even");
    long y = x * 3 + 1;
    for (int i = 0; i < 3; i++)
        if (UNLIKELY(request_key, 0))
            y += 0 * i;
    if (UNLIKELY(done_key, 0))
        done_hit((int32_t)-x, x & 1, 0xabc);
    return y;
}

#ifndef LIBRARY
// 0, or the process ID (upper half) and the ID of the thread that is changing keys. A note says where this word is.
__attribute__((used)) static uint64_t lock;
asm(NOTE(".note.hodo.keys", "hodo", 2, ".quad lock\n"));

__attribute__((noipa)) static void hold(struct key *key, int change_by) {
    uint64_t owner = (uint64_t)getpid() << 32 | (uint32_t)syscall(SYS_gettid);
    __atomic_store_n(&lock, owner, __ATOMIC_SEQ_CST);
    uint32_t before = __atomic_fetch_add(&key->state, (uint32_t)change_by, __ATOMIC_SEQ_CST);
    int on = before + (uint32_t)change_by != 0;
    if ((before != 0) != on) {
        // Whoever changes the key or its branches now breaks something.
        usleep(1000);
        apply(key, on);
    }
    __atomic_store_n(&lock, 0, __ATOMIC_SEQ_CST);
}

static atomic_int stop;

static void *busy(void *unused) {
    for (long x = 0; !atomic_load(&stop); x++) {
        work(x);
        // Showing what is recorded of it should not take longer than running it.
        if (x % 4 == 0)
            usleep(100);
    }
    return unused;
}

// Until its input ends: the main thread switches the keys, another thread executes the branches.
static void until_told(int switching) {
    pthread_t thread;
    pthread_create(&thread, 0, busy, 0);
    puts("begun");
    fflush(stdout);
    fcntl(0, F_SETFL, O_NONBLOCK);
    static struct key *const keys[] = {&request_key, &done_key};
    char byte;
    // In the end it holds none of them.
    for (int turn = 0; read(0, &byte, 1) != 0 || turn;) {
        if (switching) {
            hold(keys[turn & 1], turn & 2 ? -1 : 1);
            turn = (turn + 1) % 4;
        }
        usleep(switching ? 300 : 1000);
    }
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
    reset();
    work(1);
    printf("%u %u, ", request_key.state, done_key.state);
    tell();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    begin_switching();
    for (long x = 0; x < 3; x++)
        work(x);
    if (!strcmp(what, "wait") || !strcmp(what, "switch")) {
        until_told(*what == 's');
    } else if (!strcmp(what, "own")) {
        // The program holds it, too: then nothing changes for others.
        hold(&request_key, 1);
        work(3);
        hold(&request_key, -1);
        work(4);
        tell();
    } else if (!strcmp(what, "fork")) {
        pid_t child = fork();
        if (!child) {
            work(5);
            tell();
            _exit(0);
        }
        waitpid(child, 0, 0);
        work(6);
        tell();
    } else if (!strcmp(what, "exec")) {
        tell();
        execl("/proc/self/exe", argv[0], (char *)0);
    } else if (!strcmp(what, "load")) {
        for (int i = 0; i < 2; i++) {
            void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
            if (!library) {
                puts(dlerror());
                return 1;
            }
            ((long (*)(long))dlsym(library, "work"))(7 + i);
            void (*told)(void) = (void (*)(void))dlsym(library, "tell");
            (told ? told : tell)();
            dlclose(library);
        }
    } else {
        tell();
    }
    return 0;
}
#endif
