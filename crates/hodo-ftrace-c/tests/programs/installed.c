// Its `mcount` is the preloaded library's, although it names a version of the C library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void mcount(void);

int main(void) {
    Dl_info info;
    if (!dladdr((void *)mcount, &info) || !strstr(info.dli_fname, "libhodo_ftrace")) {
        printf("mcount is in %s\n", info.dli_fname);
        return 1;
    }
    puts("ok");
    return 0;
}
