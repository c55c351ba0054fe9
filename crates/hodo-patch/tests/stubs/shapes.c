/* Functions of several shapes, for compilers. */
#define FUNCTION __attribute__((noinline, visibility("default"), used))
/* Compilers do not drop calls of functions that contain this. */
#define KEEP __asm__ volatile("")

static volatile int sink;

/* One instruction, in two bytes if possible. */
FUNCTION void shape_nothing(void) { KEEP; }

FUNCTION int shape_empty(void) {
    KEEP;
    return 7;
}

FUNCTION int shape_leaf(int a) { return a * 3 + 1; }

FUNCTION int shape_getter(const int *a) { return a[2]; }

FUNCTION int shape_tail(int a) { return shape_leaf(a + 1); }

/* A call through a register at the end. */
FUNCTION int shape_through(int (*f)(int), int a) { return f(a + 2); }

FUNCTION double shape_float(double a, float b) { return a * b + 1.5; }

FUNCTION long shape_loop(const int *p, long n) {
    long sum = 0;
    while (n--)
        sum += *p++;
    return sum;
}

FUNCTION int shape_switch(int a) {
    switch (a) {
    case 0: return shape_leaf(7);
    case 1: return shape_leaf(a + 1) * 2;
    case 2: sink++; return 2;
    case 3: return 99;
    case 4: return shape_leaf(4) ^ 3;
    case 5: sink += 2; return 5;
    default: return shape_leaf(1) + a;
    }
}

/* More arguments than there are registers. */
FUNCTION long shape_many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}

FUNCTION long shape_all(int n) {
    static const int numbers[] = {3, 1, 4, 1, 5};
    long sum = 0;
    shape_nothing();
    sum = sum * 31 + shape_empty();
    sum = sum * 31 + shape_leaf(n);
    sum = sum * 31 + shape_getter(numbers);
    sum = sum * 31 + shape_tail(n);
    sum = sum * 31 + shape_through(shape_leaf, n);
    sum = sum * 31 + shape_through(shape_tail, n);
    sum = sum * 31 + (long)shape_float(n, 2.5f);
    sum = sum * 31 + shape_loop(numbers, 5);
    sum = sum * 31 + shape_switch(n);
    sum = sum * 31 + shape_many(n, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    return sum;
}
