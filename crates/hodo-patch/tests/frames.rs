//! At each instruction of stubs and of the agent, what the frame tables say about the caller is true.
#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, HashMap};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EvaluationResult, Expression, Format,
    LittleEndian, NativeEndian, Register, RegisterRule, UnwindContext, UnwindSection,
    UnwindTableRow, Value,
};
use hodo_codegen::native::frames::{self, GROUP};
use hodo_codegen::native::masm::Masm;
use hodo_codegen::native::stub::{Body, Records, Registers, Runtime, Scope, emit_stub};
use hodo_isa::native::cfa::Row;
use hodo_isa::native::relocate::relocate_mapped;
use hodo_patch::{Island, Used, layout};
use hodo_trace::format::SHADOW_DISTANCE;
use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind,
    Register as Cpu,
};

const BASE: u64 = 0x5555_4000_0000;
const SIZE: u32 = 1 << 20;
/// Where the original functions are.
const ORIGINAL: u64 = BASE + (64 << 20);
/// Address of the return address on the stack.
const S: u64 = 0x7FFF_1234_5678;
const CALLER: u64 = 0x5555_8000_1234;
/// The content of the shadow, marked as that of an open frame.
const SHADOWED: u64 = 0x5555_8000_4321;
const RUNTIME: u64 = BASE + 16;
const SAVED: u64 = 0xABCD_0000;

/// An island's bytes and the address of its header.
struct Memory {
    bytes: Vec<u8>,
    header: usize,
}

/// What an unwinder finds.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    cfa: u64,
    rsp: u64,
    back: u64,
    rbx: Option<u64>,
    rbp: Option<u64>,
}

impl Memory {
    fn at(&self, address: u64, len: usize) -> &[u8] {
        &self.bytes[(address - BASE) as usize..][..len]
    }

    /// Reads from the island, from the stack with the return address and its shadow, and what registers are saved as on
    /// the stack.
    fn read(&self, address: u64, size: u8, stack: &BTreeMap<u64, u64>) -> u64 {
        if (BASE..BASE + self.bytes.len() as u64).contains(&address) {
            let mut word = [0; 8];
            word[..usize::from(size)].copy_from_slice(self.at(address, usize::from(size)));
            return u64::from_le_bytes(word);
        }
        match address {
            _ if address == S => CALLER,
            _ if address == S - SHADOW_DISTANCE => SHADOWED | 1 << 63,
            _ => *stack.get(&address).unwrap_or_else(|| {
                panic!(
                    "{address:#x} is read, S{:+}",
                    address.wrapping_sub(S) as i64
                )
            }),
        }
    }

    fn evaluate(&self, expression: &[u8], start: Option<u64>, truth: &Truth, at: u64) -> u64 {
        let encoding = Encoding {
            address_size: 8,
            format: Format::Dwarf32,
            version: 4,
        };
        let expression = Expression(gimli::EndianSlice::new(expression, LittleEndian));
        let mut evaluation = expression.evaluation(encoding);
        if let Some(start) = start {
            evaluation.set_initial_value(start);
        }
        let mut result = evaluation.evaluate().expect("an expression");
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size, .. } => evaluation
                    .resume_with_memory(Value::Generic(self.read(address, size, &truth.stack))),
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = match register.0 {
                        16 => at,
                        other => truth.register(other),
                    };
                    evaluation.resume_with_register(Value::Generic(value))
                }
                other => panic!("{other:?}"),
            }
            .expect("an expression");
        }
        evaluation
            .value_result()
            .expect("a value")
            .to_u64(u64::MAX)
            .expect("a number")
    }

    /// What the tables say for the instruction at an address, looked up by `pc`.
    fn unwind(&self, at: u64, pc: u64, truth: &Truth) -> Option<Found> {
        let header_at = BASE + self.header as u64;
        let bases = BaseAddresses::default()
            .set_eh_frame(BASE)
            .set_eh_frame_hdr(header_at);
        let header = EhFrameHdr::new(&self.bytes[self.header..], NativeEndian)
            .parse(&bases, 8)
            .expect("a header");
        let table = header.table().expect("a search table");
        let pointer = table.lookup(pc, &bases).expect("an entry");
        let section = EhFrame::new(&self.bytes, NativeEndian);
        let offset = (pointer.direct().expect("a pointer") - BASE) as usize;
        let fde = section
            .fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset)
            .expect("an FDE");
        assert!(fde.contains(pc), "{pc:#x} is in no FDE");
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&section, &bases, &mut context, pc)
            .expect("a row");
        self.found(at, row, &section, truth)
    }

    fn found(
        &self,
        at: u64,
        row: &UnwindTableRow<usize>,
        section: &EhFrame<gimli::EndianSlice<'_, NativeEndian>>,
        truth: &Truth,
    ) -> Option<Found> {
        let code = |expression: &gimli::UnwindExpression<usize>| {
            expression.get(section).expect("an expression").0.slice()
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                truth.register(register.0).wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => self.evaluate(code(expression), None, truth, at),
        };
        let value = |register: u16| match row.register(Register(register)) {
            RegisterRule::Undefined => None,
            RegisterRule::Offset(offset) => {
                Some(self.read(cfa.wrapping_add_signed(offset), 8, &truth.stack))
            }
            RegisterRule::ValExpression(expression) => {
                Some(self.evaluate(code(&expression), Some(cfa), truth, at))
            }
            other => panic!("{other:?}"),
        };
        Some(Found {
            cfa,
            rsp: value(7)?,
            back: value(16)?,
            rbx: value(3),
            rbp: value(6),
        })
    }
}

