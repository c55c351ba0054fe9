/* Allocates memory with functions of its own, and writes a known number of words of it. */
#include <stddef.h>
#include <stdio.h>

#define OWN __attribute__((noinline))

struct pool {
    size_t used;
    long words[4096];
};

static struct pool pool;

OWN void *pool_take(struct pool *from, size_t size) {
    void *taken = (char *)from->words + from->used;
    from->used += size;
    return taken;
}

OWN void pool_give(void *memory) { *(volatile long *)memory = 0; }

OWN static void use(struct pool *from) {
    for (int i = 0; i < 10; i++) {
        volatile long *words = pool_take(from, 160);
        for (int word = 0; word < 20; word++)
            words[word] = word;
        if (i % 2)
            pool_give((void *)words);
    }
}

int main(void) {
    use(&pool);
    printf("%zu\n", pool.used);
    return 0;
}
