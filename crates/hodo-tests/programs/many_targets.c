// Calls from more places than the table of targets has room for, while another thread calls from few.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { MANY = 210000, FEW = 1000, CALL = 5 };

static atomic_int over;
static uint64_t (*few)(void);

// mov edi, 0 ; then calls, mov eax, edi, ret ; and what is called: inc edi, ret
static uint8_t *make(uint8_t *at, int calls, const uint8_t *called) {
    memcpy(at, "\xbf\0\0\0\0", 5);
    at += 5;
    for (int i = 0; i < calls; i++) {
        int32_t distance = (int32_t)(called - (at + CALL));
        *at = 0xE8;
        memcpy(at + 1, &distance, 4);
        at += CALL;
    }
    memcpy(at, "\x89\xf8\xc3", 3);
    return at + 3;
}

static void *work(void *wrong) {
    while (!over)
        *(uint64_t *)wrong += few() != FEW;
    return NULL;
}

int main(void) {
    size_t size = (MANY + FEW) * CALL + 4096;
    uint8_t *code = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        return 1;
    memcpy(code, "\xff\xc7\xc3", 3);
    few = (uint64_t(*)(void))(code + 16);
    uint8_t *many = make(code + 16, FEW, code);
    make(many, MANY, code);
    if (mprotect(code, size, PROT_READ | PROT_EXEC))
        return 1;
    uint64_t wrong = 0;
    pthread_t worker;
    if (pthread_create(&worker, NULL, work, &wrong))
        return 1;
    uint64_t calls = ((uint64_t(*)(void))many)();
    over = 1;
    pthread_join(worker, NULL);
    printf("%lu calls, %lu wrong\n", calls, wrong);
}
