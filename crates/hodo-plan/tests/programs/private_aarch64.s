# Functions whose callers rely on more registers than the convention preserves.
        .text

# As glibc's __libc_arm_za_disable: it changes x14, except where it ends the program.
        .globl  private
        .hidden private
        .type   private, %function
private:
        adrp    x14, data
        ldr     x14, [x14, :lo12:data]
        cbz     x14, 1f
        ret
1:      stp     x29, x30, [sp, #-16]!
        bl      ends
        .size   private, . - private

        .globl  knows
        .type   knows, %function
knows:
        mov     x9, x0
        mov     x13, x30
        bl      private
        mov     x30, x13
        mov     x0, x9
        ret
        .size   knows, . - knows

# As LLVM's preserve_most.
        .globl  saves
        .type   saves, %function
saves:
        stp     x29, x30, [sp, #-32]!
        stp     x9, x10, [sp, #16]
        bl      ends
        ldp     x9, x10, [sp, #16]
        ldp     x29, x30, [sp], #32
        ret
        .size   saves, . - saves

        .globl  ends
        .hidden ends
        .type   ends, %function
ends:
        stp     x29, x30, [sp, #-16]!
        mov     x29, sp
        bl      other
        ldp     x29, x30, [sp], #16
        ret
        .size   ends, . - ends

        .data
data:   .quad   1
