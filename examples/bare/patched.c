/* Functions that are compiled with -fpatchable-function-entry: each begins with eight bytes that do nothing. */

#define NOINLINE __attribute__((noinline))

NOINLINE int add(int x, int y)
{
    return x + y;
}

NOINLINE int twice(int x)
{
    return add(x, x);
}

/* Calls a function twice. */
NOINLINE int four_times(int x)
{
    return twice(twice(x));
}
