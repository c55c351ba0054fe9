#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile int sink;

void spin(int n) {
  for (int i = 0; i < n; i++)
    sink += i;
}

int factorial(int n) {
  spin(n * 50);
  return n < 2 ? 1 : n * factorial(n - 1);
}

int odd(int n);
int even(int n) { return n == 0 ? 1 : odd(n - 1); }
int odd(int n) { return n == 0 ? 0 : even(n - 1); }

void print(const char *text) {
  if (write(2, text, strlen(text)) < 0)
    abort();
}

void small(void) { spin(2000); }
void large(void) {
  spin(20000);
  small();
}

void middle(int deep) {
  small();
  if (deep)
    large();
  else
    factorial(3);
}

int main(void) {
  middle(0);
  middle(1);
  even(5);
  factorial(5);
  large();
  print("");
  usleep(1100000);
  return 0;
}
