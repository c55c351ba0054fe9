/* A program says which parts of its run are observed by
 *
 *     hodo mem TOOL --marked -- PROGRAM
 *
 *     hodo_mem_start();
 *     work();
 *     hodo_mem_stop();
 *
 * All threads of the process are observed meanwhile, and the children that it makes. Starts are counted: as many stops
 * end the part. A stop without a start is nothing. There may be any number of parts; results are sums over all.
 *
 * Each is one nop, which the file lists as a USDT probe (hodo_mem:start, hodo_mem:stop): no library is needed, and hodo
 * finds it also in a program without symbols. C99, C++11 and later; gcc and clang. Where files are no ELF files of 64
 * bits, the functions are empty. Rust has the crate hodo-mem-marks. */
#ifndef HODO_MEM_H
#define HODO_MEM_H

#if defined(__ELF__) && defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ == 8
/* The memory clobber keeps the compiler from moving accesses over it. */
#define HODO_MEM_MARKER_(NAME) \
    __asm__ __volatile__("990:\n" \
                         "nop\n" \
                         ".pushsection .note.stapsdt,\"?\",%%note\n" \
                         ".balign 4\n" \
                         ".4byte 992f - 991f, 994f - 993f, 3\n" \
                         "991: .asciz \"stapsdt\"\n" \
                         "992: .balign 4\n" \
                         "993: .8byte 990b\n" \
                         ".8byte _.stapsdt.base\n" \
                         ".8byte 0\n" \
                         ".asciz \"hodo_mem\"\n" \
                         ".asciz \"" NAME "\"\n" \
                         ".asciz \"\"\n" \
                         "994: .balign 4\n" \
                         ".popsection\n" \
                         ".ifndef _.stapsdt.base\n" \
                         ".pushsection .stapsdt.base,\"aG\",%%progbits,.stapsdt.base,comdat\n" \
                         ".weak _.stapsdt.base\n" \
                         ".hidden _.stapsdt.base\n" \
                         "_.stapsdt.base: .space 1\n" \
                         ".size _.stapsdt.base, 1\n" \
                         ".popsection\n" \
                         ".endif\n" \
                         : : : "memory")
#else
#define HODO_MEM_MARKER_(NAME) ((void)0)
#endif

/* A part of the run begins. */
static inline void hodo_mem_start(void) {
    HODO_MEM_MARKER_("start");
}

/* It ends. */
static inline void hodo_mem_stop(void) {
    HODO_MEM_MARKER_("stop");
}

#endif
