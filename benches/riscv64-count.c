// A qemu plugin that prints how many instructions a program has executed: qemu-riscv64 -plugin libcount.so PROGRAM.
//
// The declarations are those that all versions of qemu's plugin interface have. Debian does not package its header, so
// none is used. VERSION is the interface's version, which increases; the scripts that use this try several.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t plugin_id;

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = VERSION;

static uint64_t executed;

static void execute(unsigned cpu, void *data) {
    (void)cpu;
    (void)data;
    __atomic_fetch_add(&executed, 1, __ATOMIC_RELAXED);
}

static void translate(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t n = 0; n < qemu_plugin_tb_n_insns(block); n++)
        qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_tb_get_insn(block, n), execute, 0, NULL);
}

static void end(plugin_id id, void *data) {
    (void)id;
    (void)data;
    fprintf(stderr, "%llu instructions\n", (unsigned long long)executed);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}
