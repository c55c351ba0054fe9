//! Registers of one kind that our code shares with the program while the program's code goes on in between.
//!
//! What our code keeps over instructions of the program is named by a *holder*. A holder gets a register when it is
//! used. What the program has there goes to a slot, and comes back when the program reads the register, or at the end.
//! A holder whose register the program needs goes to a slot, too, until it is used again.
//!
//! A bank knows no register by its name. [`Shares`] writes the code that moves values.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The most registers of a kind.
pub const REGISTERS: usize = 32;

/// Who writes code with the registers of a bank.
pub trait Shares<Holder> {
    /// The bank.
    fn bank(&mut self) -> &mut Bank<Holder>;

    /// Writes code that saves a register in a slot.
    fn save(&mut self, register: u8, slot: u8);

    /// Writes code that loads a register from a slot.
    fn load(&mut self, register: u8, slot: u8);

    /// From here on, values of the program are where the bank says ([`Bank::moved`]).
    fn has_moved(&mut self);

    /// Whether the code that is written now may be skipped, so nothing may move.
    fn is_skippable(&self) -> bool;

    /// How far away the next instruction of the program is that uses each register, while a holder is needed.
    fn next_uses(&self, holder: Holder) -> [usize; REGISTERS];
}

/// Where a holder is. At first, it is nowhere.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    register: Option<u8>,
    slot: Option<u8>,
}

/// Registers of one kind, and the slots for them. Sets of registers have a bit for each.
#[derive(Debug, Clone)]
pub struct Bank<Holder> {
    /// The slots of registers whose values are in one.
    program: [Option<u8>; REGISTERS],
    /// What of our code is in each register.
    holder: [Option<Holder>; REGISTERS],
    held: BTreeMap<Holder, Held>,
    /// Slots that are free, bit by number.
    free: u64,
    /// Registers that the step uses which is being written: they stay what they are.
    pinned: u32,
    /// Registers that holders may have,
    usable: u32,
    /// and those of them that are only taken if the others are worse.
    last: u32,
    /// Holders that are released where the code ends that may be skipped.
    released: Vec<Holder>,
    /// What the program has is in its registers, too.
    is_shown: bool,
}

impl<Holder: Copy + Ord> Bank<Holder> {
    /// A bank in which all registers are the program's. There are `slots` slots, less than 64. Holders may have the
    /// registers in `usable`, those in `last` only if the others are worse.
    #[must_use]
    pub fn new(slots: u32, usable: u32, last: u32) -> Self {
        Self {
            program: [None; REGISTERS],
            holder: [None; REGISTERS],
            held: BTreeMap::new(),
            free: (1 << slots) - 1,
            pinned: 0,
            usable,
            last,
            released: Vec::new(),
            is_shown: false,
        }
    }

    /// The registers whose program's values are in slots, and these slots.
    pub fn moved(&self) -> impl Iterator<Item = (u8, u8)> {
        let all = self.program.iter().zip(0..);
        let moved = all.filter_map(|(slot, number)| Some((number, (*slot)?)));
        moved.filter(|_| !self.is_shown)
    }

    /// The same, by what a state map calls registers.
    pub fn in_slots<Place>(
        &self,
        place: impl Fn(u8) -> Place,
    ) -> impl Iterator<Item = (Place, u8)> {
        self.moved()
            .map(move |(number, slot)| (place(number), slot))
    }

