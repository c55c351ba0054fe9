// A library that libraries.c loads at run time.
__attribute__((noipa)) int inner(int n) { return n * 2; }
int plugin(int n) { return inner(n) + 1; }
