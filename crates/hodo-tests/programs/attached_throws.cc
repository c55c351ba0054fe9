// Threads that do nothing but throw, some of them interrupted by handlers on separate stacks, until the input ends.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/syscall.h>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "throws.h"

static void on_signal(int) {
    int saved = errno;
    usleep(3000);
    errno = saved;
}

static void interrupted() {
    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    timer_t timer;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = syscall(SYS_gettid);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    itimerspec often = {{0, 4000000}, {0, 4000000}};
    timer_settime(timer, 0, &often, nullptr);
    throws();
    timer_delete(timer);
}

int main() {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    setvbuf(stdout, nullptr, _IONBF, 0);
    std::thread all[] = {std::thread(throws), std::thread(throws), std::thread(interrupted), std::thread(interrupted)};
    std::puts("begun");
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    ending = true;
    for (auto &thread : all)
        thread.join();
    std::printf("wrong: %ld\n", wrong.load());
}