    /// Whether nothing is moved, and nothing reserved.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.moved().next().is_none()
    }

    /// The slot where the program's value of a register is, if it is in one.
    #[must_use]
    pub fn slot_of(&self, number: u8) -> Option<u8> {
        self.program[usize::from(number)]
    }

    /// The program's value of a register is in this slot from now on, or in the register. Who says so moves it.
    pub fn set_slot_of(&mut self, number: u8, slot: Option<u8>) {
        self.program[usize::from(number)] = slot;
    }

    /// The program's value of a register in a slot is not needed any more.
    pub fn forget(&mut self, number: u8) {
        if let Some(slot) = self.program[usize::from(number)].take() {
            self.free(slot);
        }
    }

    /// The program has changed these registers: what slots have of them is old.
    pub fn after(&mut self, changed: u32) {
        for number in (0..REGISTERS as u8).filter(|number| changed >> number & 1 == 1) {
            self.forget(number);
        }
    }

    /// From now on, or until now, what the program has is in its registers, too.
    pub fn set_shown(&mut self, is_shown: bool) {
        self.is_shown = is_shown;
    }

    /// Takes a slot.
    ///
    /// # Panics
    /// If there is none.
    pub fn slot(&mut self) -> u8 {
        assert!(self.free != 0, "a fragment needs too many slots");
        let slot = self.free.trailing_zeros();
        self.free &= !(1 << slot);
        slot as u8
    }

    /// Gives a slot back.
    pub fn free(&mut self, slot: u8) {
        self.free |= 1 << slot;
    }

    /// A register stays what it is during this step.
    pub fn pin(&mut self, number: u8) {
        self.pinned |= 1 << number;
    }

    /// Whether it does.
    #[must_use]
    pub fn is_pinned(&self, number: u8) -> bool {
        self.pinned >> number & 1 == 1
    }

    /// A step begins.
    pub fn unpin(&mut self) {
        self.pinned = 0;
    }

    /// From here on, there is this holder.
    pub fn reserve(&mut self, holder: Holder) {
        self.held.entry(holder).or_default();
    }

    /// Whether there is this holder, but it is in no register.
    #[must_use]
    pub fn is_out(&self, holder: Holder) -> bool {
        let held = self.held.get(&holder);
        held.is_some_and(|held| held.register.is_none())
    }

    /// The register in which a holder is, if it is in one.
    #[must_use]
    pub fn register_of(&self, holder: Holder) -> Option<u8> {
        self.held.get(&holder)?.register
    }

    /// A holder is in this register from now on. Nothing is moved.
    pub fn hold(&mut self, holder: Holder, number: u8) {
        self.holder[usize::from(number)] = Some(holder);
        let held = Held {
            register: Some(number),
            slot: None,
        };
        self.held.insert(holder, held);
        self.pin(number);
    }

    /// There are no holders any more. Their slots stay taken: this is the end.
    pub fn drop_holders(&mut self) {
        self.held.clear();
        self.holder = [None; REGISTERS];
    }

    /// There is not this holder any more.
    fn drop_holder(&mut self, holder: Holder) {
        let Some(held) = self.held.remove(&holder) else {
            return;
        };
        if let Some(number) = held.register {
            self.holder[usize::from(number)].take_if(|other| *other == holder);
        }
        if let Some(slot) = held.slot {
            self.free(slot);
        }
    }

    /// The best register: one that is free and that the program does not need soon.
    fn choose(&self, next_uses: &[usize; REGISTERS]) -> u8 {
        let is_allowed = |number: &u8| (self.usable & !self.pinned) >> *number & 1 == 1;
        let allowed = (0..REGISTERS as u8).filter(is_allowed);
        let best = allowed.max_by_key(|&number| {
            let index = usize::from(number);
            let is_free = self.holder[index].is_none();
            let is_moved = self.program[index].is_some();
            let is_last = self.last >> number & 1 == 1;
            (is_free, next_uses[index], is_moved, !is_last)
        });
        let Some(best) = best else {
            panic!("a step uses too many scratch registers");
        };
        best
    }
}

/// What writes code.
impl<Holder: Copy + Ord> Bank<Holder> {
    /// Moves what the program has in a register to a slot.
    pub fn spill(code: &mut impl Shares<Holder>, number: u8) {
        let bank = code.bank();
        if bank.slot_of(number).is_none() {
            let slot = bank.slot();
            code.save(number, slot);
            code.bank().set_slot_of(number, Some(slot));
            code.has_moved();
        }
    }

    /// Moves what a holder has in a register to a slot.
    pub fn evict(code: &mut impl Shares<Holder>, number: u8) {
        let bank = code.bank();
        let Some(holder) = bank.holder[usize::from(number)].take() else {
            return;
        };
        let slot = bank.slot();
        let held = Held {
            register: None,
            slot: Some(slot),
        };
        bank.held.insert(holder, held);
        may_move(code);
        code.save(number, slot);
    }

    /// Brings what the program has in a register back.
    pub fn bring_back(code: &mut impl Shares<Holder>, number: u8) {
        let Some(slot) = code.bank().slot_of(number) else {
            return;
        };
        Self::evict(code, number);
        code.load(number, slot);
        code.bank().forget(number);
        code.has_moved();
    }

