# RISC-V functions that a planner must distinguish.
	.text
	.option	arch, rv64gc

	.macro	func	name
	.globl	\name
	.type	\name, @function
	.balign	2
\name:
	.cfi_startproc
	.endm
	.macro	end	name
	.cfi_endproc
	.size	\name, . - \name
	.endm

# A frame, calls to another file: all temporaries are free.
	func	frame
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	mv	s0, a0
	call	puts@plt
	mv	a0, s0
	ld	ra, 24(sp)
	ld	s0, 16(sp)
	addi	sp, sp, 32
	ret
	end	frame

# One two-byte instruction. No register is free: its callers know which registers it leaves unchanged.
	func	nothing
	ret
	end	nothing

	func	getter
	ld	a0, 8(a0)
	ret
	end	getter

# Longer than a jump. The register of its result is free.
	func	constant
	lui	a0, 0x12345
	addi	a0, a0, 1
	slli	a0, a0, 3
	ret
	end	constant

# Its loop leads back to the second instruction.
	func	loop
	li	a5, 0
1:	add	a5, a5, a0
	addi	a0, a0, -1
	bnez	a0, 1b
	mv	a0, a5
	ret
	end	loop

# Registers that it reads before it writes them are in use.
	func	reads_all
	add	a0, a0, t0
	add	a0, a0, t1
	add	a0, a0, t2
	add	a0, a0, t3
	ret
	end	reads_all

# No register is free, the instructions after the loop cannot be moved, and the loop leads to instructions that a jump
# displaces but does not overwrite.
	func	loops_later
	xori	a0, a0, 1
	xori	a0, a0, 2
	xori	a0, a0, 3
1:	xori	a1, a1, 1
	xori	a0, a0, 5
	bnez	a1, 1b
	fence.i
	add	a0, a0, t0
	ret
	end	loops_later

# The code after a call that does not return is reached from elsewhere.
	func	stops
	bltz	a0, 2f
	beqz	a0, 1f
	addi	a0, a0, 7
	ret
1:	addi	sp, sp, -16
	sd	ra, 8(sp)
	call	abort@plt
2:	neg	a0, a0
	ret
	end	stops

# The link register holds an argument from the stack for a while.
	func	arguments
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	addi	s0, sp, 32
	ld	ra, 0(s0)
	add	a0, a0, ra
	ld	ra, 24(sp)
	ld	s0, 16(sp)
	addi	sp, sp, 32
	ret
	end	arguments

# The same without a frame pointer. Then the link register holds a value that was spilled to the stack.
	func	spilled
	addi	sp, sp, -32
	.cfi_def_cfa_offset 32
	sd	ra, 24(sp)
	.cfi_offset ra, -8
	ld	ra, 32(sp)
	add	a0, a0, ra
	mul	ra, a0, a1
	sd	ra, 8(sp)
	mul	ra, ra, a0
	sub	a1, a1, ra
	ld	ra, 8(sp)
	add	a0, ra, a1
	ld	ra, 24(sp)
	addi	sp, sp, 32
	.cfi_def_cfa_offset 0
	ret
	end	spilled

# The same without an unwind table.
	.globl	untold
	.type	untold, @function
untold:
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	addi	s0, sp, 32
	ld	ra, 32(sp)
	add	a0, a0, ra
	mul	ra, a0, a1
	sd	ra, -24(s0)
	bgtz	a1, 1f
	mul	ra, ra, a0
	sub	a1, a1, ra
1:	ld	ra, -24(s0)
	add	a0, ra, a1
	ld	ra, 24(sp)
	ld	s0, 16(sp)
	addi	sp, sp, 32
	ret
	.size	untold, . - untold

	.globl	spilled_deep
	.type	spilled_deep, @function
spilled_deep:
	addi	sp, sp, -2032
	sd	ra, 2024(sp)
	lui	t0, 1
	sub	sp, sp, t0
	mul	ra, a0, a1
	sd	ra, 8(sp)
	mul	ra, ra, a0
	sub	a1, a1, ra
	ld	ra, 8(sp)
	add	a0, ra, a1
	lui	t0, 1
	add	sp, sp, t0
	ld	ra, 2024(sp)
	addi	sp, sp, 2032
	ret
	.size	spilled_deep, . - spilled_deep

# A floating-point register with the number of the link register.
	func	floating
	addi	sp, sp, -16
	.cfi_def_cfa_offset 16
	fsd	ft1, 8(sp)
	fadd.d	ft1, fa0, fa1
	fld	fa0, 8(sp)
	fsd	fa1, 8(sp)
	fadd.d	fa0, fa0, ft1
	addi	sp, sp, 16
	.cfi_def_cfa_offset 0
	ret
	end	floating

# A table of distances from a later address leads to its second instruction.
	func	distances
	addi	a0, a0, 100
1:	addi	a0, a0, 200
	slli	a1, a1, 2
	lla	a4, .Ldistances
	add	a4, a4, a1
	lw	a5, 0(a4)
	lla	a3, 2f
	add	a5, a5, a3
	li	a1, 1
	jr	a5
2:	addi	a0, a0, 300
	ret
	.section .rodata
	.balign	4
.Ldistances:
	.word	1b - 2b
	.word	0
	.text
	end	distances

# Compilers' helpers that save registers are called through t0.
	func	save
	addi	sp, sp, -16
	sd	ra, 8(sp)
	sd	s0, 0(sp)
	jr	t0
	end	save

	func	saved
	jal	t0, save
	call	puts@plt
	ld	s0, 0(sp)
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	saved

	func	who
	mv	a0, ra
	addi	a0, a0, 4
	slli	a0, a0, 1
	ret
	end	who

