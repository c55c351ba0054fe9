// Libraries that come and go. The arguments are the library, and whether it announces itself.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <string.h>

static int seen;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    seen++;
}
static const struct hodo_ftrace_ops ops = {see, FLAGS, 0};

QUIET static int each(const struct hodo_ftrace_site *site, void *data) {
    *(int *)data += strcmp(site->name, "in_plugin") == 0;
    return 0;
}

QUIET static int sites(void) {
    int count = 0;
    CHECK(hodo_ftrace_each_site(each, &count) >= 0);
    return count;
}

QUIET int main(int argc, char **argv) {
    CHECK(argc == 3);
    int announced = argv[2][0] == '1';
    CHECK(hodo_ftrace_set_filter(&ops, "in_plugin:mod:*plugin*", 1) == 0);
    CHECK(hodo_ftrace_register(&ops) == 0);
    for (int time = 1; time <= 3; time++) {
        seen = 0;
        void *library = dlopen(argv[1], RTLD_NOW);
        if (library == 0)
            puts(dlerror());
        CHECK(library != 0);
        int (*plugin)(int) = (int (*)(int))dlsym(library, "plugin");
        // Its constructor is seen only if it announces itself before.
        CHECK(seen == announced);
        CHECK(plugin(5) == 15 && seen == 2 * announced);
        CHECK(hodo_ftrace_update() == 0);
        CHECK(plugin(5) == 15 && seen == 1 + 2 * announced);
        CHECK(sites() == 1);
        dlclose(library);
        CHECK(sites() == 0);
    }
    CHECK(hodo_ftrace_unregister(&ops) == 0);
    puts("ok");
    return 0;
}
