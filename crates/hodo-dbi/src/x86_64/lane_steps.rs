//! Gathers and scatters, and masked loads and stores, lane by lane.
//!
//! The registers go to the thread's block, and each lane that is active loads its index from there and accesses memory.
//! A gather's registers get their new values at the end. Where a thread stops in between, the state map says that they
//! are in the block, and how many lanes are complete: these are zero in the mask, also if they were not active (Intel's
//! manual, volume 2, VPGATHERDD).
//!
//! A masked load or store has no such state: if it faults, its registers are as they were, and it begins anew.

use hodo_isa::x86_64::asm::{BYTE, Cond, DWORD, Mem, QWORD, Reg, Size, mem, scaled};

use super::block;
use super::lower::Lowering;
use crate::fragment::Instruction;
use crate::inserted::{Active, BLOCK, INDEX, Lanes, NEXT, Places, STORED};
use crate::translate::Saved;

/// How far an offset in the thread's block is from the address that the scratch register has.
fn from_middle(offset: u32) -> i32 {
    offset.cast_signed() - block::INDICES.cast_signed() - 64
}

/// Where a lane is.
fn part(start: u32, size: u8, lane: u8) -> i32 {
    from_middle(start + u32::from(size) * u32::from(lane))
}

impl Lanes {
    /// Where the byte is that has the bit of a lane, and the bit.
    fn bit(self, lane: u8) -> (i32, u8) {
        match self.active {
            Active::Vector(_) => (part(block::ACTIVE, self.size, lane + 1) - 1, 0x80),
            Active::Mask(_) => (part(block::ACTIVE, 1, lane / 8), 1 << (lane % 8)),
        }
    }

    /// How much of the data's register stays what it is until all lanes are complete.
    pub(super) fn kept_len(self) -> u8 {
        match (self.active, self.places) {
            (Active::Mask(_), Places::Vector(_, index_len, _)) => self.data_len.max(index_len),
            _ => self.data_len,
        }
    }

    fn lane_size(self) -> Size {
        match self.size {
            1 => BYTE,
            2 => Size::Word,
            4 => DWORD,
            _ => QWORD,
        }
    }

    /// Whether registers change lane by lane, and not at the end.
    pub(super) fn has_progress(self) -> bool {
        matches!(self.places, Places::Vector(..))
    }

    /// The general registers from which its addresses come.
    pub(super) fn registers(self) -> impl Iterator<Item = u8> {
        let index = match self.places {
            Places::Row(index) | Places::Packed(index) => index,
            Places::Vector(..) => None,
        };
        self.base.into_iter().chain(index)
    }
}

