// Calls of all kinds: recursion, tail calls, a signal handler, a child process, a jump out of calls.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noclone, noipa))

OWN long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++) {
        sum += i;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

OWN long fib(int n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

OWN int odd(int n);

OWN int even(int n)
{
    work(10);
    return n == 0 ? 1 : odd(n - 1) + 2;
}

OWN int odd(int n)
{
    work(10);
    return n == 0 ? 0 : even(n - 1) + 2;
}

OWN long last(long n)
{
    return work(n) + 1;
}

OWN long tail(long n)
{
    return last(n + 1);
}

static jmp_buf back;

OWN void leave(int deep)
{
    if (deep == 0)
        longjmp(back, 1);
    leave(deep - 1);
    __asm__ volatile("");
}

static volatile long handled;

OWN void handler(int number)
{
    handled += work(100) + number;
}

OWN void in_child(void)
{
    work(5000);
    _exit(0);
}

int main(void)
{
    long sum = fib(10);
    sum += even(20);
    for (int i = 0; i < 50; i++)
        sum += tail(200);
    if (setjmp(back) == 0)
        leave(7);
    sum += work(1000);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    pid_t child = fork();
    if (child == 0)
        in_child();
    waitpid(child, NULL, 0);
    printf("%ld %ld\n", sum, handled);
    return 0;
}
