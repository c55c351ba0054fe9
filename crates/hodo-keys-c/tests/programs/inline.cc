/* Branches in inline functions, templates, lambdas and methods, in two files; exceptions from their sides. */
#include "inline.h"

HODO_DEFINE_KEY_TRUE(net::connection::CHECKED);

QUIET static int caught(int x) {
    int before = x;
    try {
        return net::connection().check(x);
    } catch (int thrown) {
        return -thrown - (before - x);
    }
}

int main() {
    int (*pointer)(int) = sent;
    prepare();
    CHECK(sent(2) == 0 && pointer(2) == 0 && other_sent(2) == 0);
    CHECK(times<3>(5) == 5 && times<4>(5) == 5 && other_times(5) == 5);
    CHECK(caught(7) == 7);
    CHECK(hodo_key_enable(&net::SENT.key) == 0);
    CHECK(sent(2) == 2 && pointer(2) == 2 && other_sent(2) == 2);
    CHECK(times<3>(5) == 16 && times<4>(5) == 21 && other_times(5) == 16);
    CHECK(hodo_key_disable(&net::connection::CHECKED.key) == 0 && caught(7) == -7);
    CHECK(hodo_key_disable(&net::SENT.key) == 0 && times<4>(5) == 5 && other_sent(2) == 0);
    /* Each file has its own key of this name. */
    CHECK(other_each(1) == 1 && !hodo_branch_unlikely(EACH));
    CHECK(hodo_key_enable(&EACH.key) == 0 && other_each(0) == 0 && hodo_branch_unlikely(EACH));
    puts("ok");
    return 0;
}
