//! The slow paths for x86-64, as a blob of position-independent code.
//!
//! Stubs call these with three registers (`rax`, `rdx`, `rcx`) saved on the stack, so that the address of the traced
//! function's return address, S, is `rsp + 32` on entry here.

use hodo_trace::format::{
    BUCKET_ROOM, BUCKET_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE,
    RECORD_SIZE, SHADOW_DISTANCE, WINDOW_SIZE, chunk_header, file_header, record, tcb,
};

use crate::constants::{PIECES, SHADOW_STEP, SPARE, TRIES};

slow_paths!(
    [r#"
    .pushsection .rodata.hodo_agent, "a", @progbits
    .p2align 6
    .globl hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_window
    .globl hodo_agent_record, hodo_agent_record_untimed, hodo_agent_syscall, hodo_agent_home_end, hodo_agent_end, hodo_agent_frame, hodo_agent_tails
    .hidden hodo_agent_start, hodo_agent_epoch, hodo_agent_chunk, hodo_agent_shadow, hodo_agent_window
    .hidden hodo_agent_record, hodo_agent_record_untimed, hodo_agent_syscall, hodo_agent_home_end, hodo_agent_end, hodo_agent_frame, hodo_agent_tails
hodo_agent_start:

    # The upper half of the time counter changed. In: edx = upper half, rax = lower half (kept). Clobbers rcx, rdx.
hodo_agent_epoch:
    mov gs:[{EPOCH}], edx
    mov ecx, {RECORD_SIZE}
    xadd gs:[{CURSOR}], rcx
    cmp rcx, gs:[{LIMIT}]
    jb 1f
    call hodo_agent_chunk
1:  mov dword ptr [rcx], edx
    mov dword ptr [rcx + 4], {EPOCH_INFO}
    ret

    # The chunk is full. Out: rcx = a slot in a new one. Keeps everything else.
    # The cursor is set before the limit: chunks come in ascending order, so a signal handler in between sees a cursor
    # above the limit and opens a chunk of its own.
    .p2align 4
hodo_agent_chunk:
    # Each chunk names its window: a reader may not have those before it.
    mov qword ptr gs:[{WINDOW}], 0
    push rax
    push rdx
    push rbx
    mov rbx, gs:[{BASE}]
    # Without a recorder, nobody makes good what a full disk does.
    test dword ptr [rbx + {OWNER}], {OWNER_DIED}
    jnz 2f
    mov rax, [rbx + {NEXT_CHUNK}]
    # The file grows: what it has no room for yet must not be touched.
1:  cmp rax, gs:[{MAX_CHUNKS}]
    jae 2f
    cmp rax, [rbx + {ROOM_CHUNKS}]
    jae 2f
    lea rdx, [rax + 1]
    lock cmpxchg [rbx + {NEXT_CHUNK}], rdx
    jne 1b
    shl rax, {CHUNK_SHIFT}
    lea rax, [rax + rbx + {CONTROL_SIZE}]
    mov edx, 1
    xadd gs:[{SEQ}], edx
    mov [rax + {H_SEQ}], edx
    mov edx, gs:[{TASK}]
    mov [rax + {H_TASK}], edx
    mov edx, gs:[{EPOCH}]
    mov [rax + {H_EPOCH}], edx
    mov rdx, gs:[{LOST}]
    mov [rax + {H_LOST}], rdx
    mov dword ptr [rax], {CHUNK_MAGIC}
    lea rcx, [rax + {HEADER_AND_RECORD}]
    mov gs:[{CURSOR}], rcx
    lea rdx, [rax + {CHUNK_LIMIT}]
    mov gs:[{LIMIT}], rdx
    lea rcx, [rax + {CHUNK_HEADER_SIZE}]
    jmp 4f
    # There is no chunk, or recording has stopped: records go round in the bucket, and are counted.
2:  mov rcx, gs:[{BUCKET}]
    lea rdx, [rcx + {BUCKET_SIZE}]
    # This many bytes have gone round, if the limit is in it.
    mov rax, gs:[{LIMIT}]
    sub rax, rcx
    cmp rax, {BUCKET_ROOM}
    ja 3f
    shr rax, {RECORD_SHIFT}
    add gs:[{LOST}], rax
    # The bucket is below all chunks, so here the limit is set first.
3:  mov gs:[{LIMIT}], rdx
    lea rax, [rcx + {RECORD_SIZE}]
    mov gs:[{CURSOR}], rax
4:  pop rbx
    pop rdx
    pop rax
    ret

    # The shadow of the present stack is not known to be mapped. Keeps all registers. Out: carry set if there can
    # be none,
    # or if the function was handed its return address by the one that jumped to it.
    # The pieces that are mapped here are listed after the first range that the controller has mapped; without one, what
    # is found mapped is taken for such a piece.
    .p2align 4
hodo_agent_shadow:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    lea rdi, [rsp + 32 + 72]
    xor eax, eax
    xchg rax, gs:[{HANDED_ON}]
    cmp rax, rdi
    je 22f
    # It is known: only the window is another.
24: mov rax, rdi
    sub rax, gs:[{SHADOW_LO}]
    cmp rax, gs:[{SHADOW_LEN}]
    jb 8f
    # Mapped by the controller?
    mov rcx, gs:[{REGION0_LO}]
    mov rdx, gs:[{REGION0_LEN}]
    mov rax, rdi
    sub rax, rcx
    cmp rax, rdx
    jb 11f
    mov rcx, gs:[{REGION1_LO}]
    mov rdx, gs:[{REGION1_LEN}]
    mov rax, rdi
    sub rax, rcx
    cmp rax, rdx
    jb 11f
    movabs rax, {SHADOW_DISTANCE}
    sub rdi, rax
    jc 9f
    and rdi, -{SHADOW_STEP}
    jz 9f
    mov esi, {SHADOW_STEP}
    # Is it in the list of pieces that were mapped here?
    mov rcx, gs:[{REGION0_LEN}]
    mov r8, gs:[{REGION0_LO}]
    add r8, rcx
    sub r8, rax
    test rcx, rcx
    cmovz r8, rcx
    jz 13f
    mov ecx, {PIECES}
12: cmp [r8 + rcx * 8 - 8], rdi
    je 1f
    dec ecx
    jnz 12b
13: test byte ptr gs:[{FLAGS}], {NO_CALLS}
    jnz 9f
    # It is listed first, so that other threads know whose it is as soon as it is mapped. Until then, the lowest
    # bit is set.
    xor edx, edx
    test r8, r8
    jz 15f
    lea r9, [rdi + 1]
    lea rdx, [r8 + {PIECES} * 8]
14: sub rdx, 8
    cmp rdx, r8
    jb 9f
    xor eax, eax
    lock cmpxchg [rdx], r9
    jne 14b
15: push rdx
    push r8
    mov edx, 3
    mov r10d, 0x104022            # PRIVATE | ANONYMOUS | NORESERVE | FIXED_NOREPLACE
    mov r8, -1
    xor r9d, r9d
    mov eax, 9                    # mmap
    syscall
    pop r8
    pop rdx
    cmp rax, rdi
    jne 19f
    test rdx, rdx
    jz 1f
    mov [rdx], rdi
    jmp 1f
19: test rdx, rdx
    jz 16f
    mov qword ptr [rdx], 0
16: cmp rax, -17                  # EEXIST: mapped by another thread meanwhile, or by the program
    jne 17f
    test r8, r8
    jz 1f
    # Who has mapped it may not have said so yet.
    mov r9d, {TRIES}
    lea rax, [rdi + 1]
20: mov ecx, {PIECES}
18: cmp [r8 + rcx * 8 - 8], rdi
    je 1f
    cmp [r8 + rcx * 8 - 8], rax
    je 21f
    dec ecx
    jnz 18b
    jmp 9f
21: pause
    dec r9d
    jnz 20b
    jmp 9f
17: cmp rax, -4096
    jae 9f
    # An old kernel ignored NOREPLACE and put it elsewhere: no shadow here.
    mov rsi, {SHADOW_STEP}
    mov rdi, rax
    mov eax, 11                   # munmap
    syscall
    jmp 9f
    # Keep the range [lo, lo + len) in the control block; neighbours are joined. A signal handler that comes in between
    # leaves the range alone. The length is 0 while the start changes.
1:  mov eax, 1
    xchg rax, gs:[{SHADOW_BUSY}]
    test eax, eax
    jnz 8f
    movabs rax, {SHADOW_DISTANCE}
    add rdi, rax                  # lo of the new piece
    mov rcx, gs:[{SHADOW_LO}]
    mov rdx, gs:[{SHADOW_LEN}]
    lea rax, [rdi + rsi]
    cmp rax, rcx
    je 2f
    lea rax, [rcx + rdx]
    cmp rax, rdi
    je 3f
    xor edx, edx
    mov gs:[{SHADOW_LEN}], rdx
2:  mov gs:[{SHADOW_LO}], rdi
3:  add rdx, rsi
    mov gs:[{SHADOW_LEN}], rdx
    mov qword ptr gs:[{SHADOW_BUSY}], 0
8:  clc
    jmp 10f
11: mov eax, 1
    xchg rax, gs:[{SHADOW_BUSY}]
    test eax, eax
    jnz 8b
    mov gs:[{SHADOW_LEN}], rax
    mov gs:[{SHADOW_LO}], rcx
    mov gs:[{SHADOW_LEN}], rdx
    mov qword ptr gs:[{SHADOW_BUSY}], 0
    jmp 8b
22: mov rax, [rdi]
    cmp rax, gs:[{HANDED_ON} + 8]
    je 23f
    jmp 24b
9:  inc qword ptr gs:[{UNSHADOWED}]
23: stc
10: pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    ret

    # The stack pointer is not in the window of stack addresses: gets another one around it, and records it. Where
    # no window
    # has a shadow, the record is only about this address, and there is no window. Keeps all registers but rdx,
    # and the carry.
    # Until the record is written, the window is a mark of this call, which is no address. If the mark is gone by
    # then, a chunk has
    # begun or a signal handler has got a window: then there is none, and the next entry gets one.
    .p2align 4
hodo_agent_window:
    sbb edx, edx                  # the carry
    push rdx
    push rax
    push rbx
    push rcx
    push rsi
    lea rsi, [rsp + 32 + 40]
    mov rbx, rsi
    bts rbx, 63
    mov gs:[{WINDOW}], rbx
    mov rcx, gs:[{SHADOW_LO}]
    mov rdx, gs:[{SHADOW_LEN}]
    mov rax, rsi
    sub rax, rcx
    cmp rax, rdx
    jae 3f
    sub rdx, {WINDOW_SIZE}
    jb 3f
    sub rax, {WINDOW_SIZE} / 2
    jae 2f
    xor eax, eax
2:  cmp rax, rdx
    cmova rax, rdx
    add rcx, rax
    mov eax, {WINDOW_INFO}
    jmp 4f
3:  mov rcx, rsi
    mov eax, {STACK_INFO}
4:  and rcx, -{WINDOW_UNIT}
    mov rsi, rcx
    shr rcx, {WINDOW_SHIFT}
    mov rdx, rcx
    shr rdx, 32
    shl edx, {SP_SHIFT}
    or edx, eax
    shl rdx, 32
    mov ecx, ecx
    or rdx, rcx
    mov ecx, {RECORD_SIZE}
    xadd gs:[{CURSOR}], rcx
    cmp rcx, gs:[{LIMIT}]
    jb 5f
    call hodo_agent_chunk
5:  mov [rcx], rdx
    cmp eax, {WINDOW_INFO}
    jne 6f
    mov rax, rbx
    cmpxchg gs:[{WINDOW}], rsi
    je 7f
6:  mov qword ptr gs:[{WINDOW}], 0
7:  pop rsi
    pop rcx
    pop rbx
    pop rax
    pop rdx
    add edx, edx                  # the carry
    ret

    # The frame at exit is not that at entry. In: S is the frame at exit, rax = what its shadow has, ecx = function id,
    # rdx = minus the shadow's distance. Out: rax = the return address. Clobbers rcx. The shadow of an open frame
    # has its
    # top bit set; the innermost such frame is the one that returns here.
    .p2align 4
hodo_agent_frame:
    push rbx
    push rsi
    push rdi
    lea rsi, [rsp + 32 + 24]
    inc qword ptr gs:[{BAD_FRAMES}]
    push rax
    mov rdi, rsi
    mov ebx, 512
1:  sub rdi, 8
    mov rax, [rdi + rdx]
    btr rax, 63
    jc 5f
    dec ebx
    jnz 1b
    mov rdi, rsi
    mov ebx, 512
3:  add rdi, 8
    mov rax, [rdi + rdx]
    btr rax, 63
    jc 5f
    dec ebx
    jnz 3b
    pop rax
    xor edi, edi
    jmp 6f
5:  mov qword ptr [rdi + rdx], 0
    pop rbx
6:  cmp qword ptr gs:[{BAD_ID}], 0
    jne 7f
    mov gs:[{BAD_ENTRY}], rdi
    mov gs:[{BAD_EXIT}], rsi
    mov ecx, ecx
    mov gs:[{BAD_ID}], rcx
7:  pop rdi
    pop rsi
    pop rbx
    ret

    # A call that was short ends. In: rax = lower half of the counter, ecx = how long is short, edx = upper half of its
    # entry record. If its entry and then only tail calls in its frame are the last records, they are taken back:
    # carry is
    # set. Keeps rax, clobbers rbx, rcx, rdx. The records become holes first: a signal handler that comes before the
    # cursor has moved records after them, and then they stay holes.
    .p2align 4
hodo_agent_tails:
    push rsi
    push rdi
    push r8
    push r9
    push r10
    mov r9, gs:[{CURSOR}]
    mov rdi, r9
    mov r8d, 64
1:  sub rdi, {RECORD_SIZE}
    mov rsi, [rdi]
    mov r10, rsi
    shr r10, 32
    cmp r10d, edx
    je 2f
    mov ebx, r10d
    xor ebx, edx
    test ebx, {SP_FIELD}
    jnz 4f
    shr r10d, {KIND_SHIFT}
    and r10d, 3
    cmp r10d, {TAIL}
    jne 4f
    dec r8d
    jnz 1b
    jmp 4f
2:  mov esi, esi
    mov r10, rax
    sub r10, rsi
    cmp r10, rcx
    jae 4f
    mov rsi, rdi
3:  mov qword ptr [rsi], 0
    add rsi, {RECORD_SIZE}
    cmp rsi, r9
    jb 3b
    mov rbx, rax
    mov rax, r9
    cmpxchg gs:[{CURSOR}], rdi
    mov rax, rbx
    stc
    jmp 5f
4:  clc
5:  pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    ret

    # One record. In: ecx = the record's upper half without the stack bits. Clobbers rax, rcx, rdx.
    .p2align 4
hodo_agent_record:
    push rbx
    mov ebx, ecx
    rdtsc
    cmp edx, gs:[{EPOCH}]
    je 1f
    call hodo_agent_epoch
    jmp 1f
hodo_agent_record_untimed:
    push rbx
    mov ebx, ecx
    xor eax, eax
1:  lea ecx, [rsp + 40]
    shl ecx, {SP_UP}
    and ecx, {SP_FIELD}
    or ebx, ecx
    shl rbx, 32
    or rax, rbx
    mov ecx, {RECORD_SIZE}
    xadd gs:[{CURSOR}], rcx
    cmp rcx, gs:[{LIMIT}]
    jb 2f
    call hodo_agent_chunk
2:  mov [rcx], rax
    pop rbx
    ret

    # The controller makes the target run single system calls here. If it is killed meanwhile, the thread comes
    # back to where it was by what is
    # at the stack pointer: signal mask, registers, and what `iretq` takes.
    .p2align 4
hodo_agent_syscall:
    syscall
    .byte 0x31, 0xD2              # xor edx, edx
    .byte 0x48, 0x89, 0xE6        # mov rsi, rsp
    mov edi, 2                    # SIG_SETMASK
    mov r10d, 8
    mov eax, 14                   # rt_sigprocmask
    syscall
    pop rax
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    pop r11
    pop r10
    pop r9
    pop r8
    pop rax
    pop rcx
    pop rdx
    pop rsi
    pop rdi
    iretq
hodo_agent_home_end:
    .p2align 4
hodo_agent_end:
    .popsection
    "#],
    SHADOW_DISTANCE = const SHADOW_DISTANCE,
    WINDOW = const tcb::WINDOW,
    WINDOW_SIZE = const WINDOW_SIZE,
    WINDOW_SHIFT = const record::WINDOW_SHIFT,
    WINDOW_UNIT = const 1u32 << record::WINDOW_SHIFT,
    WINDOW_INFO = const (record::SPECIAL << record::KIND_SHIFT) | record::SPECIAL_WINDOW,
    STACK_INFO = const (record::SPECIAL << record::KIND_SHIFT) | record::SPECIAL_STACK,
    SP_SHIFT = const record::SP_SHIFT,
    SP_UP = const record::SP_SHIFT - 4,
    SP_FIELD = const ((1u32 << record::SP_BITS) - 1) << record::SP_SHIFT,
);

unsafe extern "C" {
    static hodo_agent_start: u8;
    static hodo_agent_epoch: u8;
    static hodo_agent_chunk: u8;
    static hodo_agent_shadow: u8;
    static hodo_agent_window: u8;
    static hodo_agent_record: u8;
    static hodo_agent_record_untimed: u8;
    static hodo_agent_frame: u8;
    static hodo_agent_tails: u8;
    static hodo_agent_syscall: u8;
    static hodo_agent_home_end: u8;
    static hodo_agent_end: u8;
}

/// The blob and where its entries are, as offsets into it.
#[derive(Debug, Clone, Copy)]
pub struct Runtime {
    /// Position-independent code.
    pub code: &'static [u8],
    /// In: `edx` = upper half of the counter. Keeps `rax`, clobbers `rcx`, `rdx`.
    pub epoch: usize,
    /// Out: `rcx` = slot of a new chunk. Keeps all else.
    pub chunk: usize,
    /// Out: carry if the stack cannot have a shadow. Keeps all else.
    pub shadow: usize,
    /// Keeps all but `rdx`, and the carry.
    pub window: usize,
    /// In: `ecx` = upper half of the record. Clobbers `rax`, `rcx`, `rdx`.
    pub record: usize,
    /// In and out as for `record`; without the time.
    pub record_untimed: usize,
    /// In: `rax` = the shadow, `ecx` = function id, `rdx` = minus the shadow's distance. Out: `rax` = return address.
    /// Clobbers `rcx`.
    pub frame: usize,
    /// In: `rax` = lower half of the counter, `ecx` = a duration, `edx` = upper half of an entry record. Out: carry if
    /// the call was taken back. Clobbers `rbx`, `rcx`, `rdx`.
    pub tails: usize,
    /// Stubs find by themselves who jumps to them: not used.
    pub tail: usize,
    /// A system call instruction.
    pub syscall: usize,
    /// A return instruction.
    pub ret: usize,
}

/// Code that makes a system call and then, unless somebody stops the thread there, lets it continue as if the call had
/// not been made. The stack pointer leads to what it takes: signal mask, registers, and what `iretq` takes.
#[must_use]
pub fn call_and_home() -> &'static [u8] {
    let start = &raw const hodo_agent_syscall;
    let len = (&raw const hodo_agent_home_end).addr() - start.addr();
    // SAFETY: both labels are in one object in read-only data, laid out by the assembly above.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// The runtime, ready to be copied into a target.
#[must_use]
pub fn runtime() -> Runtime {
    let start = &raw const hodo_agent_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
    let code = unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_agent_end)) };
    let ret = code.iter().position(|&byte| byte == 0xC3);
    Runtime {
        code,
        tail: 0,
        ret: ret.unwrap_or_default(),
        epoch: offset(&raw const hodo_agent_epoch),
        chunk: offset(&raw const hodo_agent_chunk),
        shadow: offset(&raw const hodo_agent_shadow),
        window: offset(&raw const hodo_agent_window),
        record: offset(&raw const hodo_agent_record),
        record_untimed: offset(&raw const hodo_agent_record_untimed),
        frame: offset(&raw const hodo_agent_frame),
        tails: offset(&raw const hodo_agent_tails),
        syscall: offset(&raw const hodo_agent_syscall),
    }
}
