// Ends with a core file, in the way that its argument names, while two other threads wait and spin.

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <thread>
#include <unistd.h>

static volatile int *volatile nowhere;
static volatile int sink;
static std::atomic<int> ready;
static const char *how;

__attribute__((noinline)) static int overflows(int n)
{
	volatile char bytes[200];
	bytes[0] = n;
	int sum = overflows(n + 1) + bytes[0];
	sink = sum;
	return sum;
}

static void *small_stack(void *)
{
	sink = overflows(0);
	return nullptr;
}

__attribute__((noinline)) static void crashes()
{
	if (!strcmp(how, "fault"))
		*nowhere = 1;
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "throw"))
		throw std::runtime_error("nobody catches it");
	if (!strcmp(how, "quit"))
		kill(getpid(), SIGQUIT);
	if (!strcmp(how, "overflow")) {
		pthread_attr_t attr;
		pthread_t thread;
		pthread_attr_init(&attr);
		pthread_attr_setstacksize(&attr, 64 << 10);
		pthread_create(&thread, &attr, small_stack, nullptr);
		pthread_join(thread, nullptr);
	}
	sink = sink + 1;
}

__attribute__((noinline)) static void deep(int n)
{
	volatile char bytes[64];
	bytes[0] = n;
	n ? deep(n - 1) : crashes();
	sink = bytes[0];
}

__attribute__((noinline)) static void waits(int n)
{
	if (n)
		waits(n - 1);
	else
		for (ready++;;)
			pause();
	sink = n;
}

__attribute__((noinline)) static void leaf()
{
	sink = sink + 1;
}

__attribute__((noinline)) static void spins(int n)
{
	if (n)
		spins(n - 1);
	else
		for (ready++;;)
			leaf();
	sink = n;
}

int main(int, char **argv)
{
	how = argv[1];
	std::thread(waits, 4).detach();
	std::thread(spins, 3).detach();
	while (ready < 2)
		usleep(1000);
	deep(5);
	return 0;
}
