//! A reference interpreter of instructions of x86-64 that access memory for some lanes of a vector register: gathers
//! and scatters of AVX2 and AVX-512, and masked loads and stores.
//!
//! It follows the operations in Intel's manual, volume 2 (VGATHERDPS, VPGATHERDD, VPSCATTERDD, VMASKMOV, VPMASKMOV,
//! VMOVDQU, VMOVUPS). It shares no code with the engine, and is slow. `tests/lanes.rs` compares it with the processor.
//!
//! Where the manual leaves open what registers have after a fault in the middle, it does what processors do: lanes are
//! accessed one by one from the lowest one on, and those after the one that faults are as they were.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Bytes of the largest vector register.
pub const VECTOR: usize = 64;

/// The registers that these instructions read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registers {
    /// General registers, by number: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub general: [u64; 16],
    /// Mask registers.
    pub masks: [u64; 8],
    /// Vector registers.
    pub vectors: [[u8; VECTOR]; 32],
}

/// Whether an access loads or stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From memory to a register.
    Load,
    /// From a register to memory.
    Store,
}

/// An access of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What it does.
    pub kind: Kind,
    /// Its lowest address.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// The number of the lane.
    pub lane: usize,
}

/// The memory that instructions access.
pub trait Memory {
    /// Why an access is not possible.
    type Fault;

    /// Loads some bytes.
    ///
    /// # Errors
    /// If one of them cannot be read.
    fn load(&self, address: u64, bytes: &mut [u8]) -> Result<(), Self::Fault>;

    /// Returns whether all of these bytes can be written.
    ///
    /// # Errors
    /// If one of them cannot.
    fn check_store(&self, address: u64, len: usize) -> Result<(), Self::Fault>;

    /// Stores some bytes, or none of them.
    ///
    /// # Errors
    /// If one of them cannot be written.
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Self::Fault>;
}

/// How an instruction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End<F> {
    /// It is complete.
    Complete,
    /// This access was not possible. The registers are those that a handler sees, and with which it can begin again.
    Fault(Access, F),
    /// The processor does not execute it, because of the registers that it names.
    Refused,
}

/// What an instruction has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran<F> {
    /// Its accesses, in order. Of an instruction that faults, these are complete.
    pub accesses: Vec<Access>,
    /// How it ended.
    pub end: End<F>,
}

/// Sizes in bytes: of an index, and of what a lane accesses.
fn gather_form(mnemonic: Mnemonic) -> Option<(usize, usize, Kind)> {
    Some(match mnemonic {
        Mnemonic::Vpgatherdd | Mnemonic::Vgatherdps => (4, 4, Kind::Load),
        Mnemonic::Vpgatherdq | Mnemonic::Vgatherdpd => (4, 8, Kind::Load),
        Mnemonic::Vpgatherqd | Mnemonic::Vgatherqps => (8, 4, Kind::Load),
        Mnemonic::Vpgatherqq | Mnemonic::Vgatherqpd => (8, 8, Kind::Load),
        Mnemonic::Vpscatterdd | Mnemonic::Vscatterdps => (4, 4, Kind::Store),
        Mnemonic::Vpscatterdq | Mnemonic::Vscatterdpd => (4, 8, Kind::Store),
        Mnemonic::Vpscatterqd | Mnemonic::Vscatterqps => (8, 4, Kind::Store),
        Mnemonic::Vpscatterqq | Mnemonic::Vscatterqpd => (8, 8, Kind::Store),
        _ => return None,
    })
}

/// Bytes of an element of a masked load or store.
fn move_form(mnemonic: Mnemonic) -> Option<usize> {
    Some(match mnemonic {
        Mnemonic::Vmovdqu8 => 1,
        Mnemonic::Vmovdqu16 => 2,
        Mnemonic::Vmovdqu32 | Mnemonic::Vmovups | Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => 4,
        Mnemonic::Vmovdqu64 | Mnemonic::Vmovupd | Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => 8,
        _ => return None,
    })
}

/// What says which lanes are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mask {
    /// The highest bit of each lane of this vector register.
    Vector(usize),
    /// The bits of this mask register.
    Bits(usize),
}

