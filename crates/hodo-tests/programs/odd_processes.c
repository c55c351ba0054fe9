#include "odd.h"
#include "machine.h"
#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/sem.h>
#include <termios.h>

static pid_t made(unsigned long flags) {
    fflush(stdout);
    pid_t pid = syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (pid < 0) tell("clone", pid);
    return pid;
}
// Runs in its own namespace, or not at all if the rights are missing.
static int apart(int flags) {
    int r = unshare(flags);
    tell("unshare", r);
    return r;
}

static void first_faults(void) {
    pid_t pid = made(CLONE_NEWPID | SIGCHLD);
    if (!pid) { say("pid", getpid()); work(4); *(volatile int *)8 = 1; _exit(3); }
    if (pid > 0) await(pid, 0);
}
static void first_faults_later(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { raise(SIGSEGV); raise(SIGTERM); kill(1, SIGKILL); say("still here", getpid()); *(volatile int *)8 = 1; _exit(3); }
    await(-1, 0);
}
static void caught(int signal) { say("caught", signal); _exit(12); }
static void first_catches(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { signal(SIGSEGV, caught); *(volatile int *)8 = 1; _exit(3); }
    await(-1, 0);
}
static void first_traps(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { __asm__ volatile(BREAKPOINT); _exit(3); }
    await(-1, 0);
}
static void first_traps_illegal(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { __asm__ volatile(ILLEGAL); _exit(3); }
    await(-1, 0);
}
static void first_aborts(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) abort();
    await(-1, 0);
}
static void *faults(void *unused) { usleep(2000); *(volatile int *)8 = 1; return 0; }
static void first_threads(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { pthread_t t; pthread_create(&t, 0, faults, 0); for (;;) work(100); }
    await(-1, 0);
}
static void first_reaps(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) {
        pid_t child = fork();
        if (!child) { if (!fork()) { usleep(2000); _exit(6); } _exit(5); }
        await(child, 0);
        await(-1, 0);
        _exit(4);
    }
    await(-1, 0);
}
static void first_kills(void) {
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) { if (!fork()) pause(); usleep(1000); _exit(4); }
    await(-1, 0);
}
static void user_namespace(void) { if (!apart(CLONE_NEWUSER)) say("uid", getuid()); say("work", work(4)); if (!fork()) { work(2); _exit(0); } await(-1, 0); }
static void mount_namespace(void) { apart(CLONE_NEWNS); if (!fork()) { execl("/bin/true", "true", (char *)0); _exit(1); } await(-1, 0); }
static void other_namespaces(void) {
    apart(CLONE_NEWIPC);
    apart(CLONE_NEWUTS);
    apart(CLONE_NEWNET);
    apart(0x80);
    sethostname("odd", 3);
    if (!fork()) { char n[64]; gethostname(n, sizeof n); printf("  %s\n", n); fflush(stdout); _exit(0); }
    await(-1, 0);
}

