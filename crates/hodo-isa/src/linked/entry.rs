//! What a function does with its return address, which callers pass in a register.

use alloc::vec::Vec;
use core::borrow::Borrow;

use crate::code::{LinkUse, Slot};
use crate::effects::{Flow, How};

/// Looks at this many instructions at most.
pub(crate) const LIMIT: usize = 64;

/// What is asked of an instruction. Sets of registers have a bit for each number.
pub(crate) trait Linked: Copy {
    /// Where the stack pointer and the frame pointer are.
    type State: Copy;

    /// The state at a function's entry.
    const ENTRY: Self::State;
    /// Instructions begin at multiples of this many bytes.
    const UNIT: usize;
    /// The stack pointer.
    const STACK: u8;
    /// The frame pointer, if there is one.
    const FRAME: u8;
    /// Registers in which no caller passes arguments.
    const NO_ARGUMENTS: u64;
    /// Registers that calls may change.
    const VOLATILE: u64;
    /// The register of the result.
    const RESULT: u64;

    /// The instructions of code.
    fn sweep(code: &[u8], addr: u64) -> impl Iterator<Item = Self>;

    /// Its address.
    fn addr(&self) -> u64;
    /// What it does with control, after the instructions before it.
    fn flow(&self) -> Flow;
    /// The same, whatever was executed before it.
    fn flow_alone(&self) -> Flow;
    /// The place on the stack that it uses.
    fn slot(&self) -> Slot;
    /// The registers that it reads, as far as that is known.
    fn reads(&self) -> u64;
    /// The registers that it may change.
    fn changes(&self) -> u64;
    /// It reads the link register, but does not save it on the stack or jump through it.
    fn exposes_link(&self) -> bool;
    /// It may change the address in the link register.
    fn changes_link(&self) -> bool;
    /// Where it saves the link register on the stack.
    fn saves(&self) -> Option<Slot>;
    /// From where it restores the link register, if that may be what the function has saved.
    fn restores(&self) -> Option<Slot>;
    /// It loads another whole general register.
    fn loads_other(&self) -> bool;
    /// It adds a number to the stack or frame pointer, and the sum is neither of them.
    fn takes_address(&self) -> bool;
    /// Applies it to a state.
    fn step(&self, state: &mut Self::State);
    /// How far below the frame's start the place is at this distance from a register, if that is known.
    fn below(state: &Self::State, register: u8, distance: i64) -> Option<i32>;

    /// The register that has its result.
    fn result(&self) -> u64;
    /// That may be the return address, from the link register or the stack.
    fn copies_return(&self) -> bool;
    /// The register whose value it copies, if it does nothing else.
    fn copied(&self) -> u64;
    /// The registers whose values it uses.
    fn uses(&self) -> u64;
    /// Of the registers that hold a return address, those that hold it no longer.
    fn replaces(&self) -> u64;
}

/// What the link register holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// The return address of the function.
    Own,
    /// The same, reloaded from the stack.
    Back,
    /// The address after the last call. No return goes there, since it would loop forever: such a call does not return.
    Call,
    /// Something that the function or its caller has stored on the stack: compilers reload it into any register.
    Stack,
    /// Something else.
    Other,
}

/// Whether the straight-line code from a function's entry to its first call uses values from registers in which no
/// caller passes arguments.
fn takes_more_than_arguments<I: Linked>(code: &[I]) -> bool {
    let mut written = 0;
    for insn in code.iter().take(LIMIT) {
        if insn.reads() & I::NO_ARGUMENTS & !written != 0 {
            return true;
        }
        written |= insn.changes();
        if insn.flow() != Flow::Next {
            break;
        }
    }
    false
}

