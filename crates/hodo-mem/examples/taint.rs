//! Follows what a program reads from its standard input: how many bytes that depend on it the program writes, and which
//! functions decide something because of it. Addresses that depend on it do not count, nor does what branches decide.
//! Gathers, scatters, and masked loads and stores are followed lane by lane; what their masks and indices are does not
//! count, either.
//!
//!     cargo run --release -p hodo-mem --example taint -- PROGRAM ARGUMENTS… < FILE

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Access, Block, Client, Event, Events, Kind, Observe, Target};
use hodo_mem::places::{InFile, places};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    Mnemonic::{
        Maskmovdqu, Mov, Movaps, Movd, Movdqa, Movdqu, Movq, Movsb, Movsd, Movsq, Movsw, Movups,
        Movzx, Pop, Push, Vcompresspd, Vcompressps, Vexpandpd, Vexpandps, Vmaskmovdqu, Vmaskmovpd,
        Vmaskmovps, Vmovapd, Vmovaps, Vmovdqa, Vmovdqa32, Vmovdqa64, Vmovdqu, Vmovdqu8, Vmovdqu16,
        Vmovdqu32, Vmovdqu64, Vmovupd, Vmovups, Vpcompressb, Vpcompressd, Vpcompressq, Vpcompressw,
        Vpexpandb, Vpexpandd, Vpexpandq, Vpexpandw, Vpmaskmovd, Vpmaskmovq,
    },
    OpAccess, OpKind, Register,
};

/// The kernel's numbers.
const READ: u64 = 0;
const WRITE: u64 = 1;

/// What an instruction does with data.
struct Step {
    /// Registers whose values it uses, and registers that it writes: whether something of the old value remains.
    reads: Vec<Register>,
    writes: Vec<(Register, bool)>,
    uses_flags: bool,
    sets_flags: bool,
    /// Each byte of what it writes is one of what it reads, in their order.
    is_move: bool,
    /// It copies memory to memory, one element after the other.
    is_copy: bool,
    is_branch: bool,
    /// It loads or stores lanes that a mask selects.
    lanes: Option<Lanes>,
}

/// A vector register whose lanes are loaded or stored if a mask selects them.
struct Lanes {
    register: Register,
    /// Its bytes that stay what they are in lanes that are not loaded, a bit for each.
    kept: u64,
    /// The mask, if it becomes zero.
    mask: Option<Register>,
}

/// This number of bits.
fn ones(count: usize) -> u64 {
    u64::MAX
        .checked_shl(count as u32)
        .map_or(u64::MAX, |rest| !rest)
}

impl Lanes {
    fn of(insn: &Instruction) -> Option<Self> {
        let mut kinds = (0..insn.op_count()).map(|operand| insn.op_kind(operand));
        let stores = insn.op0_kind() == OpKind::Memory;
        let data = match insn.mnemonic() {
            Maskmovdqu | Vmaskmovdqu => insn.op1_register(),
            _ if !kinds.any(|kind| kind == OpKind::Memory) => return None,
            _ if stores => insn.op_register(insn.op_count() - 1),
            _ => insn.op0_register(),
        };
        let mut kept = ones(data.size());
        let mut mask = None;
        match insn.mnemonic() {
            _ if insn.is_vsib() => {
                let index = if insn.is_vsib64() { 8 } else { 4 };
                let size = insn.memory_size().element_type().size();
                let count = (insn.memory_index().size() / index).min(data.size() / size);
                kept = ones(count * size);
                mask = match insn.op_mask() {
                    Register::None => Some(insn.op2_register()),
                    mask => Some(mask),
                };
            }
            Maskmovdqu | Vmaskmovdqu => {}
            Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq => kept = 0,
            Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 | Vmovdqa32 | Vmovdqa64 | Vmovups
            | Vmovupd | Vmovaps | Vmovapd | Vpcompressb | Vpcompressw | Vpcompressd
            | Vpcompressq | Vcompressps | Vcompresspd | Vpexpandb | Vpexpandw | Vpexpandd
            | Vpexpandq | Vexpandps | Vexpandpd
                if insn.op_mask() != Register::None =>
            {
                if insn.zeroing_masking() {
                    kept = 0;
                }
            }
            _ => return None,
        }
        Some(Self {
            register: data.full_register(),
            kept: if stores { u64::MAX } else { kept },
            mask: mask.map(Register::full_register),
        })
    }

    /// They are loaded or stored: one after the other, if places overlap.
    fn follow(&self, thread: &mut Thread, memory: &mut HashSet<(i32, u64)>, accesses: &[&Access]) {
        let process = thread.process;
        let before = thread.registers.get(&self.register).copied();
        let mut value = before.unwrap_or(0) & self.kept;
        for access in accesses {
            let own = ones(access.size as usize) << access.offset;
            match access.kind {
                Kind::Load => {
                    let loaded = mask(memory, process, access) << access.offset;
                    value = value & !own | loaded;
                }
                Kind::Store => store(memory, process, access, value >> access.offset),
            }
        }
        thread.registers.insert(self.register, value);
        if let Some(mask) = self.mask {
            thread.registers.insert(mask, 0);
        }
    }
}

