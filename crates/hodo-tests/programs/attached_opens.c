// For each byte of input, a child of posix_spawn that waits for another thread of its parent before it executes a
// program, for a number of milliseconds.
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int ending, spawning, wrong;
static int pauses;
static char pipe_name[] = "/tmp/attached_opens-XXXXXX/pipe";

__attribute__((noipa)) long leaf(long n) { return n * 3; }

static void spawn(void) {
    char *arguments[] = {"cat", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, pipe_name, O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    int child, status;
    spawning = 1;
    if (posix_spawn(&child, "/bin/cat", &actions, NULL, arguments, NULL))
        wrong++;
    else if (waitpid(child, &status, 0) != child || status)
        wrong++;
    posix_spawn_file_actions_destroy(&actions);
}

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void *opens(void *unused) {
    while (!ending) {
        // On a slow machine, each pause takes much longer than it should.
        long begun = milliseconds();
        for (int n = 0; milliseconds() - begun < pauses && !ending; n++) {
            if (!spawning)
                begun = milliseconds();
            if (leaf(n) != n * 3)
                wrong++;
            usleep(1000);
        }
        int file = open(pipe_name, O_WRONLY | O_NONBLOCK);
        if (file >= 0)
            close(file);
        spawning = 0;
    }
    return NULL;
}

// Waits for the end in a call that the kernel does not restart.
static void *waits(void *file) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, *(int *)file, &event);
    if (epoll_wait(set, &event, 1, -1) != 1)
        wrong++;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread, other;
    int files[2];
    char byte, *end = pipe_name + sizeof "/tmp/attached_opens-XXXXXX" - 1;
    setvbuf(stdout, NULL, _IONBF, 0);
    pauses = argc > 1 ? atoi(argv[1]) : 0;
    *end = 0;
    if (!mkdtemp(pipe_name))
        return 1;
    *end = '/';
    if (mkfifo(pipe_name, 0600))
        return 1;
    if (pipe(files))
        return 1;
    pthread_create(&thread, NULL, opens, NULL);
    pthread_create(&other, NULL, waits, files);
    puts("begun");
    while (read(0, &byte, 1) > 0)
        spawn();
    ending = 1;
    if (write(files[1], &byte, 1) != 1)
        wrong++;
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    unlink(pipe_name);
    *end = 0;
    rmdir(pipe_name);
    printf("wrong: %d\n", wrong);
    return 0;
}
