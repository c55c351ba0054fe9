//! Stubs as they are emitted: how many instructions they execute, and whether their frame tables are right.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;
use hodo_isa::Signing;
use hodo_isa::effects::How;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::decode::Kind;
use hodo_isa::riscv64::decode::operand::imm_i;
use hodo_isa::riscv64::scan::Flow;
use hodo_isa::riscv64::text;

const BASE: u64 = 0x20_0000_0000;
const AGENT: u64 = BASE - 0x1000;

pub(in crate::riscv64) fn layout() -> Layout {
    Layout {
        cursor: 0,
        limit: 8,
        epoch: 16,
        epoch_end: 1008,
        shadow_lo: 24,
        shadow_len: 32,
        window: 1000,
        lowered_windows: 944,
        handed_on: 928,
        window_size: 1 << 14,
        islands: [(40, 48), (56, 64)],
        inside: 176,
        depth: 184,
        frames: 320,
        chain_top: 240,
        chain_lo: 248,
        chain_size: 65536,
        shadow_distance: 0x20_0000_0840,
        to_shadow: 1016,
        atomics: true,
        block: -8,
        record_size: 8,
        sp_shift: 18,
        sp_mask: 0xFFC0_0000,
        bucket: 96,
        bucket_size: 4096,
        lost: 80,
        base: 88,
        owner: 59,
    }
}

fn records() -> Records {
    Records {
        entry: 0x1_2345,
        exit: Some(0x11_2345),
        tail: 0x21_2345,
        timed: true,
        scope: Scope::Any,
        depth: None,
        check: None,
        shortest: None,
        switch: None,
        placed: false,
        hands_on: false,
        registers: Registers::default(),
    }
}

fn runtime() -> Runtime {
    Runtime {
        epoch: AGENT,
        chunk: AGENT,
        shadow: AGENT,
        window: AGENT,
        record: AGENT,
        frame: AGENT,
        tails: AGENT,
        tail: AGENT,
        syscalls: None,
        stack: None,
    }
}

/// The code of a stub whose body is a return, its rows, and where its body is.
fn emit(records: &Records) -> (Vec<u8>, Vec<Row>, usize) {
    let runtime = runtime();
    let mut bytes = Vec::new();
    let mut rows = Vec::new();
    let mut code = Code::new(&mut bytes, BASE);
    let emitted = emit_stub(&mut code, &layout(), &runtime, records, &mut rows, |_| {
        Ok::<_, ()>(Body {
            bytes: vec![0x82, 0x80],
            resume: None,
            rows: vec![Row {
                at: 0,
                rule: Rule::Unknown,
            }],
            returns: false,
        })
    });
    let body = emitted.expect("a body").body;
    (bytes, rows, (body.start - BASE) as usize)
}

/// The instructions that are executed from an offset to a jump if no branch is taken.
fn straight(code: &[u8], mut at: usize) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let insn = Insn::new(&code[at..], BASE + at as u64);
        texts.push(text(&code[at..], insn.addr));
        at += usize::from(insn.len);
        if matches!(insn.kind, Kind::Jal | Kind::Jalr) {
            return texts;
        }
    }
}

/// The number of instructions of an entry and an exit, without those that read the time, and the length of the code.
fn executed(records: &Records) -> (usize, usize) {
    let (code, ..) = emit(records);
    let entry = straight(&code, 0);
    let exit = straight(&code, entry.len() * 4);
    let all = || entry.iter().chain(&exit);
    (
        all().filter(|text| !text.contains("time")).count(),
        all().count() * 4,
    )
}

#[test]
fn entry_and_exit_take_at_most_forty_instructions() {
    let with = |free: u32, free_after: u32, via: Via| Records {
        registers: Registers {
            free,
            free_after,
            via,
            signing: Signing::None,
        },
        ..records()
    };
    // Four registers: a2 to a5.
    let four = 0xF << 12;
    let (count, bytes) = executed(&with(four, four, Via::Nothing));
    assert_eq!((count, bytes), (40, 168));
    // Two are enough before the body, since the return address is in the shadow; after it, the word of the record takes
    // one more.
    let (two, three) = (3 << 12, 7 << 12);
    assert_eq!(executed(&with(two, four, Via::Nothing)).0, 40);
    assert_eq!(executed(&with(two, three, Via::Nothing)).0, 41);
    assert_eq!(executed(&with(two, two, Via::Nothing)).0, 42);
    // The register of the jump is one of them.
    assert_eq!(executed(&with(1 << 12, four, Via::Free(6))).0, 40);
    // A register that the jump saves is restored, or is one of them until then.
    assert_eq!(executed(&with(two, four, Via::Kept(6))).0, 42);
    assert_eq!(executed(&with(1 << 12, four, Via::Kept(6))).0, 42);
    // Without any free one, two are saved on the stack: four more instructions before the body, and six after.
    assert_eq!(executed(&with(0, 0, Via::Kept(5))).0, 52);
    assert_eq!(executed(&with(0, 0, Via::Free(5))).0, 52);
    // Small numbers take fewer instructions.
    let small = |records: Records| Records {
        entry: 0x7FF,
        exit: Some(0x10_07FF),
        ..records
    };
    assert_eq!(executed(&small(with(two, four, Via::Nothing))).0, 38);
    assert_eq!(executed(&small(with(two, four, Via::Kept(6)))).0, 40);
    assert_eq!(executed(&small(with(0, 0, Via::Kept(5)))).0, 50);
    let untimed = Records {
        timed: false,
        ..with(four, four, Via::Nothing)
    };
    assert_eq!(executed(&untimed).0, 36);
}

