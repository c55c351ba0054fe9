// Random calls, jumps out of functions and handlers, and exceptions, with the tree that left.c keeps. The argument is
// the seed.
#define NO_MAIN
#include "left.c"
#include <string.h>

static unsigned long state;
static unsigned below(unsigned n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 20) % n;
}

struct Landing { sigjmp_buf buf; Landing *outer; };
// Jumps go to one of these; never past a try block, where exceptions are used instead.
static Landing *volatile landing;
static volatile int tries, handling;

FN t_any(int n);
FN t_small(int n) { IN("t_small"); t_any(n - 1); OUT; }
FN t_large(int n) {
    IN("t_large");
    volatile char room[20000];
    room[0] = 1;
    t_any(n - 1);
    sink += room[0];
    OUT;
}
FN t_sized(int n) {
    IN("t_sized");
    volatile char *room = (volatile char *)__builtin_alloca(16 * (1 + below(300)));
    room[0] = 1;
    t_any(n - 1);
    t_leaf();
    sink += room[0];
    OUT;
}
FN t_lands(int n) {
    IN("t_lands");
    Landing here;
    Landing *outer = landing;
    here.outer = outer;
    int jumped = sigsetjmp(here.buf, below(2));
    LANDED;
    landing = jumped ? outer : &here;
    if (!jumped) t_any(n - 1);
    landing = outer;
    if (below(2)) t_leaf();
    if (below(2)) t_any(n - 2);
    OUT;
}
FN t_jumps(void) {
    IN("t_jumps");
    if (below(2)) t_leaf();
    Landing *to = landing;
    if (to && !tries) {
        while (to->outer && below(3) == 0) to = to->outer;
        siglongjmp(to->buf, 1);
    }
    OUT;
}
FN t_tries(int n) {
    IN("t_tries");
    Landing *outer = landing;
    int before = tries;
    landing = NULL;
    tries = before + 1;
    try { t_any(n - 1); } catch (int) {
        LANDED;
        landing = outer;
        tries = before;
        t_leaf();
        if (before && below(3) == 0) throw;
    }
    landing = outer;
    tries = before;
    if (below(2)) t_leaf();
    OUT;
}
FN t_throws(void) {
    IN("t_throws");
    if (below(2)) t_leaf();
    if (tries && !handling) throw 1;
    OUT;
}
FN t_handles(int) {
    IN("t_handles");
    int before = handling;
    handling = 1;
    if (below(2)) t_leaf();
    if (below(2)) t_small(1);
    handling = before;
    if (landing && !tries && below(2)) siglongjmp(landing->buf, 1);
    OUT;
}
FN t_raises(void) {
    IN("t_raises");
    if (!handling) raise(below(2) ? SIGUSR1 : SIGUSR2);
    t_leaf();
    OUT;
}
FN t_any(int n) {
    IN("t_any");
    for (int i = 1 + (int)below(3); i > 0 && count < 9000; i--) {
        switch (below(n > 0 ? 10 : 5)) {
            case 0: t_jumps(); break;
            case 1: t_throws(); break;
            case 2: t_raises(); break;
            case 3: t_leaf(); break;
            case 4: t_leaf(); break;
            case 5: t_small(n); break;
            case 6: t_large(n); break;
            case 7: t_sized(n); break;
            case 8: t_lands(n); break;
            case 9: t_tries(n); break;
        }
    }
    OUT;
}
FN t_all(void) {
    IN("t_all");
    while (count < 8000) {
        landing = NULL;
        tries = handling = 0;
        t_any((int)below(12));
        LANDED;
    }
    OUT;
}

int main(int argc, char **argv) {
    state = 88172645463325252ul + 7919ul * (unsigned long)(argc > 1 ? atoi(argv[1]) : 0);
    stack_t stack;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = malloc(65536);
    stack.ss_size = 65536;
    sigaltstack(&stack, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = t_handles;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    t_all();
    for (int i = 0; i < count; i++) printf("%d %s\n", tree[i].depth, tree[i].name);
}
