// Values of every class that the ABI knows, as arguments and results.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct { double a, b; } two_doubles;
typedef struct { double a; long b; } double_and_long;
typedef struct { long a, b; } two_longs;
typedef struct { float a, b, c; } three_floats;
typedef struct { long all[5]; } large;

typedef double vector2 __attribute__((vector_size(16)));
typedef double vector4 __attribute__((vector_size(32)));

#define FUNCTION __attribute__((noipa))
#ifdef __x86_64__
#define AVX __attribute__((target("avx")))
#else
#define AVX
#endif

FUNCTION two_doubles give_two_doubles(double x) { return (two_doubles){x, x * 2}; }
FUNCTION double_and_long give_double_and_long(double x) { return (double_and_long){x, (long)x}; }
FUNCTION two_longs give_two_longs(long x) { return (two_longs){x, ~x}; }
FUNCTION three_floats give_three_floats(float x) { return (three_floats){x, x + 1, x + 2}; }
FUNCTION large give_large(int x) { return (large){{x, 1, 2, 3, 4}}; }
FUNCTION long double give_long_double(long double x) { return x * 3; }
FUNCTION __int128 give_int128(__int128 x) { return x * x + 1; }
FUNCTION _Complex double give_complex(double x) { return x + 2.0i * x; }
FUNCTION _Complex long double give_long_complex(long double x) { return x + 2.0i * x; }
FUNCTION vector2 give_m128(vector2 x) { return x + x; }
FUNCTION AVX vector4 give_m256(vector4 x, vector4 y) { return x + y; }
FUNCTION AVX vector4 take_eight(vector4 a, vector4 b, vector4 c, vector4 d, vector4 e, vector4 f, vector4 g, vector4 h) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
}
FUNCTION double sum(int n, ...) {
    va_list list;
    va_start(list, n);
    double total = 0;
    for (int i = 0; i < n; i++)
        total += i % 2 ? va_arg(list, double) : va_arg(list, int);
    va_end(list);
    return total;
}
FUNCTION long many(long a, long b, long c, long d, long e, long f, long g, long h, long i, double x, double y) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + (long)(x * 10 + y * 100);
}

AVX int main(void) {
    for (int i = 0; i < 20000; i++) {
        double x = i * 0.25;
        double out[4];
        two_doubles d = give_two_doubles(x);
        double_and_long m = give_double_and_long(x);
        two_longs l = give_two_longs(i);
        three_floats f = give_three_floats(i);
        __int128 q = give_int128((__int128)i << 58);
        vector2 two = {2, x};
        vector4 v = {x + 3, x + 2, x + 1, x};
        double hash = d.a + d.b + m.a + m.b + l.a + l.b + f.a + f.b + f.c + give_large(i).all[0];
        hash += (double)give_long_double(x) + (double)(long)(q >> 64) + (double)(long)q;
        hash += __imag__ give_complex(x) + (double)__imag__ give_long_complex(x);
        two = give_m128(two);
        memcpy(out, &two, sizeof two);
        hash += out[0] + out[1];
        vector4 sums = give_m256(v, v);
        memcpy(out, &sums, sizeof sums);
        hash += out[0] + out[1] + out[2] + out[3];
        sums = take_eight(v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7);
        memcpy(out, &sums, sizeof sums);
        hash += out[0] + out[1] + out[2] + out[3];
        hash += sum(12, i, x, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5) + many(i, 2, 3, 4, 5, 6, 7, 8, 9, x, 2);
        if (i % 1000 == 0)
            printf("%d %.17g\n", i, hash);
    }
    return 0;
}
