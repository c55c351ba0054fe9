/* Branches in inline functions, templates, lambdas and methods, in two files; exceptions from their sides. */
#include "inline.h"

HODO_DEFINE_KEY_TRUE(net::connection::CHECKED);

HODO_DEFINE_KEY_FALSE(PARAMETER);
template <hodo_key_false &KEY> int by_reference() { return hodo_branch_unlikely(KEY) ? 1 : 0; }

template <class T> struct holder {
    static hodo_key_true KEY;
    int get() const { return hodo_branch_likely(KEY) ? 1 : 0; }
};
template <class T> hodo_key_true holder<T>::KEY = HODO_KEY_ELEMENT_TRUE(holder, 0);

static void templates() {
    static HODO_DEFINE_KEY_FALSE(LOCAL);
    CHECK(by_reference<PARAMETER>() == 0 && holder<int>().get() == 1 && holder<long>().get() == 1);
    CHECK(!(hodo_branch_unlikely(LOCAL) || hodo_branch_likely(LOCAL)));
    CHECK(hodo_key_enable(&PARAMETER.key) == 0 && by_reference<PARAMETER>() == 1);
    CHECK(hodo_key_disable(&holder<int>::KEY.key) == 0 && holder<int>().get() == 0 && holder<long>().get() == 1);
    CHECK(hodo_key_enable(&LOCAL.key) == 0 && hodo_branch_unlikely(LOCAL) && hodo_branch_likely(LOCAL));
}

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
    templates();
    puts("ok");
    return 0;
}
