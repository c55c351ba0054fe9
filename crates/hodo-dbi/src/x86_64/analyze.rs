//! Which accesses an instruction makes, and from which registers their addresses come.

use std::arch::x86_64::__cpuid_count;

use iced_x86::{
    CodeSize, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, MemorySize, Mnemonic,
    OpAccess, OpKind, Register, RflagsBits, UsedMemory,
};

use crate::access::Kind;
use crate::block::{Address, Area, Block, Flow, Insn, LaneMask, Lanes, Operand, Special, Value};

/// The maximum number of instructions of a block.
const MOST: usize = 64;
/// The maximum number of values of a record.
const MOST_VALUES: usize = 5;
const RSP: usize = 4;

/// What a register has, compared with the beginning of the block.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// What this register had, plus a number.
    Plus(u8, i64),
    No,
}

/// Makes a block.
struct Analysis {
    registers: [Known; 16],
    values: Vec<Value>,
    operands: Vec<Operand>,
}

/// Finds the block at the start of this code, and its accesses.
pub(crate) fn analyze(id: u32, code: &[(u64, [u8; 16], u8)]) -> Block {
    let mut analysis = Analysis {
        registers: std::array::from_fn(|number| Known::Plus(number as u8, 0)),
        values: Vec::new(),
        operands: Vec::new(),
    };
    let mut factory = InstructionInfoFactory::new();
    let mut block = Block {
        id,
        insns: Vec::new(),
        code: Vec::new(),
        file: None,
        operands: Vec::new(),
        special: None,
        values: Vec::new(),
        flags_are_dead: false,
    };
    // Flags that are not overwritten yet.
    let mut flags =
        Some(RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF);
    for (number, (pc, bytes, len)) in code.iter().take(MOST).enumerate() {
        let bytes = &bytes[..usize::from(*len)];
        let insn = Decoder::with_ip(64, bytes, *pc, DecoderOptions::NONE).decode();
        let info = factory.info(&insn);
        let values = analysis.values.len();
        let special = analysis.special(&insn, info.used_memory());
        if special.is_none() || number > 0 {
            analysis.values.truncate(values);
        }
        let fits = match (&special, number) {
            (Some(_), 0) => true,
            (Some(_), _) => false,
            (None, _) => analysis.operands(number as u16, info.used_memory()),
        };
        if !fits && number > 0 {
            break;
        }
        flags = flags.filter(|flags| insn.rflags_read() & flags == 0);
        // What is counted in a register may be zero: then nothing changes.
        let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
        let count = insn.op_count().saturating_sub(1);
        let by_register =
            insn.op_count() > 1 && matches!(insn.try_op_register(count), Ok(Register::CL));
        if !repeats && !by_register {
            flags = flags.map(|flags| flags & !insn.rflags_modified());
        }
        if flags == Some(0) {
            block.flags_are_dead = true;
        }
        block.insns.push(Insn {
            pc: *pc,
            len: *len,
            flow: flow(&insn),
        });
        block.code.extend(bytes);
        if special.is_some() {
            block.special = special;
            break;
        }
        analysis.follow(&insn, info.used_registers());
    }
    block.operands = analysis.operands;
    block.values = analysis.values;
    block
}

fn general(register: Register) -> Option<usize> {
    let is_general = register.is_gpr() && !matches!(register, Register::None);
    is_general.then(|| register.full_register().number())
}

fn kinds(access: OpAccess) -> &'static [Kind] {
    match access {
        OpAccess::Read | OpAccess::CondRead => &[Kind::Load],
        OpAccess::Write | OpAccess::CondWrite => &[Kind::Store],
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => &[Kind::Load, Kind::Store],
        OpAccess::None | OpAccess::NoMemAccess => &[],
    }
}

impl Analysis {
    /// Where a record has a value.
    fn value(&mut self, value: Value) -> u16 {
        let mut at = 4;
        for old in &self.values {
            if *old == value {
                return at;
            }
            at += old.size() as u16;
        }
        self.values.push(value);
        at
    }