# The return address is also on the stack as a value during a call, next to the place where it was saved; once with an
# unwind table and once without.
	.macro	asker	name, told
	.globl	\name
	.type	\name, @function
\name:
	addi	sp, sp, -32
	.if	\told
	.cfi_def_cfa_offset 32
	.endif
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	addi	s0, sp, 32
	.if	\told
	.cfi_def_cfa s0, 0
	.endif
	sd	ra, -32(s0)
	call	puts@plt
	ld	a0, -32(s0)
	ld	ra, 24(sp)
	ld	s0, 16(sp)
	addi	sp, sp, 32
	.if	\told
	.cfi_def_cfa sp, 0
	.endif
	ret
	.size	\name, . - \name
	.endm
	.cfi_startproc
	asker	asks, 1
	.cfi_endproc
	asker	asks_untold, 0

# Gives another function the address of the slot of its return address; no table says where that is.
	.globl	shows_slot
	.type	shows_slot, @function
shows_slot:
	addi	sp, sp, -32
	sd	ra, 24(sp)
	mv	t1, a0
	addi	a0, sp, 24
	jalr	t1
	ld	ra, 24(sp)
	addi	sp, sp, 32
	ret
	.size	shows_slot, . - shows_slot

# The same with a slot beside it.
	.globl	shows_other
	.type	shows_other, @function
shows_other:
	addi	sp, sp, -32
	sd	ra, 24(sp)
	mv	t1, a0
	addi	a0, sp, 16
	jalr	t1
	ld	ra, 24(sp)
	addi	sp, sp, 32
	ret
	.size	shows_other, . - shows_other

# Jumps to another function with its return address.
	.globl	hands_on
	.type	hands_on, @function
hands_on:
	mv	t1, a0
	mv	a0, ra
	jr	t1
	.size	hands_on, . - hands_on

# The same in a frame that is too large for one instruction.
	.globl	asks_deep
	.type	asks_deep, @function
asks_deep:
	addi	sp, sp, -2032
	sd	ra, 2024(sp)
	lui	t0, 1
	sub	sp, sp, t0
	sd	ra, 8(sp)
	call	puts@plt
	ld	a0, 8(sp)
	lui	t0, 1
	add	sp, sp, t0
	ld	ra, 2024(sp)
	addi	sp, sp, 2032
	ret
	.size	asks_deep, . - asks_deep

	func	elsewhere
	ld	ra, 0(a0)
	ld	a1, 8(a0)
	addi	a1, a1, 1
	ret
	end	elsewhere

# Lazy binding: t0 and t1 say what to look up. It jumps there with all arguments of its caller.
	func	resolver
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	a0, 16(sp)
	slli	a1, t1, 1
	mv	a0, t0
	call	puts@plt
	mv	t1, a0
	ld	a0, 16(sp)
	ld	ra, 24(sp)
	addi	sp, sp, 32
	jr	t1
	end	resolver

# A usual function that ends with a call through a pointer.
	func	by_pointer
	addi	sp, sp, -32
	sd	ra, 24(sp)
	sd	s0, 16(sp)
	ld	s0, 8(a0)
	li	t1, 7
	sd	t1, 0(a0)
	call	puts@plt
	mv	t1, s0
	ld	s0, 16(sp)
	ld	ra, 24(sp)
	addi	sp, sp, 32
	jr	t1
	end	by_pointer

# A compare-and-swap sequence that begins at the third instruction.
	func	swap
	addi	a4, a1, 0
	slli	a4, a4, 1
	.globl	swap_lr
swap_lr:
	lr.w.aqrl	a5, (a0)
	bne	a5, a4, 1f
	sc.w.rl	a3, a2, (a0)
	bnez	a3, swap_lr
1:	mv	a0, a5
	addi	a0, a0, 1
	ret
	end	swap

	func	system
	li	a7, 172
	ecall
	addi	a0, a0, 1
	slli	a0, a0, 1
	ret
	end	system

# A jump table of distances from its own start, and one of addresses from a constant.
	func	table
	li	a5, 3
	bgtu	a0, a5, 9f
	lla	a4, .Ltable
	slli	a0, a0, 2
	add	a0, a0, a4
	lw	a5, 0(a0)
	add	a5, a5, a4
	jr	a5
	.globl	table_1
table_1:
	li	a0, 10
	ret
	.globl	table_2
table_2:
	li	a0, 20
	ret
9:	li	a0, 30
	ret
	end	table
	.section .rodata
	.balign	4
.Ltable:
	.word	table_1 - .Ltable
	.word	table_2 - .Ltable
	.word	table_1 - .Ltable
	.word	9b - .Ltable
	.text

# Two functions that call each other: neither uses the caller's t3.
	func	circle
	addi	sp, sp, -16
	sd	ra, 8(sp)
	li	t3, 1
	add	a0, a0, t3
	call	circle_back
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	circle

	func	circle_back
	addi	sp, sp, -16
	sd	ra, 8(sp)
	addi	a0, a0, -1
	beqz	a0, 1f
	call	circle
1:	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	end	circle_back

	.globl	main
	.type	main, @function
main:
	.cfi_startproc
	addi	sp, sp, -16
	sd	ra, 8(sp)
	call	frame
	call	nothing
	call	getter
	call	constant
	call	loop
	call	reads_all
	call	saved
	call	who
	call	elsewhere
	call	swap
	call	system
	call	table
	call	circle
	ld	ra, 8(sp)
	addi	sp, sp, 16
	li	a0, 0
	ret
	.cfi_endproc
	.size	main, . - main
	.section .note.GNU-stack, "", @progbits
