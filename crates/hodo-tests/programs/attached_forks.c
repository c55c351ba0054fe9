// Creates children that make calls, and checks how they end, until the input ends.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noipa)) long deep(long n) {
    volatile long local = n;
    return n ? deep(n - 1) + local : 0;
}

__attribute__((noipa)) int work(int n) {
    long sum = 0;
    for (int i = 0; i < 100; i++)
        sum += deep(n);
    usleep(2000);
    return sum == 50L * n * (n + 1) ? 7 : 1;
}

static int ended(void) {
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

int main(void) {
    int wrong = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("begun");
    while (!ended()) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(work(60));
        if (work(50) != 7)
            wrong++;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            wrong++;
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
