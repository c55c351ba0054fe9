/* Functions in guarded pages, which sign their return addresses. */

#define NOINLINE __attribute__((noinline))

/* Begins with `bti c`: it calls nobody. */
NOINLINE int guarded_leaf(int x)
{
    return x * 3;
}

/* Begins with `paciasp`. */
NOINLINE int guarded_sum(int x)
{
    return guarded_leaf(x) + guarded_leaf(x + 1);
}

/* The end of them: functions are in this order. It is not called. */
void guarded_last(void)
{
}
