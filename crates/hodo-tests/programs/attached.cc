// Exceptions that pass through some functions, until the input ends.
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <unistd.h>

static std::atomic<bool> ending;
static std::atomic<long> wrong;
static std::atomic<int> threads;

struct Guard {
    long &count;
    ~Guard() { count++; }
};

__attribute__((noipa)) long thrower(long n) {
    if (n % 3 == 0)
        throw std::runtime_error("three");
    return n;
}

__attribute__((noipa)) long middle(long n, long &cleaned) {
    Guard guard{cleaned};
    return thrower(n) + 1;
}

__attribute__((noipa)) long outer(long n, long &cleaned) {
    Guard guard{cleaned};
    return middle(n, cleaned) + 1;
}

static void run() {
    long cleaned = 0, caught = 0, rounds = 0;
    while (!ending) {
        rounds++;
        try {
            if (outer(rounds, cleaned) != rounds + 2)
                wrong++;
        } catch (const std::runtime_error &) {
            // The memory that a thread's first exception needs is mapped by now.
            if (caught++ == 0)
                threads++;
        }
    }
    if (cleaned != 2 * rounds || caught != rounds / 3)
        wrong++;
}

int main() {
    std::thread one(run), two(run);
    char byte;
    while (threads < 2)
        usleep(1000);
    puts("begun");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    ending = true;
    one.join();
    two.join();
    printf("wrong: %ld\n", wrong.load());
}
