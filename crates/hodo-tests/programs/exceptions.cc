// C++ exceptions: caught below and above traced frames, rethrown, through destructors and C callbacks; in the end uncaught
// if the argument says so. EXCEPTIONS: how often the first thread throws; the others throw a sixth as often.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define FUNCTION __attribute__((noipa))
#ifndef EXCEPTIONS
#define EXCEPTIONS 3000
#endif

static int alive;
struct Guard {
    std::string text;
    FUNCTION Guard(int n) : text(std::to_string(n) + " with some text that is not short") { alive++; }
    FUNCTION ~Guard() { alive--; }
};

FUNCTION int throws(int n) {
    if (n % 3 == 0)
        throw std::runtime_error("three " + std::to_string(n));
    if (n % 3 == 1)
        throw n;
    return n;
}

FUNCTION int passes(int n) {
    Guard guard(n);
    return throws(n) + 1;
}

FUNCTION int deep(int n, int depth) {
    Guard guard(depth);
    return depth ? deep(n, depth - 1) + 1 : passes(n);
}

FUNCTION int rethrows(int n) {
    try {
        return deep(n, 5);
    } catch (const std::runtime_error &error) {
        if (n % 2)
            throw;
        return static_cast<int>(std::strlen(error.what()));
    }
}

FUNCTION int catches(int n) {
    try {
        return rethrows(n);
    } catch (int value) {
        return -value;
    } catch (const std::exception &) {
        return 1000;
    }
}

extern "C" FUNCTION int compare(const void *a, const void *b) {
    if (*static_cast<const int *>(a) == 77)
        throw 77;
    return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

int main(int argc, char **argv) {
    long sum = 0;
    for (int i = 0; i < EXCEPTIONS; i++)
        sum += catches(i);
    std::vector<std::thread> threads;
    long results[4] = {};
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&results, t] {
            for (int i = 0; i < EXCEPTIONS / 6; i++)
                results[t] += catches(i * 3 + 1);
        });
    for (auto &thread : threads)
        thread.join();
    for (long result : results)
        sum += result;
    int numbers[] = {3, 1, 77, 2};
    try {
        std::qsort(numbers, 4, sizeof *numbers, compare);
    } catch (int value) {
        sum += value;
    }
    std::printf("%ld\n", sum);
    std::fflush(stdout);
    if (argc > 1)
        return deep(std::atoi(argv[1]), 3);
    return 0;
}
