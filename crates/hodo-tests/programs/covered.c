#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/wait.h>

static int collatz(long n)
{
    int steps = 0;
    while (n != 1) {
        if (n % 2)
            n = 3 * n + 1;
        else
            n /= 2;
        steps++;
    }
    return steps;
}

static int never(int x)
{
    return x * 7;
}

static void in_child(void)
{
    puts("child");
}

int main(int argc, char **argv)
{
    int sum = 0;
    for (int i = 1; i < 100; i++)
        sum += collatz(i);
    if (argc > 5)
        sum = never(sum);
    if (fork() == 0) {
        in_child();
        exit(0);
    }
    wait(0);
    printf("%d\n", sum);
    return 0;
}
