/* Fills structures that are abridged where they are shown, and executes programs with many arguments and variables. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    struct utsname name;
    struct rusage usage;
    struct statx x;
    struct stat s;
    char *args[101], *variables[101], texts[100][60];
    uname(&name);
    getrusage(RUSAGE_SELF, &usage);
    if (fork() == 0)
        _exit(3);
    wait4(-1, 0, 0, &usage);
    wait4(-1, 0, WNOHANG, &usage);
    for (int i = 0; i < 2; i++) {
        const char *path = i ? "/etc/passwd" : "/dev/null";
        statx(AT_FDCWD, path, 0, STATX_ALL, &x);
        statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &x);
        statx(AT_FDCWD, path, 0, STATX_MODE | STATX_INO, &x);
        fstatat(AT_FDCWD, path, &s, 0);
        int fd = open(path, O_RDONLY);
        fstat(fd, &s);
        close(fd);
    }
    fstatat(AT_FDCWD, "/nonexistent", &s, 0);
    for (int i = 0; i < 100; i++) {
        snprintf(texts[i], sizeof texts[i], "VARIABLE_%d=%.*s", i, i % 40, "0123456789\"\n0123456789012345678901234567890");
        args[i] = texts[99 - i];
        variables[i] = texts[i];
    }
    args[100] = variables[100] = 0;
    execve("/nonexistent", args, (char **)16);
    execve("/nonexistent", args, 0);
    execve("/bin/true", args, variables);
    return 1;
}
