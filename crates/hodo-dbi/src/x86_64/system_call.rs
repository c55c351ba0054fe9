//! System calls of the program.

use hodo_isa::x86_64::asm::{
    AL, Cond, Label, RAX, RCX, RDI, RDX, RSI, RSP, SYSTEM_CALL, Size, gs, mem,
};
use hodo_ptrace::Regs;

use super::emit::{ECX, NOP, R11};
use super::emitter::Emitter;
use super::{block, kept};
use crate::fixups::Depends;
use crate::translate::Saved;
use crate::trap::{OUR_BITS, OURS};

/// Numbers of system calls (arch/x86/entry/syscalls/syscall_64.tbl).
const OPEN: i64 = 2;
const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const RT_SIGACTION: i64 = 13;
const RT_SIGPROCMASK: i64 = 14;
const RT_SIGRETURN: i64 = 15;
const MREMAP: i64 = 25;
const CLONE: i64 = 56;
pub(crate) const PTRACE: i64 = 101;
const EXECVE: i64 = 59;
const OPENAT: i64 = 257;
const EXECVEAT: i64 = 322;
const PKEY_MPROTECT: i64 = 329;
const OPENAT2: i64 = 437;
const ARCH_PRCTL: i64 = 158;
pub(crate) const SIGALTSTACK: i64 = 131;
pub(crate) const RSEQ: i64 = 334;

/// In `rcx` at a breakpoint before a system call: the kernel has refused the call because it may not access memory.
const REFUSED: u64 = 0x7265_6675_7365_6421;
/// Bytes after a system call that look at its result.
const LOOK: u64 = 6;

/// Whether a thread that is at a breakpoint before a system call has made it already, and was refused memory.
pub(crate) fn was_refused(regs: &Regs) -> bool {
    regs.general(1) == REFUSED
}

/// Has a thread find that the kernel refuses a system call, by the instruction at this address.
pub(crate) fn refuse(regs: &mut Regs, at: u64) {
    regs.set_result(-i64::from(libc::EFAULT));
    regs.set_pc(at + SYSTEM_CALL.len() as u64 + LOOK);
}

/// System calls that open files.
pub(crate) const OPENS: [i64; 3] = [OPEN, OPENAT, OPENAT2];

/// Where the path is of a file that one of these opens.
pub(crate) fn path_of(number: i64, args: [u64; 6]) -> u64 {
    args[usize::from(number != OPEN)]
}

/// System calls during which a thread has another mask of signals, which holds in a handler, too: `rt_sigsuspend`,
/// `pselect6`, `ppoll`, `epoll_pwait`, `io_pgetevents`, `io_uring_enter`, `epoll_pwait2`.
pub(crate) const MASKING: [i64; 7] = [130, 270, 271, 281, 333, 426, 441];

/// Why a program that makes this system call cannot run from the cache, if so.
pub(crate) fn prevents(number: i64, args: [u64; 6]) -> Option<&'static str> {
    /// Sets the base of `gs`.
    const SET_GS: u64 = 0x1001;
    (number == ARCH_PRCTL && args[0] == SET_GS)
        .then_some("the program uses the gs register itself (as Wine does), which hodo needs")
}

/// System calls that hodo must see before the kernel does: they change what can be executed, or where a thread is, or
/// end a program, or say where the kernel writes to. So does `ptrace`, which must not concern what hodo traces, and
/// opening a list of mappings, and registering restartable sequences. Those for signals are watched where that is
/// necessary.
const WATCHED: [i64; 12] = [
    MMAP,
    MPROTECT,
    MUNMAP,
    MREMAP,
    PKEY_MPROTECT,
    ARCH_PRCTL,
    CLONE,
    EXECVE,
    EXECVEAT,
    PTRACE,
    SIGALTSTACK,
    RSEQ,
];

