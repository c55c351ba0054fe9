// Very short functions.

#include <stdio.h>

int odd(unsigned n);

// They jump to each other.
__attribute__((noinline)) int even(unsigned n) {
    return n == 0 ? 1 : odd(n - 1);
}

__attribute__((noinline)) int odd(unsigned n) {
    return n == 0 ? 0 : even(n - 1);
}

__attribute__((noinline)) int same(int x) {
    return x;
}

__attribute__((noinline)) int calls(const char *text, int n) {
    return printf("%s %d\n", text, n) + same(n);
}

int main(int argc, char **argv) {
    return calls(argv[0], even(argc) + odd(argc));
}
