// Loads and unloads a library again and again; its memory stays bounded. The argument is the library.
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static long resident(void) {
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
        return -1;
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

int main(int count, char **arguments) {
    long sum = 0, before = 0;
    for (int round = 0; round < 300 && count > 1; round++) {
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return 1;
        int (*all)(int) = (int (*)(int))dlsym(library, "all");
        sum += all(round);
        dlclose(library);
        if (round == 20)
            before = resident();
    }
    long more = resident() - before;
    printf("%ld %s\n", sum, more < 4096 ? "bounded" : "grows");
    return 0;
}