    /// Where a record has what a register is based on, and what is added to that. `None`: nothing is known.
    fn register(&mut self, register: Register) -> Option<(u16, i64)> {
        match self.registers[general(register)?] {
            Known::Plus(base, add) => Some((self.value(Value::Register(base)), add)),
            Known::No => None,
        }
    }

    /// If a record has neither the base nor the index of an operand: their sum, which takes less room, and what is added
    /// to it.
    fn sum(&self, memory: &UsedMemory) -> Option<(Value, i64)> {
        let is_whole = memory.base().is_gpr64() && memory.index().is_gpr64();
        let base = self.registers[general(memory.base())?];
        let index = self.registers[general(memory.index())?];
        let (Known::Plus(base, add), Known::Plus(index, more)) = (base, index) else {
            return None;
        };
        let has = |number: u8| self.values.contains(&Value::Register(number));
        if !is_whole || has(base) || has(index) || usize::from(index) == RSP {
            return None;
        }
        let power = memory.scale().trailing_zeros() as u8;
        let more = more.wrapping_mul(memory.scale().into());
        Some((Value::Sum(base, index, power), add.wrapping_add(more)))
    }

    /// The address of an operand; `None`: not all of its registers are known.
    fn address(&mut self, memory: &UsedMemory) -> Option<Address> {
        let mut address = Address {
            displacement: memory.displacement(),
            narrow: memory.address_size() == CodeSize::Code32,
            scale: memory.scale() as u8,
            ..Address::default()
        };
        if memory.segment() == Register::FS {
            address.segment = Some(self.value(Value::ThreadBase));
        }
        if let Some((sum, add)) = self.sum(memory) {
            address.base = Some(self.value(sum));
            address.displacement = address.displacement.wrapping_add_signed(add);
            return Some(address);
        }
        if general(memory.base()).is_some() {
            let (at, add) = self.register(memory.base())?;
            address.base = Some(at);
            address.displacement = address.displacement.wrapping_add_signed(add);
        }
        if general(memory.index()).is_some() {
            let (at, add) = self.register(memory.index())?;
            let add = add.wrapping_mul(memory.scale().into());
            address.index = Some(at);
            address.displacement = address.displacement.wrapping_add_signed(add);
        }
        Some(address)
    }

    /// Adds the operands of an instruction. Returns whether all registers that they need are known.
    fn operands(&mut self, insn: u16, memory: &[UsedMemory]) -> bool {
        let (values, operands) = (self.values.len(), self.operands.len());
        let mut fits = true;
        for wanted in [Kind::Load, Kind::Store] {
            for used in memory
                .iter()
                .filter(|used| kinds(used.access()).contains(&wanted))
            {
                let Some(address) = self.address(used) else {
                    fits = false;
                    continue;
                };
                self.operands.push(Operand {
                    insn,
                    kind: wanted,
                    size: used.memory_size().size() as u32,
                    address,
                });
            }
        }
        if !fits || insn > 0 && self.values.len() > MOST_VALUES {
            self.values.truncate(values);
            self.operands.truncate(operands);
            return false;
        }
        true
    }

