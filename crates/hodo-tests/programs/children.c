// Children by fork, vfork, posix_spawn, system, popen and exec of itself; the argument is the number of rounds.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noipa)) int in_child(int n) { return n + 1; }
__attribute__((noipa)) int in_parent(int n) { return n + 2; }
__attribute__((noipa)) int after_exec(int n) { return n + 3; }

__attribute__((noipa)) int wait_for(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

__attribute__((noipa)) int forks(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(in_child(6));
    in_parent(0);
    return wait_for(child);
}

__attribute__((noipa)) int vforks(int exec) {
    pid_t child = vfork();
    if (child == 0) {
        if (exec)
            execl("/bin/true", "true", NULL);
        _exit(in_child(8));
    }
    in_parent(0);
    return wait_for(child);
}

__attribute__((noipa)) int spawns(const char *self) {
    char *words[] = {(char *)self, "child", NULL};
    pid_t child;
    if (posix_spawn(&child, self, NULL, NULL, words, environ))
        return -1;
    in_parent(0);
    return wait_for(child);
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "child"))
        return after_exec(10);
    int rounds = atoi(argv[1]);
    for (int i = 0; i < rounds; i++) {
        if (forks() != 7 || vforks(0) != 9 || vforks(1) != 0 || spawns(argv[0]) != 13)
            return 1;
    }
    fflush(stdout);
    if (system("echo from a shell; exit 3") != 3 << 8)
        return 2;
    char line[32];
    FILE *pipe = popen("echo from a pipe", "r");
    printf("%s", fgets(line, sizeof line, pipe));
    pclose(pipe);
    fflush(stdout);
    execl(argv[0], argv[0], "child", NULL);
    return 3;
}
