/* A library with keys that others have branches on, too. */
#include "check.h"

HODO_DEFINE_KEY_FALSE(SHARED);
static HODO_DEFINE_KEY_TRUE(OWN);

int shared_sides(void);
int shared_own(int enabled);

int shared_sides(void) { return hodo_branch_unlikely(SHARED) + 2 * hodo_branch_likely(OWN); }
int shared_own(int enabled) { return enabled ? hodo_key_enable(&OWN.key) : hodo_key_disable(&OWN.key); }
