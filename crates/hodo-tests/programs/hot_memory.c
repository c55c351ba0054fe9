/* A table, and a list of nodes that are allocated, are read in a hundred rounds. */
#include <stdio.h>
#include <stdlib.h>

static volatile int table[500];
static volatile long sum;

struct node {
    struct node *next;
    long value;
};

__attribute__((noinline)) static struct node *make(int count) {
    struct node *list = NULL;
    for (int i = 0; i < count; i++) {
        struct node *node = malloc(sizeof *node);
        node->next = list; node->value = i;
        list = node;
    }
    return list;
}

int main(void) {
    struct node *list = make(500);
    for (int round = 0; round < 100; round++) {
        for (struct node *node = list; node; node = node->next)
            sum += node->value;
        for (int i = 0; i < 500; i++)
            table[i] += i;
    }
    printf("%ld\n", sum);
    return 0;
}
