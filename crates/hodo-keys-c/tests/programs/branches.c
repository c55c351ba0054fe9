/* Branches of all kinds, the functions, and their errors. Also compiled as C++. */
#include "check.h"

HODO_DEFINE_KEY_FALSE(OFF);
static HODO_DEFINE_KEY_TRUE(ON);
hodo_key_false LEVELS[] = {HODO_KEY_ELEMENT_FALSE(LEVELS, 0), HODO_KEY_ELEMENT_FALSE(LEVELS, 1),
                           HODO_KEY_ELEMENT_FALSE(LEVELS, 2)};
#undef HODO_KEYS_PREFIX
#define HODO_KEYS_PREFIX "deferred::"
static HODO_DEFINE_KEY_FALSE(WATCHED);
static HODO_DEFINE_KEY_DEFERRED(WATCHERS, WATCHED, 3600000000000u);

static HODO_DEFINE_KEY_FALSE(OUTSIDE);

struct owner {
    int other;
    hodo_key_true inside;
};
static struct owner owner = {7, HODO_KEY_ELEMENT_TRUE(owner.inside, 0)};

/* Compilers put calls of such functions into another section. */
__attribute__((cold, noinline)) static void seldom(int *bits, int bit) { *bits |= bit; }

QUIET static int off(void) {
    int bits = 0;
    if (hodo_branch_unlikely(OFF)) seldom(&bits, 1);
    if (hodo_branch_likely(OFF)) bits |= 2;
    return bits;
}

QUIET static int on(void) {
    int bits = 0;
    if (hodo_branch_unlikely(ON)) bits |= 1;
    if (hodo_branch_likely(ON))
        bits |= 2;
    else
        seldom(&bits, 4);
    return bits;
}

QUIET static int elements(void) {
    return hodo_branch_unlikely(LEVELS[0]) + 2 * hodo_branch_unlikely(LEVELS[1]) + 4 * hodo_branch_likely(LEVELS[2]) +
           8 * !hodo_branch_likely(owner.inside);
}

/* Loops are unrolled, so one branch becomes several. */
QUIET static int repeated(void) {
    int count = 0;
    for (int i = 0; i < 4; i++)
        if (hodo_branch_unlikely(OFF)) count++;
    while (hodo_branch_likely(OFF))
        if (++count == 8) break;
    return count;
}

static void switches(void) {
    CHECK(off() == 0 && on() == 3 && elements() == 0 && repeated() == 0);
    CHECK(hodo_key_enable(&OFF.key) == 0 && hodo_key_is_enabled(&OFF.key));
    CHECK(off() == 3 && on() == 3 && repeated() == 8);
    CHECK(hodo_key_enable(&OFF.key) == 0 && off() == 3);
    CHECK(hodo_key_disable(&ON.key) == 0 && !hodo_key_is_enabled(&ON.key) && on() == 4);
    CHECK(hodo_key_disable(&OFF.key) == 0 && off() == 0 && repeated() == 0);
    CHECK(hodo_key_enable(&LEVELS[1].key) == 0 && elements() == 2);
    CHECK(hodo_key_inc(&LEVELS[2].key) == 0 && hodo_key_inc(&LEVELS[2].key) == 0 && elements() == 6);
    CHECK(hodo_key_users(&LEVELS[2].key) == 2 && hodo_key_dec(&LEVELS[2].key) == 0 && elements() == 6);
    CHECK(hodo_key_disable(&LEVELS[2].key) == 0 && elements() == 6);
    CHECK(hodo_key_dec(&LEVELS[2].key) == 0 && elements() == 2);
    CHECK(hodo_key_disable(&owner.inside.key) == 0 && elements() == 10 && owner.other == 7);
    {
        struct hodo_key_change changes[] = {{&LEVELS[1].key, HODO_KEY_DISABLE},
                                            {&LEVELS[0].key, HODO_KEY_INC},
                                            {&owner.inside.key, HODO_KEY_ENABLE},
                                            {&ON.key, HODO_KEY_ENABLE}};
        CHECK(hodo_keys_switch(changes, 4) == 0 && elements() == 1 && on() == 3);
        CHECK(hodo_keys_switch(0, 0) == 0);
        changes[0].operation = HODO_KEY_DEC;
        changes[0].key = &LEVELS[0].key;
        CHECK(hodo_keys_switch(changes, 1) == 0 && elements() == 0);
    }
}

