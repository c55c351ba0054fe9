// Functions that throw through a frame with a destructor, until `ending`. `wrong` counts what was not cleaned up
// exactly once.
#include <atomic>
#include <stdexcept>

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
