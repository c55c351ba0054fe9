/* A probe of sys/sdt.h in a program that also has tracepoints. */
#include <sys/sdt.h>

int probed_in_c(int value) {
    DTRACE_PROBE1(built, in_c, value);
    return value;
}
