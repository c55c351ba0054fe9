/* A program with two libraries, one of which comes and goes while a thread switches keys. Arguments: the library, and
 * how often. */
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"

HODO_DEFINE_KEY_FALSE(MAIN);
HODO_DECLARE_KEY_FALSE(SHARED);
HODO_DEFINE_KEY_FALSE(BUSY);
int shared_sides(void);
int shared_own(int enabled);
static int done;

QUIET static int sides(void) { return hodo_branch_unlikely(MAIN) + 2 * hodo_branch_unlikely(SHARED); }
QUIET static int busy(void) { return hodo_branch_unlikely(BUSY); }

static void *toggle(void *nothing) {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        CHECK(hodo_key_enable(&BUSY.key) == 0 && busy());
        CHECK(hodo_key_disable(&BUSY.key) == 0 && !busy());
    }
    return nothing;
}

static void add(const hodo_key *key, size_t branches, void *data) {
    (void)key;
    *(size_t *)data += branches;
}

static size_t all(void) {
    size_t sum = 0;
    CHECK(hodo_keys_for_each(add, &sum) == 0);
    return sum;
}

typedef int (*function)(void);

static void *load(const char *path, function *plugin_sides) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    *(void **)plugin_sides = dlsym(library, "plugin_sides");
    CHECK(*plugin_sides);
    return library;
}

static function find(void *library, const char *name) {
    function found;
    *(void **)&found = dlsym(library, name);
    CHECK(found);
    return found;
}

int main(int count, char **arguments) {
    long rounds = count > 2 ? atol(arguments[2]) : 100;
    size_t before, more = 0;
    void *library;
    function plugin_sides;
    pthread_t thread;
    before = all();
    CHECK(!pthread_create(&thread, 0, toggle, 0));
    CHECK(sides() == 0 && shared_sides() == 2);
    CHECK(hodo_key_enable(&SHARED.key) == 0 && sides() == 2 && shared_sides() == 3);
    CHECK(shared_own(0) == 0 && shared_sides() == 1);
    for (long i = 0; i < rounds; i++) {
        int main_on = i % 2, shared_on = i / 2 % 2, expected;
        CHECK((main_on ? hodo_key_enable(&MAIN.key) : hodo_key_disable(&MAIN.key)) == 0);
        CHECK((shared_on ? hodo_key_enable(&SHARED.key) : hodo_key_disable(&SHARED.key)) == 0);
        expected = 8 + (main_on ? 3 : 0) + (shared_on ? 4 : 0);
        library = load(arguments[1], &plugin_sides);
        CHECK(plugin_sides() == expected);
        CHECK(*(int *)dlsym(library, "at_start") == expected);
        /* Compilers may make several branches of one. */
        if (i == 0) more = all() - before;
        CHECK(more >= 5 && all() == before + more);
        CHECK((main_on ? hodo_key_disable(&MAIN.key) : hodo_key_enable(&MAIN.key)) == 0);
        CHECK(find(library, "plugin_off")() == 0);
        CHECK(plugin_sides() == (main_on ? 0 : 3) + (shared_on ? 4 : 0));
        CHECK(sides() == !main_on + 2 * shared_on);
        CHECK(dlclose(library) == 0);
        CHECK(all() == before);
    }
    /* A library with a deferred key stays mapped. */
    library = load(arguments[1], &plugin_sides);
    CHECK(find(library, "plugin_deferred")() == 0);
    CHECK(dlclose(library) == 0);
    for (int i = 0; plugin_sides() & 16; i++) {
        CHECK(i < 60000);
        usleep(1000);
    }
    CHECK(all() == before + more);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    CHECK(!pthread_join(thread, 0));
    puts("ok");
    return 0;
}