impl Lowering<'_, '_, '_> {
    /// Puts the registers into the thread's block.
    pub(super) fn begin_lanes(&mut self, instruction: &Instruction, lanes: Lanes) {
        self.save_flags();
        self.wide_before(instruction);
        self.bring_back_for_lanes(lanes);
        let middle = self.register(lanes.scratch[BLOCK]);
        let code = &mut self.translator.code;
        code.rdgsbase(middle);
        code.lea(middle, mem(middle, -from_middle(0)));
        let mut save = |start, vector, len| {
            code.save_vector(middle, from_middle(start) as i8, vector, len);
        };
        if lanes.stores || !lanes.zeroes {
            save(block::LANES, lanes.data, lanes.kept_len());
        }
        if let Places::Vector(index, index_len, _) = lanes.places {
            save(block::INDICES, index, index_len);
        }
        if let Active::Vector(mask) = lanes.active {
            save(block::ACTIVE, mask, lanes.data_len);
        }
        if let Active::Mask(mask) = lanes.active {
            let at = from_middle(block::ACTIVE) as i8;
            code.save_mask(middle, at, mask, lanes.count > 16);
        }
        if !lanes.stores && lanes.zeroes {
            for word in 0..lanes.data_len / 8 {
                code.mov_mi(QWORD, mem(middle, part(block::LANES, 8, word)), 0);
            }
        }
        self.lanes = Some((lanes, 0));
        self.point(Saved::default());
        if lanes.align > 1 {
            self.check_alignment(instruction, lanes);
        }
        if lanes.stores && !lanes.has_progress() {
            self.probe(lanes);
        }
        if let Places::Packed(_) = lanes.places {
            let next = self.register(lanes.scratch[NEXT]);
            let address = row_address(lanes, 0);
            self.translator.code.lea(next, address);
        }
    }

    /// At an address that is not aligned, the instruction itself faults.
    fn check_alignment(&mut self, instruction: &Instruction, lanes: Lanes) {
        let first = self.register(lanes.scratch[INDEX]);
        let fine = self.translator.code.label();
        let address = row_address(lanes, 0);
        self.translator.code.lea(first, address);
        let bits = u32::from(lanes.align) - 1;
        self.translator.code.and_ri(first.part(DWORD), bits);
        self.translator.code.jcc(Cond::E, fine);
        self.point(Saved {
            is_own: true,
            ..Saved::default()
        });
        self.translator.code.raw(instruction.bytes());
        self.translator.code.bind(fine);
        self.point(Saved::default());
    }

    /// A masked store that faults stores nothing. If it is in two pages, it may fault in the second one: then all that
    /// it stores to is touched first, in order, so a fault is where the processor has it.
    fn probe(&mut self, lanes: Lanes) {
        const PAGE: u32 = 4096;
        let last = match lanes.places {
            Places::Packed(_) => NEXT,
            _ => STORED,
        };
        let [first, last] = [INDEX, last].map(|of| self.register(lanes.scratch[of]));
        let fine = self.translator.code.label();
        let code = &mut self.translator.code;
        code.lea(first, row_address(lanes, 0));
        code.mov_rr(last, first);
        code.and_ri(last.part(DWORD), PAGE - 1);
        code.cmp_ri(last.part(DWORD), PAGE - u32::from(lanes.data_len));
        code.jcc(Cond::BE, fine);
        if let Places::Packed(_) = lanes.places {
            self.count_active(lanes, last);
            self.translator.code.test_rr(last, last);
            self.translator.code.jcc(Cond::E, fine);
            self.touch(mem(first, 0));
            let power = lanes.size.trailing_zeros() as u8;
            let end = mem(first, -1).plus_scaled(last, power);
            self.touch_page(last, end);
        } else {
            for lane in 0..lanes.count {
                let next = self.translator.code.label();
                self.test_lane(lanes, lane);
                self.translator.code.jcc(Cond::E, next);
                let at = i32::from(lanes.size * lane);
                self.touch(mem(first, at));
                if lanes.size > 1 {
                    self.touch_page(last, mem(first, at + i32::from(lanes.size) - 1));
                }
                self.translator.code.bind(next);
            }
        }
        self.translator.code.bind(fine);
        self.point(Saved::default());
    }

    /// Stores to a byte what it has.
    fn touch(&mut self, at: Mem) {
        self.point(Saved {
            is_own: true,
            ..Saved::default()
        });
        self.translator.code.lock().or_mi(BYTE, at, 0);
        self.point(Saved::default());
    }

    /// The same with the first byte of the page of an address.
    fn touch_page(&mut self, to: Reg, at: Mem) {
        const PAGES: u32 = !0xFFF;
        self.translator.code.lea(to, at);
        self.translator.code.and_ri(to, PAGES);
        self.touch(mem(to, 0));
    }

    /// Sets a register to the number of active lanes.
    fn count_active(&mut self, lanes: Lanes, to: Reg) {
        let middle = self.register(lanes.scratch[BLOCK]);
        let bits = mem(middle, from_middle(block::ACTIVE));
        let code = &mut self.translator.code;
        match lanes.count {
            64 => code.mov_rm(to, bits),
            32 => code.mov_rm(to.part(DWORD), bits),
            16 => code.movzx_rm(to.part(DWORD), Size::Word, bits),
            8 => code.movzx_rm(to.part(DWORD), BYTE, bits),
            count => {
                code.movzx_rm(to.part(DWORD), BYTE, bits);
                code.and_ri(to.part(DWORD), (1 << count) - 1);
            }
        }
        code.popcnt_rr(to, to);
    }

    /// Compares whether a lane is active.
    pub(super) fn test_lane(&mut self, lanes: Lanes, lane: u8) {
        let middle = self.register(lanes.scratch[BLOCK]);
        let (at, bit) = lanes.bit(lane);
        self.translator.code.test_mi(mem(middle, at), bit);
    }

    /// Sets a register to the index of a lane. Returns its address.
    pub(super) fn lane_address(&mut self, lanes: Lanes, lane: u8, to: Reg) -> Mem {
        let middle = self.register(lanes.scratch[BLOCK]);
        let index_size = match lanes.places {
            Places::Vector(_, _, index_size) => index_size,
            Places::Row(_) => return row_address(lanes, lane),
            Places::Packed(_) => return mem(self.register(lanes.scratch[NEXT]), 0),
        };
        let at = mem(middle, part(block::INDICES, index_size, lane));
        match index_size {
            8 => self.translator.code.mov_rm(to, at),
            _ => self.translator.code.movsxd_rm(to, at),
        }
        match lanes.base {
            Some(base) => mem(Reg::whole(base), lanes.displacement).plus_scaled(to, lanes.power),
            None => scaled(to, lanes.power, lanes.displacement),
        }
    }

    /// The access of an active lane.
    pub(super) fn lane(&mut self, lanes: Lanes, lane: u8) {
        let own = Saved {
            is_own: true,
            ..Saved::default()
        };
        let index = self.register(lanes.scratch[INDEX]);
        let middle = self.register(lanes.scratch[BLOCK]);
        let address = self.lane_address(lanes, lane, index);
        let size = lanes.lane_size();
        let place = mem(middle, part(block::LANES, lanes.size, lane));
        if lanes.stores {
            let stored = match lanes.places {
                Places::Packed(_) => index,
                _ => self.register(lanes.scratch[STORED]),
            };
            self.load_lane(stored, size, place);
            self.point(own);
            self.translator.code.mov_mr(address, stored.part(size));
        } else {
            let loaded = index.part(size);
            self.point(own);
            self.load_lane(index, size, address);
            self.point(Saved::default());
            self.translator.code.mov_mr(place, loaded);
        }
        if let Places::Packed(_) = lanes.places {
            let next = self.register(lanes.scratch[NEXT]);
            let size = i32::from(lanes.size);
            self.translator.code.lea(next, mem(next, size));
        }
        self.end_lane(lanes, lane);
    }

    /// Loads a lane into a register.
    fn load_lane(&mut self, to: Reg, size: Size, from: Mem) {
        match size {
            BYTE | Size::Word => self.translator.code.movzx_rm(to.part(DWORD), size, from),
            _ => self.translator.code.mov_rm(to.part(size), from),
        }
    }

    /// A lane is complete, or was not active.
    pub(super) fn end_lane(&mut self, lanes: Lanes, lane: u8) {
        self.lanes = Some((lanes, lane + 1));
        self.point(Saved::default());
    }

    /// The registers get what is in the thread's block.
    pub(super) fn end_lanes(&mut self, lanes: Lanes) {
        let middle = self.register(lanes.scratch[BLOCK]);
        self.wide_end_lanes(lanes);
        let code = &mut self.translator.code;
        if !lanes.stores {
            // What comes after the lanes of a gather becomes zero.
            if lanes.count * lanes.size < 16 {
                let rest = from_middle(block::LANES + 8);
                code.mov_mi(QWORD, mem(middle, rest), 0);
            }
            let start = from_middle(block::LANES) as i8;
            code.load_vector(lanes.data, middle, start, lanes.data_len);
        }
        match lanes.active {
            _ if !lanes.has_progress() => {}
            Active::Vector(mask) => code.clear_vector(mask),
            Active::Mask(mask) => code.clear_mask(mask),
        }
        self.lanes = None;
    }
}

/// The address of an element of a masked load or store.
fn row_address(lanes: Lanes, lane: u8) -> Mem {
    let displacement = lanes.displacement + i32::from(lanes.size * lane);
    let mut registers = [lanes.base, None];
    if let Places::Row(index) | Places::Packed(index) = lanes.places {
        registers[1] = index;
    }
    match registers.map(|number| number.map(Reg::whole)) {
        [Some(base), Some(index)] => mem(base, displacement).plus_scaled(index, lanes.power),
        [None, Some(index)] => scaled(index, lanes.power, displacement),
        [Some(base), None] => mem(base, displacement),
        [None, None] => unreachable!("the address comes from a register"),
    }
}
