// Closes every descriptor, changes its directory, and keeps making calls.
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) int next(int n) { return n + 1; }

__attribute__((noipa)) int many(void) {
    int n = 0;
    for (int i = 0; i < 100000; i++)
        n = next(n);
    return n;
}

int main(void) {
    for (int i = 3; i < 20000; i++)
        close(i);
    if (chdir("/"))
        return 1;
    printf("%d\n", many());
    fflush(stdout);
    close(0);
    close(1);
    close(2);
    return many() == 100000 ? 5 : 6;
}
