// C++ exceptions through functions whose frames are as small as they can be, to a handler right above: unwinders know a handler by
// an address on the stack, and so small frames are near each other.
#include <cstdio>

#define FUNCTION __attribute__((noipa))

FUNCTION int throws(int n) {
    if (n % 2)
        throw n;
    return n;
}

FUNCTION int inner(int n) { return throws(n) + 1; }

FUNCTION int outer(int n) { return inner(n) + 1; }

FUNCTION int catches_inner(int n) {
    try {
        return inner(n);
    } catch (int value) {
        return -value;
    }
}

FUNCTION int catches_outer(int n) {
    try {
        return outer(n);
    } catch (int value) {
        return -value;
    }
}

int main() {
    long sum = 0;
    for (int n = 0; n < 20; n++)
        sum += catches_inner(n) + 100L * catches_outer(n);
    std::printf("%ld\n", sum);
    return 0;
}
