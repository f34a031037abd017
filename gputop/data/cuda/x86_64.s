# The demo's simulated CUDA driver, x86-64: three functions with libcuda's names for gputop's uprobes to measure.
# scripts/simcuda.py makes x86_64/libcuda.so.1 of it. Each begins as compiled code does: uprobes need a prologue.
	.intel_syntax noprefix
	.text
	.set CHUNK, 4 << 20			# bytes of the two buffers of a copy

# CUresult cuLaunchKernel(...): the caller books the kernel
	.globl cuLaunchKernel
	.type cuLaunchKernel, @function
cuLaunchKernel:
	push rbp
	mov rbp, rsp
	xor eax, eax
	pop rbp
	ret
	.size cuLaunchKernel, . - cuLaunchKernel

# CUresult cuStreamSynchronize(struct timespec *stream): sleep until that moment of CLOCK_MONOTONIC
	.globl cuStreamSynchronize
	.type cuStreamSynchronize, @function
cuStreamSynchronize:
	push rbp
	mov rbp, rsp
	mov r8, rdi
.Lagain:
	mov eax, 230				# clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, stream, NULL)
	mov edi, 1
	mov esi, 1
	mov rdx, r8
	xor r10d, r10d
	syscall
	cmp eax, -4				# EINTR
	je .Lagain
	xor eax, eax
	pop rbp
	ret
	.size cuStreamSynchronize, . - cuStreamSynchronize

# CUresult cuMemcpyHtoD_v2(struct { uint64_t *moved; void *staging; struct timespec until; } *device, const void *source, size_t bytes):
# copy the first CHUNK bytes of source again and again, count them in *moved, and spin until the bus has taken all
	.globl cuMemcpyHtoD_v2
	.type cuMemcpyHtoD_v2, @function
cuMemcpyHtoD_v2:
	push rbp
	mov rbp, rsp
	sub rsp, 16
	mov r8, rdi
	mov r9, rsi
	mov r10, rdx
.Lchunk:
	mov ecx, CHUNK
	cmp r10, rcx
	cmovb rcx, r10
	sub r10, rcx
	mov rax, [r8]
	add [rax], rcx
	mov rdi, [r8 + 8]
	mov rsi, r9
	rep movsb
	test r10, r10
	jne .Lchunk
.Lspin:
	mov eax, 228				# clock_gettime(CLOCK_MONOTONIC, …)
	mov edi, 1
	lea rsi, [rbp - 16]
	syscall
	mov rax, [rbp - 16]
	cmp rax, [r8 + 16]
	jl .Lspin
	jg .Ldone
	mov rax, [rbp - 8]
	cmp rax, [r8 + 24]
	jl .Lspin
.Ldone:
	xor eax, eax
	leave
	ret
	.size cuMemcpyHtoD_v2, . - cuMemcpyHtoD_v2
