// Executes itself as many times as its argument says, then waits for the end of its input.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 100;
    char left[16], byte;
    if (argc < 3) {
        printf("begun\n");
        fflush(stdout);
    }
    if (times > 0) {
        usleep(2000);
        snprintf(left, sizeof left, "%d", times - 1);
        execl("/proc/self/exe", argv[0], left, "again", (char *)0);
        return 1;
    }
    while (read(0, &byte, 1) > 0) {
    }
    printf("wrong: 0\n");
    return 0;
}