static void errors(void) {
    struct hodo_key_change changes[] = {{&OFF.key, HODO_KEY_ENABLE}, {&ON.key, HODO_KEY_DEC}};
    struct hodo_keys_text nothing = {0, 0, 0, 0, 0, 0};
    CHECK(hodo_key_dec(&LEVELS[1].key) == HODO_KEYS_NO_USER);
    CHECK(!strcmp(hodo_keys_message(), "static key LEVELS has no user: dec without inc"));
    /* Nothing is changed. */
    CHECK(hodo_keys_switch(changes, 2) == HODO_KEYS_NO_USER && off() == 0);
    CHECK(!strcmp(hodo_keys_message(), "static key ON has no user: dec without inc"));
    changes[1].operation = 4;
    CHECK(hodo_keys_switch(changes, 2) == HODO_KEYS_WRONG && off() == 0);
    CHECK(strstr(hodo_keys_message(), "change 1 of 2"));
    changes[1].key = 0;
    CHECK(hodo_keys_switch(changes, 2) == HODO_KEYS_WRONG && off() == 0);
    CHECK(hodo_keys_set_text(&nothing) == HODO_KEYS_WRONG && strstr(hodo_keys_message(), "no write"));
    CHECK(hodo_key_deferred_dec(&WATCHERS) == HODO_KEYS_NO_USER);
    CHECK(!strcmp(hodo_keys_message(), "static key deferred::WATCHED has no user: dec without inc"));
}

QUIET static int watched(void) { return hodo_branch_unlikely(WATCHED); }

static void deferred(void) {
    CHECK(!watched() && hodo_key_deferred_inc(&WATCHERS) == 0 && watched());
    CHECK(hodo_key_deferred_inc(&WATCHERS) == 0 && hodo_key_deferred_users(&WATCHERS) == 2);
    CHECK(hodo_key_users(&WATCHED.key) == 1);
    CHECK(hodo_key_deferred_dec(&WATCHERS) == 0 && !hodo_key_deferred_is_lingering(&WATCHERS));
    CHECK(hodo_key_deferred_dec(&WATCHERS) == 0 && hodo_key_deferred_is_lingering(&WATCHERS) && watched());
    CHECK(hodo_key_deferred_flush(&WATCHERS) == 0 && !watched());
    hodo_key_deferred_set_delay(&WATCHERS, 1000000);
    CHECK(hodo_key_deferred_inc(&WATCHERS) == 0 && watched() && hodo_key_deferred_dec(&WATCHERS) == 0);
    for (int i = 0; watched(); i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
}

QUIET static int outside(void) { return hodo_branch_unlikely(OUTSIDE); }

static void exposed(void) {
    CHECK(!outside() && setenv("HODO_KEYS", "deferred::OUTSIDE=on", 1) == 0);
    hodo_keys_apply_environment();
    CHECK(outside());
    CHECK(hodo_keys_expose() == 0);
}

static int refuse(void *data) {
    (void)data;
    return EACCES;
}
static int unreachable_write(void *data, void *at, const void *bytes, size_t length) {
    return (void)data, (void)at, (void)bytes, (void)length, EIO;
}
static void unreachable_sync(void *data) { (void)data; }

static void refused(void) {
    struct hodo_keys_text text = {refuse, unreachable_write, 0, unreachable_sync, 0, 0};
    CHECK(hodo_keys_set_text(&text) == 0);
    CHECK(hodo_key_enable(&OFF.key) == HODO_KEYS_TEXT && !hodo_key_is_enabled(&OFF.key) && off() == 0);
    CHECK(strstr(hodo_keys_message(), "error 13"));
    /* Nothing must be written for this one. */
    CHECK(hodo_key_disable(&OFF.key) == 0);
}

static void found(const hodo_key *key, size_t branches, void *data) {
    size_t *sums = (size_t *)data;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)key->length, key->name);
    if (!strcmp(name, "OFF")) sums[0] += branches;
    if (!strcmp(name, "ON")) sums[1] += branches;
    if (!strcmp(name, "LEVELS")) sums[2] += branches, sums[3] |= (size_t)1 << key->index;
    if (!strcmp(name, "deferred::WATCHED")) sums[4] += branches;
    CHECK(strcmp(name, "never"));
}

int main(void) {
    size_t sums[5] = {0, 0, 0, 0, 0};
    switches();
    errors();
    deferred();
    exposed();
    CHECK(hodo_keys_for_each(found, sums) == 0);
    CHECK(sums[0] >= 4 && sums[1] >= 2 && sums[2] >= 3 && sums[3] == 7 && sums[4] >= 1);
    refused();
    puts("ok");
    return 0;
}
