//! Which functions the return addresses in stubs belong to, and what programs call.

use hodo_module::mapped;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use hodo_abi::Span;
use hodo_isa::native::entry::is_signal_return;

use super::Table;
use crate::arch::Called;
use crate::arch::{self, Made};
use crate::frames::{self, Fit, Return, Returns, Walked};
use crate::space::Space;
use crate::stubs::Stubs;
use hodo_module::Image;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Memory, Regs, Signing, Stopped};

/// The longest beginning of a PLT entry, or of a stub's copy of one.
const ENTRY: usize = 16;

/// How many frames of one thread are inspected at most.
const MOST: usize = 1 << 18;

/// A file, and runtime minus link-time address.
type Other = (Image, u64);

/// A stopped process.
pub struct Process<'a> {
    /// One of its threads.
    pub thread: Stopped,
    pub space: &'a Space,
    pub table: &'a Table,
    pub memory: &'a Memory,
    pub maps: &'a [Mapping],
    /// How far below S functions keep their return addresses, for those that were looked up.
    pub known: RefCell<HashMap<u64, Option<u64>>>,
    /// The functions that have stubs, once they were looked up.
    pub traced: RefCell<Option<BTreeSet<u64>>>,
    /// Files whose code was not changed, by the address of their code.
    pub others: RefCell<HashMap<u64, Option<Rc<Other>>>>,
}

impl Process<'_> {
    /// If calls of a function return to this address in its stub: the function's address, 0 if it is a library's, and
    /// the displaced instructions in the stub.
    pub fn stub_of(&self, address: u64) -> Option<(u64, u64)> {
        let mut stubs = self.space.written().stubs().iter();
        let of_stub = stubs.find_map(|stubs| stubs.returns_to(self.memory, address));
        of_stub.or_else(|| {
            let function = self.table.calls_body(self.memory, address);
            Some((function.filter(|_| self.space.holds(address))?, 0))
        })
    }

    /// How the code of a function uses the stack.
    pub fn made(&self, function: u64) -> Made {
        let end = self.with_traced(|all| all.range(function + 1..).next().copied());
        Made::of(self.memory, function, end)
    }

    /// The functions that have stubs.
    fn with_traced<T>(&self, ask: impl FnOnce(&BTreeSet<u64>) -> T) -> T {
        let mut traced = self.traced.borrow_mut();
        ask(traced.get_or_insert_with(|| {
            let all = self.space.written().stubs().iter().flat_map(Stubs::starts);
            all.map(|(_, original)| original).collect()
        }))
    }

    /// How a function signs its return address, if it does: for this S, in a word that it has stored or in a register.
    pub fn signing(&self, function: u64, s: u64, stored: bool) -> Option<Signing> {
        let end = self.with_traced(|all| all.range(function + 1..).next().copied());
        // A site comes after an instruction at the entry that signs.
        let before = self.code(function.wrapping_sub(4));
        let second = before
            .and_then(|code| arch::signs(std::iter::once(code)))
            .or_else(|| self.signs(Span::from(function..end.unwrap_or(u64::MAX))))?;
        Some(Signing {
            modifier: s,
            second,
            stored,
        })
    }

    /// Whether this code signs its return address, and then whether by the second key.
    fn signs(&self, code: Span) -> Option<bool> {
        /// Instructions that are looked at.
        const INSTRUCTIONS: u64 = 64;
        let instructions = (0..INSTRUCTIONS).map(|index| code.start + 4 * index);
        let own = instructions.take_while(|&at| code.contains(at));
        arch::signs(own.map_while(|at| self.code(at)))
    }

    /// How far below S the function at `at` keeps its return address, according to unwind tables, otherwise to its
    /// code.
    fn below(&self, at: u64) -> Option<u64> {
        if let Some(known) = self.known.borrow().get(&at) {
            return *known;
        }
        let below = arch::return_below(|| match self.space.file_at(at) {
            Some((file, addr)) => {
                (file.frames().return_address(addr)).or_else(|| self.made(at).kept())
            }
            None => {
                let other = self.other(at)?;
                let (image, bias) = &*other;
                image.frames().return_address(at.wrapping_sub(*bias))
            }
        });
        self.known.borrow_mut().insert(at, below);
        below
    }

    fn other(&self, at: u64) -> Option<Rc<Other>> {
        let index = self.maps.partition_point(|mapping| mapping.end <= at);
        let mapping = self.maps.get(index).filter(|m| m.start <= at)?;
        if !mapping.executable || mapping.inode == 0 {
            return None;
        }
        let mut others = self.others.borrow_mut();
        let known = others.entry(mapping.start).or_insert_with(|| {
            let (_, image) = mapped::of_mapping(self.thread.tid(), mapping).ok()?;
            let bias = image.bias(mapping.offset, mapping.start)?;
            Some(Rc::new((image, bias)))
        });
        known.clone()
    }

    /// Goes from a thread's registers to those of its callers, as far as unwind tables lead.
    pub fn walk(&self, regs: &Regs, walked: &mut Walked) {
        let Some(mut registers) = arch::for_unwinders(regs) else {
            return;
        };
        // Whether the instruction at the address has not been executed yet; otherwise the address follows a call.
        let mut next = true;
        for _ in 0..MOST {
            let (Some(pc), Some(sp)) = (registers.instruction(), registers.stack_pointer()) else {
                return;
            };
            let addr = pc.wrapping_sub(u64::from(!next));
            let read = |at| self.memory.read_u64(TargetAddr(at)).ok();
            let mut linked = addr;
            let caller = match self.space.file_at(addr) {
                Some((file, addr)) => {
                    linked = addr;
                    file.unwinder().caller(addr, &registers, &read)
                }
                None => self.other(addr).and_then(|other| {
                    let (image, bias) = &*other;
                    linked = addr.wrapping_sub(*bias);
                    image.unwinder().caller(linked, &registers, &read)
                }),
            };
            // The kernel's code for the end of signal handlers is in no file.
            let interrupted = || {
                let caller = hodo_symbols::interrupted(&registers, &read);
                caller.filter(|_| !self.space.holds(pc))
            };
            let Some(caller) = caller.or_else(interrupted) else {
                return;
            };
            next = caller.interrupted;
            registers = caller.registers;
            let Some(s) = registers.stack_pointer() else {
                return;
            };
            let back = registers.instruction().filter(|_| !caller.none);
            // Wrong tables lead to something that is not a return address. The return address of a handler is in the
            // kernel's code.
            let is_handler = || hodo_symbols::interrupted(&registers, &read).is_some();
            if back.is_some_and(|back| !next && !self.follows_call(back) && !is_handler()) {
                return;
            }
            // Interrupted code may run on another stack, and memory between two stacks belongs to no frame.
            let is_frame = !next && self.is_one_piece(sp, s);
            if is_frame {
                walked.frames.push(sp..s);
                walked.kept.extend(caller.kept);
            }
            let Some(back) = back else {
                return;
            };
            if self.space.holds(back) {
                let frame = s - arch::CFA_ABOVE;
                let real = frames::shadow(self.memory, frame);
                let Some((real, of)) = real.zip(self.is_return(back)) else {
                    return;
                };
                if let Some(at) = caller.kept {
                    let word = self.memory.read_u64(TargetAddr(at)).ok();
                    let bias = addr.wrapping_sub(linked);
                    let code = Span::at(caller.code.start.wrapping_add(bias), caller.code.len());
                    let signed = |word| self.signed_by(code, &of, word, real, frame);
                    // If it is not known, the search finds the word again, and that it is not.
                    let Some(word) = word.and_then(signed) else {
                        if is_frame {
                            walked.frames.pop();
                        }
                        return;
                    };
                    walked.returns.push((at, frame, word));
                }
                registers.set_instruction(Some(real));
            }
        }
    }

    /// Like [`Returns::signed`], for a word that this code has stored: the function that was called, or one to which
    /// that has jumped.
    fn signed_by(&self, code: Span, of: &Return, word: u64, to: u64, s: u64) -> Option<u64> {
        let Some(second) = self.signs(code) else {
            return self.signed(of, word, to, s);
        };
        let how = Signing {
            modifier: s,
            second,
            stored: true,
        };
        let page = self.space.scratch_page();
        self.thread
            .sign_again(page, word, to, Some(how))
            .ok()
            .flatten()
    }

    /// Whether this address follows a call, in the program or in a stub.
    pub fn follows_call(&self, address: u64) -> bool {
        let called = address.checked_sub(8).and_then(|start| self.code(start));
        self.stub_of(address).is_some()
            || called.is_some_and(|code| arch::called_by(code, address) != Called::Nothing)
    }

    /// Whether this range is within one mapping, and not empty.
    fn is_one_piece(&self, start: u64, end: u64) -> bool {
        let index = self.maps.partition_point(|mapping| mapping.end <= start);
        let mapping = self.maps.get(index);
        start < end && mapping.is_some_and(|mapping| mapping.start <= start && end <= mapping.end)
    }

    /// The program's code as it is without our changes.
    fn code<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        if let Some((file, addr)) = self.space.file_at(at) {
            return file.at(addr..addr + N as u64)?.try_into().ok();
        }
        let mut code = [0; N];
        self.memory.read(TargetAddr(at), &mut code).ok()?;
        Some(code)
    }
}

