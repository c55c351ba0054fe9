#include <stdlib.h>
#include <unistd.h>

int c(int n) { return n ? getpid() : 0; }
int b(int n) { return c(n) + 1; }
int a(int n) { return b(n) + c(0); }

int bar(void) {
  usleep(1500);
  return 0;
}

int main(void) {
  int sum = 0;
  for (int i = 0; i < 3; i++)
    sum += a(i);
  bar();
  return sum == 12345;
}