    /// What an instruction does to the registers.
    fn follow(&mut self, insn: &iced_x86::Instruction, used: &[iced_x86::UsedRegister]) {
        let before = self.registers;
        for register in used {
            let writes = matches!(
                register.access(),
                OpAccess::Write
                    | OpAccess::ReadWrite
                    | OpAccess::CondWrite
                    | OpAccess::ReadCondWrite
            );
            if let Some(number) = general(register.register()).filter(|_| writes) {
                self.registers[number] = Known::No;
            }
        }
        let plus = |register: Register, add: i64| match general(register) {
            Some(number) if register.is_gpr64() => match before[number] {
                Known::Plus(base, old) => Known::Plus(base, old.wrapping_add(add)),
                Known::No => Known::No,
            },
            _ => Known::No,
        };
        let is_plain_stack = matches!(
            insn.mnemonic(),
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq
        );
        let pops_itself = insn.mnemonic() == Mnemonic::Pop
            && insn.op0_register().full_register() == Register::RSP;
        if is_plain_stack && !pops_itself {
            self.registers[RSP] = plus(Register::RSP, insn.stack_pointer_increment().into());
            return;
        }
        if insn.op_count() == 0
            || insn.op0_kind() != OpKind::Register
            || !insn.op0_register().is_gpr64()
        {
            return;
        }
        let to = insn.op0_register();
        let immediate = || insn.try_immediate(1).ok().map(u64::cast_signed);
        let new = match insn.mnemonic() {
            Mnemonic::Add => immediate().map(|add| plus(to, add)),
            Mnemonic::Sub => immediate().map(|less| plus(to, less.wrapping_neg())),
            Mnemonic::Inc => Some(plus(to, 1)),
            Mnemonic::Dec => Some(plus(to, -1)),
            Mnemonic::Mov if insn.op1_kind() == OpKind::Register => {
                Some(plus(insn.op1_register(), 0))
            }
            Mnemonic::Lea if insn.memory_index() == Register::None => {
                let base = insn.memory_base();
                Some(plus(base, insn.memory_displacement64().cast_signed()))
            }
            _ => None,
        };
        if let (Some(new), Some(number)) = (new, general(to)) {
            self.registers[number] = new;
        }
    }

    /// The accesses of an instruction that a record of registers alone does not say.
    fn special(&mut self, insn: &iced_x86::Instruction, memory: &[UsedMemory]) -> Option<Special> {
        let repeats = insn.has_rep_prefix() || insn.has_repne_prefix();
        if repeats && insn.is_string_instruction() {
            return self.strings(insn, memory);
        }
        let used = memory
            .iter()
            .find(|used| !kinds(used.access()).is_empty())?;
        if used.vsib_size() != 0 || is_masked(insn) {
            return self.lanes(insn, used);
        }
        match insn.mnemonic() {
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if insn.op1_kind() == OpKind::Register =>
            {
                let number = general(insn.op1_register())? as u8;
                Some(Special::Bit {
                    kinds: kinds(used.access()).to_vec(),
                    address: self.address(used)?,
                    number: self.value(Value::Register(number)),
                    size: insn.op1_register().size() as u32,
                })
            }
            Mnemonic::Xlatb => {
                let mut address = self.address(used)?;
                address.index = None;
                let number = self.value(Value::Register(0));
                Some(Special::Byte { address, number })
            }
            _ if matches!(used.memory_size(), MemorySize::Xsave | MemorySize::Xsave64) => {
                const RAX: u8 = 0;
                const RDX: u8 = 2;
                let is_load = matches!(
                    insn.mnemonic(),
                    Mnemonic::Xrstor | Mnemonic::Xrstor64 | Mnemonic::Xrstors | Mnemonic::Xrstors64
                );
                let compact = matches!(insn.mnemonic(), Mnemonic::Xsavec | Mnemonic::Xsavec64);
                Some(Special::State {
                    kind: if is_load { Kind::Load } else { Kind::Store },
                    address: self.address(used)?,
                    selected: (
                        self.value(Value::Register(RAX)),
                        self.value(Value::Register(RDX)),
                    ),
                    area: area(compact),
                })
            }
            _ => None,
        }
    }

    fn strings(&mut self, insn: &iced_x86::Instruction, memory: &[UsedMemory]) -> Option<Special> {
        const RSI: u8 = 6;
        const RDI: u8 = 7;
        let through = |register: usize| {
            let mut used = memory
                .iter()
                .filter(|used| general(used.base()) == Some(register));
            used.find_map(|used| kinds(used.access()).first().copied())
        };
        let (first, second) = (through(RSI.into()), through(RDI.into()));
        let size = insn.memory_size().size() as u32;
        if size == 0 {
            return None;
        }
        self.value(Value::Before(RSI));
        self.value(Value::Before(RDI));
        self.value(Value::Register(if second.is_some() { RDI } else { RSI }));
        Some(Special::Strings {
            first,
            second,
            size,
        })
    }

