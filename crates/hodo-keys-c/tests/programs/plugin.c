/* A library that is loaded and unloaded: branches on keys of the program, of another library, and its own. */
#include "check.h"

HODO_DECLARE_KEY_FALSE(MAIN);
HODO_DECLARE_KEY_FALSE(SHARED);
static HODO_DEFINE_KEY_TRUE(PLUGIN);
static HODO_DEFINE_KEY_FALSE(KEPT);
static HODO_DEFINE_KEY_DEFERRED(DEFERRED, KEPT, 1000000);

int plugin_sides(void);
int plugin_off(void);
int plugin_deferred(void);
int at_start;

/* The branches are right before any other code of the library runs. */
__attribute__((constructor)) static void start(void) { at_start = plugin_sides(); }

int plugin_sides(void) {
    int bits = 0;
    if (hodo_branch_unlikely(MAIN)) bits |= 1;
    if (hodo_branch_likely(MAIN)) bits |= 2;
    if (hodo_branch_unlikely(SHARED)) bits |= 4;
    if (hodo_branch_likely(PLUGIN)) bits |= 8;
    if (hodo_branch_unlikely(KEPT)) bits |= 16;
    return bits;
}

int plugin_off(void) { return hodo_key_disable(&PLUGIN.key); }
int plugin_deferred(void) { return hodo_key_deferred_inc(&DEFERRED) || hodo_key_deferred_dec(&DEFERRED); }
