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

#endif
