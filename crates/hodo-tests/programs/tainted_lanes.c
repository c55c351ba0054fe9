// Gathers, scatters, and masked loads and stores with lanes that depend on the standard input and lanes that do not. Of
// each instruction, it writes the lanes that do to one descriptor, and those that do not to the next one.
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <unistd.h>

#define FIRST 10
#define CASES 13
// The code of the instructions names them.
#define A __attribute__((aligned(64), used))

// The first half depends on the input, the second one does not.
static int32_t table[32] A;
static int32_t old[16] A, index32[16] A, mask32[16] A, out[16] A, place[16] A, after[16] A;
static int64_t index64[2] A = {0, 17};
static int32_t low[8] A = {0, 16, 15, 20};
static const uint32_t bits A = 0x0ff3;

// A number that depends on the input, or one that does not. Only the address differs.
__attribute__((noipa)) static void put(int32_t *to, int tainted, int number) {
    volatile int32_t *from = tainted ? table : table + 16;
    *(volatile int32_t *)to = from[number];
}

__attribute__((noipa)) static void fill(int32_t *to, uint32_t tainted) {
    for (int i = 0; i < 16; i++) put(to + i, tainted >> i & 1, i);
}

// Which lanes, of this size, depend on the input.
__attribute__((noipa)) static void show(int number, const void *start, int size, int lanes, uint32_t tainted) {
    for (int i = 0; i < lanes; i++) {
        int to = FIRST + 2 * number + !(tainted >> i & 1);
        if (write(to, (const char *)start + i * size, size) != size) _exit(2);
    }
}

// Indices and masks depend on the input, too.
#define MIXED "vpxor %%ymm3, %%ymm3, %%ymm3; vpand table(%%rip), %%ymm3, %%ymm3;"
#define CLOBBERS "memory", "xmm0", "xmm1", "xmm2", "xmm3"

__attribute__((target("avx2"), noipa)) static void avx2(void) {
    static const int32_t index[8] = {0, 17, 2, 18, 19, 5, 20, 6}, mask[8] = {-1, -1, 0, -1, 0, -1, 0x7fffffff, -1};
    for (int i = 0; i < 8; i++) index32[i] = index[i], mask32[i] = mask[i];
    fill(old, 0x4e);
    __asm__ volatile(MIXED
                     "vpor index32(%%rip), %%ymm3, %%ymm1; vpor mask32(%%rip), %%ymm3, %%ymm2; vmovdqu old(%%rip), %%ymm0;"
                     "lea table(%%rip), %%rax; vpgatherdd %%ymm2, (%%rax,%%ymm1,4), %%ymm0;"
                     "vmovdqu %%ymm0, out(%%rip); vmovdqu %%ymm2, after(%%rip)" ::: CLOBBERS, "rax");
    show(0, out, 4, 8, 1 << 0 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7);
    show(0, after, 4, 8, 0);

    // The other lanes become zero.
    fill(old, 0xff);
    for (int i = 0; i < 8; i++) mask32[i] = -1;
    __asm__ volatile("vmovdqu index64(%%rip), %%xmm1; vmovdqu mask32(%%rip), %%xmm2; vmovdqu old(%%rip), %%ymm0;"
                     "lea table(%%rip), %%rax; vpgatherqd %%xmm2, (%%rax,%%xmm1,4), %%xmm0;"
                     "vmovdqu %%ymm0, out(%%rip)" ::: CLOBBERS, "rax");
    show(1, out, 4, 8, 1);

    __asm__ volatile("vmovdqu low(%%rip), %%xmm1; vmovdqu mask32(%%rip), %%ymm2; vmovdqu old(%%rip), %%ymm0;"
                     "lea table(%%rip), %%rax; vpgatherdq %%ymm2, (%%rax,%%xmm1,4), %%ymm0;"
                     "vmovdqu %%ymm0, out(%%rip)" ::: CLOBBERS, "rax");
    show(2, out, 4, 8, 1 << 0 | 1 << 1 | 1 << 4);

    // Neighbors are one access, also if only one of them depends on the input.
    static const int32_t some[8] = {-1, -1, 0, -1, -1, 0, -1, 0};
    for (int i = 0; i < 8; i++) mask32[i] = some[i];
    __asm__ volatile(MIXED "vpor mask32(%%rip), %%ymm3, %%ymm2; lea table(%%rip), %%rax;"
                     "vmovdqu old(%%rip), %%ymm0; vpmaskmovd 48(%%rax), %%ymm2, %%ymm0; vmovdqu %%ymm0, out(%%rip)"
                     ::: CLOBBERS, "rax");
    show(3, out, 4, 8, 1 << 0 | 1 << 1 | 1 << 3);

    static const int32_t stored[8] = {0, -1, -1, 0, -1, -1, 0, -1};
    for (int i = 0; i < 8; i++) mask32[i] = stored[i];
    fill(old, 0x4e);
    fill(place, 0xa1);
    __asm__ volatile(MIXED "vpor mask32(%%rip), %%ymm3, %%ymm2; vmovdqu old(%%rip), %%ymm0;"
                     "vmaskmovps %%ymm0, %%ymm2, place(%%rip)" ::: CLOBBERS);
    show(4, place, 4, 8, 1 << 0 | 1 << 1 | 1 << 2);

    static const unsigned char bytes[16] A = {0, 0, 0x80, 0xff, 0x80, 0x80, 0, 0x7f, 0, 0x80, 0, 0, 0, 0, 0, 0x80};
    fill(place, 3);
    __asm__ volatile("vmovdqu old(%%rip), %%xmm0; vmovdqu %0, %%xmm2; lea place(%%rip), %%rdi; maskmovdqu %%xmm2, %%xmm0"
                     :: "m"(bytes) : CLOBBERS, "rdi");
    show(5, place, 1, 16, 1 << 0 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9 | 1 << 15);
}

