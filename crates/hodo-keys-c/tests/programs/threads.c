/* Threads execute branches while keys are switched. Once a switch has returned, no thread may take the old side. */
#include <pthread.h>

#include "check.h"

HODO_DEFINE_KEY_FALSE(A);
HODO_DEFINE_KEY_TRUE(B);
HODO_DEFINE_KEY_FALSE(OTHER);

enum { THREADS = 3 };
/* Twice the number of switches that have returned; odd while one is under way. */
static unsigned long round_now;
static int done;

__attribute__((cold, noinline)) static int seldom(int x) { return x + 1; }

QUIET static int sides(void) {
    int bits = 0;
    if (hodo_branch_unlikely(A)) bits = seldom(bits);
    if (hodo_branch_likely(A)) bits |= 2;
    if (hodo_branch_unlikely(B)) bits |= 4;
    if (!hodo_branch_likely(B)) bits |= 8;
    if (hodo_branch_unlikely(OTHER)) bits |= 16;
    return bits;
}

static void *work(void *checked) {
    unsigned long count = 0;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        unsigned long before = __atomic_load_n(&round_now, __ATOMIC_SEQ_CST);
        int bits = sides();
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (before % 2 == 0 && __atomic_load_n(&round_now, __ATOMIC_SEQ_CST) == before) {
            /* A and B change places each time. */
            int expected = before / 2 % 2 ? 3 | 8 : 4;
            /* An emulator's thread may be on its way into code that it has translated before. */
            for (int i = 0; getenv("HODO_EMULATED") && (bits & 15) != expected && i < 10; i++) bits = sides();
            if (__atomic_load_n(&round_now, __ATOMIC_SEQ_CST) != before) continue;
            CHECK((bits & 15) == expected);
            count++;
        }
    }
    __atomic_add_fetch((unsigned long *)checked, count, __ATOMIC_SEQ_CST);
    return 0;
}

/* Another thread that switches a key of its own. */
static void *toggle(void *nothing) {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        CHECK(hodo_key_inc(&OTHER.key) == 0 && (sides() & 16));
        CHECK(hodo_key_dec(&OTHER.key) == 0 && !(sides() & 16));
        /* The lock is not fair. */
        usleep(500);
    }
    return nothing;
}

int main(int count, char **arguments) {
    long switches = count > 1 ? atol(arguments[1]) : 500;
    unsigned long checked = 0;
    pthread_t threads[THREADS + 1];
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], 0, work, &checked));
    CHECK(!pthread_create(&threads[THREADS], 0, toggle, 0));
    for (long i = 0; i < switches; i++) {
        int on = i % 2 == 0;
        struct hodo_key_change changes[] = {{&A.key, on ? HODO_KEY_ENABLE : HODO_KEY_DISABLE},
                                            {&B.key, on ? HODO_KEY_DISABLE : HODO_KEY_ENABLE}};
        __atomic_add_fetch(&round_now, 1, __ATOMIC_SEQ_CST);
        CHECK(hodo_keys_switch(changes, 2) == 0);
        __atomic_add_fetch(&round_now, 1, __ATOMIC_SEQ_CST);
        CHECK((sides() & 15) == (on ? 3 | 8 : 4));
        usleep(100);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i <= THREADS; i++) CHECK(!pthread_join(threads[i], 0));
    CHECK(checked > 0);
    puts("ok");
    return 0;
}