impl Step {
    fn of(insn: &Instruction, factory: &mut InstructionInfoFactory) -> Self {
        let operands = 0..insn.op_count();
        let registers = operands.filter(|&op| insn.op_kind(op) == OpKind::Register);
        let explicit: Vec<Register> = registers.map(|op| insn.op_register(op)).collect();
        let address = [insn.memory_base(), insn.memory_index()].map(Register::full_register);
        let is_zero = matches!(
            insn.mnemonic(),
            Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Pxor | Mnemonic::Vpxor
        ) && explicit.len() as u32 == insn.op_count()
            && explicit[explicit.len() - 2] == explicit[explicit.len() - 1];
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for used in factory.info(insn).used_registers() {
            let register = used.register();
            let full = register.full_register();
            if full == Register::RSP || register.is_segment_register() {
                continue;
            }
            let is_address = address.contains(&full) && !explicit.contains(&register);
            let read = [OpAccess::Read, OpAccess::CondRead, OpAccess::ReadWrite];
            let read = read.contains(&used.access()) || used.access() == OpAccess::ReadCondWrite;
            if read && !is_address && !is_zero {
                reads.push(full);
            }
            let conditional =
                [OpAccess::CondWrite, OpAccess::ReadCondWrite].contains(&used.access());
            let written = [OpAccess::Write, OpAccess::ReadWrite].contains(&used.access());
            if written || conditional {
                // Four bytes clear the others.
                let is_part = register.is_gpr8() || register.is_gpr16();
                writes.push((full, is_part || conditional));
            }
        }
        Self {
            reads,
            writes,
            uses_flags: insn.rflags_read() != 0,
            sets_flags: insn.rflags_modified() != 0,
            is_move: matches!(
                insn.mnemonic(),
                Mov | Movaps
                    | Movd
                    | Movdqa
                    | Movdqu
                    | Movq
                    | Movups
                    | Movzx
                    | Pop
                    | Push
                    | Vmovapd
                    | Vmovaps
                    | Vmovdqa
                    | Vmovdqa32
                    | Vmovdqa64
                    | Vmovdqu
                    | Vmovdqu8
                    | Vmovdqu16
                    | Vmovdqu32
                    | Vmovdqu64
                    | Vmovupd
                    | Vmovups
            ) && insn.op_mask() == Register::None,
            is_copy: matches!(insn.mnemonic(), Movsb | Movsw | Movsd | Movsq)
                && explicit.is_empty(),
            is_branch: insn.flow_control() == FlowControl::ConditionalBranch,
            lanes: Lanes::of(insn),
        }
    }
}

/// What a thread has that depends on the input.
#[derive(Default)]
struct Thread {
    process: i32,
    /// Bytes of registers, a bit for each.
    registers: HashMap<Register, u64>,
    flags: bool,
    call: Option<(u64, [u64; 6])>,
}

#[derive(Default)]
struct Taint {
    factory: Option<InstructionInfoFactory>,
    steps: HashMap<u32, Vec<Step>>,
    threads: HashMap<u32, Thread>,
    /// Bytes of memory that depend on the input, by process and address.
    memory: HashSet<(i32, u64)>,
    found: Found,
    branches: HashMap<InFile, u64>,
}

/// What depends on the input of a program.
#[derive(Debug, Default)]
pub struct Found {
    /// Bytes that were read.
    pub read: u64,
    /// By descriptor: bytes that were written, and all that were written there.
    pub written: BTreeMap<u64, (u64, u64)>,
    /// By function: how often it has decided something.
    pub decisions: BTreeMap<String, u64>,
}

fn bytes(access: &Access) -> impl Iterator<Item = u64> + use<> {
    let start = access.address;
    (0..u64::from(access.size)).map(move |byte| start.wrapping_add(byte))
}

/// The bytes of an access that depend on the input. All after the first ones are taken together.
fn mask(memory: &HashSet<(i32, u64)>, process: i32, access: &Access) -> u64 {
    let bytes = (0..).zip(bytes(access));
    let bytes = bytes.filter(|&(_, byte)| memory.contains(&(process, byte)));
    bytes.fold(0, |all, (number, _)| all | 1 << u32::min(number, 63))
}

/// Memory gets bytes, of which the value says which ones depend on the input.
fn store(memory: &mut HashSet<(i32, u64)>, process: i32, access: &Access, value: u64) {
    for (number, byte) in (0..).zip(bytes(access)) {
        match value >> u32::min(number, 63) & 1 == 1 {
            true => memory.insert((process, byte)),
            false => memory.remove(&(process, byte)),
        };
    }
}