// The mask of lanes depends on the input, too.
#define BITS "mov table(%%rip), %%eax; and $0, %%eax; or bits(%%rip), %%eax; kmovw %%eax, %%k1; lea table(%%rip), %%rax;"
#define WIDE "memory", "rax", "rdi", "xmm0", "xmm16", "k1"
#define OLD "vmovdqu32 old(%%rip), %%zmm0;"
#define OUT "vmovdqu32 %%zmm0, out(%%rip)"

__attribute__((target("avx512f,avx512bw"), noipa)) static void avx512(void) {
    uint32_t thirds = 0x9249, gathered = 0, scattered = 0, stored = 0, merged = 0, compressed = 0, expanded = 0;
    int next = 0;
    for (int i = 0; i < 16; i++) {
        int active = bits >> i & 1, third = thirds >> i & 1;
        index32[i] = i % 2 ? 16 + i / 2 : i / 2;
        gathered |= (active ? i % 2 == 0 : third) << i;
        // Lane 15 - i goes there.
        scattered |= (bits >> (15 - i) & 1 ? thirds >> (15 - i) & 1 : i < 8) << i;
        stored |= (active ? third : i < 8) << i;
        merged |= (active ? i < 8 : third) << i;
        compressed |= (active && third) << next;
        expanded |= (active ? next < 8 : third) << i;
        next += active;
    }
    for (int i = next; i < 16; i++) compressed |= (i < 8) << i;
    fill(old, thirds);
    __asm__ volatile(BITS OLD "vmovdqu32 index32(%%rip), %%zmm16; vpgatherdd (%%rax,%%zmm16,4), %%zmm0%{%%k1%};" OUT ::: WIDE);
    show(6, out, 4, 16, gathered);

    for (int i = 0; i < 16; i++) index32[i] = 15 - i;
    fill(place, 0xff);
    __asm__ volatile(BITS OLD "vmovdqu32 index32(%%rip), %%zmm16; lea place(%%rip), %%rdi;"
                     "vpscatterdd %%zmm0, (%%rdi,%%zmm16,4)%{%%k1%}" ::: WIDE);
    show(7, place, 4, 16, scattered);

    __asm__ volatile(BITS OLD "vmovdqu32 32(%%rax), %%zmm0%{%%k1%};" OUT ::: WIDE);
    show(8, out, 4, 16, merged);
    __asm__ volatile(BITS OLD "vmovups 32(%%rax), %%zmm0%{%%k1%}%{z%};" OUT ::: WIDE);
    show(9, out, 4, 16, merged & bits);

    fill(place, 0xff);
    __asm__ volatile(BITS OLD "vmovdqu32 %%zmm0, place(%%rip)%{%%k1%}" ::: WIDE);
    show(10, place, 4, 16, stored);
    fill(place, 0xff);
    __asm__ volatile(BITS OLD "vpcompressd %%zmm0, place(%%rip)%{%%k1%}" ::: WIDE);
    show(11, place, 4, 16, compressed);

    __asm__ volatile(BITS OLD "vpexpandd 32(%%rax), %%zmm0%{%%k1%};" OUT ::: WIDE);
    show(12, out, 4, 16, expanded);
}

int main(void) {
    int null = open("/dev/null", O_WRONLY);
    for (int i = 0; i < 2 * CASES; i++)
        if (dup2(null, FIRST + i) < 0) return 1;
    if (read(0, table, 64) != 64) return 1;
    if (__builtin_cpu_supports("avx2")) avx2();
    if (__builtin_cpu_supports("avx512bw")) avx512();
    return 0;
}