/// The state of the machine, as far as frames depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Truth {
    rsp: u64,
    /// The frame pointer, if it differs from the caller's.
    rbp: Option<u64>,
    /// Registers on the stack, by address: their number in frame tables + [`SAVED`].
    stack: BTreeMap<u64, u64>,
    /// Whether this is the point to which bodies return.
    returned: bool,
}

impl Truth {
    fn new(rsp: u64) -> Self {
        Self {
            rsp,
            rbp: None,
            stack: BTreeMap::new(),
            returned: false,
        }
    }

    fn register(&self, column: u16) -> u64 {
        match column {
            7 => self.rsp,
            6 => self.rbp.unwrap_or(SAVED + 6),
            other => panic!("register {other} is used"),
        }
    }

    fn expected(&self) -> Found {
        let saved = |column: u64| self.stack.values().copied().find(|&v| v == SAVED + column);
        Found {
            cfa: if self.returned { S } else { S + 8 },
            rsp: S + 8,
            back: if self.returned { SHADOWED } else { CALLER },
            rbx: saved(3),
            rbp: saved(6),
        }
    }

    fn push(&mut self, value: u64) {
        self.rsp -= 8;
        self.stack.insert(self.rsp, value);
    }

    fn pop(&mut self) {
        self.stack.remove(&self.rsp);
        self.rsp += 8;
    }

    fn step(&mut self, instruction: &Instruction) {
        self.returned = false;
        match instruction.code() {
            Opcode::Push_r64 => self.push(match instruction.op0_register() {
                Cpu::RBX => SAVED + 3,
                Cpu::RBP => SAVED + 6,
                _ => 0,
            }),
            Opcode::Pushq_imm32 | Opcode::Pushq_imm8 => self.push(0),
            Opcode::Pop_r64 => {
                if instruction.op0_register() == Cpu::RBP {
                    self.rbp = None;
                }
                self.pop();
            }
            Opcode::Leaveq => {
                self.rsp = self.rbp.take().expect("a frame pointer");
                self.pop();
            }
            Opcode::Lea_r64_m if instruction.op0_register() == Cpu::RSP => {
                assert_eq!(instruction.memory_base(), Cpu::RSP);
                self.rsp = self.rsp.wrapping_add(instruction.memory_displacement64());
            }
            Opcode::Sub_rm64_imm8 | Opcode::Sub_rm64_imm32
                if instruction.op0_register() == Cpu::RSP =>
            {
                self.rsp -= instruction.immediate(1);
            }
            Opcode::Add_rm64_imm8 if instruction.op0_register() == Cpu::RSP => {
                self.rsp += instruction.immediate(1);
            }
            Opcode::Mov_r64_rm64 | Opcode::Mov_rm64_r64
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op0_register() == Cpu::RBP =>
            {
                assert_eq!(instruction.op1_register(), Cpu::RSP);
                self.rbp = Some(self.rsp);
            }
            Opcode::Mov_rm64_r64
                if instruction.memory_base() == Cpu::RSP
                    && instruction.op1_register() == Cpu::RBX =>
            {
                let at = self.rsp.wrapping_add(instruction.memory_displacement64());
                self.stack.insert(at, SAVED + 3);
            }
            _ => assert!(
                instruction.op_count() == 0
                    || instruction.op0_kind() != OpKind::Register
                    || instruction.op0_register().full_register() != Cpu::RSP
                    || instruction.mnemonic() == Mnemonic::Cmp,
                "{instruction:?}"
            ),
        }
    }
}

