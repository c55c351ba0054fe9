//! Gathers and scatters, lane by lane.
//!
//! The registers go to the thread's block, and each lane works there: if it is active, it loads its index and accesses
//! memory; then it clears its part of the mask. A gather's registers get their new values at the end. Where a thread stops in between, the state map
//! says that they are in the block: there they are always as the processor would have left them after the lanes that are
//! complete (Intel's manual, volume 2, VPGATHERDD: lanes before a fault are complete, and their part of the mask is zero,
//! also if they were not active).

use anyhow::Result;
use hodo_isa::x86_64::asm::{DWORD, Mem, QWORD, Reg, Size, gs, mem, scaled};
use hodo_ptrace::{Stopped, TargetAddr};
use iced_x86::{Mnemonic, Register};

use super::analyze::general;
use super::block;
use super::lower::Lowering;
use super::translate::Saved;
use crate::fragment::Instruction;
use crate::inserted::{Active, Lanes, Scratch};
use crate::process::Process;

/// The sizes of indices and of lanes, and whether it stores.
fn form(mnemonic: Mnemonic) -> Option<(u8, u8, bool)> {
    Some(match mnemonic {
        Mnemonic::Vpgatherdd | Mnemonic::Vgatherdps => (4, 4, false),
        Mnemonic::Vpgatherdq | Mnemonic::Vgatherdpd => (4, 8, false),
        Mnemonic::Vpgatherqd | Mnemonic::Vgatherqps => (8, 4, false),
        Mnemonic::Vpgatherqq | Mnemonic::Vgatherqpd => (8, 8, false),
        Mnemonic::Vpscatterdd | Mnemonic::Vscatterdps => (4, 4, true),
        Mnemonic::Vpscatterdq | Mnemonic::Vscatterdpd => (4, 8, true),
        Mnemonic::Vpscatterqd | Mnemonic::Vscatterqps => (8, 4, true),
        Mnemonic::Vpscatterqq | Mnemonic::Vscatterqpd => (8, 8, true),
        _ => return None,
    })
}

/// The lanes of a gather or scatter. `None`: it is none, the processor refuses it, or its addresses have a segment or four
/// bytes.
pub(crate) fn lanes(instruction: &Instruction, scratch: [Scratch; 2]) -> Option<Lanes> {
    let insn = instruction.facts.insn();
    let (index_size, size, stores) = form(insn.mnemonic())?;
    let is_prefix = |byte: &&u8| !matches!(byte, 0xC4 | 0x62);
    let mut prefixes = instruction.bytes().iter().take_while(is_prefix);
    if prefixes.any(|prefix| matches!(prefix, 0x64 | 0x65 | 0x67)) {
        return None;
    }
    let vector = insn.op_register(u32::from(stores));
    let (index, mask) = (insn.memory_index(), insn.op_mask());
    let active = match mask {
        Register::None => Active::Vector(insn.op2_register().number() as u8),
        mask => Active::Mask(mask.number() as u8),
    };
    let (data, index_number) = (vector.number() as u8, index.number() as u8);
    let is_refused = match active {
        Active::Vector(mask) => data == index_number || mask == data || mask == index_number,
        Active::Mask(_) => data == index_number && !stores,
    };
    if is_refused {
        return None;
    }
    let base = match insn.memory_base() {
        Register::None => None,
        base => Some(general(base)? as u8),
    };
    let count = (index.size() / usize::from(index_size)).min(vector.size() / usize::from(size));
    Some(Lanes {
        count: count as u8,
        stores,
        data,
        data_len: vector.size() as u8,
        size,
        index: index_number,
        index_len: index.size() as u8,
        index_size,
        active,
        base,
        power: insn.memory_index_scale().trailing_zeros() as u8,
        displacement: i32::try_from(insn.memory_displacement64().cast_signed()).ok()?,
        scratch,
    })
}

/// Where a lane is in the data, or its part of a vector with the mask.
fn part(start: u32, size: u8, lane: u8) -> u32 {
    start + u32::from(size) * u32::from(lane)
}

impl Lanes {
    /// Where the byte is that has the bit of a lane, and the bit.
    fn bit(self, lane: u8) -> (u32, u8) {
        match self.active {
            Active::Vector(_) => (part(block::ACTIVE, self.size, lane + 1) - 1, 0x80),
            Active::Mask(_) => (block::ACTIVE + u32::from(lane / 8), 1 << (lane % 8)),
        }
    }

    /// How much of the data's register stays what it is until all lanes are complete.
    fn kept_len(self) -> u8 {
        match self.active {
            Active::Vector(_) => self.data_len,
            Active::Mask(_) => self.data_len.max(self.index_len),
        }
    }

    fn lane_size(self) -> Size {
        if self.size == 8 { QWORD } else { DWORD }
    }
}

