/* Reads the lists of its mappings in several ways: code is executable there, and nothing else has become so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned char *made;
static volatile long ticks;

static void tick(int signal) {
    (void)signal;
    ticks++;
}

/* Returns the rights of the mapping that an address is in. */
static const char *rights(char *text, unsigned long address) {
    static char found[5];
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx %4s", &start, &end, found) == 3 && start <= address && address < end)
            return found;
    }
    return "none";
}

static char text[1 << 20];

static void read_all(int fd) {
    size_t length = 0;
    ssize_t got;
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    text[length] = 0;
}

/* The mappings of files: their sizes, rights, offsets and names. */
static void files(const char *way) {
    static char copy[sizeof text];
    printf("%s\n", way);
    strcpy(copy, text);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end, offset;
        char have[5];
        char *slash = strrchr(line, '/');
        if (slash && sscanf(line, "%lx-%lx %4s %lx", &start, &end, have, &offset) == 4)
            printf("  %lx %s %lx %s\n", end - start, have, offset, slash);
    }
}

static void look(const char *way, int fd) {
    if (fd < 0) {
        printf("%s: %s\n", way, strerror(errno));
        return;
    }
    read_all(fd);
    close(fd);
    files(way);
    char *copy = strdup(text);
    printf("  code %s", rights(copy, (unsigned long)look));
    strcpy(copy, text);
    printf(" data %s", rights(copy, (unsigned long)&ticks));
    strcpy(copy, text);
    printf(" made %s", rights(copy, (unsigned long)made));
    strcpy(copy, text);
    printf(" page after %s\n", rights(copy, (unsigned long)made + 4096));
    free(copy);
}

static void *other(void *way) {
    look(way, open("/proc/thread-self/maps", O_RDONLY));
    return NULL;
}

int main(void) {
    char path[64];
    /* Code that may change, in the middle of three pages. */
    unsigned char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    made = pages + 4096;
    memcpy(made, "\xb8\x07\x00\x00\x00\xc3", 6);
    printf("made %d\n", ((int (*)(void))made)());
    look("self", open("/proc/self/maps", O_RDONLY));
    look("again", openat(AT_FDCWD, "/proc/self/maps", O_RDONLY));
    look("system call", syscall(SYS_open, "/proc/self/maps", O_RDONLY));
    struct { unsigned long flags, mode, resolve; } how = {O_RDONLY, 0, 0};
    look("openat2", syscall(SYS_openat2, AT_FDCWD, "/proc/self/maps", &how, sizeof how));
    sprintf(path, "/proc/%d/maps", getpid());
    look("number", open(path, O_RDONLY));
    sprintf(path, "/proc/%d/task/%ld/maps", getpid(), syscall(SYS_gettid));
    look("task", open(path, O_RDONLY));
    int here = open("/proc/self", O_RDONLY | O_DIRECTORY);
    look("directory", openat(here, "maps", O_RDONLY));
    int figures = openat(here, "smaps", O_RDONLY);
    read_all(figures);
    close(figures);
    printf("figures: code %s\n", rights(text, (unsigned long)look));
    fchdir(here);
    look("relative", open("maps", O_RDONLY));
    chdir("/proc");
    look("from above", open("self/maps", O_RDONLY));
    chdir("/");
    pthread_t thread;
    pthread_create(&thread, NULL, other, "thread");
    pthread_join(thread, NULL);
    fflush(stdout);
    int status, pair[2];
    pipe(pair);
    if (fork() == 0) {
        look("child", open("/proc/self/maps", O_RDONLY));
        sprintf(path, "/proc/%d/maps", getppid());
        look("parent", open(path, O_RDONLY));
        fflush(stdout);
        _exit(3);
    }
    wait(&status);
    printf("status %x\n", status);

    /* The numbers and flags of descriptors. */
    int kept = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), passed = open("/proc/self/maps", O_RDONLY);
    printf("descriptors %d %d, flags %d %d\n", kept, passed, fcntl(kept, F_GETFD), fcntl(passed, F_GETFD));
    struct rlimit limit, few;
    getrlimit(RLIMIT_NOFILE, &limit);
    few = limit;
    few.rlim_cur = passed + 1;
    setrlimit(RLIMIT_NOFILE, &few);
    errno = 0;
    printf("one too many: %d", open("/proc/self/maps", O_RDONLY));
    printf(" %s\n", strerror(errno));
    setrlimit(RLIMIT_NOFILE, &limit);

    /* Paths that cannot be read, or only in part. */
    errno = 0;
    printf("no path: %ld", syscall(SYS_openat, AT_FDCWD, 8L, O_RDONLY));
    printf(" %s\n", strerror(errno));
    char *last = pages + 2 * 4096;
    munmap(pages + 2 * 4096, 4096);
    strcpy(last - 2, "/");
    printf("short path: %d\n", open(last - 2, O_RDONLY | O_DIRECTORY) >= 0);
    strcpy(last - 16, "/proc/self/maps");
    look("path at the end", open(last - 16, O_RDONLY));
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    printf("no path, signals blocked: %ld\n", syscall(SYS_open, -1L, O_RDONLY));
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    printf("no list: %d %d\n", open("/proc/self/mapsx", O_RDONLY), open("/proc/1x/maps", O_RDONLY));

    /* Signals at any moment. */
    signal(SIGALRM, tick);
    struct itimerval every = {{0, 400}, {0, 400}};
    setitimer(ITIMER_REAL, &every, NULL);
    long bad = 0;
    for (int round = 0; round < 60; round++) {
        int fd = open("/proc/self/maps", O_RDONLY);
        read_all(fd);
        close(fd);
        bad += strcmp(rights(text, (unsigned long)look), "r-xp") != 0;
        for (int times = 0; times < 50; times++) {
            void *some = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            bad += syscall(SYS_open, -1L, O_RDONLY) != -1;
            munmap(some, 4096);
        }
    }
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    printf("bad %ld\n", bad);
    return 0;
}
