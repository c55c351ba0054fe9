# Functions that are larger than those that compilers make.
	.text
	.option	arch, rv64gc
	.option	norelax

# Calls through slots.
	.globl	calls
	.type	calls, @function
calls:
	addi	sp, sp, -16
	sd	ra, 8(sp)
	.rept	20000
1:	auipc	t1, %got_pcrel_hi(puts)
	ld	t1, %pcrel_lo(1b)(t1)
	jalr	t1
	.endr
	ld	ra, 8(sp)
	addi	sp, sp, 16
	ret
	.size	calls, . - calls

# Places that may be the base of a table's distances, and tables.
	.globl	places
	.type	places, @function
places:
	.set	.Lnumber, 0
	.rept	4000
1:	lla	a5, 1b
	lla	a4, tables + .Lnumber
	.set	.Lnumber, .Lnumber + 4
	.endr
	lw	a4, 0(a4)
	add	a5, a5, a4
	jr	a5
	.size	places, . - places

	.section .rodata
	.balign	4
tables:
	.zero	16000
