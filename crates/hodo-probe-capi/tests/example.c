// Probes the program's own functions.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <hodo-probe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__riscv)
#define ARGUMENT a0
#define RESULT a0
#elif defined(__aarch64__)
#define ARGUMENT x[0]
#define RESULT x[0]
#else
#define ARGUMENT rdi
#define RESULT rax
#endif

__attribute__((noinline)) long twice(long n) { __asm__ volatile("" : "+r"(n)); return n * 2; }
static long (*volatile function)(long) = twice;

static void add(hodo_registers *registers, void *data) { *(long *)data += registers->ARGUMENT; }
static void result(hodo_registers *registers, void *data) { *(long *)data += registers->RESULT; registers->RESULT += 1; }
static void instead(hodo_registers *registers, void *data) { hodo_probe_return_now(registers, (uint64_t)data); }

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); return 1; } } while (0)

int main(void) {
    char error[200];
    long arguments = 0, results = 0;
    hodo_request request = {.addr = (void *)twice, .before = add, .data = &arguments};
    hodo_probe *first = hodo_probe_register(&request, error, sizeof error);
    if (!first) { printf("refused: %s\n", error); return 1; }
    hodo_request second_request = {.addr = (void *)twice, .returning = result, .data = &results};
    hodo_probe *second = hodo_probe_register(&second_request, error, sizeof error);
    if (!second) { printf("refused: %s\n", error); return 1; }
    CHECK(function(20) == 41 && function(1) == 3);
    CHECK(arguments == 21 && results == 42);
    CHECK(hodo_probe_execution(first) == HODO_OPTIMIZED);
    CHECK(hodo_probe_missed(first) == 0 && hodo_probe_missed_returns(second) == 0 && hodo_probe_faults(first) == 0);
    hodo_probe *both[] = {first, second};
    CHECK(hodo_probe_set_enabled(both, 2, 0) == 0 && function(20) == 40 && arguments == 21);
    CHECK(hodo_probe_unregister(first) == 0 && hodo_probe_unregister(second) == 0);

    hodo_request many[2] = {{.addr = (void *)twice, .count = 1}, {.addr = error, .count = 1}};
    hodo_probe *probes[2];
    CHECK(hodo_probe_register_all(many, 2, probes) == 1 && probes[0] && !probes[1]);
    long wrong = 0;
    for (long n = 0; n < 1000; n++) wrong += function(n) != 2 * n;
    CHECK(!wrong);
    CHECK(hodo_probe_count(probes[0]) == 1000);
    CHECK(hodo_probe_unregister(probes[0]) == 0);

    hodo_request injected = {.addr = (void *)twice, .before = instead, .data = (void *)77};
    first = hodo_probe_register(&injected, NULL, 0);
    CHECK(first && function(1) == 77);
    CHECK(hodo_probe_unregister(first) == 0 && function(1) == 2);
    CHECK(!hodo_probe_register(&many[1], error, sizeof error));
    puts(error);

    // The library's own code: what handles hits, and in the shared library everything.
    struct sigaction own;
    CHECK(sigaction(SIGTRAP, NULL, &own) == 0);
    hodo_request handling = {.addr = (void *)own.sa_sigaction, .count = 1};
    CHECK(!hodo_probe_register(&handling, error, sizeof error));
    puts(error);
    hodo_request api = {.addr = (void *)dlsym(RTLD_DEFAULT, "hodo_probe_version"), .count = 1};
    if (!api.addr) return 0;
    CHECK(!hodo_probe_register(&api, error, sizeof error));
    puts(error);
    return 0;
}
