/* Static keys: branches that cost one nop while they are off. Link with libhodo_keys.so or .a.
 *
 *     HODO_DEFINE_KEY_FALSE(LOGGING);
 *
 *     if (hodo_branch_unlikely(LOGGING))        a nop; a jump after hodo_key_enable(&LOGGING.key)
 *         fprintf(stderr, "request %d\n", request);
 *
 * docs/static-keys.md says when to use them. C99 and C++11 and later, by gcc from 9 and clang from 11 (tested: 12
 * and 14); x86-64, RISC-V 64, AArch64; any optimization. One process may have keys of C and of Rust (crate hodo-keys).
 *
 * The functions may be called by any thread, but not by signal handlers. Branches may be executed anywhere. */
#ifndef HODO_KEYS_H
#define HODO_KEYS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. That of the library is hodo_keys_version(), in the same form; while the first number is 0, both must agree
 * in the second one. */
#define HODO_KEYS_VERSION "0.1.0"
#define HODO_KEYS_VERSION_NUMBER 100 /* 10,000 times the first number + 100 times the second one + the third one */
const char *hodo_keys_version(void);

/* A key. It is enabled if it is switched on, or has users, or both. */
typedef struct hodo_key {
    uint32_t state; /* bit 31: switched on; the others: number of users. 0 if the key is disabled */
    uint32_t flags;
    const char *name;
    size_t length;
    size_t index;
} __attribute__((aligned(8))) hodo_key;

/* A key that is initially disabled or enabled. Functions take &NAME.key. (hodo_initially is never read; its size is
 * how the compiler knows the initial state.) */
typedef union hodo_key_false {
    hodo_key key;
    char hodo_initially[1];
} hodo_key_false;
typedef union hodo_key_true {
    hodo_key key;
    char hodo_initially[2];
} hodo_key_true;

/* Put before the names of keys, such as "mylib::". Tools find keys by their names. */
#ifndef HODO_KEYS_PREFIX
#define HODO_KEYS_PREFIX ""
#endif

/* Defines a key. It may be static, and in a namespace. */
#define HODO_DEFINE_KEY_FALSE(NAME) hodo_key_false NAME = HODO_KEY_INIT_(#NAME, 0u, 16u, 0)
#define HODO_DEFINE_KEY_TRUE(NAME) hodo_key_true NAME = HODO_KEY_INIT_(#NAME, 1u << 31, 17u, 0)
/* Declares a key that another file defines. */
#define HODO_DECLARE_KEY_FALSE(NAME) extern hodo_key_false NAME
#define HODO_DECLARE_KEY_TRUE(NAME) extern hodo_key_true NAME

/* The elements of an array:
 *     hodo_key_false LEVELS[] = {HODO_KEY_ELEMENT_FALSE(LEVELS, 0), HODO_KEY_ELEMENT_FALSE(LEVELS, 1)};
 * Branches take an element with a constant index, LEVELS[1]. */
#define HODO_KEY_ELEMENT_FALSE(ARRAY, INDEX) HODO_KEY_INIT_(#ARRAY, 0u, 20u, INDEX)
#define HODO_KEY_ELEMENT_TRUE(ARRAY, INDEX) HODO_KEY_INIT_(#ARRAY, 1u << 31, 21u, INDEX)

#define HODO_KEY_INIT_(NAME, STATE, FLAGS, INDEX) \
    {{STATE, FLAGS, HODO_KEYS_PREFIX NAME, sizeof(HODO_KEYS_PREFIX NAME) - 1, INDEX}}

/* Whether a key is enabled: one instruction, a nop or a jump.
 * unlikely: for keys that are seldom enabled. The code for "enabled" is moved out of the way.
 * likely: for keys that are mostly enabled. */
#define hodo_branch_unlikely(KEY) __builtin_expect(HODO_KEYS_BRANCH_(KEY, 0), 0)
#define hodo_branch_likely(KEY) __builtin_expect(HODO_KEYS_BRANCH_(KEY, 1), 1)

