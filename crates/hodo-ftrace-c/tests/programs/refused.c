// Wrong use is refused, with its own words.
#include "check.h"
#include <string.h>

static int hits;
APART int work(int a) {
    EFFECT;
    return a + 1;
}
APART int other(int a) {
    EFFECT;
    return a + 2;
}

#define REFUSED(call, text)                                                                          \
    do {                                                                                             \
        if ((long)(call) != -1 || !strstr(hodo_ftrace_error(), text)) {                              \
            printf("%s:%d: %s is not refused, or with: %s\n", __FILE__, __LINE__, #call, hodo_ftrace_error()); \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

QUIET static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                      struct hodo_ftrace_registers *registers) {
    hits++, (void)ip, (void)parent, (void)ops, (void)registers;
}
static const struct hodo_ftrace_ops good = {see, 0, 0}, none = {0, 0, 0}, unknown = {see, 1ul << 40, 0},
                                    both = {see, HODO_FTRACE_VECTORS | HODO_FTRACE_GENERAL_REGISTERS, 0};
static const struct hodo_ftrace_entry_ops no_entry = {0, 0}, strange = {(void (*)(unsigned long, unsigned long))see, 2};

QUIET static void changing(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                           struct hodo_ftrace_registers *registers) {
    REFUSED(hodo_ftrace_register(&good), "hooks cannot change anything");
    REFUSED(hodo_ftrace_set_filter(ops, "work", 0), "hooks cannot change anything");
    REFUSED(hodo_ftrace_update(), "hooks cannot change anything");
    hits++, (void)ip, (void)parent, (void)registers;
}
static const struct hodo_ftrace_ops in_hook = {changing, 0, 0};

QUIET int main(void) {
    REFUSED(hodo_ftrace_register(0), "ops is null");
    REFUSED(hodo_ftrace_register(&none), "func is null");
    REFUSED(hodo_ftrace_register(&unknown), "0x10000000000");
    REFUSED(hodo_ftrace_register(&both), "exclude each other");
    REFUSED(hodo_ftrace_set_entry(&no_entry), "func is null");
    REFUSED(hodo_ftrace_set_entry(&strange), "0x2");
    REFUSED(hodo_ftrace_set_filter(&good, "work:mod:", 1), "no file after :mod:");
    REFUSED(hodo_ftrace_set_filter(&good, "work:mdo:lib", 1), "has a ':'");
    REFUSED(hodo_ftrace_set_frame_test(9), "no such frame test");
    struct hodo_ftrace_patch_function functions[] = {{"work", 0, 0}};
    struct hodo_ftrace_patch patch = {functions, 1};
    REFUSED(hodo_ftrace_livepatch_enable(&patch), "no new_func");
    CHECK(work(1) == 2 && hits == 0);

    // Outside of hooks, all of it is possible.
    CHECK(hodo_ftrace_set_filter(&in_hook, "work", 1) == 1 && hodo_ftrace_register(&in_hook) == 0);
    CHECK(work(1) == 2 && hits == 1 && other(1) == 3);
    CHECK(hodo_ftrace_unregister(&in_hook) == 0 && hodo_ftrace_register(&good) == 0);
    CHECK(work(1) == 2 && hits == 2);
    CHECK(hodo_ftrace_unregister(&good) == 0);
    puts("ok");
    return 0;
}
