// Makes a page of a large piece of code writable, changes it, and makes all of it executable again, as a compiler does that
// never has memory writable and executable at once. With an argument, prints how often the process has waited.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGES = 2048, CALLED = 20, ROUNDS = 300 };

typedef int function(void);

// mov eax, NUMBER; ret
static void put(unsigned char *at, int number) {
    static const unsigned char code[] = {0xB8, 0, 0, 0, 0, 0xC3};
    memcpy(at, code, sizeof code);
    memcpy(at + 1, &number, 4);
}

// The kernel refuses to execute files of some file systems, also where something else could be executed before.
static void refused(void) {
    unsigned char *page = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    char name[] = "/dev/shm/hodo-rights-XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name) || ftruncate(file, 4096))
        return;
    mmap(page, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    printf("%d ", mprotect(page, 4096, PROT_READ | PROT_EXEC) ? errno : 0);
    munmap(page, 4096);
    printf("%d\n", mprotect(page, 4096, PROT_READ | PROT_EXEC) ? errno : 0);
}

static long waits(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
}

// Where code was that others might have changed, there is other code that only this process changes. Returns how often
// the process has waited.
static long replaced(void) {
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    unsigned char *page = mmap(0, 4096, all, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    put(page, 1);
    long sum = ((function *)page)();
    munmap(page, 4096);
    mmap(page, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    put(page, 2);
    long before = waits();
    for (int call = 0; call < ROUNDS; call++)
        sum += ((function *)page)();
    printf("%ld\n", sum);
    return waits() - before;
}

int main(int count, char **arguments) {
    const size_t size = PAGES * 4096L;
    unsigned char *all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < PAGES; page++)
        put(all + page * 4096, page);
    mprotect(all, size, PROT_READ | PROT_EXEC);
    long sum = 0;
    for (int page = 0; page < CALLED; page++)
        sum += ((function *)(all + page * 4096))();
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *page = all + (CALLED + round % 2) * 4096L;
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        put(page, round);
        mprotect(all, size, PROT_READ | PROT_EXEC);
        sum += ((function *)page)();
        for (int page = 0; page < CALLED; page++)
            sum += ((function *)(all + page * 4096))();
    }
    printf("%ld\n", sum);
    const long all_waits = waits();
    refused();
    const long later = replaced();
    if (count > 1)
        printf("%ld\n%ld\n", all_waits / ROUNDS, later);
    return 0;
}
