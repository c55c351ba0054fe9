# RISC-V functions in which compilers left room for tracers, and callers unlike those that compilers make.
	.text
	.option	arch, rv64gc_zba

	.macro	func	name, nops
	.balign	2
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	.if	\nops
	.pushsection __patchable_function_entries, "awo", @progbits, \name
	.balign	8
	.dword	\name
	.popsection
	.rept	\nops
	c.nop
	.endr
	.endif
	.endm
	.macro	end	name
	.cfi_endproc
	.size	\name, . - \name
	.endm

# Called according to the convention.
	func	eight, 4
	add	a0, a0, a1
	ret
	end	eight

	func	sixteen, 8
	add	a0, a0, a1
	ret
	end	sixteen

# Room for the address of a stub, too, and unused bytes.
	func	twenty_four, 12
	add	a0, a0, a1
	ret
	end	twenty_four
	.rept	16
	c.nop
	.endr

# One of its callers keeps a value in t1 and in t6.
	func	expects_two, 4
	add	a0, a0, a1
	ret
	end	expects_two

	func	keeps_two, 0
	addi	sp, sp, -16
	sd	ra, 8(sp)
	mv	t1, a0
	mv	t6, a1
	call	expects_two
	add	a0, a0, t1
	add	a0, a0, t6
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	keeps_two

# It is called only from code that a table of distances leads to.
	func	expects_by_table, 4
	add	a0, a0, a1
	ret
	end	expects_by_table

	func	table, 0
	addi	sp, sp, -16
	sd	ra, 8(sp)
	lla	a5, distances
	sh2add	a3, a0, a5
	lw	a3, 0(a3)
	lla	a4, table
	add	a3, a3, a4
	jr	a3
1:	mv	t4, a1
	call	expects_by_table
	add	a0, a0, t4
2:	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	table
	.pushsection .rodata
	.balign	4
distances:
	.word	1b - table, 2b - table
	.popsection

# The caller of the function that jumps to it keeps a value in t3.
	func	expects_by_jump, 4
	add	a0, a0, a1
	ret
	end	expects_by_jump

	func	jumps, 0
	addi	a0, a0, 1
	tail	expects_by_jump
	end	jumps

	func	keeps_over_jump, 0
	addi	sp, sp, -16
	sd	ra, 8(sp)
	mv	t3, a0
	call	jumps
	add	a0, a0, t3
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	keeps_over_jump

# Their callers keep a value in every register.
	func	full_sixteen, 8
	add	a0, a0, a1
	ret
	end	full_sixteen

	func	full_eight, 4
	add	a0, a0, a1
	ret
	end	full_eight

	func	full_thirty_two, 16
	add	a0, a0, a1
	ret
	end	full_thirty_two

	func	full, 0
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	.irp	register, t0, t1, t2, t3, t4, t5, t6, a2, a3, a4, a5, a6, a7
	li	\register, 1
	.endr
	call	full_sixteen
	call	full_eight
	call	full_thirty_two
	.irp	register, t0, t1, t2, t3, t4, t5, t6, a2, a3, a4, a5, a6, a7
	add	a0, a0, \register
	.endr
	ld	s0, 16(sp)
	ld	ra, 24(sp)
	addi	sp, sp, 32
	ret
	end	full

# Like a nested function, which gets the address of its variables in t2.
	func	nested, 4
	ld	a5, 0(t2)
	add	a0, a0, a5
	ret
	end	nested

# Like the helpers that save registers, which are called through t0.
	func	save, 4
	sd	ra, 8(sp)
	sd	s0, 0(sp)
	jr	t0
	end	save

	func	saved, 4
	addi	sp, sp, -16
	jal	t0, save
	call	eight
	ld	s0, 0(sp)
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	saved

# Two bytes of code, and a call at the end through t1.
	func	tiny, 4
	ret
	end	tiny

	func	leaves, 4
	ld	t1, 0(a0)
	jr	t1
	end	leaves

	func	main, 4
	addi	sp, sp, -16
	sd	ra, 8(sp)
	call	eight
	call	sixteen
	call	keeps_two
	call	keeps_over_jump
	call	full
	mv	t2, sp
	call	nested
	call	saved
	call	tiny
	ld	ra, 8(sp)
	addi	sp, sp, 16
	li	a0, 0
	ret
	end	main
	.section .note.GNU-stack, "", @progbits
