#include <cstring>

namespace shapes {
template <class T> struct Box {
  T value;
  Box(T value) : value(value) {}
  T get(int, const char *) const { return value; }
  ~Box() {}
  operator bool() const { return value != 0; }
  T operator()(T other) { return value + other; }
};
template <class T, int N> int count(const T (&)[N]) { return N; }
} // namespace shapes

bool operator<(const shapes::Box<int> &a, const shapes::Box<int> &b) {
  return a.value < b.value;
}

static int hidden(const char *text) { return strlen(text); }

int main() {
  shapes::Box<int> a(3), b(4);
  auto closure = [&](int n) { return n + a.get(1, "x"); };
  int numbers[3] = {1, 2, 3};
  int sum = closure(3) + shapes::count(numbers) + a(2);
  return a < b && b ? sum == 1000 || hidden("") : 1;
}
