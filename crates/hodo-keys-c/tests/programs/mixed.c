/* The C part of a program in Rust and C. */
#include "hodo-keys.h"

HODO_DEFINE_KEY_FALSE(IN_C);

int c_branch(void) { return hodo_branch_unlikely(IN_C) + 2 * hodo_branch_likely(IN_C); }
int c_switch(int on) { return on ? hodo_key_enable(&IN_C.key) : hodo_key_disable(&IN_C.key); }
static void count(const hodo_key *key, size_t branches, void *sum) {
    (void)key;
    *(size_t *)sum += branches;
}
size_t c_sum(void) {
    size_t sum = 0;
    return hodo_keys_for_each(count, &sum) ? 0 : sum;
}
