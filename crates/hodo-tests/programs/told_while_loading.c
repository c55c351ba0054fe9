// Loads and unloads a library (the argument) while a child ends, 100 times: SIGCHLD often comes while a tracer examines
// the libraries. Prints how many children the handler was not told about.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t told;

static void handler(int signal) {
    (void)signal;
    told = 1;
}

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

int main(int count, char **words) {
    signal(SIGCHLD, handler);
    int lost = 0;
    for (int i = 0; i < 100; i++) {
        told = 0;
        int pause = rand() % 3000;
        pid_t child = fork();
        if (child == 0) {
            usleep(pause);
            _exit(0);
        }
        for (long end = now() + 5000; now() < end;) {
            void *library = dlopen(words[count - 1], RTLD_NOW);
            if (!library) {
                puts(dlerror());
                return 1;
            }
            dlclose(library);
        }
        waitpid(child, NULL, 0);
        lost += !told;
    }
    printf("%d lost\n", lost);
    return 0;
}
