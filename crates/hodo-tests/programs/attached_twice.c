// Maps a part of its own code once more, and calls it there, as V8 does with the code of its functions. Ends when its
// input does.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((noipa, aligned(64))) long leaf(long n) { return n * 3 + 1; }

// The page that is mapped again holds all functions before this, and not the end of the code.
__attribute__((noipa, aligned(4096))) long far_away(long n) { return n + 1; }

// Where the file has the page of `at`.
static long offset_of(uintptr_t at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end, offset;
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= at && at < end) {
            fclose(maps);
            return (long)(offset + ((at & -4096ul) - start));
        }
    }
    fclose(maps);
    return -1;
}

int main(void) {
    uintptr_t at = (uintptr_t)leaf;
    int file = open("/proc/self/exe", O_RDONLY);
    long offset = offset_of(at);
    // The memory after the page is there, and is something else.
    char *place = mmap(NULL, 64 << 12, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *copy = mmap(place + (8 << 12), 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, offset);
    if (offset < 0 || place == MAP_FAILED || copy == MAP_FAILED)
        return 2;
    long (*again)(long) = (long (*)(long))(copy + (at & 4095));
    printf("begun\n");
    fflush(stdout);
    long wrong = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0)
        for (long i = 0; i < 1000; i++)
            wrong += again(i) != leaf(i) || far_away(i) != i + 1;
    printf("wrong: %ld\n", wrong);
    return wrong != 0;
}
