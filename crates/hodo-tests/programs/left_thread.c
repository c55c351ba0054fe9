// Threads that end in the middle of functions.
#include <pthread.h>
#include <stddef.h>

static volatile int sink;
__attribute__((noinline)) void t_leaf(void) { sink++; }
__attribute__((noinline)) void t_ends(void) {
    t_leaf();
    pthread_exit(NULL);
}
static void *t_thread(void *none) {
    t_ends();
    return none;
}
int main(void) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, t_thread, NULL);
        pthread_join(thread, NULL);
    }
    t_leaf();
    return 0;
}
