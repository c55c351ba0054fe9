/* Keys and branches that two files share. */
#include "check.h"

namespace net {
extern hodo_key_false SENT;
struct connection {
    static hodo_key_true CHECKED;
    int check(int x) const {
        if (!hodo_branch_likely(CHECKED)) throw x;
        return x;
    }
};
}  // namespace net

static HODO_DEFINE_KEY_FALSE(EACH);

inline int sent(int x) {
    int bits = 0;
    for (int i = 0; i < 2; i++)
        if (hodo_branch_unlikely(net::SENT)) bits |= x;
    return bits;
}

template <int N> int times(int x) {
    auto inner = [x](int y) { return hodo_branch_likely(net::SENT) ? x * y : x; };
    int bits = hodo_branch_unlikely(net::SENT) ? 1 : 0;
    return inner(N) + bits;
}

/* What each file answers. */
int other_sent(int x);
int other_times(int x);
int other_each(int enable);