    /// Brings everything of the program back.
    pub fn bring_back_all(code: &mut impl Shares<Holder>) {
        (0..REGISTERS as u8).for_each(|number| Self::bring_back(code, number));
    }

    /// An instruction of the program comes next, which reads registers and changes registers: it finds what it reads.
    pub fn before(code: &mut impl Shares<Holder>, reads: u32, changed: u32) {
        for number in 0..REGISTERS as u8 {
            if reads >> number & 1 == 1 {
                Self::bring_back(code, number);
            } else if changed >> number & 1 == 1 {
                Self::evict(code, number);
            }
        }
    }

    /// The register of a holder, which is in one from now on.
    ///
    /// # Panics
    /// If there is no such holder, or no register for it.
    pub fn register(code: &mut impl Shares<Holder>, holder: Holder) -> u8 {
        let Some(held) = code.bank().held.get(&holder).copied() else {
            panic!("a scratch register is used that is not reserved");
        };
        if let Some(number) = held.register {
            code.bank().pin(number);
            return number;
        }
        may_move(code);
        let next_uses = code.next_uses(holder);
        let number = code.bank().choose(&next_uses);
        Self::evict(code, number);
        Self::spill(code, number);
        if let Some(slot) = held.slot {
            code.load(number, slot);
            code.bank().free(slot);
        }
        code.bank().hold(holder, number);
        number
    }

    /// From here on, there is not this holder any more. In code that may be skipped, it stays until the end of that.
    pub fn release(code: &mut impl Shares<Holder>, holder: Holder) {
        match code.is_skippable() {
            true => code.bank().released.push(holder),
            false => code.bank().drop_holder(holder),
        }
    }

    /// Code ends that may be skipped: what is released there is not there any more.
    pub fn release_skipped(&mut self) {
        for holder in core::mem::take(&mut self.released) {
            self.drop_holder(holder);
        }
    }

    /// Keeps what a holder has in a register for which the program's value is in a slot. Returns the register and the
    /// slot for [`Self::unpark`].
    pub fn park(code: &mut impl Shares<Holder>, number: u8) -> Option<(u8, u8)> {
        let bank = code.bank();
        bank.slot_of(number)?;
        bank.holder[usize::from(number)]?;
        let slot = bank.slot();
        code.save(number, slot);
        Some((number, slot))
    }

    /// Loads what the program has in a register, if that is in a slot. It stays there.
    pub fn show(code: &mut impl Shares<Holder>, number: u8) {
        if let Some(slot) = code.bank().slot_of(number) {
            code.load(number, slot);
        }
    }

    /// Does both with all registers.
    pub fn exchange(code: &mut impl Shares<Holder>) -> Vec<(u8, u8)> {
        let mut parked = Vec::new();
        for number in 0..REGISTERS as u8 {
            parked.extend(Self::park(code, number));
            Self::show(code, number);
        }
        parked
    }

    /// Brings back what a holder has.
    pub fn unpark(code: &mut impl Shares<Holder>, (number, slot): (u8, u8)) {
        code.load(number, slot);
        code.bank().free(slot);
    }
}

/// Registers for code that may be skipped. All its holders get theirs before it begins. What is reserved there needs
/// its own only from there on, and what is released there leaves its own to others.
#[derive(Debug, Clone)]
pub struct Ahead<Holder> {
    /// Holders that are reserved in that code.
    own: BTreeSet<Holder>,
    /// Registers whose holders are released.
    spare: Vec<u8>,
}

impl<Holder> Default for Ahead<Holder> {
    fn default() -> Self {
        Self {
            own: BTreeSet::new(),
            spare: Vec::new(),
        }
    }
}

impl<Holder: Copy + Ord> Ahead<Holder> {
    /// A holder is reserved there.
    pub fn reserve(&mut self, bank: &mut Bank<Holder>, holder: Holder) {
        bank.reserve(holder);
        self.own.insert(holder);
    }

    /// A holder is released there. `is_last`: it is not used again, also if it was reserved before.
    pub fn release(&mut self, bank: &Bank<Holder>, holder: Holder, is_last: bool) {
        if is_last || self.own.contains(&holder) {
            let register = bank.register_of(holder);
            self.spare
                .extend(register.filter(|&number| bank.is_pinned(number)));
        }
    }