/// An instruction and where its lanes are.
#[derive(Debug, Clone, Copy)]
struct Lanes {
    kind: Kind,
    count: usize,
    /// Bytes of a lane.
    size: usize,
    data: usize,
    /// Bytes of its vectors.
    len: usize,
    mask: Mask,
}

impl Lanes {
    fn is_active(&self, registers: &Registers, lane: usize) -> bool {
        match self.mask {
            Mask::Vector(number) => registers.vectors[number][self.size * (lane + 1) - 1] >> 7 == 1,
            Mask::Bits(number) => registers.masks[number] >> lane & 1 == 1,
        }
    }

    /// The lane is complete.
    fn clear(&self, registers: &mut Registers, lane: usize) {
        match self.mask {
            Mask::Vector(number) => {
                registers.vectors[number][self.size * lane..self.size * (lane + 1)].fill(0);
            }
            Mask::Bits(number) => registers.masks[number] &= !(1 << lane),
        }
    }

    /// Loads a lane, or stores it.
    fn access<M: Memory>(
        &self,
        registers: &mut Registers,
        memory: &mut M,
        (lane, address): (usize, u64),
    ) -> Result<(), M::Fault> {
        let part = self.size * lane..self.size * (lane + 1);
        let bytes = &mut registers.vectors[self.data][part];
        match self.kind {
            Kind::Load => memory.load(address, bytes),
            Kind::Store => memory.store(address, bytes),
        }
    }
}

/// Executes an instruction. Returns `None` if it is none of those that it knows.
pub fn execute<M: Memory>(
    bytes: &[u8],
    registers: &mut Registers,
    memory: &mut M,
) -> Option<Ran<M::Fault>> {
    // The decoder refuses combinations of registers that the processor refuses, too. Then it does not say what it was.
    let mut all = Decoder::new(64, bytes, DecoderOptions::NO_INVALID_CHECK);
    let insn = all.decode();
    let is_narrow = is_narrow(bytes);
    if let Some((index_size, size, kind)) = gather_form(insn.mnemonic()) {
        let form = (index_size, size, kind);
        return Some(gather((&insn, is_narrow), form, registers, memory));
    }
    let size = move_form(insn.mnemonic())?;
    masked_move((&insn, is_narrow), size, registers, memory)
}

/// The base of the addresses, with the displacement.
fn base(insn: &Instruction, registers: &Registers) -> u64 {
    let base = match insn.memory_base() {
        Register::None => 0,
        base => registers.general[base.number()],
    };
    base.wrapping_add(insn.memory_displacement64())
}

/// Whether addresses have four bytes: there is the prefix for that.
fn is_narrow(bytes: &[u8]) -> bool {
    let is_prefix = |byte: &&u8| matches!(byte, 0x26 | 0x2E | 0x36 | 0x3E | 0x64..=0x67);
    bytes.iter().take_while(is_prefix).any(|&byte| byte == 0x67)
}

/// An index, extended with its sign.
fn index(vector: &[u8; VECTOR], size: usize, lane: usize) -> u64 {
    let at = &vector[size * lane..];
    match size {
        4 => {
            let value = i32::from_le_bytes(*at.first_chunk().expect("an index"));
            i64::from(value).cast_unsigned()
        }
        _ => u64::from_le_bytes(*at.first_chunk().expect("an index")),
    }
}

