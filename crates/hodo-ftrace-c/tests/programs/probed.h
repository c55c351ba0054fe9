// Programs with the function tracer and the engine of probes.
#define _GNU_SOURCE
#include "check.h"
#include <elf.h>
#include <fcntl.h>
#include <hodo-probe.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARGUMENT rdi
#define RESULT rax
#elif defined(__aarch64__)
#define ARGUMENT x[0]
#define RESULT x[0]
#else
#define ARGUMENT a0
#define RESULT a0
#endif

// The call site of a function.
struct wanted {
    const char *name;
    unsigned long ip;
};
QUIET static int is_it(const struct hodo_ftrace_site *site, void *data) {
    struct wanted *wanted = data;
    if (strcmp(site->name, wanted->name) == 0)
        wanted->ip = site->ip;
    return wanted->ip != 0;
}
QUIET static struct hodo_ftrace_reserved_code site_of(const char *name) {
    struct wanted wanted = {name};
    CHECK(hodo_ftrace_each_site(is_it, &wanted) >= 0 && wanted.ip != 0);
    struct hodo_ftrace_reserved_code code;
    CHECK(hodo_ftrace_reserved(wanted.ip, wanted.ip + 1, &code) == 1 && code.start == wanted.ip);
    return code;
}

static char error[300];
// Functions are no longer than this, and nothing is decoded after what is probed.
QUIET static hodo_request at(const void *function, unsigned long address) {
    return (hodo_request){
        .addr = (void *)address, .function_start = function, .function_end = (char *)function + 64};
}
// qemu's user mode emulator does not notice that code was changed through /proc/self/mem, unless it becomes writable.
QUIET static int change_rights(struct dl_phdr_info *info, size_t size, void *data) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        unsigned long start = (info->dlpi_addr + part->p_vaddr) & -4096ul;
        unsigned long end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
        CHECK(mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
        CHECK(mprotect((void *)start, end - start, PROT_READ | PROT_EXEC) == 0);
    }
    return 1; // The program comes first.
}
QUIET static void translate_again(void) {
    if (getenv("HODO_EMULATED"))
        dl_iterate_phdr(change_rights, 0);
}
QUIET static hodo_probe *put(hodo_request request) {
    hodo_probe *probe = hodo_probe_register(&request, error, sizeof error);
    if (!probe)
        printf("refused: %s\n", error);
    CHECK(probe);
    translate_again();
    return probe;
}
QUIET static int take(hodo_probe *probe) {
    int result = hodo_probe_unregister(probe);
    translate_again();
    return result;
}

// Compares the program's code with its file, but for the call sites.
QUIET static int compare(struct dl_phdr_info *info, size_t size, void *data) {
    int file = open("/proc/self/exe", O_RDONLY);
    long *compared = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        unsigned char *text = malloc(part->p_filesz);
        CHECK(pread(file, text, part->p_filesz, part->p_offset) == (ssize_t)part->p_filesz);
        unsigned char *here = (unsigned char *)(info->dlpi_addr + part->p_vaddr);
        for (unsigned long j = 0; j < part->p_filesz; j++) {
            unsigned long address = (unsigned long)here + j;
            // A longer call, or a longer nop, has become a call of five bytes and nops.
            int is_rest = here[j] == 0x90 && hodo_ftrace_reserved(address - 10, address, 0);
            if (here[j] != text[j] && !is_rest && !hodo_ftrace_reserved(address, address + 1, 0)) {
                printf("%#lx is %#x, not %#x\n", address, here[j], text[j]);
                exit(1);
            }
            ++*compared;
        }
        free(text);
    }
    close(file);
    return 1; // The program comes first.
}
QUIET static void check_code(void) {
    long compared = 0;
    dl_iterate_phdr(compare, &compared);
    CHECK(compared > 100);
}
