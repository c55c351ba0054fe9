// Threads that are busy until the input ends, and one that repeatedly loads libraries between the first and the second
// byte of input.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile int ending, loaded, wrong;

__attribute__((noipa)) long leaf(long n) { return n * 3; }

static void *busy(void *unused) {
    for (long n = 0; !ending; n++)
        if (leaf(n) != n * 3) wrong++;
    return NULL;
}

static void *loads(void *names) {
    while (!loaded)
        for (char **name = names; *name; name++) {
            void *library = dlopen(*name, RTLD_NOW);
            usleep(1000);
            if (library) dlclose(library);
        }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[3];
    printf("begun\n");
    fflush(stdout);
    // Not before hodo has less memory than it wants.
    if (getchar() < 0) return 1;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i ? busy : loads, argv + 1);
    getchar();
    loaded = 1;
    pthread_join(threads[0], NULL);
    while (getchar() >= 0) {
    }
    ending = 1;
    for (int i = 1; i < 3; i++) pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
