// A thread that renames itself repeatedly until its input ends. The functions that it calls get the number in its name.
#include <poll.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile long sum;

__attribute__((noipa)) void named(long number) { sum += number; }

int main(void) {
    static const char *const names[] = {"name0", "name1", "name2"};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    puts("begun");
    fflush(stdout);
    for (long i = 0; !poll(&input, 1, 1); i++) {
        prctl(PR_SET_NAME, names[i % 3]);
        named(i % 3);
    }
    puts("ended");
    return 0;
}
