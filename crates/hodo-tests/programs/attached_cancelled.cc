// Threads that start, are cancelled and end, beside others that throw, until the input ends.
#include <cstdio>
#include <pthread.h>
#include <thread>
#include <unistd.h>

#include "throws.h"

static void *sleeps(void *count) {
    Guard guard{*static_cast<long *>(count)};
    for (;;)
        usleep(1000);
    return nullptr;
}

static void cancels() {
    while (!ending) {
        long cleaned = 0;
        void *result;
        pthread_t thread;
        pthread_create(&thread, nullptr, sleeps, &cleaned);
        usleep(500);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED || cleaned != 1)
            wrong++;
    }
}

int main() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    std::thread all[] = {std::thread(throws), std::thread(throws), std::thread(cancels), std::thread(cancels)};
    std::puts("begun");
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    ending = true;
    for (auto &thread : all)
        thread.join();
    std::printf("wrong: %ld\n", wrong.load());
}
