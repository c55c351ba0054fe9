// A USDT probe that is executed only while it is wanted. For each byte of input, prints how many users want it.
#include <stdio.h>

__asm__(".data\n.balign 2\n.globl wanted\nwanted: .short 0\n.text\n");
extern volatile unsigned short wanted;

__attribute__((noipa)) static void step(void) {
    if (wanted)
        __asm__ volatile(
            "991: nop\n"
            ".pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.long 8, 993f - 992f, 3\n.asciz \"stapsdt\"\n"
            "992: .quad 991b, _.stapsdt.base, wanted\n.asciz \"tests\"\n.asciz \"step\"\n.asciz \"\"\n"
            "993: .balign 4\n.popsection\n"
            ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n.weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
            "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");
}

int main(void) {
    printf("begun\n");
    fflush(stdout);
    while (getchar() >= 0) {
        step();
        printf("wanted: %d\n", wanted);
        fflush(stdout);
    }
    return 0;
}