fn gather<M: Memory>(
    (insn, is_narrow): (&Instruction, bool),
    (index_size, size, kind): (usize, usize, Kind),
    registers: &mut Registers,
    memory: &mut M,
) -> Ran<M::Fault> {
    let vector = insn.op_register(u32::from(kind == Kind::Store));
    let indices = insn.memory_index();
    let (data, index_number) = (vector.number(), indices.number());
    // The mask is an operand of its own.
    let is_vex = insn.op_count() == 3;
    let mask = match is_vex {
        true => Mask::Vector(insn.op2_register().number()),
        false => Mask::Bits(insn.op_mask().number()),
    };
    let is_refused = match mask {
        Mask::Vector(mask) => data == index_number || data == mask || mask == index_number,
        Mask::Bits(_) => {
            insn.op_mask() == Register::None || kind == Kind::Load && data == index_number
        }
    };
    let mut ran = Ran {
        accesses: Vec::new(),
        end: End::Refused,
    };
    if is_refused {
        return ran;
    }
    let lanes = Lanes {
        kind,
        count: (indices.size() / index_size).min(vector.size() / size),
        size,
        data,
        len: vector.size().max(indices.size()),
        mask,
    };
    let base = base(insn, registers);
    let scale = u64::from(insn.memory_index_scale());
    for lane in 0..lanes.count {
        let index = index(&registers.vectors[index_number], index_size, lane);
        let mut address = base.wrapping_add(index.wrapping_mul(scale));
        if is_narrow {
            address &= u64::from(u32::MAX);
        }
        if lanes.is_active(registers, lane) {
            let access = Access {
                kind,
                address,
                size: size as u32,
                lane,
            };
            if let Err(fault) = lanes.access(registers, memory, (lane, address)) {
                ran.end = End::Fault(access, fault);
                return ran;
            }
            ran.accesses.push(access);
            if kind == Kind::Load && !is_vex {
                // The manual has this at the end; processors have done it when the first lane is complete. They leave
                // as much as the longer one of the two vectors has.
                registers.vectors[data][lanes.len..].fill(0);
            }
        }
        lanes.clear(registers, lane);
    }
    if kind == Kind::Load {
        registers.vectors[data][lanes.count * size..].fill(0);
    }
    match mask {
        Mask::Vector(mask) => registers.vectors[mask].fill(0),
        Mask::Bits(mask) => registers.masks[mask] = 0,
    }
    ran.end = End::Complete;
    ran
}

/// `None`: it has no mask.
fn masked_move<M: Memory>(
    (insn, is_narrow): (&Instruction, bool),
    size: usize,
    registers: &mut Registers,
    memory: &mut M,
) -> Option<Ran<M::Fault>> {
    let stores = insn.op0_kind() == OpKind::Memory;
    let last = insn.op_count() - 1;
    if !stores && insn.op_kind(last) != OpKind::Memory {
        return None;
    }
    let vector = insn.op_register(if stores { last } else { 0 });
    let mask = match insn.op_mask() {
        Register::None if insn.op_count() == 3 => Mask::Vector(insn.op1_register().number()),
        Register::None => return None,
        mask => Mask::Bits(mask.number()),
    };
    let kind = if stores { Kind::Store } else { Kind::Load };
    let lanes = Lanes {
        kind,
        count: vector.size() / size,
        size,
        data: vector.number(),
        len: vector.size(),
        mask,
    };
    let mut start = base(insn, registers);
    if insn.memory_index() != Register::None {
        let scale = u64::from(insn.memory_index_scale());
        let index = registers.general[insn.memory_index().number()];
        start = start.wrapping_add(index.wrapping_mul(scale));
    }
    if is_narrow {
        start &= u64::from(u32::MAX);
    }
    let active = (0..lanes.count).filter(|&lane| lanes.is_active(registers, lane));
    let accesses = active.map(|lane| Access {
        kind,
        address: start.wrapping_add((size * lane) as u64),
        size: size as u32,
        lane,
    });
    let accesses: Vec<Access> = accesses.collect();
    // If it faults, nothing has changed.
    let mut loaded = registers.clone();
    let zeroes = matches!(mask, Mask::Vector(_)) || insn.zeroing_masking();
    if !stores && zeroes {
        loaded.vectors[lanes.data].fill(0);
    }
    for &access in &accesses {
        let tried = match stores {
            true => memory.check_store(access.address, size),
            false => lanes.access(&mut loaded, memory, (access.lane, access.address)),
        };
        if let Err(fault) = tried {
            return Some(Ran {
                accesses: Vec::new(),
                end: End::Fault(access, fault),
            });
        }
    }
    if stores {
        for &access in &accesses {
            let stored = lanes.access(&mut loaded, memory, (access.lane, access.address));
            assert!(stored.is_ok(), "it was possible a moment ago");
        }
    } else {
        loaded.vectors[lanes.data][lanes.len..].fill(0);
        *registers = loaded;
    }
    Some(Ran {
        accesses,
        end: End::Complete,
    })
}
