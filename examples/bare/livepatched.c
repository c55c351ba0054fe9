/* Functions with new versions. Those that are replaced begin with bytes that do nothing, as in patched.c. */

#define NOINLINE __attribute__((noinline))
#define NEW __attribute__((noinline, patchable_function_entry(0)))

NOINLINE int part(void)
{
    return 1;
}

NEW int new_part(void)
{
    return 2;
}

/* Returns which version of `part` it has called, and which one after it has waited: it waits while the gate is not 0, and
   says so with a 2 there. */
NOINLINE int held(volatile int *gate)
{
    int before = part();
    if (*gate) {
        *gate = 2;
        while (*gate)
            ;
    }
    return 100 + before * 10 + part();
}

NEW int new_held(volatile int *gate)
{
    int before = part();
    if (*gate) {
        *gate = 2;
        while (*gate)
            ;
    }
    return 200 + before * 10 + part();
}

/* The end of them: functions are in this order. It is not called. */
NEW void livepatched_last(void)
{
}