/* What the functions return if they fail. */
enum hodo_keys_status {
    HODO_KEYS_OK = 0,
    HODO_KEYS_TEXT = 1,           /* code cannot be written: /proc/self/mem, membarrier */
    HODO_KEYS_FOREIGN = 2,        /* a branch was changed by something else: a breakpoint, another tool's patch */
    HODO_KEYS_NO_USER = 3,        /* dec without inc */
    HODO_KEYS_TOO_MANY_USERS = 4,
    HODO_KEYS_BUSY = 5,           /* called by a signal handler that has interrupted a call of this thread */
    HODO_KEYS_WRONG = 6,          /* wrong arguments */
    HODO_KEYS_SYSTEM = 7          /* a system call has failed */
};

/* What the last failed call of this thread has met, with the names of keys. Valid until the next failure. */
const char *hodo_keys_message(void);

/* These return 0 or enum hodo_keys_status. After a failure, nothing has changed. Once they have returned 0, every
 * thread executes the new branches. */
int hodo_key_enable(hodo_key *key);  /* switches it on */
int hodo_key_disable(hodo_key *key); /* switches it off; it stays enabled as long as it has users */
int hodo_key_inc(hodo_key *key);     /* adds a user; the first one enables the key */
int hodo_key_dec(hodo_key *key);     /* removes a user */

enum hodo_key_operation { HODO_KEY_DISABLE, HODO_KEY_ENABLE, HODO_KEY_INC, HODO_KEY_DEC };

struct hodo_key_change {
    hodo_key *key;
    int operation; /* enum hodo_key_operation */
};

/* Makes all changes in order, or none. Processors are synchronized once for all of them. */
int hodo_keys_switch(const struct hodo_key_change *changes, size_t count);

/* The state, read from memory: for code that is not hot. */
static inline int hodo_key_is_enabled(const hodo_key *key) {
    return __atomic_load_n(&key->state, __ATOMIC_ACQUIRE) != 0;
}
static inline uint32_t hodo_key_users(const hodo_key *key) {
    return __atomic_load_n(&key->state, __ATOMIC_ACQUIRE) & ~(1u << 31);
}

/* Counts users of a key, and keeps it enabled for some time after the last one has gone: a key that is taken and
 * released thousands of times a second is not switched each time. All these users together are one user of the key.
 *     HODO_DEFINE_KEY_DEFERRED(WATCHERS, WATCHED, 100000000);      the delay in nanoseconds
 * A library that uses one stays mapped after dlclose. */
struct hodo_key_deferred {
    hodo_key *key;
    uint64_t delay;
    uint64_t state[2];
    void *list;
    uint32_t listed[2];
    uint32_t kept;
} __attribute__((aligned(8)));

#define HODO_DEFINE_KEY_DEFERRED(NAME, KEY, NANOSECONDS) \
    struct hodo_key_deferred NAME = {&(KEY).key, NANOSECONDS, {0, 0}, 0, {0, 0}, 0}

int hodo_key_deferred_inc(struct hodo_key_deferred *deferred);
int hodo_key_deferred_dec(struct hodo_key_deferred *deferred);
/* Releases the key at once if it has no user. */
int hodo_key_deferred_flush(struct hodo_key_deferred *deferred);
/* Takes effect with the next dec. */
void hodo_key_deferred_set_delay(struct hodo_key_deferred *deferred, uint64_t nanoseconds);
uint32_t hodo_key_deferred_users(const struct hodo_key_deferred *deferred);
/* Whether the key is held although it has no user. */
int hodo_key_deferred_is_lingering(const struct hodo_key_deferred *deferred);

/* Calls a function for each key that has branches in a file of the process; this may be more than once per key. It must
 * not switch keys. */
int hodo_keys_for_each(void (*found)(const hodo_key *key, size_t branches, void *data), void *data);

/* Does what the environment variable HODO_KEYS says; only the first call has an effect. */
void hodo_keys_apply_environment(void);
/* The same, and lets `hodo keys -p PID` switch keys. */
int hodo_keys_expose(void);

/* How code is written, for programs that cannot open /proc. begin, writes_words and end may be null. Functions that
 * return an int return an errno, or 0. */
struct hodo_keys_text {
    int (*begin)(void *data); /* before the first write of a change */
    int (*write)(void *data, void *at, const void *bytes, size_t length);
    int (*writes_words)(void *data); /* whether an aligned 4-byte word is written by one store (AArch64) */
    void (*sync)(void *data);        /* makes each processor execute a serializing instruction, fence.i, or isb */
    void (*end)(void *data);         /* after the last write */
    void *data;
};
int hodo_keys_set_text(const struct hodo_keys_text *text);

