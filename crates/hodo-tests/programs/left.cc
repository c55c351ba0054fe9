// Like left.c, with exceptions: caught where they are thrown, some frames up, rethrown, passing through C functions,
// with and without destructors.
#define NO_MAIN
#include "left.c"
#include <stdexcept>
#include <string>

struct Guard {
    int mine;
    ~Guard();
};
FN t_destroyed(void) { IN("t_destroyed"); t_leaf(); OUT; }
inline __attribute__((always_inline)) Guard::~Guard() { depth = mine + 1; t_destroyed(); depth = mine; }

FN t_throw(int n, int kind) {
    IN("t_throw");
    t_leaf();
    if (n) t_throw(n - 1, kind);
    else if (kind == 0) throw 1;
    else if (kind == 1) throw std::runtime_error("x");
    else sink += std::string("abc").at(7 + sink * 0);
    OUT;
}

FN t_guarded(int n, int kind) {
    IN("t_guarded");
    Guard guard{mine};
    if (n) t_guarded(n - 1, kind);
    else t_throw(3, kind);
}

FN t_same(void) {
    IN("t_same");
    try { throw 5; } catch (int n) { LANDED; sink += n; t_leaf(); }
    t_leaf();
    OUT;
}

FN t_again(int kind) {
    IN("t_again");
    try { t_guarded(3, kind); } catch (...) { LANDED; t_leaf(); throw; }
    OUT;
}

FN t_catch(int kind) {
    IN("t_catch");
    for (volatile int i = 0; i < 3; i++) {
        try { t_throw(i, kind); } catch (...) { LANDED; t_leaf(); }
        t_leaf();
        try { t_again(kind); } catch (...) { LANDED; t_leaf(); }
        t_leaf();
        t_same();
    }
    OUT;
}

FN t_exceptions(void) {
    IN("t_exceptions");
    for (int kind = 0; kind < 3; kind++) t_catch(kind);
    t_loop(0);
    OUT;
}

int main() {
    t_exceptions();
    for (int i = 0; i < count; i++) printf("%d %s\n", tree[i].depth, tree[i].name);
}