/// Follows all paths from the entry of a function. `code` is the function's code from `addr` on, and `scanned` its
/// instructions. `place` returns how far above the frame's start the slot lies that the instruction at an address uses,
/// if a table says so; otherwise it is derived from the code.
pub(crate) fn link_use<I: Linked>(
    (code, addr): (&[u8], u64),
    scanned: &[I],
    place: impl Fn(u64, Slot) -> Option<i32>,
) -> LinkUse {
    let mut ways = Ways::<I, _> {
        found: LinkUse::default(),
        addr,
        seen: vec![0; code.len() / I::UNIT + 1],
        open: Vec::new(),
        places: Vec::new(),
        elsewhere: false,
        jumps_on: false,
        place,
    };
    ways.pass(scanned.iter(), Held::Own, I::ENTRY);
    while let Some((at, held, state)) = ways.open.pop() {
        let Some(offset) = at
            .checked_sub(addr)
            .and_then(|offset| usize::try_from(offset).ok())
            .filter(|&offset| offset < code.len())
        else {
            continue;
        };
        match scanned.binary_search_by_key(&at, Linked::addr) {
            Ok(index) => ways.pass(scanned[index..].iter(), held, state),
            // The middle of an instruction, where a jump would fault.
            Err(_) if !offset.is_multiple_of(I::UNIT) => {}
            Err(_) => ways.pass(I::sweep(&code[offset..], at), held, state),
        }
    }
    let jumps_on = ways.jumps_on;
    let mut found = ways.found;
    found.reads.sort_unstable();
    found.reads.dedup();
    let calls = |insn: &I| matches!(insn.flow(), Flow::Call(_) | Flow::IndirectCall);
    found.hands_on = jumps_on && !found.reads.is_empty() && !scanned.iter().any(calls);
    found.leads_on = found.leads_on && takes_more_than_arguments(scanned);
    found
}

/// The paths through a function.
struct Ways<I: Linked, P> {
    found: LinkUse,
    addr: u64,
    /// For each place where an instruction may begin, what the link register held when it was seen.
    seen: Vec<u8>,
    open: Vec<(u64, Held, I::State)>,
    /// Where the return address was saved: above the frame's start (`true`), or above the stack pointer if the frame's
    /// start is not known.
    places: Vec<(bool, i32)>,
    /// Whether it may also be at a place that is not known.
    elsewhere: bool,
    /// Whether it jumps to another function with its return address.
    jumps_on: bool,
    place: P,
}

impl<I: Linked, P: Fn(u64, Slot) -> Option<i32>> Ways<I, P> {
    /// Follows instructions until control leaves them or reaches what was seen before.
    fn pass(&mut self, code: impl Iterator<Item: Borrow<I>>, mut held: Held, mut state: I::State) {
        let mut first = true;
        for insn in code {
            let insn = insn.borrow();
            // After a jump, no earlier instruction shows where this one leads.
            let flow = match core::mem::take(&mut first) {
                true => insn.flow_alone(),
                false => insn.flow(),
            };
            let mark = &mut self.seen[(insn.addr() - self.addr) as usize / I::UNIT];
            let bit = 1 << held as u8;
            if *mark & bit != 0 {
                break;
            }
            *mark |= bit;
            let own = matches!(held, Held::Own | Held::Back);
            self.reads(insn, own, &state);
            let restored = self.restored(insn, &state);
            insn.step(&mut state);
            match flow {
                Flow::Next => {}
                Flow::Branch(to) => self.open.push((to, held, state)),
                Flow::Jump(to) => {
                    let at = to.wrapping_sub(self.addr) as usize / I::UNIT;
                    self.jumps_on |= own && !(to >= self.addr && at < self.seen.len());
                    self.open.push((to, held, state));
                    break;
                }
                Flow::Call(_) | Flow::IndirectCall => {}
                Flow::Return { how: How::Plain } => {
                    self.found.moves |= held == Held::Other;
                    break;
                }
                Flow::IndirectJump => {
                    self.found.leads_on |= matches!(held, Held::Back | Held::Stack);
                    self.jumps_on |= own;
                    break;
                }
                _ => break,
            }
            if insn.changes_link() {
                held = match (restored, flow) {
                    (Some(held), _) => held,
                    (None, Flow::Call(_) | Flow::IndirectCall) => Held::Call,
                    (None, _) => Held::Other,
                };
            }
        }
    }

