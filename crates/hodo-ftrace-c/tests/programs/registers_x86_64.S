# Fills all registers, calls the stubs, and stores what they contain then: see registers.c.
    .intel_syntax noprefix

# General registers but the frame pointer at offset 0, vectors at 128, masks at 2176, the x87 stack at 2240 and 2256,
# mxcsr at 2272, the x87 control word at 2276.
    .bss
    .balign 64
    .globl wanted_at_entry, found_at_entry, wanted_at_return, found_at_return, level, ruins_vectors
wanted_at_entry: .zero 4096
found_at_entry: .zero 4096
wanted_at_return: .zero 4096
found_at_return: .zero 4096
# 0: xmm, 1: ymm, 2: zmm and masks.
level: .zero 4
ruins_vectors: .zero 4
ruined_mxcsr: .zero 4

    .macro load_general from
    mov rax, [rip + \from + 0]
    mov rbx, [rip + \from + 8]
    mov rcx, [rip + \from + 16]
    mov rdx, [rip + \from + 24]
    mov rsi, [rip + \from + 32]
    mov rdi, [rip + \from + 40]
    mov r8, [rip + \from + 48]
    mov r9, [rip + \from + 56]
    mov r10, [rip + \from + 64]
    mov r11, [rip + \from + 72]
    mov r12, [rip + \from + 80]
    mov r13, [rip + \from + 88]
    mov r14, [rip + \from + 96]
    mov r15, [rip + \from + 104]
    .endm

    .macro store_general to
    mov [rip + \to + 0], rax
    mov [rip + \to + 8], rbx
    mov [rip + \to + 16], rcx
    mov [rip + \to + 24], rdx
    mov [rip + \to + 32], rsi
    mov [rip + \to + 40], rdi
    mov [rip + \to + 48], r8
    mov [rip + \to + 56], r9
    mov [rip + \to + 64], r10
    mov [rip + \to + 72], r11
    mov [rip + \to + 80], r12
    mov [rip + \to + 88], r13
    mov [rip + \to + 96], r14
    mov [rip + \to + 104], r15
    .endm

    .macro load_vectors from
    ldmxcsr [rip + \from + 2272]
    fninit
    fldcw [rip + \from + 2276]
    fld tbyte ptr [rip + \from + 2256]
    fld tbyte ptr [rip + \from + 2240]
    cmp dword ptr [rip + level], 1
    ja 2f
    je 1f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    movups xmm\n, [rip + \from + 128 + \n * 16]
    .endr
    jmp 3f
1:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovups ymm\n, [rip + \from + 128 + \n * 32]
    .endr
    jmp 3f
2:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovups zmm\n, [rip + \from + 128 + \n * 64]
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq k\n, [rip + \from + 2176 + \n * 8]
    .endr
3:
    .endm

    .macro store_vectors to
    stmxcsr [rip + \to + 2272]
    fnstcw [rip + \to + 2276]
    fstp tbyte ptr [rip + \to + 2240]
    fstp tbyte ptr [rip + \to + 2256]
    cmp dword ptr [rip + level], 1
    ja 2f
    je 1f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    movups [rip + \to + 128 + \n * 16], xmm\n
    .endr
    jmp 3f
1:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovups [rip + \to + 128 + \n * 32], ymm\n
    .endr
    jmp 3f
2:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovups [rip + \to + 128 + \n * 64], zmm\n
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kmovq [rip + \to + 2176 + \n * 8], k\n
    .endr
3:
    .endm

    .text
# A function as -pg makes it: the frame pointer is set when it calls mcount.
by_mcount:
    .cfi_startproc
    push rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    call mcount@PLT
    store_vectors found_at_entry
    store_general found_at_entry
    load_vectors wanted_at_return
    load_general wanted_at_return
    pop rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc

# As -mfentry makes it.
by_fentry:
    .cfi_startproc
    call __fentry__@PLT
    store_vectors found_at_entry
    store_general found_at_entry
    load_vectors wanted_at_return
    load_general wanted_at_return
    ret
    .cfi_endproc

    .macro calls name, function
    .globl \name
\name:
    .cfi_startproc
    .irp register, rbx, rbp, r12, r13, r14, r15
    push \register
    .cfi_adjust_cfa_offset 8
    .endr
    # Space for the control words of this program, and the frame pointer that is compared.
    sub rsp, 24
    .cfi_adjust_cfa_offset 24
    stmxcsr [rsp]
    fnstcw [rsp + 4]
    mov rbp, rsp
    load_vectors wanted_at_entry
    load_general wanted_at_entry
    call \function
    store_vectors found_at_return
    store_general found_at_return
    cmp rbp, rsp
    jne 9f
    fninit
    fldcw [rsp + 4]
    ldmxcsr [rsp]
    cmp dword ptr [rip + level], 0
    je 8f
    vzeroupper
8:
    add rsp, 24
    .cfi_adjust_cfa_offset -24
    .irp register, r15, r14, r13, r12, rbp, rbx
    pop \register
    .cfi_adjust_cfa_offset -8
    .endr
    ret
9:  ud2
    .cfi_endproc
    .endm

    calls call_by_mcount, by_mcount
    calls call_by_fentry, by_fentry

# A hook that changes all registers it may. It wants returns to be traced.
    .globl ruin
ruin:
    .cfi_startproc
    cmp dword ptr [rip + ruins_vectors], 0
    je 3f
    mov dword ptr [rip + ruined_mxcsr], 0x5FC0
    ldmxcsr [rip + ruined_mxcsr]
    # The x87 stack must have room for eight.
    .rept 8
    fldpi
    .endr
    .rept 8
    fstp st(0)
    .endr
    fninit
    cmp dword ptr [rip + level], 1
    ja 2f
    je 1f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    pcmpeqd xmm\n, xmm\n
    .endr
    jmp 3f
1:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vxorps ymm\n, ymm\n, ymm\n
    .endr
    vzeroupper
    jmp 3f
2:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vpternlogd zmm\n, zmm\n, zmm\n, 255
    .endr
    .irp n, 0,1,2,3,4,5,6,7
    kxorq k\n, k\n, k\n
    .endr
    vzeroupper
3:
    .irp register, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
    mov \register, -1
    .endr
    ret
    .cfi_endproc

# The same with the part of the vectors that ordinary floating-point code changes.
    .globl ruin_part
ruin_part:
    .cfi_startproc
    mov dword ptr [rip + ruined_mxcsr], 0x5FC0
    ldmxcsr [rip + ruined_mxcsr]
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    pcmpeqd xmm\n, xmm\n
    .endr
    .irp register, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
    mov \register, -1
    .endr
    ret
    .cfi_endproc

    .section .note.GNU-stack, "", @progbits
