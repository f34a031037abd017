// The demo's simulated CUDA driver, aarch64: the functions of x86_64.s, which says what they do.
	.text

	.globl cuLaunchKernel
	.type cuLaunchKernel, %function
cuLaunchKernel:
	stp x29, x30, [sp, #-16]!
	mov x29, sp
	mov w0, #0
	ldp x29, x30, [sp], #16
	ret
	.size cuLaunchKernel, . - cuLaunchKernel

	.globl cuStreamSynchronize
	.type cuStreamSynchronize, %function
cuStreamSynchronize:
	stp x29, x30, [sp, #-16]!
	mov x29, sp
	mov x9, x0
.Lagain:
	mov x0, #1				// clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, stream, NULL)
	mov x1, #1
	mov x2, x9
	mov x3, #0
	mov x8, #115
	svc #0
	cmn w0, #4				// EINTR
	b.eq .Lagain
	mov w0, #0
	ldp x29, x30, [sp], #16
	ret
	.size cuStreamSynchronize, . - cuStreamSynchronize

	.globl cuMemcpyHtoD_v2
	.type cuMemcpyHtoD_v2, %function
cuMemcpyHtoD_v2:
	stp x29, x30, [sp, #-32]!
	mov x29, sp
	mov x9, x0
	mov x10, x1
	mov x11, x2
.Lchunk:
	mov x12, #0x400000
	cmp x11, x12
	csel x12, x11, x12, lo
	sub x11, x11, x12
	ldr x13, [x9]
	ldr x14, [x13]
	add x14, x14, x12
	str x14, [x13]
	ldr x13, [x9, #8]
	mov x14, x10
	cbz x12, .Lcopied
.Lcopy:						// eight bytes at a time: the buffers are whole chunks
	ldr x15, [x14], #8
	str x15, [x13], #8
	subs x12, x12, #8
	b.gt .Lcopy
.Lcopied:
	cbnz x11, .Lchunk
.Lspin:
	mov x0, #1				// clock_gettime(CLOCK_MONOTONIC, …)
	add x1, sp, #16
	mov x8, #113
	svc #0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [x9, #16]
	cmp x0, x2
	b.lt .Lspin
	b.gt .Ldone
	cmp x1, x3
	b.lt .Lspin
.Ldone:
	mov w0, #0
	ldp x29, x30, [sp], #32
	ret
	.size cuMemcpyHtoD_v2, . - cuMemcpyHtoD_v2
