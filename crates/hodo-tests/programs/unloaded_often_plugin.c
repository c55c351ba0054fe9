// A library with some code: 128 functions, one after the other.
#define ONE(number) \
    static int __attribute__((noinline)) f##number(int x) { \
        return x % 7 == number % 7 ? x * number : x > number ? x - number : x + 3 * number; \
    }
#define FOUR(number) ONE(number##0) ONE(number##1) ONE(number##2) ONE(number##3)
#define MANY(number) FOUR(number##0) FOUR(number##1) FOUR(number##2) FOUR(number##3)
#define CALL(number) x = f##number(x) ^ number;
#define CALLS(number) CALL(number##0) CALL(number##1) CALL(number##2) CALL(number##3)
#define ALL(number) CALLS(number##0) CALLS(number##1) CALLS(number##2) CALLS(number##3)
MANY(1) MANY(2) MANY(3) MANY(4) MANY(5) MANY(6) MANY(7) MANY(8)
int all(int x) {
    ALL(1) ALL(2) ALL(3) ALL(4) ALL(5) ALL(6) ALL(7) ALL(8)
    return x & 1023;
}
