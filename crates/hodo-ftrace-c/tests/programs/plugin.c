// A library that `loading.c` loads.
#include <hodo-ftrace.h>

#ifdef ANNOUNCED
HODO_FTRACE_MODULE()
#endif

__attribute__((noinline)) int in_plugin(int a) {
    __asm__ volatile("" ::: "memory");
    return a * 3;
}

static int at_start;
__attribute__((constructor)) static void started(void) {
    at_start = in_plugin(1);
}

__attribute__((no_instrument_function)) int plugin(int a) {
    return in_plugin(a) + at_start - 3;
}
