// setjmp and longjmp out of frames of different depth, and sigsetjmp with a mask.
#include <setjmp.h>
#include <stdio.h>

static jmp_buf place;
static sigjmp_buf masked;

__attribute__((noipa)) int sink(int n) {
    if (n == 0)
        longjmp(place, 5);
    n = sink(n - 1);
    __asm__ volatile("" : "+r"(n));
    return n;
}

__attribute__((noipa)) void leave(void) { siglongjmp(masked, 2); }

__attribute__((noipa)) int attempt(int depth) {
    int came = setjmp(place);
    return came ? came : sink(depth);
}

int main(void) {
    int sum = 0;
    for (volatile int i = 0; i < 1000; i++)
        sum += attempt(i % 50);
    for (volatile int i = 0; i < 1000; i++) {
        if (sigsetjmp(masked, 1) == 0)
            leave();
        else
            sum++;
    }
    printf("%d\n", sum);
    return 0;
}
