// Repeats dlopen and dlclose; the argument is a library with a function `plugin`.
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) int use(const char *path, int n) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        return -1;
    int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
    int result = plugin(n);
    dlclose(library);
    return result;
}

int main(int argc, char **argv) {
    long sum = 0;
    for (int i = 0; i < 100; i++)
        sum += use(argv[1], i);
    printf("%ld %d\n", sum, dlopen("/no/such/library.so", RTLD_NOW) == NULL);
    void *math = dlopen("libm.so.6", RTLD_LAZY);
    double (*cosine)(double) = (double (*)(double))dlsym(math, "cos");
    printf("%.6f\n", cosine(1));
    return 0;
}
