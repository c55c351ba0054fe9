// Gives up rights, and keeps making calls: `chroot`: an empty directory becomes its root; `setuid`: another user;
// `both`.
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noipa)) int next(int n) { return n + 1; }

__attribute__((noipa)) int many(void) {
    int n = 0;
    for (int i = 0; i < 200000; i++)
        n = next(n);
    return n;
}

static void *thread(void *unused) { return (void *)(long)many(); }

int main(int argc, char **argv) {
    int sum = many();
    if (strcmp(argv[1], "setuid")) {
        if (mkdir("empty", 0755) || chroot("empty") || chdir("/"))
            return 1;
    }
    if (strcmp(argv[1], "chroot")) {
        if (setgroups(0, NULL) || setgid(65534) || setuid(65534))
            return 2;
    }
    sum += many();
    pthread_t other;
    void *result;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, &result);
    sum += (int)(long)result;
    pid_t child = fork();
    if (child == 0)
        _exit(many() == 200000 ? 3 : 4);
    int status;
    waitpid(child, &status, 0);
    printf("%d %d %d\n", sum, (int)getuid(), WEXITSTATUS(status));
    return 0;
}
