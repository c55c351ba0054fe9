//! System calls of the program.

use hodo_isa::x86_64::asm::{RAX, RCX, RDI, RSI, mem};

use super::translate::{ECX, NOP, R11, Saved, Translator};
use crate::fixups::Depends;

/// System calls that hodo must see before the kernel does: they change what can be executed, or where a thread is, or
/// end a program. So does `rt_sigaction` for SIGTRAP and SIGSEGV, and opening a list of mappings.
const WATCHED: [i64; 10] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_pkey_mprotect,
    libc::SYS_arch_prctl,
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// How paths of files begin that may be lists of mappings: `/proc/self/maps`, or `smaps` in an open directory.
const PATHS: [[u8; 4]; 4] = [*b"/pro", *b"self", *b"maps", *b"smap"];

/// From the instruction that reads a path to the breakpoint, in bytes.
pub(crate) const PATH_TO_TRAP: u64 = 37;

impl Translator<'_, '_> {
    /// A system call: those that hodo watches stop at a breakpoint first. The kernel overwrites `rcx` and `r11`, so they
    /// are free here.
    pub(super) fn system_call(&mut self, pc: u64, next: u64) {
        let [watched, make, action] = [(); 3].map(|()| self.code.label());
        let [open, open_at, path] = [(); 3].map(|()| self.code.label());
        let others = [
            (libc::SYS_rt_sigaction, action),
            (libc::SYS_openat, open_at),
            (libc::SYS_openat2, open_at),
            (libc::SYS_open, open),
        ];
        let all = others.into_iter();
        for (number, to) in all.chain(WATCHED.map(|number| (number, watched))) {
            self.code.lea(RCX, mem(RAX, -(number as i32)));
            // A signal that comes here comes before the call.
            let known = Saved {
                is_known: true,
                ..Saved::default()
            };
            self.inside(pc, known);
            self.code.jrcxz(to);
        }
        self.code.jmp_short(make);
        self.code.bind(action);
        for signal in [libc::SIGTRAP, libc::SIGSEGV] {
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
        self.code.int3();
        self.code.raw(&NOP);
        self.code.bind(make);
        self.out.calls.push((trap, self.code.here()));
        self.point(pc, None);
        self.code.syscall();
        // The program finds there what it finds alone.
        self.point(next, None);
        self.code.movabs_ri(RCX, next);
        self.fix(Depends::Original, 8, 0);
    }
}
