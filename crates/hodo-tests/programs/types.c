// Two functions whose parameters have the same name but different types.
#include <stdio.h>

__attribute__((noipa)) long wide_of(long n) { return n + 1; }
__attribute__((noipa)) int narrow_of(unsigned char n) { return n + 2; }

int main(void) {
    long sum = 0;
    for (int i = 0; i < 10; i++)
        sum += wide_of(i % 3 - 1) + narrow_of((unsigned char)(i % 2));
    printf("%ld\n", sum);
    return 0;
}