    fn lanes(&mut self, insn: &iced_x86::Instruction, used: &UsedMemory) -> Option<Special> {
        let operands = 0..insn.op_count();
        let vectors = operands.filter_map(|operand| {
            let register = insn.try_op_register(operand).ok()?;
            register.is_vector_register().then_some(register)
        });
        let vectors: Vec<Register> = vectors.collect();
        let data = vectors.first()?;
        let whole = used.memory_size().element_type();
        let mut size = whole.size() as u32;
        let mask = insn.op_mask();
        let mask = if mask != Register::None {
            LaneMask::Bits(self.value(Value::Mask(mask.number() as u8)))
        } else {
            let register = match insn.mnemonic() {
                // The second operand is the mask.
                Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu => {
                    size = 1;
                    vectors.get(1)?
                }
                // Destination and mask; or a load or store with the mask before the data.
                _ if used.vsib_size() != 0 => vectors.get(1)?,
                _ if insn.op0_kind() == OpKind::Memory => vectors.first()?,
                _ => vectors.get(1)?,
            };
            size = match insn.mnemonic() {
                Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => 4,
                Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => 8,
                _ => size,
            };
            LaneMask::Signs(self.value(Value::Vector(register.number() as u8)))
        };
        let mut count = data.size() as u32 / size.max(1);
        let indices = (used.vsib_size() != 0).then(|| {
            let index = used.index();
            count = count.min(index.size() as u32 / used.vsib_size());
            let at = self.value(Value::Vector(index.number() as u8));
            (at, used.vsib_size())
        });
        if indices.is_none() && insn.op_mask() != Register::None {
            count = used.memory_size().size() as u32 / size.max(1);
        }
        Some(Special::Lanes(Lanes {
            kind: *kinds(used.access()).first()?,
            size,
            count,
            address: self.address(used)?,
            indices,
            mask,
            packed: is_packed(insn),
        }))
    }
}

fn is_masked(insn: &iced_x86::Instruction) -> bool {
    insn.op_mask() != Register::None
        || matches!(
            insn.mnemonic(),
            Mnemonic::Maskmovdqu
                | Mnemonic::Vmaskmovdqu
                | Mnemonic::Vmaskmovps
                | Mnemonic::Vmaskmovpd
                | Mnemonic::Vpmaskmovd
                | Mnemonic::Vpmaskmovq
        )
}

/// The name of the operation of an instruction, with these bytes.
#[must_use]
pub fn mnemonic(bytes: &[u8]) -> String {
    let insn = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    format!("{:?}", insn.mnemonic()).to_lowercase()
}

fn flow(insn: &iced_x86::Instruction) -> Flow {
    match insn.flow_control() {
        FlowControl::ConditionalBranch => Flow::Branch,
        FlowControl::UnconditionalBranch => Flow::Jump,
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Call if insn.mnemonic() == Mnemonic::Syscall => Flow::SystemCall,
        FlowControl::Call => Flow::Call,
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Return => Flow::Return,
        _ => Flow::Next,
    }
}

/// Whether only the active elements are in memory.
fn is_packed(insn: &iced_x86::Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Vcompresspd
            | Mnemonic::Vcompressps
            | Mnemonic::Vpcompressb
            | Mnemonic::Vpcompressd
            | Mnemonic::Vpcompressq
            | Mnemonic::Vpcompressw
            | Mnemonic::Vexpandpd
            | Mnemonic::Vexpandps
            | Mnemonic::Vpexpandb
            | Mnemonic::Vpexpandd
            | Mnemonic::Vpexpandq
            | Mnemonic::Vpexpandw
    )
}

/// The layout of the area of `xsave`. Intel's manual, volume 1, section 13.4.
fn area(compact: bool) -> Area {
    const LEAF: u32 = 13;
    let there = __cpuid_count(LEAF, 0).eax;
    let component = |number: u32| {
        if number < 2 || there >> number & 1 == 0 {
            // The first two are in the part that is always there.
            return (1, 0);
        }
        let found = __cpuid_count(LEAF, number);
        (if compact { 0 } else { found.ebx }, found.eax)
    };
    Area {
        least: 576,
        components: (0..19).map(component).collect(),
    }
}
