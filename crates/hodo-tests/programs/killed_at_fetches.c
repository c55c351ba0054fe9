// Calls a function with addresses at which nothing is, which its recorder's probes fetch from. Goes on when the recorder
// was killed and its input has ended.
#include <poll.h>
#include <stdio.h>

__attribute__((noinline)) int reader(const char *text, const long *numbers) {
    __asm__ volatile("");
    return text == (const char *)8 && numbers == (const long *)16 ? 3 : 4;
}

static int calls(void) {
    int wrong = 0;
    for (int i = 0; i < 100; i++) {
        wrong += reader((const char *)8, (const long *)16) != 3;
        wrong += reader("text", 0) != 4;
    }
    return wrong;
}

int main(void) {
    int wrong = calls();
    printf("begun\n");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    poll(&input, 1, -1);
    printf("wrong: %d\n", wrong + calls());
    return 0;
}
