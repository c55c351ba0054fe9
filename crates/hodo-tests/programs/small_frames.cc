// C++ exceptions through functions with the smallest possible frames, to a handler just above: unwinders identify a
// handler by an address on the stack, and small frames are close together.
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
