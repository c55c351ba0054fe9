// Threads that come, are cancelled and go, beside others that throw, until the input ends.
#include <atomic>
#include <cstdio>
#include <pthread.h>
#include <stdexcept>
#include <thread>
#include <unistd.h>

static std::atomic<bool> ending;
static std::atomic<long> wrong;

struct Guard {
    long &count;
    ~Guard() { count++; }
};

__attribute__((noipa)) long thrower(long n, long &cleaned) {
    Guard guard{cleaned};
    if (n == 0)
        throw std::runtime_error("zero");
    return thrower(n - 1, cleaned) + 1;
}

static void throws() {
    for (long n = 0; !ending; n++) {
        long cleaned = 0;
        try {
            thrower(n % 8, cleaned);
            wrong++;
        } catch (const std::runtime_error &) {
            if (cleaned != n % 8 + 1)
                wrong++;
        }
    }
}

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
