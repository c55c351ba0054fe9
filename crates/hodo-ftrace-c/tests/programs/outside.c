// A program that switches its call sites while hodo wants to change it from outside. The argument says whether hodo has
// been there first: then the sites are taken.
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

APART long work(long a) {
    EFFECT;
    return a * 2;
}
static long (*volatile call_work)(long) = work;

static unsigned long seen;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    seen++;
}
static const struct hodo_ftrace_ops tracer = {see, FLAGS};

QUIET int main(int count, char **arguments) {
    int is_taken = count > 1 && strcmp(arguments[1], "taken") == 0;
    unsigned long calls = 0;
    char byte;
    CHECK(hodo_ftrace_set_filter(&tracer, "work", 1) == (is_taken ? 0 : 1));
    puts("ready");
    fflush(stdout);
    CHECK(fcntl(0, F_SETFL, O_NONBLOCK) == 0);
    // Until the input ends.
    do {
        CHECK(hodo_ftrace_register(&tracer) == 0);
        for (long a = 0; a < 10; a++, calls++)
            CHECK(call_work(a) == 2 * a);
        CHECK(hodo_ftrace_unregister(&tracer) == 0);
        CHECK(hodo_ftrace_set_filter(&tracer, "work", 1) == (is_taken ? 0 : 1));
        CHECK(call_work(1) == 2);
        usleep(1000);
    } while (read(0, &byte, 1) < 0);
    CHECK(seen == (is_taken ? 0 : calls));
    puts("ok");
    return 0;
}