impl Returns for Process<'_> {
    fn is_return(&self, address: u64) -> Option<Return> {
        let (function, body) = self.stub_of(address)?;
        let mut copy = [0; ENTRY];
        let slot = (function == 0 && self.memory.read(TargetAddr(body), &mut copy).is_ok())
            .then(|| arch::slot_of(&copy, body))
            .flatten();
        let called = slot.map_or(Some(function), |slot| {
            self.memory.read_u64(TargetAddr(slot)).ok()
        });
        Some(Return {
            below: called.and_then(|at| self.below(at)),
            function,
            slot,
            called,
        })
    }

    fn signed(&self, of: &Return, word: u64, to: u64, s: u64) -> Option<u64> {
        let how = of.called.and_then(|called| self.signing(called, s, true));
        let page = self.space.scratch_page();
        self.thread.sign_again(page, word, to, how).ok().flatten()
    }

    fn fits(&self, of: &Return, address: u64) -> Fit {
        // A handler that the walk does not reach: called from a linkage table, or from code without unwind tables.
        if (self.code::<ENTRY>(address)).is_some_and(|code| is_signal_return(&code)) {
            return Fit::Handler;
        }
        let called = address.checked_sub(8).and_then(|start| self.code(start));
        let target = match called.map(|before| arch::called_by(before, address)) {
            Some(Called::This(target)) => target,
            Some(Called::Something) => return Fit::May,
            Some(Called::Nothing) | None => return Fit::Not,
        };
        if target == of.function && target != 0 {
            return Fit::Does;
        }
        let entry = self.code::<ENTRY>(target);
        let slot = entry.and_then(|entry| arch::slot_of(&entry, target));
        let leads_there = slot.is_some_and(|slot| {
            of.slot == Some(slot)
                || of.function != 0
                    && self
                        .memory
                        .read_u64(TargetAddr(slot))
                        .is_ok_and(|to| to == of.function)
        });
        match leads_there {
            true => Fit::Does,
            false if self.with_traced(|all| all.contains(&target)) => Fit::Not,
            false => Fit::Hardly,
        }
    }
}