/// System calls that must not be made twice, although they cannot write what they say of what they have done. They take
/// a message, a connection, a signal, an error or the end of a child: `accept`, `recvfrom`, `recvmsg`, `getsockopt`,
/// `wait4`, `msgrcv`, `rt_sigtimedwait`, `mq_timedreceive`, `waitid`, `accept4`, `recvmmsg`. Or they send or copy:
/// `sendfile`, `splice`, `sendmmsg`, `copy_file_range`. Or they set something: `setitimer`, `timer_settime`,
/// `mq_getsetattr`, `timerfd_settime`, `prlimit64`. Or they wait until a signal comes, which the program sees: `poll`,
/// `nanosleep`, `clock_nanosleep`, `ppoll`.
pub(crate) const CONSUMING: [i64; 24] = [
    7, 35, 38, 40, 43, 45, 47, 55, 61, 70, 128, 223, 230, 243, 245, 247, 271, 275, 286, 288, 299,
    302, 307, 326,
];
/// As many of them are looked for at once as a short jump leads across.
const AT_ONCE: usize = 12;

/// Others that set something, also if they cannot write what it was.
pub(crate) const SETTING: [i64; 3] = [RT_SIGACTION, RT_SIGPROCMASK, SIGALTSTACK];

/// How paths of files begin that may be lists of mappings: `/proc/self/maps`, or `smaps` in an open directory.
const PATHS: [[u8; 4]; 4] = [*b"/pro", *b"self", *b"maps", *b"smap"];

/// From instructions that read what the program has given to a call to its breakpoint, in bytes: a path, a set of
/// signals, and the frame of a handler.
pub(crate) const READ_TO_TRAP: [u64; 3] = [56, 405, 541];

/// Where a thread's block has the number of the system call that it makes.
pub(crate) const NUMBER: u32 = block::RAX;

/// From the breakpoint before a system call to the call, in bytes;
pub(crate) const TRAP_TO_CALL: u64 = 1 + NOP.len() as u64;
/// and from there to where its result is not looked at yet.
pub(crate) const CALL_TO_LOOK: [u64; 2] = {
    let call = SYSTEM_CALL.len() as u64;
    // An instruction of two bytes looks at what the one before it has computed.
    [call, call + LOOK - 2]
};

/// Where the frame of a handler is that returns, from the stack pointer at `rt_sigreturn` on: the interrupted
/// instruction,
pub(super) const FRAME_PC: u64 = 168;
/// the flag of steps, in a byte,
const FRAME_STEPS: i32 = 177;
/// and the mask.
const FRAME_MASK: i32 = 296;

/// A signal that comes here comes before the call.
const KNOWN: Saved = Saved {
    is_known: true,
    ..Saved::NOTHING
};
/// The same, and the flags are in `rax`.
const FLAGS: Saved = Saved {
    flags: true,
    ..KNOWN
};
/// A signal that comes here comes before the call is made once more. Its number is in the block.
const REFUSED_CALL: Saved = Saved {
    kept: kept::RAX,
    ..KNOWN
};
/// The same, and the frame of the handler that returns leads into the cache.
const RETURNS: Saved = Saved {
    returns: true,
    ..KNOWN
};

/// Where the code for a system call goes on.
#[derive(Clone, Copy)]
struct Ways {
    watched: Label,
    make: Label,
    made: Label,
}

