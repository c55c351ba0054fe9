/* Recursion whose call is among the first instructions, and goes to the function that starts with them. */
	.text
	.globl	early
	.type	early, @function
#if defined(__riscv)
/* long early(long depth): all registers that calls may change are in use, so a long jump needs much room. */
early:
	.cfi_startproc
	addi	sp, sp, -16
	.cfi_def_cfa_offset 16
	sd	ra, 8(sp)
	.cfi_offset ra, -8
	addi	a0, a0, -1
	bltz	a0, 1f
	jal	ra, early
1:	addi	a0, a0, 1
	add	a1, a1, a2
	add	a3, a3, a4
	add	a5, a5, a6
	add	a7, a7, t2
	add	t3, t3, t4
	add	t5, t5, t6
	ld	ra, 8(sp)
	addi	sp, sp, 16
	.cfi_restore ra
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
#elif defined(__aarch64__)
early:
	.cfi_startproc
	sub	x0, x0, #1
	tbnz	x0, #63, 1f
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset 29, -16
	.cfi_offset 30, -8
	bl	early
	ldp	x29, x30, [sp], #16
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
1:	add	x0, x0, #1
	ret
	.cfi_endproc
#else
early:
	.cfi_startproc
	decl	%edi
	js	1f
	call	early
	incl	%eax
	ret
1:	xorl	%eax, %eax
	ret
	.cfi_endproc
#endif
	.size	early, . - early
	.section .note.GNU-stack, "", @progbits
