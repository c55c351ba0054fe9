/* Functions that are compiled with -pg: each calls _mcount. */

typedef struct {
    double first, second;
} pair;

#define NOINLINE __attribute__((noinline))

NOINLINE int leaf(int x)
{
    return x + 1;
}

NOINLINE int middle(int x)
{
    return leaf(x) * 2 + leaf(x + 1);
}

NOINLINE int outer(int x)
{
    return middle(x) - middle(x - 1);
}

NOINLINE int fibonacci(int n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

/* Returns two floating-point registers. */
NOINLINE pair both(double x)
{
    return (pair){x * 2, x * 3};
}

/* Called by the handler of timer interrupts. */
NOINLINE void timer_tick(unsigned long *ticks)
{
    ++*ticks;
}

/* What the second hart does all the time. The sum depends on each call's result. */
NOINLINE long work(int rounds)
{
    long sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += outer(i);
    return sum;
}

/* The end of them: functions are in this order. It is not called. */
void last(void)
{
}