impl Emitter<'_, '_, '_> {
    /// A system call: those that hodo watches stop at a breakpoint first. The kernel overwrites `rcx` and `r11`, so
    /// they are free here.
    pub(super) fn system_call(&mut self, pc: u64, next: u64) {
        let [watched, make, made, refused] = [(); 4].map(|()| self.code.label());
        let [open, open_at, path, far] = [(); 4].map(|()| self.code.label());
        let ways = Ways {
            watched,
            make,
            made,
        };
        // For the case that the kernel refuses memory.
        self.code.mov_mr(gs(block::RAX), RAX);
        self.inside(pc, KNOWN);
        let reads = self.signals((pc, next), ways);
        self.consumes(pc, ways);
        let others = [(OPENAT, open_at), (OPENAT2, open_at), (OPEN, open)].into_iter();
        for (number, to) in others.chain(WATCHED.map(|number| (number, far))) {
            self.lead(pc, number, to);
        }
        self.code.jmp_short(make);
        // From the first ones, it is too far.
        self.code.bind(far);
        self.code.jmp_short(watched);
        self.code.bind(open);
        self.code.mov_rr(R11, RDI);
        self.code.jmp_short(path);
        self.code.bind(open_at);
        self.code.mov_rr(R11, RSI);
        self.code.bind(path);
        let read = self.code.here();
        self.code.mov_rm(ECX, mem(R11, 0));
        let mut before = 0;
        for path in PATHS.map(u32::from_le_bytes) {
            self.code
                .lea(ECX, mem(RCX, u32::wrapping_sub(before, path).cast_signed()));
            self.code.jrcxz(watched);
            before = path;
        }
        self.code.jmp_short(make);
        self.code.bind(refused);
        self.inside(pc, REFUSED_CALL);
        self.code.movabs_ri(RCX, REFUSED);
        self.inside(pc, REFUSED_CALL);
        self.code.mov_rm(RAX, gs(block::RAX));
        self.inside(pc, KNOWN);
        self.code.bind(watched);
        let trap = self.code.here();
        debug_assert_eq!(
            [read, reads[0], reads[1]].map(|read| trap - read),
            READ_TO_TRAP
        );
        self.code.int3();
        self.code.raw(&NOP);
        self.code.bind(make);
        self.watches_at(trap);
        self.point(pc, None);
        debug_assert_eq!(self.code.here() - trap, TRAP_TO_CALL);
        self.code.syscall();
        self.code.bind(made);
        // The program finds there what it finds alone.
        self.point(next, None);
        let look = self.code.here();
        self.code.lea(RCX, mem(RAX, libc::EFAULT));
        self.inside(next, KNOWN);
        self.code.jrcxz(refused);
        debug_assert_eq!(self.code.here() - look, LOOK);
        self.inside(next, KNOWN);
        self.code.movabs_ri(RCX, next);
        self.fix(Depends::Original, 8, 0);
    }

    /// Jumps if this is the number of the call, of which the kernel takes the lower half.
    fn lead(&mut self, pc: u64, number: i64, to: Label) {
        self.code.lea(ECX, mem(RAX, -(number as i32)));
        self.inside(pc, KNOWN);
        self.code.jrcxz(to);
    }

    /// Calls that lose something if the kernel cannot write it: they are watched if hodo has protected memory.
    fn consumes(&mut self, pc: u64, ways: Ways) {
        let [protected, free, others] = [(); 3].map(|()| self.code.label());
        self.code.movzx_rm(ECX, Size::Word, gs(block::PROTECTED));
        self.inside(pc, KNOWN);
        self.code.jrcxz(free);
        self.code.jmp_short(protected);
        self.code.bind(free);
        self.code.jmp(others);
        self.code.bind(protected);
        for numbers in CONSUMING.chunks(AT_ONCE) {
            let [found, next] = [(); 2].map(|()| self.code.label());
            for &number in numbers {
                self.lead(pc, number, found);
            }
            self.code.jmp_short(next);
            self.code.bind(found);
            self.code.jmp(ways.watched);
            self.code.bind(next);
        }
        self.code.bind(others);
    }

    /// Calls about signals. Returns where a set of signals and the frame of a handler are read.
    fn signals(&mut self, (pc, next): (u64, u64), ways: Ways) -> [u64; 2] {
        let [others, set, action, back] = [(); 4].map(|()| self.code.label());
        let [set_body, back_body] = [(); 2].map(|()| self.code.label());
        self.lead(pc, RT_SIGPROCMASK, set);
        self.lead(pc, RT_SIGACTION, action);
        self.lead(pc, RT_SIGRETURN, back);
        self.code.jmp(others);
        self.code.bind(set);
        self.code.jmp(set_body);
        self.code.bind(back);
        self.code.jmp(back_body);
        self.code.bind(action);
        self.signal_action(ways);
        self.code.bind(back_body);
        let frame = self.signal_return((pc, next), ways);
        self.code.bind(set_body);
        let read = self.signal_set(pc, ways);
        self.code.bind(others);
        [read, frame]
    }

    /// `rt_sigaction`: it is watched for signals of hodo, and for all if the kernel has handlers in the cache, or hodo
    /// has protected memory.
    fn signal_action(&mut self, ways: Ways) {
        let [unarmed, ours, unprotected] = [(); 3].map(|()| self.code.label());
        self.code.movzx_rm(ECX, Size::Word, gs(block::ARMED));
        self.code.jrcxz(unarmed);
        self.code.jmp(ways.watched);
        self.code.bind(unarmed);
        for signal in OURS {
            self.code.lea(ECX, mem(RDI, -signal));
            self.code.jrcxz(ours);
        }
        // It is set, also if the kernel cannot write what it was.
        self.code.movzx_rm(ECX, Size::Word, gs(block::PROTECTED));
        self.code.jrcxz(unprotected);
        self.code.bind(ours);
        self.code.jmp(ways.watched);
        self.code.bind(unprotected);
        self.code.jmp(ways.make);
    }

    /// `rt_sigreturn`: the kernel continues in the cache at once, where the instruction was translated to. The call is
    /// watched if the program steps itself then, or does not block the same signals of hodo. Returns where the frame is
    /// read. All registers, and the flags, are those of the frame afterwards.
    fn signal_return(&mut self, (pc, next): (u64, u64), ways: Ways) -> u64 {
        const STEP: u8 = 1;
        let watched = self.code.label();
        let read = self.code.here();
        self.code.test_mi(mem(RSP, FRAME_STEPS), STEP);
        self.code.jcc(Cond::NE, watched);
        self.code.mov_rm(ECX, mem(RSP, FRAME_MASK));
        self.code.xor_rm(ECX, gs(block::BLOCKED));
        self.code.and_ri(ECX, OUR_BITS as u32);
        self.code.jcc(Cond::NE, watched);
        self.code.mov_rm(RCX, mem(RSP, FRAME_PC as i32));
        self.look_up(pc, KNOWN);
        self.code.mov_mr(mem(RSP, FRAME_PC as i32), R11);
        self.inside(pc, RETURNS);
        self.code.syscall();
        self.point(next, None);
        self.code.jmp(ways.made);
        self.code.bind(watched);
        self.inside(pc, KNOWN);
        self.code.jmp(ways.watched);
        read
    }

    /// `rt_sigprocmask`: it is watched if signals of hodo are in its set, or are blocked, or if hodo has protected
    /// memory and it says what is blocked. Returns where the set is read.
    fn signal_set(&mut self, pc: u64, ways: Ways) -> u64 {
        let [none, unwatched, watched, unprotected] = [(); 4].map(|()| self.code.label());
        self.inside(pc, KNOWN);
        self.code.mov_mr(gs(block::RAX), RAX);
        self.code.lahf();
        self.code.seto(AL);
        self.inside(pc, FLAGS);
        self.code.xor_rr(ECX, ECX);
        self.code.test_rr(RSI, RSI);
        self.code.jcc(Cond::E, none);
        self.code.mov_rm(ECX, gs(block::BLOCKED));
        let read = self.code.here();
        self.code.or_rm(ECX, mem(RSI, 0));
        self.code.and_ri(ECX, OUR_BITS as u32);
        self.code.bind(none);
        self.code.add_ri(AL, 127);
        self.code.sahf();
        self.code.mov_rm(RAX, gs(block::RAX));
        self.inside(pc, KNOWN);
        self.code.jrcxz(unwatched);
        self.code.bind(watched);
        self.code.jmp(ways.watched);
        self.code.bind(unwatched);
        // It is set, also if the kernel cannot write what it was.
        self.code.mov_rr(RCX, RDX);
        self.code.jrcxz(unprotected);
        self.code.movzx_rm(ECX, Size::Word, gs(block::PROTECTED));
        self.code.jrcxz(unprotected);
        self.code.jmp_short(watched);
        self.code.bind(unprotected);
        self.code.jmp(ways.make);
        read
    }
}
