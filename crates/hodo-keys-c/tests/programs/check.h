/* What the test programs have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hodo-keys.h"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: not %s (last message: %s)\n", __FILE__, __LINE__, #what, hodo_keys_message()); \
            exit(1); \
        } \
    } while (0)

#define QUIET __attribute__((noinline))

/* qemu's user mode emulator keeps what it has translated, until a page becomes writable. */
static uintptr_t emulated_pages[64];
static size_t emulated_count;

static int emulated_write(void *memory, void *at, const void *bytes, size_t length) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)at + length;
    if (pwrite(*(int *)memory, bytes, length, (off_t)(uintptr_t)at) != (ssize_t)length) return EIO;
    for (uintptr_t start = (uintptr_t)at & ~(page - 1); start < end; start += page) {
        size_t i = 0;
        while (i < emulated_count && emulated_pages[i] != start) i++;
        if (i == sizeof emulated_pages / sizeof *emulated_pages) return ENOMEM;
        emulated_pages[i] = start;
        if (i == emulated_count) emulated_count++;
    }
    return 0;
}

static void emulated_sync(void *memory) {
    (void)memory;
    while (emulated_count) {
        void *page = (void *)emulated_pages[--emulated_count];
        size_t size = (size_t)sysconf(_SC_PAGESIZE);
        if (mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC) || mprotect(page, size, PROT_READ | PROT_EXEC))
            abort();
    }
}

/* To be called before keys are switched. */
static inline void prepare(void) {
    static int memory;
    struct hodo_keys_text text = {0, emulated_write, 0, emulated_sync, 0, &memory};
    if (!getenv("HODO_EMULATED")) return;
    memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    CHECK(memory >= 0 && hodo_keys_set_text(&text) == 0);
}

#endif