/// Follows all paths from an instruction, and checks the tables at each step. `inside` says where code is; a call
/// outside it returns. Returns the number of instructions.
fn walk(memory: &Memory, start: u64, truth: Truth, inside: std::ops::Range<u64>) -> usize {
    let mut seen: HashMap<u64, Truth> = HashMap::new();
    let mut todo = vec![(start, truth)];
    while let Some((at, truth)) = todo.pop() {
        if !inside.contains(&at) {
            assert!(
                truth.rsp <= S,
                "at {at:#x} the stack pointer is S{:+}",
                truth.rsp.wrapping_sub(S) as i64
            );
            continue;
        }
        if let Some(before) = seen.get(&at) {
            assert_eq!(
                (before.rsp, before.expected()),
                (truth.rsp, truth.expected()),
                "at {at:#x}"
            );
            continue;
        }
        let bytes = memory.at(at, 15);
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        let what = format!("{:x} ({:?})", at - BASE, instruction.code());
        assert_eq!(
            memory.unwind(at, at, &truth),
            Some(truth.expected()),
            "{what}"
        );
        seen.insert(at, truth.clone());
        let next = instruction.next_ip();
        let target = instruction.near_branch_target();
        let mut after = truth.clone();
        after.step(&instruction);
        match instruction.flow_control() {
            // Execution continues after a breakpoint.
            FlowControl::Next | FlowControl::Interrupt => todo.push((next, after)),
            FlowControl::ConditionalBranch => {
                todo.push((next, after.clone()));
                todo.push((target, after));
            }
            FlowControl::UnconditionalBranch => todo.push((target, after)),
            FlowControl::Return => assert_eq!(truth.rsp, S, "{what}"),
            FlowControl::IndirectBranch => {}
            FlowControl::Call => {
                let body = truth.rsp == S + 8;
                if body {
                    todo.push((target, Truth::new(S)));
                }
                let back = Truth {
                    returned: body,
                    ..truth
                };
                // The caller of the function that is called now.
                assert_eq!(
                    memory.unwind(next, next - 1, &back),
                    Some(back.expected()),
                    "after {what}"
                );
                todo.push((next, back));
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    seen.len()
}

const BODIES: [(&str, &[u8]); 9] = [
    (
        "push rbp; mov rbp, rsp; sub rsp, 0x20",
        &[0x55, 0x48, 0x89, 0xE5, 0x48, 0x83, 0xEC, 0x20],
    ),
    (
        "push rbp; push rbx; sub rsp, 0x1000",
        &[0x55, 0x53, 0x48, 0x81, 0xEC, 0, 0x10, 0, 0],
    ),
    (
        "sub rsp, 8; mov [rsp], rbx; xor ebx, ebx",
        &[0x48, 0x83, 0xEC, 8, 0x48, 0x89, 0x1C, 0x24, 0x31, 0xDB],
    ),
    ("lea rsp, [rsp-0x40]", &[0x48, 0x8D, 0x64, 0x24, 0xC0]),
    (
        "push rbp; mov rbp, rsp; leave; ret",
        &[0x55, 0x48, 0x89, 0xE5, 0xC9, 0xC3],
    ),
    (
        "push rbx; test edi, edi; je; pop rbx; ret",
        &[0x53, 0x85, 0xFF, 0x74, 0x10, 0x5B, 0xC3],
    ),
    (
        "push rbx; dec edi; jne back; pop rbx; ret",
        &[0x53, 0xFF, 0xCF, 0x75, 0xFC, 0x5B, 0xC3],
    ),
    ("sub rsp, 8; call", &[0x48, 0x83, 0xEC, 8, 0xE8, 0, 1, 0, 0]),
    (
        "push 5; jmp; add rsp, 8; ret",
        &[0x6A, 5, 0xEB, 0, 0x48, 0x83, 0xC4, 8, 0xC3],
    ),
];

fn shapes() -> Vec<Records> {
    let mut shapes = Vec::new();
    for bits in 0..1u32 << 6 {
        for scope in [Scope::Any, Scope::Inside, Scope::Filter] {
            let set = |bit: u32| bits & 1 << bit != 0;
            shapes.push(Records {
                entry: 0x4000_1234,
                exit: set(0).then_some(0x8000_1234),
                tail: 0xC000_1234,
                timed: set(1),
                scope,
                depth: set(2).then_some(5),
                check: set(3).then_some(0x1234),
                shortest: set(4).then_some(1000),
                switch: set(5).then_some(1024),
                placed: set(3),
                hands_on: set(4),
                registers: Registers::default(),
            });
        }
    }
    shapes
}

#[test]
fn frames_are_right_at_each_instruction_of_each_stub() {
    let frames = frames::build(64, SIZE, SHADOW_DISTANCE, 0);
    let mut bytes = vec![0xC3; 64];
    bytes.extend(&frames.bytes);
    let runtime = Runtime {
        epoch: RUNTIME,
        chunk: RUNTIME,
        shadow: RUNTIME,
        window: RUNTIME,
        record: RUNTIME,
        frame: RUNTIME,
        tails: RUNTIME,
        syscalls: None,
        stack: None,
        tail: 0,
    };
    let mut stubs = Vec::new();
    let mut table = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    for records in shapes() {
        for (name, body) in BODIES {
            let mut code = Masm::new(&mut bytes, BASE);
            code.align(16);
            let at = code.here();
            emit_stub(&mut code, &layout(), &runtime, &records, &mut rows, |at| {
                relocate_mapped(body, ORIGINAL, at).map(|moved| Body {
                    bytes: moved.bytes,
                    resume: moved.falls_through.then_some(ORIGINAL + body.len() as u64),
                    rows: moved.rows,
                    returns: false,
                })
            })
            .expect(name);
            stubs.push((name, records, at..BASE + bytes.len() as u64));
            if bytes.len() as u32 - rows[0].at > GROUP {
                table.push(frames::group(&mut bytes, &frames, &rows));
                rows.clear();
            }
        }
    }
    if !rows.is_empty() {
        table.push(frames::group(&mut bytes, &frames, &rows));
    }
    let header = frames.header as usize;
    assert!(bytes.len() < header);
    bytes.resize(header, 0xCC);
    bytes.extend(frames::header(&frames, table.len() as u32));
    bytes.extend(table.concat());
    bytes.resize(SIZE as usize, 0);
    let memory = Memory { bytes, header };
    for (name, records, range) in stubs {
        println!("{name}: {records:x?}");
        let least = if records.exit.is_some() { 45 } else { 9 };
        assert!(walk(&memory, range.start, Truth::new(S), range) >= least);
    }
}

#[test]
fn frames_are_right_at_each_instruction_of_the_agent() {
    let island = Island::new(BASE, u64::from(SIZE), 0);
    let mut bytes = vec![0; SIZE as usize];
    let parts = island.added(Used::default());
    for (at, part) in &parts {
        bytes[(at - BASE) as usize..][..part.len()].copy_from_slice(part);
    }
    let header = (parts[2].0 - BASE) as usize;
    let memory = Memory { bytes, header };
    let agent = hodo_agent::runtime();
    let mut instructions = 0;
    for entry in [
        agent.epoch,
        agent.chunk,
        agent.shadow,
        agent.window,
        agent.record,
        agent.record_untimed,
        agent.frame,
        agent.tails,
    ] {
        let end = BASE + agent.code.len() as u64;
        instructions += walk(&memory, BASE + entry as u64, Truth::new(S), BASE..end);
    }
    assert!(instructions > 200);
}

#[test]
fn frames_are_right_at_each_instruction_that_announces_libraries() {
    let mut island = Island::new(BASE, u64::from(SIZE), 0);
    let announcement = island.add_announcement(BASE + 0x10_0000);
    let hodo_abi::Span { start, end } = announcement.expect("room").code;
    let mut bytes = vec![0; SIZE as usize];
    let parts = island.added(Used::default());
    for (at, part) in &parts {
        bytes[(at - BASE) as usize..][..part.len()].copy_from_slice(part);
    }
    let header = (parts[2].0 - BASE) as usize;
    let memory = Memory { bytes, header };
    assert!(walk(&memory, start, Truth::new(S), start..end) > 40);
}
