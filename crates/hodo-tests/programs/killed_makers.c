/* Processes are killed while they fork. Their children must run to their ends. Some other processes have forked before,
 * and live on. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    volatile int *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int wrong = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    alarm(60);
    for (int round = 0; round < 300; round++) {
        shared[0] = shared[1] = 0;
        pid_t maker = fork();
        if (maker == 0) {
            shared[1] = 1;
            if (fork() == 0) {
                shared[0] = 1;
                _exit(0);
            }
            for (;;)
                pause();
        }
        while (!shared[1])
            ;
        for (volatile int wait = 0; wait < round * 37 % 4000; wait++)
            ;
        kill(maker, SIGKILL);
        int ended = 0;
        while (wait(0) > 0)
            ended++;
        wrong += shared[0] != ended - 1;
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
