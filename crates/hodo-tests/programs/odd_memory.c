#include "odd.h"
#include <linux/membarrier.h>
#include <sys/personality.h>
#ifdef __x86_64__
#include <asm/prctl.h>
#endif

typedef int (*function)(int);
#ifdef __x86_64__
static const unsigned char ANSWER[] = {0xb8, 42, 0, 0, 0, 0xc3};
#elif defined(__aarch64__)
static const unsigned char ANSWER[] = {0x40, 0x05, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6};
#else
static const unsigned char ANSWER[] = {0x13, 0x05, 0xa0, 0x02, 0x82, 0x80};
#endif
NEVER static int victim(int n) { volatile int sum = 1; for (int i = 0; i < n; i++) sum += i; return sum; }
NEVER static int other(int n) { volatile int sum = 2; for (int i = 0; i < n; i++) sum -= i; return sum; }
static void *page(int prot, size_t size) { return mmap(0, size, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void own_memory(void) {
    int fd = open("/proc/self/mem", O_RDWR);
    void *p = page(PROT_READ | PROT_EXEC, 4096);
    say("written", pwrite(fd, ANSWER, sizeof ANSWER, (off_t)p));
    __builtin___clear_cache(p, p + 4096);
    say("called", ((function)p)(5));
    say("written", pwrite(fd, ANSWER, sizeof ANSWER, (off_t)victim));
    __builtin___clear_cache((char *)victim, (char *)victim + 64);
    say("called", victim(5));
}
static void written_and_restored(void) {
    int fd = open("/proc/self/mem", O_RDWR);
    unsigned char old[sizeof ANSWER];
    pread(fd, old, sizeof old, (off_t)victim);
    pwrite(fd, ANSWER, sizeof ANSWER, (off_t)victim);
    say("called", victim(5));
    pwrite(fd, old, sizeof old, (off_t)victim);
    say("called", victim(5));
}
#ifdef __x86_64__
// The copies contain whatever the functions contain.
static void copied(void) {
    unsigned char *p = page(PROT_READ | PROT_EXEC, 1 << 16);
    char *low = (char *)victim < (char *)other ? (char *)victim : (char *)other;
    int fd = open("/proc/self/mem", O_RDWR);
    pwrite(fd, low, 512, (off_t)p);
    say("called", ((function)(p + ((char *)victim - low)))(5));
    say("called", ((function)(p + ((char *)other - low)))(5));
    say("called", ((function)(p + ((char *)victim - low)))(6));
    say("called", victim(5));
}
static void below_4g(void) { void *p = mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0); say("below", (uintptr_t)p < 1ul << 32); }
static void fs_base(void) { unsigned long a = 0, g = 1; syscall(SYS_arch_prctl, ARCH_GET_FS, &a); tell("fs", syscall(SYS_arch_prctl, ARCH_SET_FS, a)); }
#endif
#ifndef __riscv
static void text_writable(void) {
    char *start = (char *)((uintptr_t)victim & -4096);
    tell("mprotect", mprotect(start, 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
    memcpy(victim, ANSWER, sizeof ANSWER);
    __builtin___clear_cache((char *)victim, (char *)victim + 64);
    say("called", victim(5));
    tell("mprotect", mprotect(start, 8192, PROT_READ | PROT_EXEC));
}
static void grows_down(void) {
    char *p = page(PROT_READ | PROT_WRITE, 1 << 20);
    munmap(p, 1 << 20);
    p = mmap(p + (1 << 19), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    for (int i = 0; i < 20; i++) p[-4096 * i] = i;
    say("grown", p[-4096 * 19]);
}
static void low_memory(void) { void *p = mmap((void *)0x10000, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); say("low", (long)p); munmap((void *)0x10000, 4096); }
#endif
static void moved(void) {
    char *p = page(3, 8192);
    strcpy(p, "moved");
    char *q = mremap(p, 8192, 1 << 20, MREMAP_MAYMOVE);
    say("same", !strcmp(q, "moved"));
    char *r = page(0, 1 << 20);
    q = mremap(q, 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, r);
    say("same", !strcmp(q, "moved") && q == r);
}
static void breaks(void) { char *at = sbrk(1 << 20); memset(at, 1, 1 << 20); say("brk", sbrk(0) == at + (1 << 20)); brk(at); say("back", sbrk(0) == at); }
static void overcommitted(void) { void *p = mmap(0, 1ul << 40, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); tell("reserved", p == MAP_FAILED ? -1 : 0); }
static void locked(void) { tell("mlockall", mlockall(MCL_CURRENT)); tell("munlockall", munlockall()); }
static void advised(void) { char *p = page(3, 1 << 16); *p = 7; madvise(p, 1 << 16, MADV_DONTNEED); say("zero", *p); madvise(p, 4096, MADV_DONTFORK); if (!fork()) { *(volatile char *)p = 1; _exit(1); } await(-1, 0); }
static void shared(void) { int *p = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0); if (!fork()) { *p = work(10); _exit(0); } await(-1, 0); say("shared", *p); }
static void by_pid(void) {
    char a[] = "from", b[8] = "";
    struct iovec l = {b, 4}, r = {a, 4};
    say("read", process_vm_readv(getpid(), &l, 1, &r, 1, 0));
    say("same", !memcmp(a, b, 4));
}
static void no_page(void) { void *p = page(0, 4096); say("write", write(1, p, 10)); say("errno", errno); }
static void file_end(void) {
    int fd = memfd_create("short", 0);
    ftruncate(fd, 10);
    char *p = mmap(0, 8192, 3, MAP_SHARED, fd, 0);
    p[9] = 'x';
    p[5000] = 1;
}
static void limited(void) {
    struct rlimit r;
    for (int i = 0; i < RLIM_NLIMITS; i++) { getrlimit(i, &r); r.rlim_cur /= 2; tell("set", setrlimit(i, &r)); }
    getrlimit(RLIMIT_AS, &r);
    say("unlimited or halved", r.rlim_cur != RLIM_INFINITY);
}
static void barriers(void) { tell("register", syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0)); tell("barrier", syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)); }
static void not_dumpable(void) {
    tell("dumpable", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    say("work", work(20));
    if (!fork()) { work(5); _exit(3); }
    await(-1, 0);
    say("is", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
}
static void named(void) { char n[16]; prctl(PR_SET_NAME, "another name"); prctl(PR_GET_NAME, n); printf("  %s\n", n); }
static void no_new_code(void) { tell("mdwe", prctl(65, 1, 0, 0, 0)); void *p = page(3, 4096); tell("exec", mprotect(p, 4096, 5)); say("work", work(6)); }
static void persona(void) { say("old", personality(ADDR_NO_RANDOMIZE)); say("now", personality(0xffffffff)); if (!fork()) { execl("/bin/true", "true", (char *)0); } await(-1, 0); }
static void robust(void) {
    pthread_mutex_t *m = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&a, 1);
    pthread_mutex_init(m, &a);
    if (!fork()) { pthread_mutex_lock(m); _exit(0); }
    await(-1, 0);
    say("owner died", pthread_mutex_lock(m) == EOWNERDEAD);
    pthread_mutex_consistent(m);
    say("unlock", pthread_mutex_unlock(m));
}

static const struct odd CASES[] = {
    {"own_memory", own_memory}, {"written_and_restored", written_and_restored},
#ifdef __x86_64__
    {"copied", copied}, {"below_4g", below_4g}, {"fs_base", fs_base},
#endif
#ifndef __riscv
    {"text_writable", text_writable}, {"grows_down", grows_down}, {"low_memory", low_memory},
#endif
    {"moved", moved}, {"breaks", breaks}, {"overcommitted", overcommitted}, {"locked", locked}, {"advised", advised},
    {"shared", shared}, {"by_pid", by_pid}, {"no_page", no_page}, {"file_end", file_end}, {"limited", limited},
    {"barriers", barriers}, {"not_dumpable", not_dumpable}, {"named", named}, {"no_new_code", no_new_code},
    {"persona", persona}, {"robust", robust},
};

int main(int argc, char **argv) { return odd_main(argc, argv, CASES, sizeof CASES / sizeof *CASES); }