static char stack[65536] __attribute__((aligned(16)));
static int runs(void *value) { *(int *)value = work(5); return 3; }
static void shares_memory(void) {
    int value = 0;
    pid_t pid = clone(runs, stack + sizeof stack, CLONE_VM | SIGCHLD, &value);
    await(pid, 0);
    say("value", value);
}
static void shares_all(void) {
    int value = 0;
    pid_t pid = clone(runs, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD, &value);
    await(pid, 0);
    say("value", value);
}
static void shares_and_waits(void) {
    int value = 0;
    pid_t pid = clone(runs, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &value);
    say("value", value);
    await(pid, 0);
}
static void no_signal(void) { pid_t p = made(0); if (!p) _exit(work(1) + 8); await(p, __WALL); }
static void other_signal(void) { signal(SIGUSR2, SIG_IGN); pid_t p = made(SIGUSR2); if (!p) _exit(8); tell("usual", waitpid(p, 0, 0)); await(p, __WCLONE); }
static void sibling(void) {
    pid_t p = fork();
    if (!p) { pid_t q = made(CLONE_PARENT | SIGCHLD); if (!q) { usleep(20000); _exit(7); } _exit(6); }
    await(p, 0);
    await(-1, 0);
}
static void by_descriptor(void) {
    int fd = -1;
    pid_t p = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &fd, 0, 0);
    if (!p) pause();
    say("descriptor", fd >= 0);
    tell("signal", syscall(SYS_pidfd_send_signal, fd, SIGTERM, 0, 0));
    siginfo_t i = {0};
    tell("wait", waitid(3, fd, &i, WEXITED));
    say("status", i.si_status);
}
static void chosen_number(void) {
    pid_t wanted = 2;
    struct clone_args a = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1};
    if (apart(CLONE_NEWPID)) return;
    if (!fork()) {
        wanted = 300;
        pid_t p = syscall(SYS_clone3, &a, sizeof a);
        if (!p) { say("pid", getpid()); _exit(0); }
        await(-1, 0);
        say("made", p);
        _exit(0);
    }
    await(-1, 0);
}
static int cleared = 1;
static void clears_number(void) {
    pid_t p = syscall(SYS_clone, CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | SIGCHLD, 0, 0, &cleared, 0);
    if (!p) { say("set", cleared == getpid()); _exit(0); }
    await(p, 0);
    say("mine", cleared);
}
static void waits_like_vfork(void) { pid_t p = vfork(); if (!p) { execl("/bin/sh", "sh", "-c", "exit 9", (char *)0); _exit(1); } await(p, 0); }
static void *executes(void *unused) { execl("/bin/echo", "echo", "  executed by a thread", (char *)0); return 0; }
static void thread_executes(void) { pthread_t t; pthread_create(&t, 0, executes, 0); pause(); }
static void *leaves(void *unused) { usleep(5000); say("last", 1); fflush(stdout); return 0; }
static void first_thread_ends(void) { pthread_t t; pthread_create(&t, 0, leaves, 0); pthread_exit(0); }
static void *none(void *n) { return (void *)(long)work((long)n); }
static void many_threads(void) { long sum = 0; for (int i = 0; i < 50; i++) { pthread_t t; void *r; pthread_create(&t, 0, none, (void *)(long)i); pthread_join(t, &r); sum += (long)r; } say("sum", sum); }
static void script(void) {
    char name[] = "/tmp/odd-script-XXXXXX";
    int fd = mkstemp(name);
    dprintf(fd, "#!/bin/sh -e\necho \"  script $1\"\nexit 3\n");
    fchmod(fd, 0700);
    close(fd);
    if (!fork()) { execl(name, name, "argument", (char *)0); _exit(99); }
    await(-1, 0);
    unlink(name);
}
static void from_memory(void) {
    int from = open("/bin/true", O_RDONLY), to = memfd_create("program", 0);
    char b[65536];
    for (ssize_t n; (n = read(from, b, sizeof b)) > 0;) write(to, b, n);
    if (!fork()) { char *a[] = {"program", 0}, *e[] = {0}; fexecve(to, a, e); _exit(98); }
    await(-1, 0);
    if (!fork()) { char *a[] = {"program", 0}, *e[] = {0}; syscall(SYS_execveat, to, "", a, e, AT_EMPTY_PATH); _exit(98); }
    await(-1, 0);
}
static void no_program(void) {
    char *none[] = {0};
    tell("missing", execve("/nonexistent", none, none));
    tell("directory", execve("/tmp", none, none));
    tell("text", execve("/etc/passwd", none, none));
    say("work", work(3));
}
static void no_arguments(void) { if (!fork()) { char *a[] = {0}; execve("/bin/true", a, a); _exit(97); } await(-1, 0); }
static void adopts(void) {
    int p[2];
    pipe(p);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!fork()) { if (!fork()) { char c; close(p[1]); read(p[0], &c, 1); _exit(11); } _exit(1); }
    await(-1, 0);
    close(p[1]);
    await(-1, 0);
}
static void dies_with_parent(void) {
    int p[2];
    char c;
    pipe(p);
    if (!fork()) { if (!fork()) { prctl(PR_SET_PDEATHSIG, SIGKILL); write(p[1], "x", 1); pause(); } read(p[0], &c, 1); _exit(0); }
    await(-1, 0);
    close(p[1]);
    say("closed", read(p[0], &c, 1));
}
static void session(void) {
    if (!fork()) {
        say("leader", setsid() == getpid());
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        grantpt(master);
        unlockpt(master);
        int tty = open(ptsname(master), O_RDWR);
        tell("controls", ioctl(tty, TIOCSCTTY, 0));
        signal(SIGTTOU, SIG_IGN);
        pid_t child = fork();
        if (!child) { setpgid(0, 0); signal(SIGTTIN, SIG_DFL); char c; read(tty, &c, 1); _exit(2); }
        await(child, WUNTRACED);
        kill(child, SIGKILL);
        await(child, 0);
        say("foreground", tcgetpgrp(tty) == getpid());
        _exit(0);
    }
    await(-1, 0);
}
static void users(void) { if (!fork()) { tell("user", setuid(65534)); say("work", work(5)); say("uid", getuid()); tell("back", setuid(0)); if (!fork()) { work(2); _exit(4); } await(-1, 0); _exit(0); } await(-1, 0); }
static void affinity(void) { cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s); tell("affinity", sched_setaffinity(0, sizeof s, &s)); say("cpu", sched_getcpu()); struct sched_param p = {0}; tell("batch", sched_setscheduler(0, SCHED_BATCH, &p)); }
static void own_numbers(void) { char b[64]; int n = readlink("/proc/self", b, 63); b[n] = 0; say("self", atoi(b) == getpid()); n = readlink("/proc/thread-self", b, 63); b[n] = 0; say("thread", strstr(b, "/task/") != 0); }
static void compared(void) { say("same", syscall(SYS_kcmp, getpid(), getpid(), 0, 1, 1)); int a = dup(1); say("same", syscall(SYS_kcmp, getpid(), getpid(), 0, 1, a)); }
static void semaphores(void) {
    int id = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf down = {0, -1, 0}, up = {0, 1, 0};
    struct timespec t = {0, 3000000};
    tell("timed", semtimedop(id, &down, 1, &t));
    if (!fork()) { usleep(2000); semop(id, &up, 1); _exit(0); }
    tell("down", semop(id, &down, 1));
    await(-1, 0);
    semctl(id, 0, IPC_RMID);
}
static void returns_twice(void) { jmp_buf b; volatile int n = 0; setjmp(b); if (++n < 5) longjmp(b, n); say("n", n); }

