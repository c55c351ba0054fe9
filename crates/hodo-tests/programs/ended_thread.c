// A thread that counts in a file, in blocks of many counts, and is ended by another one inside of a block.
// The address is above all heaps of programs at low addresses (they begin below 0x40500000), and what hodo has below.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static void *count(void *at) {
    __asm__ volatile("1: .rept 50; incq (%0); .endr; jmp 1b" ::"r"(at) : "memory", "cc");
    return at;
}

int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (argc != 2 || ftruncate(file, 4096)) return 1;
    void *at = mmap((void *)0x50000000, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, count, at);
    while (*(volatile long *)at < 20000) usleep(1000);
    _exit(0);
}
