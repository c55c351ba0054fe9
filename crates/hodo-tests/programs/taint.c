// What depends on the standard input, and what does not.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile int sum;

__attribute__((noinline)) void decides(const char *input) {
    for (int i = 0; i < 8; i++)
        if (input[i] > 'd') sum++;
}

__attribute__((noinline)) void counts(void) {
    for (volatile int i = 0; i < 8; i++) sum--;
}

__attribute__((noinline)) void mixes(const char *input, char *output) {
    for (int i = 0; i < 8; i++) output[i] = input[i] ^ 0x20;
    output[0] = 'x';
}

int main(void) {
    char input[16], output[32] = "........", copy[64];
    if (read(0, input, sizeof input) != 16) return 1;
    decides(input);
    counts();
    mixes(input, output + 8);
    memcpy(copy, output, sizeof output);
    // 8 bytes that do not depend on it, one more, 7 that do.
    write(1, copy, 16);
    // The result of this does not, the bytes do.
    printf("%d\n", (int)strnlen(output, 4));
    fflush(stdout);
    write(2, input + 12, 4);
    return 0;
}
