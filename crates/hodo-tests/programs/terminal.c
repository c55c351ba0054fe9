// What pagers and editors do at ^Z: tidy up, stop, and continue where they were. With an argument: what other programs
// do.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

volatile long sink;

__attribute__((noinline, noclone)) void leaf(void) { sink++; }

static void on_stop(int number) {
    leaf();
    puts("[tidied]");
    fflush(stdout);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &set, 0);
    signal(SIGTSTP, on_stop);
    puts("[back]");
    fflush(stdout);
}

static void on_ignored(int number) {
    puts("[asked]");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2)
        signal(SIGTSTP, on_stop);
    else if (argv[1][0] == 'i')
        signal(SIGTSTP, on_ignored);
    puts("[ready]");
    fflush(stdout);
    for (;;) {
        leaf();
        usleep(5000);
    }
}