/* Called by what the macros put into each file. */
void hodo_keys_load_1(void *module);
void hodo_keys_unload_1(void *module);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* The rest is how branches are made.
 *
 * Each branch adds 16 bytes to the section hodo_keys: the distances to the instruction, to its target, and to a word
 * with the address of the key; then 1 for likely branches. The linker keeps or drops them together with the code
 * ("o"), also if that is in a group ("?"). Compilers accept the address of a key as an immediate operand only if it is
 * in the same file, so they make the word, and its address is the operand. */
#if defined(__x86_64__)
/* Always five bytes: the assembler cannot choose the shorter form, because compilers may put the code that the jump
 * leads to into another section. */
#define HODO_KEYS_NOP_ ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
#define HODO_KEYS_JUMP_ ".byte 0xe9\n.long %l[hodo_keys_other_] - . - 4"
#define HODO_KEYS_ADDRESS_ "i"
#define HODO_KEYS_PRINT_ "%c"
#define HODO_KEYS_CALLS_(FUNCTION) \
    "endbr64\n" \
    "lea {.Lhodo_keys_c_module(%%rip), %%rdi|rdi, [rip + .Lhodo_keys_c_module]}\n" \
    "jmp {*" FUNCTION "@GOTPCREL(%%rip)|[qword ptr [rip + " FUNCTION "@GOTPCREL]]}\n"
#elif defined(__riscv) && __riscv_xlen == 64
/* Always four bytes, for the same reason. */
#define HODO_KEYS_NOP_ ".4byte 0x00000013"
#define HODO_KEYS_JUMP_ ".option push\n.option norvc\n.option norelax\nj %l[hodo_keys_other_]\n.option pop"
#define HODO_KEYS_ADDRESS_ "i"
#define HODO_KEYS_PRINT_ "%"
#define HODO_KEYS_CALLS_(FUNCTION) "lla a0, .Lhodo_keys_c_module\ntail " FUNCTION "\n"
#elif defined(__aarch64__)
#define HODO_KEYS_NOP_ "nop"
#define HODO_KEYS_JUMP_ "b %l[hodo_keys_other_]"
/* Without "S", gcc accepts no addresses in position-independent code. */
#define HODO_KEYS_ADDRESS_ "Si"
#define HODO_KEYS_PRINT_ "%c"
#define HODO_KEYS_CALLS_(FUNCTION) \
    "hint 34\n" /* bti c */ \
    "adrp x0, .Lhodo_keys_c_module\n" \
    "add x0, x0, :lo12:.Lhodo_keys_c_module\n" \
    "b " FUNCTION "\n"
#else
#error "hodo-keys.h: there are static keys for x86-64, RISC-V 64 and AArch64"
#endif

/* Once per executable or library, by the linker's choice: its record, with which it registers when it is loaded and
 * unregisters when it is unloaded. */
#define HODO_KEYS_MODULE_ \
    ".ifndef .Lhodo_keys_c_once\n" \
    ".set .Lhodo_keys_c_once, 1\n" \
    ".weak __start_hodo_keys\n" \
    ".hidden __start_hodo_keys\n" \
    ".weak __stop_hodo_keys\n" \
    ".hidden __stop_hodo_keys\n" \
    ".pushsection .data.hodo_keys_c_module,\"awG\",@progbits,hodo_keys_c_module,comdat\n" \
    ".balign 8\n" \
    ".Lhodo_keys_c_module:\n" \
    ".8byte __start_hodo_keys - .\n" \
    ".8byte __stop_hodo_keys - .\n" \
    ".8byte 0, 0\n" \
    ".4byte 0, 1\n" \
    ".8byte 0\n" \
    ".popsection\n" \
    ".pushsection .text.hodo_keys_c_module,\"axG\",@progbits,hodo_keys_c_module,comdat\n" \
    ".balign 4\n" \
    ".Lhodo_keys_c_load:\n" HODO_KEYS_CALLS_("hodo_keys_load_1") \
    ".balign 4\n" \
    ".Lhodo_keys_c_unload:\n" HODO_KEYS_CALLS_("hodo_keys_unload_1") \
    ".popsection\n" \
    ".pushsection .init_array.00100,\"awG\",@init_array,hodo_keys_c_module,comdat\n" \
    ".balign 8\n" \
    ".8byte .Lhodo_keys_c_load\n" \
    ".popsection\n" \
    ".pushsection .fini_array.00100,\"awG\",@fini_array,hodo_keys_c_module,comdat\n" \
    ".balign 8\n" \
    ".8byte .Lhodo_keys_c_unload\n" \
    ".popsection\n" \
    ".endif\n"

