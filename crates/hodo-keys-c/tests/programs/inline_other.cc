#include "inline.h"

namespace net {
HODO_DEFINE_KEY_FALSE(SENT);
}

int other_sent(int x) { return sent(x); }
int other_times(int x) { return times<3>(x); }

int other_each(int enable) {
    CHECK((enable ? hodo_key_enable(&EACH.key) : hodo_key_disable(&EACH.key)) == 0);
    return hodo_branch_unlikely(EACH);
}
