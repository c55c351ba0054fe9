// A library with a patched function is unloaded, and loaded again. The argument is the library.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <string.h>

QUIET static int new_in_plugin(int a) {
    EFFECT;
    return a * 7;
}
static const struct hodo_ftrace_patch_function functions[] = {{"in_plugin:mod:*plugin*", 0, (void *)new_in_plugin}};
static const struct hodo_ftrace_patch patch = {functions, 1};

QUIET static int wait_for(int state) {
    return hodo_ftrace_livepatch_wait(&patch, 20000) == 1 && hodo_ftrace_livepatch_state(&patch) == state;
}

QUIET int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(hodo_ftrace_livepatch_enable(&patch) == -1);
    CHECK(strstr(hodo_ftrace_error(), "no function with a call site is called in_plugin:mod:*plugin*") != 0);
    for (int time = 0; time < 3; time++) {
        void *library = dlopen(argv[1], RTLD_NOW);
        CHECK(library != 0);
        int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
        CHECK(plugin(5) == 15);
        CHECK(hodo_ftrace_livepatch_enable(&patch) == 0 && wait_for(HODO_FTRACE_PATCH_ON));
        CHECK(plugin(5) == 35);
        if (time == 1)
            CHECK(hodo_ftrace_livepatch_disable(&patch) == 0 && wait_for(HODO_FTRACE_PATCH_OFF) && plugin(5) == 15);
        dlclose(library);
        // What is loaded now has no patch, wherever it is.
        library = dlopen(argv[1], RTLD_NOW);
        CHECK(library != 0);
        plugin = (int (*)(int))dlsym(library, "plugin");
        CHECK(hodo_ftrace_update() == 0 && plugin(5) == 15);
        if (time != 1) {
            CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_ON);
            CHECK(hodo_ftrace_livepatch_disable(&patch) == 0 && wait_for(HODO_FTRACE_PATCH_OFF));
        }
        dlclose(library);
    }
    puts("ok");
    return 0;
}