/// The time shows readers if a signal handler moved to another window in between.
#[test]
fn the_time_is_read_before_the_window_where_that_costs_nothing() {
    let place = |records: &Records| {
        let (code, ..) = emit(records);
        let entry = straight(&code, 0);
        let place = |what: &str| entry.iter().position(|text| text.contains(what));
        place("time").expect("the time") < place("srli").expect("the window")
    };
    let with = |free: u32, exit: bool| Records {
        exit: exit.then_some(0x11_2345),
        placed: !exit,
        registers: Registers {
            free,
            ..Registers::default()
        },
        ..records()
    };
    assert!(place(&with(7 << 12, true)));
    assert!(!place(&with(3 << 12, true)));
    assert!(place(&with(0, false)));
    let filtered = Records {
        check: Some(7),
        ..with(0xF << 12, true)
    };
    assert!(place(&filtered));
}

/// What is true before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Truth {
    lowered: i64,
    /// The return address is in its register; or it is in the shadow.
    register: bool,
    shadow: bool,
    /// The register that holds the shadow's address.
    place: Option<u8>,
}

/// How an instruction changes this.
fn step(truth: &mut Truth, insn: &Insn) {
    let written = insn.general().1;
    let adds = |word: u32| word & 0x707F == 0x13;
    match insn.kind {
        Kind::Plain if adds(insn.word) && insn.rd() == SP => truth.lowered -= imm_i(insn.word),
        Kind::Plain if insn.word & 0x7F == 0x33 && insn.rs1() == SP => {
            truth.place = Some(insn.rd());
            truth.register &= insn.rd() != RA;
        }
        Kind::Store(8) if truth.place == Some(insn.rs1()) && insn.rs2() != ZERO => {
            truth.shadow = true;
        }
        Kind::Store(8) if truth.place == Some(insn.rs1()) => truth.shadow = false,
        Kind::Load(8) if truth.place == Some(insn.rs1()) && insn.rd() == RA => {
            truth.register = true;
            truth.place = None;
        }
        // This removes the mark of an open frame.
        Kind::Plain if insn.word & 0x707F == 0x5013 && insn.rd() == RA => truth.register = true,
        _ if written & 1 << RA != 0 => truth.register = false,
        _ => {}
    }
}

/// Follows all paths through a stub.
fn check_rows(records: &Records) {
    let (code, rows, body) = emit(records);
    let lowered = match records.registers.via {
        Via::Kept(_) => 16,
        _ => 0,
    };
    let entry = Truth {
        lowered,
        register: true,
        shadow: false,
        place: None,
    };
    let mut seen = vec![None; code.len()];
    let mut open = vec![(0usize, entry)];
    while let Some((at, mut truth)) = open.pop() {
        if at == body {
            assert_eq!(truth.lowered, 0, "the body's stack");
            continue;
        }
        if seen[at].is_some() {
            continue;
        }
        seen[at] = Some(truth);
        let row = rows.iter().rev().find(|row| row.at as usize <= at);
        let insn = Insn::new(&code[at..], BASE + at as u64);
        let what = || {
            std::format!(
                "{at:#x}: {} {truth:?} {records:?}",
                text(&code[at..], insn.addr)
            )
        };
        match row.expect("a row").rule {
            Rule::Lowered { bytes, shadow } => {
                assert_eq!(i64::from(bytes), truth.lowered, "{}", what());
                let there = if shadow { truth.shadow } else { truth.register };
                assert!(there, "{}", what());
            }
            other => panic!("{other:?} {}", what()),
        }
        let to = |address: u64| (address - BASE) as usize;
        let next = at + usize::from(insn.len);
        match insn.flow() {
            Flow::Branch(target) => open.extend([(next, truth), (to(target), truth)]),
            Flow::Jump(target) => open.push((to(target), truth)),
            Flow::Call(target) => {
                // The body returns to the instruction after it.
                open.push((to(target), truth));
                truth.register = false;
                truth.place = None;
                open.push((next, truth));
            }
            Flow::IndirectCall => {
                // The agent returns to the address after its parameter words.
                assert_eq!((insn.rd(), insn.rs1()), (5, 5), "{}", what());
                let words = code[next..].chunks(4);
                let words = words.take_while(|word| **word != 0x0001_3283u32.to_le_bytes());
                open.push((next + 4 * words.count(), truth));
            }
            Flow::Return { how: How::Plain } => {
                assert!(truth.register && truth.lowered == 0, "{}", what());
            }
            Flow::Next => {
                step(&mut truth, &insn);
                open.push((next, truth));
            }
            other => panic!("{other:?} {}", what()),
        }
    }
}

