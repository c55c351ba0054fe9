// Variables of C++: namespaces, static members, bases, references, `this`, and what only the debugger's table knows.
#include <cstdio>

namespace ns {
int total = 40;
namespace inner {
long depth = -2;
}
}

struct Base {
    int id = 7;
};

struct Point : Base {
    double weight = 1.5;
    short x, y;
    static int made;
    Point(short x, short y) : x(x), y(y) { made++; }
    __attribute__((noinline)) int sum(const Point &other, int (&grid)[2][3]);
};

int Point::made = 0;

int Point::sum(const Point &other, int (&grid)[2][3]) {
    int result = x + other.y + grid[1][2] + ns::total;
    __asm__ volatile("" : "+r"(result));
    return result; // line: summed
}

int main() {
    Point a(3, 4), b(5, -6);
    int grid[2][3] = {{1, 2, 3}, {4, 5, 6}};
    std::printf("%d %ld\n", a.sum(b, grid), ns::inner::depth);
    return 0;
}
