// Locks all of its memory, by libc and by the number of the call, as far as it is allowed. What it prints does not
// depend on where its memory is. It never has the right to lock more than a limit, so that no mistake can take all
// memory of the machine.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 16

static int by_number;

__attribute__((noipa)) int lock(int flags) {
    return by_number ? (int)syscall(SYS_mlockall, flags) : mlockall(flags);
}

static long field(const char *name) {
    char line[256];
    long value = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, name, strlen(name)))
            sscanf(line + strlen(name), "%ld", &value);
    fclose(status);
    return value;
}

// As in linux/capability.h, which not every libc finds.
static void drop_right(void) {
    enum { VERSION_3 = 0x20080522, IPC_LOCK = 14 };
    struct { unsigned version; int pid; } header = {VERSION_3, 0};
    struct { unsigned effective, permitted, inheritable; } data[2];
    syscall(SYS_capget, &header, data);
    data[0].effective &= ~(1u << IPC_LOCK);
    data[0].permitted &= ~(1u << IPC_LOCK);
    data[0].inheritable &= ~(1u << IPC_LOCK);
    syscall(SYS_capset, &header, data);
}

static void limit_to(long bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    limit.rlim_cur = bytes;
    if (setrlimit(RLIMIT_MEMLOCK, &limit))
        printf("limit: %s\n", strerror(errno));
}

// How many pages of new memory are there before they are used.
static int ready(char *at) {
    unsigned char seen[PAGES];
    int count = 0;
    mincore(at, PAGES << 12, seen);
    for (int i = 0; i < PAGES; i++)
        count += seen[i] & 1;
    return count;
}

static char *fresh(void) {
    return mmap(NULL, PAGES << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void try(const char *how, int flags) {
    char *before = fresh();
    int got = lock(flags), why = errno;
    char *after = fresh();
    // The second is not locked before it is there.
    printf("%s %d %s %d: %d %s, %d and %d pages, locked %d, small %d\n", by_number ? "number" : "name", flags, how, by_number,
           got, got ? strerror(why) : "", ready(before), ready(after), field("VmLck:") > 0, field("VmRSS:") < 200 << 10);
    got = munlockall();
    printf("unlocked %d, %d\n", got, field("VmLck:") == 0);
    munmap(before, PAGES << 12);
    munmap(after, PAGES << 12);
}

int main(int argc, char **argv) {
    drop_right();
    const int flags[] = {MCL_CURRENT, MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_CURRENT | MCL_ONFAULT, MCL_FUTURE | MCL_ONFAULT, 0, MCL_ONFAULT, 64};
    if (argc > 1) {
        // Until its input ends.
        limit_to(8 << 20);
        int got = mlockall(MCL_CURRENT | MCL_FUTURE);
        char *before = fresh();
        long locked = field("VmLck:");
        printf("begun\n");
        fflush(stdout);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        poll(&input, 1, -1);
        char *after = fresh();
        printf("%d, %d and %d pages, %d, small %d\n", got, ready(before), ready(after),
               field("VmLck:") == locked + (PAGES << 2), field("VmRSS:") < 200 << 10);
        return 0;
    }
    for (by_number = 0; by_number < 2; by_number++) {
        limit_to(8 << 20);
        for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++)
            try("much", flags[i]);
        limit_to(64 << 10);
        try("little", MCL_CURRENT);
        try("little", MCL_CURRENT | MCL_ONFAULT);
        limit_to(0);
        try("nothing", MCL_CURRENT);
        try("nothing", MCL_FUTURE);
    }
    return 0;
}
