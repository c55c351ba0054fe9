/* Leaves a process behind, and prints its number. That process works until the first file exists, and then writes
 * the second. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static volatile int beats;

__attribute__((noinline)) void beat(void) { beats++; }

int main(int count, char **arguments) {
    if (count != 3)
        return 1;
    pid_t child = fork();
    if (child != 0) {
        printf("%d\n", child);
        return 7;
    }
    setsid();
    for (int round = 0; access(arguments[1], F_OK) != 0; round++) {
        if (round > 6000)
            return 1;
        beat();
        usleep(20000);
    }
    int file = open(arguments[2], O_WRONLY | O_CREAT, 0600);
    return file < 0 || write(file, "done", 4) != 4;
}