/// What is recorded, chosen by eight bits.
fn variant(number: u32) -> Records {
    let bit = |bit: u32| number >> bit & 1 != 0;
    Records {
        exit: (!bit(0)).then_some(0x11_2345),
        timed: bit(1),
        scope: match number >> 2 & 3 {
            0 => Scope::Any,
            1 => Scope::Inside,
            _ => Scope::Filter,
        },
        depth: bit(4).then_some(3),
        check: bit(5).then_some(7),
        shortest: bit(6).then_some(1000),
        switch: bit(7).then_some(4000),
        placed: bit(0),
        hands_on: bit(0) && bit(1),
        ..records()
    }
}

#[test]
fn rows_say_where_the_frame_is() {
    let sets = [0, 1 << 15, 3 << 12, 7 << 12, 0xF003_F0E0];
    for (free, free_after) in sets.into_iter().flat_map(|a| sets.map(|b| (a, b))) {
        for via in [Via::Nothing, Via::Free(6), Via::Kept(5)] {
            for number in 0..256u32 {
                check_rows(&Records {
                    registers: Registers {
                        free,
                        free_after,
                        via,
                        signing: Signing::None,
                    },
                    ..variant(number)
                });
            }
        }
    }
}

/// If the word that leads to the control block is still zero, the first access faults and its base register is
/// corrected. Addresses that were computed from the register before would stay wrong.
#[test]
fn the_first_use_of_the_control_block_is_an_access_through_its_register() {
    for number in 0..256u32 {
        let (code, ..) = emit(&variant(number));
        let entry = straight(&code, 0);
        let loads = |text: &String| text.starts_with("ld") && text.ends_with("-8(tp)");
        let at = entry.iter().position(loads).expect("the block's load");
        let block = entry[at]["ld".len()..].trim().split(',').next().unwrap();
        let used = entry[at + 1..].iter().find(|text| text.contains(block));
        let used = used.expect("a use of the block");
        assert!(
            used.ends_with(&format!("({block})")),
            "{number:#x}: {used}\n{entry:#?}"
        );
    }
}

#[test]
fn entries_alone_take_a_stack_pointer_of_any_alignment() {
    let only = Records {
        exit: None,
        ..records()
    };
    // The record's kind and id lie below bit 22. Stubs with an exit check the window first.
    let shifts = |records: &Records| -> Vec<String> {
        let (code, ..) = emit(records);
        let texts = straight(&code, 0);
        texts
            .into_iter()
            .filter(|text| text.starts_with("srli") || text.starts_with("slli"))
            .map(|text| text.rsplit(',').next().unwrap().trim().into())
            .collect()
    };
    assert_eq!(shifts(&only), ["0x4", "0x16"]);
    assert_eq!(shifts(&records()), ["0xe", "0x12"]);
}

/// The value that instructions without branches leave in a register, given this stack pointer.
fn result(code: &[u8], register: u8, sp: u64) -> u64 {
    let mut x = [0u64; 32];
    x[usize::from(SP)] = sp;
    for bytes in code.chunks(4) {
        let insn = Insn::new(bytes, 0);
        let (word, from) = (insn.word, x[usize::from(insn.rs1())]);
        let more = imm_i(word).cast_unsigned();
        x[usize::from(insn.rd())] = match (word & 0x7F, word >> 12 & 7) {
            (0x13, 0) => from.wrapping_add(more),
            (0x13, 1) => from << (more & 63),
            (0x1B, 0) => i64::from(from.wrapping_add(more) as i32).cast_unsigned(),
            (0x33, 0) => from.wrapping_add(x[usize::from(insn.rs2())]),
            (0x37, _) => i64::from((word & 0xFFFF_F000).cast_signed()).cast_unsigned(),
            _ => panic!("{}", text(bytes, 0)),
        };
    }
    x[usize::from(register)]
}

#[test]
fn records_have_their_numbers_and_bits_of_the_stack_pointer() {
    let s = 0x3F_1234_5670u64;
    for id in [
        1, 0x7FF, 0x800, 0xFFF, 0x1000, 0x1_2345, 0x4_0005, 0xF_F7FF, 0xF_FFFF,
    ] {
        for (kind, lowered) in [0u32, 1, 2]
            .into_iter()
            .flat_map(|a| [0u16, 16, 32].map(|b| (a, b)))
        {
            let info = id | kind << 20;
            let (layout, records) = (layout(), records());
            let runtime = runtime();
            let (mut bytes, mut rows) = (Vec::new(), Vec::new());
            let mut stub = Stub {
                code: &mut Code::new(&mut bytes, BASE),
                layout: &layout,
                runtime: &runtime,
                records: &records,
                rows: &mut rows,
                slow: Vec::new(),
                faults: Vec::new(),
                past: None,
                scratch: Scratch::default(),
                entry_scratch: Scratch::default(),
                lowered,
                shadow: true,
            };
            stub.number(info, 15, 14);
            let found = result(&bytes, 15, s - u64::from(lowered)) as u32;
            assert_eq!(
                found,
                info | (s as u32) << layout.sp_shift,
                "{id:#x} {kind} {lowered}"
            );
        }
    }
}
