// Allocates with the operators of C++, also in vain.
#include <cstdio>
#include <new>
#include <vector>

struct Node {
    Node *next;
    long value;
};

__attribute__((noinline)) static Node *list(int count) {
    Node *all = nullptr;
    for (int i = 0; i < count; i++)
        all = new Node{all, i};
    return all;
}

__attribute__((noinline)) static void in_vain() {
    for (int i = 0; i < 3; i++) {
        try {
            volatile std::size_t size = std::size_t{1} << 60;
            delete[] new char[size];
        } catch (const std::bad_alloc &) {
            std::puts("no memory");
        }
    }
}

__attribute__((noinline)) static void forget(Node *all) {
    for (int i = 0; i < 50 && all; i++) {
        Node *next = all->next;
        delete all;
        all = next;
    }
}

int main() {
    Node *all = list(100);
    in_vain();
    forget(all);
    long *numbers = new long[1000];
    for (int i = 0; i < 1000; i++)
        numbers[i] = i;
    std::printf("%ld\n", numbers[999]);
    return 0;
}
