// Many children, made by fork and by posix_spawn, and a library that is repeatedly loaded; ends when its input does.
#include <dlfcn.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noipa)) int work(int x) {
    char *piece = malloc(100);
    piece[0] = (char)x;
    int got = piece[0];
    free(piece);
    return got;
}

__attribute__((noipa)) int child(int number) {
    int wrong = 0;
    for (int i = 0; i < 200; i++)
        wrong |= work(i % 100) != i % 100;
    return wrong ? 99 : number % 7;
}

int main(void) {
    struct pollfd input = {0, POLLIN, 0};
    int wrong = 0;
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("begun");
    for (int i = 0; poll(&input, 1, 0) == 0; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(i));
        waitpid(pid, &status, 0);
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != i % 7;
        if (i % 5 == 0) {
            char *command[] = {"sh", "-c", "exit 3", NULL};
            posix_spawn(&pid, "/bin/sh", NULL, NULL, command, environ);
            waitpid(pid, &status, 0);
            wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 3;
        }
        if (i % 3 == 0) {
            void *library = dlopen("libm.so.6", RTLD_NOW);
            double (*cbrt)(double) = library ? (double (*)(double))dlsym(library, "cbrt") : NULL;
            wrong += !cbrt || cbrt(27) < 2.9;
            if (library)
                dlclose(library);
        }
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
