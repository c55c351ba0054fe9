// Continues when hodo is killed: opens libraries, starts threads and children, throws exceptions, until its input ends.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <poll.h>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

__attribute__((noinline)) int leaf(int x) {
    char text[64];
    snprintf(text, sizeof text, "%d", x);
    return static_cast<int>(strlen(text)) + x;
}

__attribute__((noinline)) int thrower(int x) {
    if (x % 3 == 0)
        throw std::runtime_error("three");
    return leaf(x);
}

__attribute__((noinline)) int catcher(int x) {
    try {
        return thrower(x);
    } catch (const std::exception &error) {
        return leaf(static_cast<int>(strlen(error.what())));
    }
}

static volatile bool ends;

static void work() {
    for (int i = 0; !ends; i++) {
        catcher(i);
        if (i % 1000 == 0)
            usleep(100);
    }
}

int main() {
    int wrong = 0;
    std::thread worker(work);
    puts("begun");
    fflush(stdout);
    pollfd input = {0, POLLIN, 0};
    int rounds = 0;
    for (int i = 0; i < 40 || poll(&input, 1, 2) == 0; i++) {
        void *library = dlopen(i % 2 ? "libm.so.6" : "libresolv.so.2", RTLD_NOW | RTLD_LOCAL);
        wrong += !library;
        if (library)
            dlclose(library);
        std::thread([&] { wrong += catcher(3) != 6; }).join();
        if (i % 8 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(catcher(4) != 5);
            int status = 0;
            waitpid(child, &status, 0);
            wrong += status != 0;
        }
        rounds++;
    }
    ends = true;
    worker.join();
    printf("wrong: %d\n", wrong);
    return 0;
}