/* The instruction that label 1 is at, and its entry. The relocation that does nothing makes linkers that fold functions
 * with the same code tell them apart. "inline": to the compiler this is one instruction. */
#define HODO_KEYS_ASM_(INSTRUCTION, LIKELY) \
    __asm__ __inline__ goto( \
        "1: " INSTRUCTION "\n" \
        ".set .Lhodo_keys_c_branch%=, 1b\n" \
        ".pushsection hodo_keys,\"awo?\",@progbits,.Lhodo_keys_c_branch%=\n" \
        ".balign 4\n" \
        ".set .Lhodo_keys_c_entry%=, .\n" \
        ".4byte 1b - .\n" \
        ".4byte %l[hodo_keys_other_] - .\n" \
        ".4byte " HODO_KEYS_PRINT_ "[hodo_keys_at_] - .\n" \
        ".4byte " #LIKELY "\n" \
        ".popsection\n" \
        ".reloc 1b, BFD_RELOC_NONE, .Lhodo_keys_c_entry%=\n" HODO_KEYS_MODULE_ \
        : \
        : [hodo_keys_at_] HODO_KEYS_ADDRESS_(&HODO_KEYS_SLOT_) \
        : "cc" \
        : hodo_keys_other_)

#ifdef __cplusplus
/* A static variable of an inline function would belong to all files of the process. */
template <class T> struct __attribute__((visibility("hidden"))) hodo_keys_slot_ {
    static const hodo_key *const at;
};
template <class T> const hodo_key *const hodo_keys_slot_<T>::at = T::key();
#define HODO_KEYS_BOOL_ bool
#define HODO_KEYS_SLOT_ hodo_keys_slot_<hodo_keys_local_>::at
#define HODO_KEYS_MAKE_SLOT_(KEY) \
    struct hodo_keys_local_ { \
        static constexpr const hodo_key *key() { return &(KEY).key; } \
    };
#else
#define HODO_KEYS_BOOL_ _Bool
#define HODO_KEYS_SLOT_ hodo_keys_local_
#define HODO_KEYS_MAKE_SLOT_(KEY) static const hodo_key *const hodo_keys_local_ = &(KEY).key;
#endif

#define HODO_KEYS_RESULT_(KEY, LIKELY) \
    HODO_KEYS_MAKE_SLOT_(KEY) \
    if (sizeof((KEY).hodo_initially) == 1 + !(LIKELY)) \
        HODO_KEYS_ASM_(HODO_KEYS_JUMP_, LIKELY); \
    else \
        HODO_KEYS_ASM_(HODO_KEYS_NOP_, LIKELY);

#if defined(__cplusplus) && defined(__clang__)
/* clang 14 checks each jump of a function for each label, and in C++ no jump may pass by a variable's initial value. So
 * each branch is a function of its own. */
#define HODO_KEYS_BRANCH_(KEY, LIKELY) \
    ([]() __attribute__((always_inline)) -> bool { \
        HODO_KEYS_RESULT_(KEY, LIKELY) \
        return (LIKELY); \
    hodo_keys_other_: \
        return !(LIKELY); \
    }())
#else
#define HODO_KEYS_BRANCH_(KEY, LIKELY) \
    __extension__({ \
        __label__ hodo_keys_other_; \
        HODO_KEYS_BOOL_ hodo_keys_result_ = (LIKELY); \
        HODO_KEYS_RESULT_(KEY, LIKELY) \
        if (0) { \
        hodo_keys_other_: \
            hodo_keys_result_ = !(LIKELY); \
        } \
        hodo_keys_result_; \
    })
#endif

#endif
