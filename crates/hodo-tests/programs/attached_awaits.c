// For each line of its input: has the unwinder walk through its frames, and waits for the next line in the middle.
#include <stdio.h>
#include <unistd.h>
#include <unwind.h>

static int frames, wrong;

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *argument) {
    (void)context, (void)argument;
    char byte;
    if (++frames == 2) {
        write(1, "waits\n", 6);
        wrong += read(0, &byte, 1) != 1;
    }
    return _URC_NO_REASON;
}

__attribute__((noinline)) int deep(int depth) {
    if (depth > 0)
        return deep(depth - 1) + 1;
    frames = 0;
    _Unwind_Backtrace(count, 0);
    return 0;
}

int main(void) {
    char byte;
    write(1, "begun\n", 6);
    while (read(0, &byte, 1) == 1) {
        wrong += deep(5) != 5;
        wrong += frames < 6;
        write(1, "walked\n", 7);
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
