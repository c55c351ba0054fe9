//! System calls of the program.

use hodo_isa::x86_64::asm::{AL, Cond, Label, RAX, RCX, RDI, RSI, gs, mem};

use super::block;
use super::emit::{ECX, NOP, R11};
use super::emitter::Emitter;
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
const EXECVE: i64 = 59;
const OPENAT: i64 = 257;
const EXECVEAT: i64 = 322;
const PKEY_MPROTECT: i64 = 329;
const OPENAT2: i64 = 437;
const ARCH_PRCTL: i64 = 158;
pub(crate) const FORK: i64 = 57;
pub(crate) const VFORK: i64 = 58;

/// System calls that open files.
pub(crate) const OPENS: [i64; 3] = [OPEN, OPENAT, OPENAT2];

/// Where the path is of a file that one of these opens.
pub(crate) fn path_of(number: i64, args: [u64; 6]) -> u64 {
    args[usize::from(number != OPEN)]
}

/// Why a program that makes this system call cannot run from the cache, if so.
pub(crate) fn prevents(number: i64, args: [u64; 6]) -> Option<&'static str> {
    /// Sets the base of `gs`.
    const SET_GS: u64 = 0x1001;
    (number == ARCH_PRCTL && args[0] == SET_GS)
        .then_some("the program uses the gs register itself (as Wine does), which hodo needs")
}

/// System calls that hodo must see before the kernel does: they change what can be executed, or where a thread is, or
/// end a program. So does `rt_sigaction` for the signals by which threads stop for hodo, `rt_sigprocmask` if it is about
/// these, and opening a list of mappings.
const WATCHED: [i64; 10] = [
    MMAP,
    MPROTECT,
    MUNMAP,
    MREMAP,
    PKEY_MPROTECT,
    ARCH_PRCTL,
    RT_SIGRETURN,
    CLONE,
    EXECVE,
    EXECVEAT,
];

/// How paths of files begin that may be lists of mappings: `/proc/self/maps`, or `smaps` in an open directory.
const PATHS: [[u8; 4]; 4] = [*b"/pro", *b"self", *b"maps", *b"smap"];

/// From the instruction that reads a path to the breakpoint, in bytes.
pub(crate) const PATH_TO_TRAP: u64 = 37;
/// From the instruction that reads a set of signals to the breakpoint, in bytes.
pub(crate) const SET_TO_TRAP: u64 = 195;

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

impl Emitter<'_, '_, '_> {
    /// A system call: those that hodo watches stop at a breakpoint first. The kernel overwrites `rcx` and `r11`, so they
    /// are free here.
    pub(super) fn system_call(&mut self, pc: u64, next: u64) {
        let [watched, make, action] = [(); 3].map(|()| self.code.label());
        let [open, open_at, path] = [(); 3].map(|()| self.code.label());
        let set = self.signal_set(pc, watched, make);
        let others = [
            (RT_SIGACTION, action),
            (OPENAT, open_at),
            (OPENAT2, open_at),
            (OPEN, open),
        ];
        let all = others.into_iter();
        for (number, to) in all.chain(WATCHED.map(|number| (number, watched))) {
            self.code.lea(RCX, mem(RAX, -(number as i32)));
            self.inside(pc, KNOWN);
            self.code.jrcxz(to);
        }
        self.code.jmp_short(make);
        self.code.bind(action);
        for signal in OURS {
            self.code.lea(ECX, mem(RDI, -signal));
            self.code.jrcxz(watched);
        }
        self.code.jmp_short(make);
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
        self.code.bind(watched);
        let trap = self.code.here();
        debug_assert_eq!(trap - read, PATH_TO_TRAP);
        debug_assert_eq!(trap - set, SET_TO_TRAP);
        self.code.int3();
        self.code.raw(&NOP);
        self.code.bind(make);
        self.watches_at(trap);
        self.point(pc, None);
        self.code.syscall();
        // The program finds there what it finds alone.
        self.point(next, None);
        self.code.movabs_ri(RCX, next);
        self.fix(Depends::Original, 8, 0);
    }

    /// If the call is `rt_sigprocmask`: it is watched if signals of hodo are in its set, or are blocked. Returns where the
    /// set is read.
    fn signal_set(&mut self, pc: u64, watched: Label, make: Label) -> u64 {
        let [body, others, none, unwatched] = [(); 4].map(|()| self.code.label());
        self.code.lea(RCX, mem(RAX, -(RT_SIGPROCMASK as i32)));
        self.inside(pc, KNOWN);
        self.code.jrcxz(body);
        self.code.jmp(others);
        self.code.bind(body);
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
        self.code.jmp(watched);
        self.code.bind(unwatched);
        self.code.jmp(make);
        self.code.bind(others);
        read
    }
}
