// Allocations whose peak, whose leaks, and whose temporary ones are known.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noclone, noipa))

OWN void *make(size_t bytes)
{
    char *made = malloc(bytes);
    made[0] = 1;
    return made;
}

OWN void *kept(void)
{
    return make(3000000);
}

OWN void *freed(void)
{
    return make(5000000);
}

OWN void temporary(void)
{
    for (int i = 0; i < 100; i++)
        free(make(1000));
}

OWN void *grown(void)
{
    void *place = malloc(10);
    void *other = make(20);
    place = realloc(place, 700000);
    free(other);
    return place;
}

int main(void)
{
    void *one = kept();
    void *two = freed();
    // The peak is here: what comes later is less.
    free(two);
    temporary();
    void *three = grown();
    pid_t child = fork();
    if (child == 0) {
        // These were allocated by the parent.
        free(one);
        free(three);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    free(three);
    return one == three;
}