impl Client for Taint {
    fn thread(&mut self, thread: u32, process: i32, _: i32) {
        self.threads.entry(thread).or_default().process = process;
    }

    fn events(&self) -> Events {
        Events::default().system_calls()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        let thread = self.threads.entry(thread).or_default();
        match *event {
            Event::SystemCall { number, arguments } => thread.call = Some((number, arguments)),
            Event::SystemCallEnded { result } => {
                let Some((number, [descriptor, address, ..])) = thread.call.take() else {
                    return;
                };
                // Errors are between -4095 and -1.
                let done = if result < 1 << 40 { result } else { 0 };
                let process = thread.process;
                let bytes = (address..address + done).map(|byte| (process, byte));
                match (number, descriptor) {
                    (READ, 0) => {
                        self.found.read += done;
                        self.memory.extend(bytes);
                    }
                    (READ, _) => bytes.for_each(|byte| {
                        self.memory.remove(&byte);
                    }),
                    (WRITE, descriptor) => {
                        let sum = self.found.written.entry(descriptor).or_default();
                        sum.0 += bytes.filter(|byte| self.memory.contains(byte)).count() as u64;
                        sum.1 += done;
                    }
                    _ => {}
                }
                thread.registers.remove(&Register::RAX);
            }
            Event::Executed => {
                let process = thread.process;
                thread.registers.clear();
                self.memory.retain(|(other, _)| *other != process);
            }
            _ => {}
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let factory = self.factory.get_or_insert_with(InstructionInfoFactory::new);
        let steps = self.steps.entry(block.id).or_insert_with(|| {
            let all = block.insns.iter().enumerate();
            let all = all.map(|(number, insn)| {
                let code = block.bytes(number);
                let insn = Decoder::with_ip(64, code, insn.pc, DecoderOptions::NONE).decode();
                Step::of(&insn, factory)
            });
            all.collect()
        });
        let thread = self.threads.entry(thread).or_default();
        let process = thread.process;
        let mut accesses = accesses.iter().peekable();
        // A repeated instruction is received in parts.
        let upto = upto.max(usize::from(block.is_repeated()));
        for (number, step) in steps.iter().enumerate().take(upto) {
            let own: Vec<&Access> =
                std::iter::from_fn(|| accesses.next_if(|access| access.insn as usize == number))
                    .collect();
            if let Some(lanes) = &step.lanes {
                lanes.follow(thread, &mut self.memory, &own);
                continue;
            }
            let loads = own.iter().filter(|access| access.kind == Kind::Load);
            let loaded = loads.map(|access| mask(&self.memory, process, access));
            let registers = step.reads.iter();
            let registers =
                registers.filter_map(|register| thread.registers.get(register).copied());
            let read = loaded.chain(registers).fold(0, |all, bytes| all | bytes);
            let depends = read != 0 || step.uses_flags && thread.flags;
            let value = match depends {
                true if step.is_move => read,
                true => u64::MAX,
                false => 0,
            };
            if step.is_branch
                && depends
                && let Some(place) = InFile::of(block, number)
            {
                *self.branches.entry(place).or_default() += 1;
            }
            let mut last = 0;
            for access in own {
                match access.kind {
                    Kind::Load => last = mask(&self.memory, process, access),
                    Kind::Store => {
                        let value = if step.is_copy { last } else { value };
                        store(&mut self.memory, process, access, value);
                    }
                }
            }
            for &(register, remains) in &step.writes {
                let bytes = thread.registers.entry(register).or_default();
                *bytes = value | if remains { *bytes } else { 0 };
            }
            if step.sets_flags {
                thread.flags = depends;
            }
        }
    }
}

/// Runs a program, and says what depends on its input.
pub fn follow(command: &[OsString]) -> Result<Found> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let target = Target::program(&program, command);
    let (_, taint) = hodo_dbi::observe(&target, Observe::Accesses, Taint::default())?;
    let mut found = taint.found;
    let places = places(taint.branches.keys());
    for (place, count) in taint.branches {
        let function = places
            .get(&place)
            .and_then(|place| place.function.as_deref());
        *found
            .decisions
            .entry(function.unwrap_or("?").to_owned())
            .or_default() += count;
    }
    Ok(found)
}

fn main() -> Result<()> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let found = follow(&command)?;
    eprintln!("{} bytes were read", found.read);
    for (descriptor, (bytes, all)) in found.written {
        eprintln!("{bytes} of {all} bytes that were written to {descriptor} depend on them");
    }
    for (function, count) in found.decisions {
        eprintln!("{count:>12} decisions in {function}");
    }
    Ok(())
}
