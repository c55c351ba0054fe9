// Leaves no room within 2 GiB of a library: it is loaded into a hole in a reserved range of 8 GiB. The argument is the
// library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GIB (1ul << 30)

__attribute__((noipa)) int around(int n) { return n - 1; }

int main(int argc, char **argv) {
    char *range = mmap(NULL, 8 * GIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return 1;
    // The kernel uses the highest gap that is large enough: fill those above the range.
    size_t hole = 64 << 10;
    static const size_t sizes[] = {GIB, 16 << 20, 64 << 10, 4 << 10};
    for (int i = 0; i < 4; i++) {
        char *filler;
        do {
            filler = mmap(NULL, sizes[i], PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (filler == MAP_FAILED)
                return 2;
        } while (filler > range);
        munmap(filler, sizes[i]);
    }
    munmap(range + 4 * GIB, hole);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library)
        return 3;
    int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
    long sum = 0;
    for (int i = 0; i < 1000; i++)
        sum += plugin(around(i));
    Dl_info info;
    dladdr((void *)plugin, &info);
    int inside = (char *)info.dli_fbase >= range && (char *)info.dli_fbase < range + 8 * GIB;
    printf("%ld %s\n", sum, inside ? "in the hole" : "elsewhere");
    return 0;
}
