//! What runs before and after each `syscall` instruction when system calls are recorded. It writes one event with the
//! number and the arguments, and one with the result, each with the data that the arguments point to.
//!
//! A table that follows the code says of each system call what that is; `hodo_trace::syscalls` makes it. An event takes
//! as much room as the largest may need, and gives back what it did not use, unless a signal handler has recorded
//! meanwhile: then that stays a hole.

use crate::constants::MARGIN;
use hodo_trace::format::tcb;
use hodo_trace::syscalls::{ENTRY_SIZE, HEADER, NUMBERS, header, kind};

/// No processor is known.
const NO_PROCESSOR: u64 = 0xFFFF_FFFF_0000_0000;

around_system_calls!(
    r#"
    .pushsection .rodata.hodo_agent_syscalls, "a", @progbits
    .p2align 6
    .globl hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end
    .hidden hodo_sys_start, hodo_sys_enter, hodo_sys_exit, hodo_sys_faults, hodo_sys_faults_end, hodo_sys_end
hodo_sys_start:

    # Saves the registers that an event is made with, the arguments of the call last: they are 12 words then, in order.
    .macro HODO_SYS_SAVE
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push r9
    push r8
    push r10
    push rdx
    push rsi
    push rdi
    .endm

    .macro HODO_SYS_RESTORE
    pop rdi
    pop rsi
    pop rdx
    pop r10
    pop r8
    pop r9
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    .endm

    # Before a system call. In: all registers are the program's, but rsp, which is 136 below. Clobbers rcx and
    # r11, as the
    # system call itself does.
hodo_sys_enter:
    push rax
    mov r11, rax
    lahf
    seto al
    push rax
    lea rcx, [rsp + 128 + 24]
    mov eax, ecx
    and eax, 0x30
    cmp r11, {NUMBERS}
    jb 1f
    mov r11d, {NUMBERS}
1:  mov gs:[rax + {SLOTS}], rcx
    mov gs:[rax + {SLOTS} + 8], r11
    imul r11d, r11d, {ENTRY_SIZE}
    lea rcx, [rip + hodo_sys_end + {HEADER}]
    add r11, rcx
    test byte ptr [r11 + 15], 0x80
    jnz 9f
    HODO_SYS_SAVE
    mov rbp, rsp
    mov rbx, [r11]
    movzx r15d, byte ptr [r11 + 14]
    mov r12d, [rip + hodo_sys_end + 16]
    call hodo_sys_begin
    mov rax, [rbp + 104]
    mov [rdi], rax
    add rdi, 8
    # The arguments.
    mov eax, r15d
    mov rsi, rbp
2:  dec eax
    js 3f
    mov rdx, [rsi]
    mov [rdi], rdx
    add rsi, 8
    add rdi, 8
    jmp 2b
3:  call hodo_sys_pieces
    HODO_SYS_RESTORE
9:  pop rax
    add al, 127
    sahf
    pop rax
    ret

    # Behind a system call. As above; clobbers nothing but rcx. The kernel has kept the arguments.
    .p2align 4
hodo_sys_exit:
    push rax
    push r11
    lahf
    seto al
    push rax
    lea rcx, [rsp + 128 + 32]
    mov eax, ecx
    and eax, 0x30
    # In a child, or when a signal handler's system calls came in between, the number is not known.
    mov r11d, {NUMBERS} + 1
    cmp gs:[rax + {SLOTS}], rcx
    cmove r11, gs:[rax + {SLOTS} + 8]
    imul r11d, r11d, {ENTRY_SIZE}
    lea rcx, [rip + hodo_sys_end + {HEADER}]
    add r11, rcx
    test byte ptr [r11 + 15], 0x80
    jnz 9f
    HODO_SYS_SAVE
    mov rbp, rsp
    mov rbx, [r11 + 8]
    shl rbx, 16
    shr rbx, 16
    mov r12d, [rip + hodo_sys_end + 20]
    call hodo_sys_begin
    mov rax, [rbp + 112]
    mov [rdi], rax
    add rdi, 8
    # What an error leaves after is not looked at.
    cmp rax, -4096
    jbe 3f
    xor ebx, ebx
3:  call hodo_sys_pieces
    HODO_SYS_RESTORE
9:  pop rax
    add al, 127
    sahf
    pop r11
    pop rax
    ret

    .purgem HODO_SYS_SAVE
    .purgem HODO_SYS_RESTORE

    # Begins an event. Out: rcx = its place, rdi = where to go on, r13 = the time, r14 = where no piece may begin
    # any more.
    .p2align 4
hodo_sys_begin:
    xor eax, eax
    test byte ptr [rip + hodo_sys_end + 24], 1
    jz 1f
    rdtsc
    cmp edx, gs:[{EPOCH}]
    je 1f
    call qword ptr [rip + hodo_sys_end]
1:  mov r13d, eax
    mov r14d, [rip + hodo_sys_end + {EVENT}]
    mov ecx, r14d
    xadd gs:[{CURSOR}], rcx
    lea rdx, [rcx + r14]
    cmp rdx, gs:[{LIMIT}]
    ja 2f
    # A signal handler may have opened another chunk between these instructions: is it still one chunk?
    dec rdx
    xor rdx, rcx
    shr rdx, 16
    jz 3f
    jmp hodo_sys_begin
2:  call qword ptr [rip + hodo_sys_end + 8]
    jmp hodo_sys_begin
    # The payload comes before its record: a reader must never take it for records.
3:  mov rax, [rip + hodo_sys_end + {PAYLOAD}]
    mov [rcx + 8], rax
    movabs rax, {NO_PROCESSOR}
    test byte ptr [rip + hodo_sys_end + 24], 2
    jz 4f
    rdpid rax
    shl rax, 32
4:  mov [rcx + 16], rax
    lea rdi, [rcx + 24]
    lea r14, [rcx + r14 - {MARGIN}]
    ret

    # Fetches what the descriptors in rbx say, and ends the event. Clobbers all but rbp and rsp.
    .p2align 4
hodo_sys_pieces:
    test bx, bx
    jz 5f
    movzx r15d, bx
    mov eax, r15d
    shr eax, 3
    and eax, 7
    mov r9d, eax
    mov rsi, [rbp + rax * 8]
    mov r10d, r15d
    shr r10d, 6
    and r15d, 7
    call hodo_sys_piece
    shr rbx, 16
    jmp hodo_sys_pieces
5:  mov rdx, rdi
    sub rdx, rcx
    shr edx, 3
    sub edx, 2
    mov [rcx + 8], edx
    shl r12, 32
    or r12, r13
    mov [rcx], r12
    lea rax, [r14 + {MARGIN}]
    cmpxchg gs:[{CURSOR}], rdi
    ret

    # One piece. In: r15 = kind, r9 = number of the argument, rsi = its value, r10 = parameter. Keeps rbx, rcx,
    # rbp, r12 to r14.
    .p2align 4
hodo_sys_piece:
    test rsi, rsi
    jz 9f
    cmp rdi, r14
    jae 9f
    cmp r15d, {TEXT}
    je hodo_sys_text
    mov edx, r10d
    cmp r15d, {FIXED}
    je hodo_sys_bytes
    cmp r15d, {SIZED}
    je 1f
    cmp r15d, {RESULT}
    je 2f
    cmp r15d, {TEXTS}
    je hodo_sys_texts
    cmp r15d, {PARTS}
    je hodo_sys_parts
    cmp r15d, {SPECIAL}
    je hodo_sys_special
9:  ret
    # As many bytes as another argument says.
1:  mov eax, r10d
    and eax, 7
    mov rdx, [rbp + rax * 8]
    jmp 3f
    # As many as the result says, which lies above the saved registers and the flags.
2:  mov rdx, [rbp + 112]
3:  mov eax, r10d
    shr eax, 3
    and eax, 7
    shr r10d, 6
    shl r10d, 4
    jnz 5f
    mov r10d, [rip + hodo_sys_end + {BUFFER}]
5:
    # rdx << al, at most r10
    cmp rdx, r10
    jbe 4f
    mov edx, r10d
4:  push rcx
    mov ecx, eax
    shl edx, cl
    pop rcx
    cmp edx, r10d
    jbe hodo_sys_bytes
    mov edx, r10d

    # edx bytes at rsi.
hodo_sys_bytes:
    mov r8, rdi
    add rdi, 8
    mov rax, r14
    sub rax, rdi
    jb 7f
    cmp rdx, rax
    jbe 1f
    mov edx, eax
1:  mov eax, 1
    mov r11, rsi
    shr r11, 16
    jz 4f
    shr r11, 31
    jnz 4f
2:  cmp edx, 8
    jb 3f
hodo_sys_load8:
    mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    sub edx, 8
    jmp 2b
3:  xor eax, eax
    test edx, edx
    jz 4f
hodo_sys_load1:
    mov al, [rsi]
    mov [rdi], al
    inc rsi
    inc rdi
    dec edx
    jmp 3b
hodo_sys_fault:
    mov eax, 1
    # The header: bytes, number of the argument, whether it is all.
4:  mov rdx, rdi
    sub rdx, r8
    sub edx, 8
    shl r9d, 16
    or edx, r9d
    shr r9d, 16
    shl eax, 24
    or edx, eax
    mov [r8], rdx
    add rdi, 7
    and rdi, -8
    ret
7:  mov rdi, r8
    ret

    # A string at rsi, of r10 bytes at most.
    .p2align 4
hodo_sys_text:
    mov r8, rdi
    add rdi, 8
    mov rax, r14
    sub rax, rdi
    jb 7b
    cmp r10, rax
    jbe 1f
    mov r10d, eax
1:  mov eax, 1
    mov r11, rsi
    shr r11, 16
    jz 4b
    shr r11, 31
    jnz 4b
    xor eax, eax
2:  test r10d, r10d
    jz 4b
    # Not into eax, which is the flags of what ends without a zero byte.
hodo_sys_load_text:
    mov r11b, [rsi]
    test r11b, r11b
    jz 3f
    mov [rdi], r11b
    inc rsi
    inc rdi
    dec r10d
    jmp 2b
    # It ends here, and it is all.
3:  mov eax, 2
    jmp 4b

    # Pointers at rsi up to a zero: the first as strings, of the others only how many there are. The parameter is
    # how many
    # strings there are at most.
    .p2align 4
hodo_sys_texts:
    push rbx
    mov ebx, r10d
    mov r15, rsi
    mov rax, rsi
    shr rax, 12
    jz 8f
    xor edx, edx
1:  cmp edx, ebx
    jae 3f
hodo_sys_load_pointer:
    mov rsi, [r15]
    add r15, 8
    test rsi, rsi
    jz 8f
    inc edx
    push rdx
    mov r10d, [rip + hodo_sys_end + {STRING}]
    call hodo_sys_text
    pop rdx
    cmp rdi, r14
    jb 1b
    # The others.
3:  xor edx, edx
hodo_sys_load_other:
    cmp qword ptr [r15], 0
    je 4f
    add r15, 8
    inc edx
    cmp edx, 65536
    jb hodo_sys_load_other
4:  mov eax, edx
    mov [rdi + 8], rax
    mov rax, r9
    shl eax, 16
    or eax, 0x04000008
    mov [rdi], rax
    add rdi, 16
8:
hodo_sys_texts_fault:
    pop rbx
    ret

    # Pairs of address and length at rsi, as many as an argument says, and what they point to.
    .p2align 4
hodo_sys_parts:
    lea rax, [rdi + 160]
    cmp rax, r14
    ja hodo_sys_nothing
    mov eax, r10d
    and eax, 7
    mov rdx, [rbp + rax * 8]
    cmp eax, {MESSAGE}
    jne 6f
    # A struct msghdr has them.
    mov rax, rsi
    shr rax, 12
    jz hodo_sys_nothing
hodo_sys_load_message:
    mov rdx, [rsi + 24]
hodo_sys_load_message2:
    mov rsi, [rsi + 16]
6:  cmp rdx, 8
    jbe 1f
    mov edx, 8
1:  shl edx, 4
    mov r10d, [rip + hodo_sys_end + {BUFFER}]
    push rbx
    mov ebx, edx
    push r10
    push rdi
    push rsi
    call hodo_sys_bytes
    pop rsi
    pop r15
    add r15, 8
    # From here on what was copied is read.
2:  sub ebx, 16
    js 5f
    mov rsi, [r15]
    mov rdx, [r15 + 8]
    add r15, 16
    mov eax, [rsp]
    cmp rdx, rax
    jbe 3f
    mov edx, eax
3:  test rdx, rdx
    jz 2b
    cmp rdi, r14
    jae 5f
    call hodo_sys_bytes
    jmp 2b
5:  pop r10
    pop rbx
    ret

    # What depends on another argument.
    .p2align 4
hodo_sys_special:
    cmp r10d, {WAIT}
    je 3f
    cmp r10d, {NAME}
    je 5f
    cmp r10d, {LOCK}
    je 6f
    cmp r10d, {DEVICE}
    je 8f
    # How many directory entries the result has.
    mov rdx, [rbp + 112]
    xor r10d, r10d
    xor r11d, r11d
1:  cmp r11, rdx
    jae 2f
hodo_sys_load_entry:
    movzx eax, word ptr [rsi + r11 + 16]
    test eax, eax
    jz 2f
    add r11, rax
    inc r10d
    jmp 1b
2:  mov [rdi + 8], r10
    mov eax, r9d
    shl eax, 16
    or eax, 8
    mov [rdi], rax
    add rdi, 16
    ret
hodo_sys_nothing:
    ret
    # The time limit of a futex operation that waits.
3:  mov eax, [rbp + 8]
    and eax, 0x7F
    mov edx, {WAITING}
    bt edx, eax
    jnc hodo_sys_nothing
    cmp eax, 31
    ja hodo_sys_nothing
    mov edx, 16
    jmp hodo_sys_bytes
    # The name that a thread gives itself.
5:  cmp dword ptr [rbp], 15
    jne hodo_sys_nothing
    mov r10d, 16
    jmp hodo_sys_text
    # The lock that fcntl is about.
6:  mov eax, [rbp + 8]
    mov edx, 32
    movabs r11, {LOCKS}
    jmp 9f
    # The number or the size of a window that ioctl is about.
8:  mov eax, [rbp + 8]
    sub eax, {DEVICE_FIRST}
    mov edx, 8
    mov r11d, {DEVICES}
9:  cmp eax, 63
    ja hodo_sys_nothing
    bt r11, rax
    jc hodo_sys_bytes
    ret

    .p2align 3
hodo_sys_end:
hodo_sys_faults:
    .long hodo_sys_load8 - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .long hodo_sys_load1 - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .long hodo_sys_load_text - hodo_sys_start, hodo_sys_fault - hodo_sys_start
    .long hodo_sys_load_pointer - hodo_sys_start, hodo_sys_texts_fault - hodo_sys_start
    .long hodo_sys_load_other - hodo_sys_start, hodo_sys_texts_fault - hodo_sys_start
    .long hodo_sys_load_message - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .long hodo_sys_load_message2 - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
    .long hodo_sys_load_entry - hodo_sys_start, hodo_sys_nothing - hodo_sys_start
hodo_sys_faults_end:
    .popsection
    "#,
    EPOCH = const tcb::EPOCH,
    CURSOR = const tcb::CURSOR,
    NO_PROCESSOR = const NO_PROCESSOR,
);
