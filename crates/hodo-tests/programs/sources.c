// What debugging information describes: lines, inlined functions, variables of all types. Prints what a probe must see.
#include <stdbool.h>
#include <stdio.h>

enum color { RED, GREEN = 5, BLUE };

struct inner {
    short x, y;
    long far;
};

struct outer {
    int id;
    unsigned flags : 3, level : 7;
    const char *name;
    struct inner in[4];
    struct outer *next;
    union {
        int whole;
        unsigned char parts[4];
    };
};

int total = -7;
static unsigned long long hidden = 1ull << 40;
char label[16] = "label";
struct outer first = {
    .id = 1, .flags = 5, .level = 99, .name = "first", .in = {{1, 2, 3}, {4, 5, 6}, {-7, 8, 9}, {10, 11, 12}}, .whole = 0x01020304,
};
struct outer second = {.id = 2, .name = "second", .next = &first};

static inline __attribute__((always_inline)) int twice(int value) {
    int doubled = value * 2;
    __asm__ volatile("" : "+r"(doubled));
    return doubled; // line: inlined
}

__attribute__((noipa)) int show(struct outer *p, signed char small, enum color color, bool yes, char letter, unsigned short count) {
    int local = p->id + small;
    local += twice(count); // line: called
    __asm__ volatile("" : "+r"(local));
    local ^= color + yes + letter; // line: shown
    return local;
}

__attribute__((noipa)) long loop(long n) {
    long sum = 0;

    for (long i = 0; i < n; i++) {
        sum += i * twice((int)sum); // line: body
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

int main(void) {
    static int calls = 3;
    struct outer *list = &second;
    for (struct outer *p = list; p; p = p->next) {
        calls++;
        printf("%d\n", show(p, -3, BLUE, true, 'q', 65535)); // line: printed
    }
    printf("%ld %llu %d\n", loop(100), hidden, total + calls + label[0]);
    return 0;
}