impl Lowering<'_, '_, '_> {
    /// Puts the registers into the thread's block.
    pub(super) fn begin_lanes(&mut self, lanes: Lanes) {
        self.save_flags();
        let code = &mut self.translator.code;
        code.save_vector(block::LANES, lanes.data, lanes.kept_len());
        code.save_vector(block::INDICES, lanes.index, lanes.index_len);
        match lanes.active {
            Active::Vector(mask) => code.save_vector(block::ACTIVE, mask, lanes.data_len),
            Active::Mask(mask) => code.save_mask(block::ACTIVE, mask),
        }
        self.lanes = Some((lanes, None));
        self.point(Saved::default());
    }

    /// Goes on at the label unless a lane is active.
    pub(super) fn skip_inactive(&mut self, lanes: Lanes, lane: u8) {
        let (at, bit) = lanes.bit(lane);
        self.translator.code.test_mi(gs(at), bit);
    }

    /// Sets a register to the index of a lane. Returns its address.
    pub(super) fn lane_address(&mut self, lanes: Lanes, lane: u8, to: Reg) -> Mem {
        let at = gs(part(block::INDICES, lanes.index_size, lane));
        match lanes.index_size {
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
        let first = self.register(lanes.scratch[0]);
        let address = self.lane_address(lanes, lane, first);
        let size = lanes.lane_size();
        let place = gs(part(block::LANES, lanes.size, lane));
        if lanes.stores {
            let value = self.register(lanes.scratch[1]).part(size);
            self.translator.code.mov_rm(value, place);
            self.point(own);
            self.translator.code.mov_mr(address, value);
        } else {
            let value = first.part(size);
            self.point(own);
            self.translator.code.mov_rm(value, address);
            self.point(Saved::default());
            self.translator.code.mov_mr(place, value);
        }
        self.lanes = Some((lanes, Some(lane)));
        self.point(Saved::default());
    }

    /// A lane is complete, or was not active.
    pub(super) fn end_lane(&mut self, lanes: Lanes, lane: u8) {
        self.lanes = Some((lanes, Some(lane)));
        self.point(Saved::default());
        let size = lanes.lane_size();
        match lanes.active {
            Active::Vector(_) => {
                let at = gs(part(block::ACTIVE, lanes.size, lane));
                self.translator.code.mov_mi(size, at, 0);
            }
            Active::Mask(_) => {
                let (at, bit) = lanes.bit(lane);
                self.translator.code.and_mi(gs(at), !bit);
            }
        }
        self.lanes = Some((lanes, None));
        self.point(Saved::default());
    }

    /// The registers get what is in the thread's block.
    pub(super) fn end_lanes(&mut self, lanes: Lanes) {
        let code = &mut self.translator.code;
        if !lanes.stores {
            // What comes after the lanes becomes zero.
            if lanes.count * lanes.size < 16 {
                code.mov_mi(QWORD, gs(block::LANES + 8), 0);
            }
            code.load_vector(lanes.data, block::LANES, lanes.data_len);
        }
        match lanes.active {
            Active::Vector(mask) => code.clear_vector(mask),
            Active::Mask(mask) => code.clear_mask(mask),
        }
        self.lanes = None;
    }
}

/// Gives a thread that stops between lanes what the program would have in its vector and mask registers. `done`: this lane
/// is complete, but its part of the mask is not cleared yet.
pub(crate) fn restore(
    process: &Process,
    (thread, block): (Stopped, u64),
    (lanes, done): (Lanes, Option<u8>),
) -> Result<()> {
    let read = |from: u32, len: u8| -> Result<Vec<u8>> {
        let mut bytes = vec![0; len.into()];
        let at = TargetAddr(block + u64::from(from));
        process.memory().read(at, &mut bytes)?;
        Ok(bytes)
    };
    let mut vectors = thread.vectors()?;
    let done = done.map(|lane| (lanes.bit(lane), lane));
    let mut data = read(block::LANES, lanes.kept_len())?;
    match lanes.active {
        Active::Vector(mask) => {
            let mut bytes = read(block::ACTIVE, lanes.data_len)?;
            if let Some((_, lane)) = done {
                let start = part(0, lanes.size, lane) as usize;
                bytes[start..start + usize::from(lanes.size)].fill(0);
            }
            vectors.set(mask, &bytes)?;
        }
        Active::Mask(mask) => {
            let mut bytes = read(block::ACTIVE, 2)?;
            if let Some(((at, bit), _)) = done {
                bytes[(at - block::ACTIVE) as usize] &= !bit;
            }
            let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
            // When such an instruction has loaded a lane, Intel's processors have cleared what is beyond its vectors.
            if vectors.mask(mask)? & !bits != 0 {
                data.resize(64, 0);
            }
            vectors.set_mask(mask, bits)?;
        }
    }
    if !lanes.stores {
        vectors.set(lanes.data, &data)?;
    }
    thread.set_vectors(&mut vectors)
}