    /// Records how an instruction uses the return address; `own` says whether the link register has it.
    fn reads(&mut self, insn: &I, own: bool, state: &I::State) {
        if own && insn.exposes_link() {
            self.found.reads.push(insn.addr());
        }
        if let Some(slot) = insn.saves().filter(|_| own) {
            self.found.saves.push((insn.addr(), slot));
            match self.here(insn.addr(), slot, state) {
                Some(at) if self.places.contains(&at) => {}
                Some(at) => self.places.push(at),
                None => self.elsewhere = true,
            }
        }
        // A copy of the return address may be reloaded from a stack slot of its own. Who has the address of the slot
        // can do that, too.
        if !self.places.is_empty() && (insn.loads_other() || insn.takes_address()) {
            let here = self.here(insn.addr(), insn.slot(), state);
            if here.is_some_and(|at| self.places.contains(&at)) {
                self.found.reads.push(insn.addr());
            }
        }
    }

    /// What the link register holds after an instruction that reloads it from the stack.
    fn restored(&self, insn: &I, state: &I::State) -> Option<Held> {
        let slot = insn.restores()?;
        if self.elsewhere || self.places.is_empty() {
            return Some(Held::Back);
        }
        match self.here(insn.addr(), slot, state) {
            Some(at) if !self.places.contains(&at) => Some(Held::Stack),
            _ => Some(Held::Back),
        }
    }

    /// The stack slot that an instruction uses, as in [`Self::places`].
    fn here(&self, addr: u64, slot: Slot, before: &I::State) -> Option<(bool, i32)> {
        let (base, distance) = match slot {
            Slot::Stack(at) => (I::STACK, at),
            Slot::Frame(at) => (I::FRAME, at),
            Slot::None => return None,
        };
        let tracked = || I::below(before, base, distance.into())?.checked_neg();
        let known = (self.place)(addr, slot).or_else(tracked);
        // In a large frame its distance from the frame's start is not known, but that is then true of all slots.
        let apart = || (base == I::STACK).then_some((false, distance));
        known.map(|at| (true, at)).or_else(apart)
    }
}

/// Whether the return address, which the instruction at `read` copies, is used for nothing but calls that are dropped.
/// `code` is the function's code from `addr` on.
pub(crate) fn is_only_passed_on<I: Linked>(
    code: &[u8],
    addr: u64,
    read: u64,
    is_dropped: &dyn Fn(u64) -> bool,
) -> bool {
    let end = addr.wrapping_add(code.len() as u64);
    let Some(code) = read
        .checked_sub(addr)
        .and_then(|at| code.get(usize::try_from(at).ok()?..))
    else {
        return false;
    };
    let mut sweep = I::sweep(code, read);
    let Some(first) = sweep.next().filter(Linked::copies_return) else {
        return false;
    };
    // Registers that hold it. Callee-saved registers count as holding it to the function's end, since we do not tell
    // blocks apart.
    let mut holders = first.result();
    for insn in sweep {
        if holders == 0 {
            return true;
        }
        let gone = match insn.flow() {
            Flow::Call(_) | Flow::IndirectCall => true,
            Flow::Jump(to) => {
                if (read..end).contains(&to) || (addr..read).contains(&to) {
                    continue;
                }
                true
            }
            Flow::Return { .. } if holders & I::RESULT != 0 => return false,
            Flow::IndirectJump if holders & I::VOLATILE != 0 => return false,
            _ => false,
        };
        if gone {
            if !is_dropped(insn.addr()) && holders & I::VOLATILE != 0 {
                return false;
            }
            holders &= !I::VOLATILE;
            continue;
        }
        if holders & insn.copied() != 0 {
            holders |= insn.result();
            continue;
        }
        if insn.uses() & holders != 0 {
            return false;
        }
        holders &= !insn.replaces();
    }
    true
}
