// Repeatedly loads a library farther from all others than a jump reaches, because everything in between is taken. The
// argument is the library, which has a function `plugin`.
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>

__attribute__((noipa)) int use(const char *path, int n) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        return -1;
    int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
    int is_far = (char *)stdout - (char *)plugin > 2l << 30;
    int result = is_far ? plugin(n) : -1;
    dlclose(library);
    return result;
}

// Takes all free ranges of this size within 3 GiB below the C library: later mappings are then made below.
static int take(unsigned long size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *at;
    do {
        at = mmap(NULL, size, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED)
            return 0;
    } while ((char *)stdout - at < 3l << 30);
    return 1;
}

int main(int argc, char **argv) {
    for (unsigned long size = 16 << 20; size >= 4096; size /= 16)
        if (!take(size))
            return 1;
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += use(argv[1], i);
    printf("%d\n", sum);
    return 0;
}
