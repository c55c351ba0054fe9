#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void leaf(void) {}

void *thread(void *argument) {
  leaf();
  usleep(100);
  leaf();
  return argument;
}

void work(void) {
  leaf();
  usleep(10);
}

int main(void) {
  pthread_t other;
  pthread_create(&other, NULL, thread, NULL);
  work();
  pthread_join(other, NULL);
  int child = fork();
  if (child == 0) {
    work();
    execl("./abc", "abc", NULL);
    _exit(1);
  }
  waitpid(child, NULL, 0);
  work();
  exit(3);
}