static const struct odd CASES[] = {
    {"first_faults", first_faults}, {"first_faults_later", first_faults_later}, {"first_catches", first_catches},
    {"first_traps", first_traps}, {"first_traps_illegal", first_traps_illegal},
    {"first_aborts", first_aborts}, {"first_threads", first_threads}, {"first_reaps", first_reaps},
    {"first_kills", first_kills}, {"user_namespace", user_namespace}, {"mount_namespace", mount_namespace},
    {"other_namespaces", other_namespaces}, {"shares_memory", shares_memory}, {"shares_all", shares_all},
    {"shares_and_waits", shares_and_waits}, {"no_signal", no_signal}, {"other_signal", other_signal}, {"sibling", sibling},
    {"by_descriptor", by_descriptor}, {"chosen_number", chosen_number}, {"clears_number", clears_number},
    {"waits_like_vfork", waits_like_vfork}, {"thread_executes", thread_executes}, {"first_thread_ends", first_thread_ends},
    {"many_threads", many_threads}, {"script", script}, {"from_memory", from_memory}, {"no_program", no_program},
    {"no_arguments", no_arguments}, {"adopts", adopts}, {"dies_with_parent", dies_with_parent}, {"session", session},
    {"users", users}, {"affinity", affinity}, {"own_numbers", own_numbers}, {"compared", compared},
    {"semaphores", semaphores}, {"returns_twice", returns_twice},
};

int main(int argc, char **argv) { return odd_main(argc, argv, CASES, sizeof CASES / sizeof *CASES); }
