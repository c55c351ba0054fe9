// For each line of its input: has the unwinder walk through its frames, and then waits in a function whose frame has
// all of that in it, for it never writes there.
#include <stdio.h>
#include <unistd.h>
#include <unwind.h>

static int frames;

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *argument) {
    (void)context, (void)argument;
    frames++;
    return _URC_NO_REASON;
}

__attribute__((noinline)) int deep(int depth) {
    char room[512];
    __asm__ volatile("" : : "r"(room) : "memory");
    if (depth > 0)
        return deep(depth - 1) + 1;
    frames = 0;
    _Unwind_Backtrace(count, 0);
    return 0;
}

__attribute__((noinline)) int waits(void) {
    char room[16384];
    __asm__ volatile("" : : "r"(room) : "memory");
    char byte;
    return (int)read(0, &byte, 1);
}

int main(void) {
    int wrong = 0;
    write(1, "begun\n", 6);
    while (waits() == 1) {
        for (int depth = 0; depth < 8; depth++) {
            wrong += deep(depth) != depth;
            wrong += frames < depth;
        }
        write(1, "walked\n", 7);
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