    /// A holder is used there.
    pub fn uses(&mut self, code: &mut impl Shares<Holder>, holder: Holder) {
        let is_new = self.own.contains(&holder) && code.bank().is_out(holder);
        match is_new.then(|| self.spare.pop()).flatten() {
            Some(number) => code.bank().hold(holder, number),
            None => drop(Bank::register(code, holder)),
        }
    }
}

fn may_move<Holder>(code: &impl Shares<Holder>) {
    assert!(
        !code.is_skippable(),
        "nothing moves in code that may be skipped"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statemap::InSlots;

    /// A register that no holder may have, and one that is taken last.
    const FIXED: u8 = 4;
    const LAST: u8 = 7;
    const COUNT: usize = 8;
    const SLOTS: usize = 24;

    /// Executes the code that is written at once.
    struct Machine {
        bank: Bank<u32>,
        registers: [u64; COUNT],
        slots: [u64; SLOTS],
        /// What the program has in each register.
        program: [u64; COUNT],
        /// What each holder has.
        holders: BTreeMap<u32, u64>,
        /// What the state map says.
        map: InSlots<u8>,
        /// The next uses of registers.
        uses: [usize; REGISTERS],
        is_skippable: bool,
        moves: usize,
    }

    impl Machine {
        fn new() -> Self {
            let program = core::array::from_fn(|number| 100 + number as u64);
            Self {
                bank: Bank::new(SLOTS as u32, 0xFF & !(1 << FIXED), 1 << LAST),
                registers: program,
                slots: [0; SLOTS],
                program,
                holders: BTreeMap::new(),
                map: InSlots::new(),
                uses: [0; REGISTERS],
                is_skippable: false,
                moves: 0,
            }
        }

        /// A thread may stop here: the map says where all values of the program are.
        #[track_caller]
        fn stops(&self) {
            let mut found = self.registers;
            for &(number, slot) in &self.map {
                found[usize::from(number)] = self.slots[usize::from(slot)];
            }
            assert_eq!(found, self.program);
        }

        fn set(&mut self, number: u8, value: u64) {
            self.stops();
            self.registers[usize::from(number)] = value;
            self.stops();
        }

        #[track_caller]
        fn reads(&mut self, holder: u32) {
            let number = Bank::register(self, holder);
            let expected = self.holders.get(&holder);
            assert_eq!(self.registers.get(usize::from(number)), expected);
        }
    }

    impl Shares<u32> for Machine {
        fn bank(&mut self) -> &mut Bank<u32> {
            &mut self.bank
        }

        fn save(&mut self, register: u8, slot: u8) {
            self.stops();
            self.slots[usize::from(slot)] = self.registers[usize::from(register)];
            self.moves += 1;
            self.stops();
        }

        fn load(&mut self, register: u8, slot: u8) {
            self.stops();
            self.registers[usize::from(register)] = self.slots[usize::from(slot)];
            self.moves += 1;
        }

        fn has_moved(&mut self) {
            self.map = self.bank.moved().collect();
            self.stops();
        }

        fn is_skippable(&self) -> bool {
            self.is_skippable
        }

        fn next_uses(&self, _: u32) -> [usize; REGISTERS] {
            self.uses
        }
    }

    /// Random steps: neither the program nor a holder ever loses a value, and the state map is right wherever a thread
    /// may stop.
    #[test]
    fn values_are_never_lost() {
        let mut random = 0x1234_5678_9ABC_DEF1_u64;
        let mut below = move |end: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % end
        };
        let (mut machine, mut next) = (Machine::new(), 1000);
        for _ in 0..20_000 {
            machine.bank.unpin();
            machine.uses = core::array::from_fn(|_| below(20) as usize);
            let (number, holder) = (below(COUNT as u64) as u8, below(10) as u32);
            let is_reserved = machine.holders.contains_key(&holder);
            next += 1;
            match below(8) {
                // A holder gets a value.
                0 | 1 => {
                    machine.bank.reserve(holder);
                    let number = Bank::register(&mut machine, holder);
                    assert_ne!(number, FIXED);
                    machine.set(number, next);
                    machine.holders.insert(holder, next);
                }
                2 if is_reserved => machine.reads(holder),
                3 if is_reserved => {
                    Bank::release(&mut machine, holder);
                    machine.holders.remove(&holder);
                }
                // The program reads a register,
                4 => {
                    Bank::before(&mut machine, 1 << number, 1 << number);
                    let index = usize::from(number);
                    assert_eq!(machine.registers[index], machine.program[index]);
                }
                // overwrites one,
                5 => {
                    Bank::before(&mut machine, 0, 1 << number);
                    machine.registers[usize::from(number)] = next;
                    machine.program[usize::from(number)] = next;
                    machine.bank.after(1 << number);
                    machine.has_moved();
                }
                // or has all.
                6 if below(4) == 0 => {
                    let parked = Bank::exchange(&mut machine);
                    assert_eq!(machine.registers, machine.program);
                    machine.bank.set_shown(true);
                    machine.has_moved();
                    assert!(machine.map.is_empty());
                    machine.bank.set_shown(false);
                    machine.has_moved();
                    for one in parked {
                        Bank::unpark(&mut machine, one);
                    }
                }
                // A step uses several holders at once.
                7 => {
                    let used: Vec<_> = machine.holders.clone().into_iter().take(5).collect();
                    for &(holder, _) in &used {
                        Bank::register(&mut machine, holder);
                    }
                    for (holder, value) in used {
                        let number = machine.bank.register_of(holder).expect("it is in one");
                        assert_eq!(machine.registers[usize::from(number)], value);
                    }
                }
                _ => {}
            }
            machine.stops();
        }
        assert!(machine.moves > 10_000, "{}", machine.moves);
        for holder in machine.holders.clone().into_keys() {
            machine.bank.unpin();
            machine.reads(holder);
        }
        machine.bank.drop_holders();
        Bank::bring_back_all(&mut machine);
        assert_eq!(machine.registers, machine.program);
        assert!(machine.bank.is_idle());
    }

    #[test]
    fn the_register_that_is_needed_last_is_chosen() {
        let mut machine = Machine::new();
        machine.uses[..COUNT].copy_from_slice(&[9, 3, 9, 9, 10, 2, 1, 9]);
        // 4 may not be taken, and 7 is as good as three others, but taken last.
        let chosen = [1, 2, 3, 4].map(|holder| {
            machine.bank.reserve(holder);
            Bank::register(&mut machine, holder)
        });
        assert_eq!(chosen, [3, 2, 0, LAST]);
        // What has been moved need not be moved again.
        Bank::release(&mut machine, 2);
        machine.uses[6] = 9;
        machine.bank.unpin();
        machine.bank.reserve(5);
        let moves = machine.moves;
        assert_eq!(Bank::register(&mut machine, 5), 2);
        assert_eq!(machine.moves, moves);
    }

    #[test]
    fn what_may_be_skipped_releases_at_its_end() {
        let mut machine = Machine::new();
        machine.bank.reserve(1);
        let number = Bank::register(&mut machine, 1);
        machine.is_skippable = true;
        Bank::release(&mut machine, 1);
        assert_eq!(machine.bank.register_of(1), Some(number));
        machine.is_skippable = false;
        machine.bank.release_skipped();
        assert_eq!(machine.bank.register_of(1), None);
    }

    #[test]
    #[should_panic(expected = "nothing moves in code that may be skipped")]
    fn nothing_moves_in_what_may_be_skipped() {
        let mut machine = Machine::new();
        machine.bank.reserve(1);
        machine.is_skippable = true;
        Bank::register(&mut machine, 1);
    }

    /// A holder that is reserved in code that may be skipped gets the register of one that is released there.
    #[test]
    fn registers_are_given_ahead() {
        let mut machine = Machine::new();
        machine.bank.reserve(1);
        let mut ahead = Ahead::default();
        ahead.uses(&mut machine, 1);
        let first = machine.bank.register_of(1);
        ahead.release(&machine.bank, 1, true);
        ahead.reserve(&mut machine.bank, 2);
        ahead.uses(&mut machine, 2);
        assert_eq!(machine.bank.register_of(2), first);
        // It is used in the next round, too.
        let mut ahead = Ahead::default();
        ahead.release(&machine.bank, 2, false);
        ahead.reserve(&mut machine.bank, 3);
        ahead.uses(&mut machine, 3);
        assert_ne!(machine.bank.register_of(3), first);
    }
}
