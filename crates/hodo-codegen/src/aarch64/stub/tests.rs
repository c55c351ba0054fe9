//! Stubs as they are emitted: how many instructions they execute, what these change, and whether their frame tables are
//! right.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;
use hodo_isa::Via;
use hodo_isa::aarch64::cfa::SIGNED;
use hodo_isa::aarch64::decode::{Insn, Kind};
use hodo_isa::aarch64::encode::pop;
use hodo_isa::aarch64::regs::{BETWEEN, FLAGS, PLATFORM, general};
use hodo_isa::aarch64::text;
use hodo_isa::effects::{Flow, How};

pub(super) const BASE: u64 = 0x20_0000_0000;
pub(super) const AGENT: u64 = BASE - 0x1000;

pub(super) fn layout() -> Layout {
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
        shadow_distance: 0x40_0000_0840,
        to_shadow: 1016,
        atomics: true,
        block: 8,
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

pub(super) fn runtime(agent: u64) -> Runtime {
    Runtime {
        epoch: agent,
        chunk: agent,
        shadow: agent,
        window: agent,
        record: agent,
        frame: agent,
        tails: agent,
        tail: agent,
        syscalls: None,
        stack: None,
    }
}

/// The code of a stub whose body is a return, its rows, and where its body is.
fn emit_with(records: &Records, layout: &Layout, agent: u64) -> (Vec<u8>, Vec<Row>, usize) {
    let mut bytes = Vec::new();
    let mut rows = Vec::new();
    let mut code = Code::new(&mut bytes, BASE);
    let emitted = emit_stub(
        &mut code,
        layout,
        &runtime(agent),
        records,
        &mut rows,
        |_| {
            Ok::<_, ()>(Body {
                bytes: 0xD65F_03C0u32.to_le_bytes().into(),
                resume: None,
                rows: vec![Row {
                    at: 0,
                    rule: Rule::Unknown,
                }],
                returns: false,
            })
        },
    );
    let body = emitted.expect("a body").body;
    (bytes, rows, (body.start - BASE) as usize)
}

fn emit(records: &Records) -> (Vec<u8>, Vec<Row>, usize) {
    emit_with(records, &layout(), AGENT)
}

fn insns(code: &[u8], from: usize) -> impl Iterator<Item = Insn> {
    let words = (BASE + from as u64..)
        .step_by(4)
        .zip(code[from..].chunks(4));
    words.map(|(at, word)| Insn::new(word, at))
}

/// The instructions that are executed from an offset to a jump if no branch is taken.
fn straight(code: &[u8], at: usize) -> Vec<String> {
    let ends = |insn: &Insn| !matches!(insn.flow(), Flow::Next | Flow::Branch(_));
    let count = insns(code, at).take_while(|insn| !ends(insn)).count() + 1;
    let all = insns(code, at).take(count);
    all.map(|insn| text(&insn.word.to_le_bytes(), insn.addr))
        .collect()
}

/// The number of instructions of an entry and an exit, and the length of the code of both.
fn executed(records: &Records) -> (usize, usize, usize) {
    let (code, ..) = emit(records);
    let entry = straight(&code, 0);
    let exit = straight(&code, entry.len() * 4);
    (entry.len(), exit.len(), (entry.len() + exit.len()) * 4)
}

fn with(free: u32, free_after: u32, signing: Signing) -> Records {
    Records {
        registers: Registers {
            free,
            free_after,
            via: Via::Nothing,
            signing,
        },
        ..records()
    }
}

/// `x9` to `x15`.
const MANY: u32 = 0xFE00;

#[test]
fn entry_and_exit_take_few_instructions() {
    let plain = with(MANY, MANY, Signing::None);
    assert_eq!(executed(&plain), (29, 21, 200));
    // Four registers before the body and after it are enough.
    let four = 0xF << 9;
    assert_eq!(executed(&with(four, four, Signing::None)), (29, 21, 200));
    // Each two that are missing take two more instructions, and lowering the stack two.
    assert_eq!(
        executed(&with(3 << 9, 7 << 9, Signing::None)),
        (33, 25, 232)
    );
    assert_eq!(executed(&with(0, 0, Signing::None)), (35, 27, 248));
    // The signature is taken off; the body puts it on again.
    assert_eq!(executed(&with(MANY, MANY, Signing::A)), (30, 21, 204));
    let untimed = Records {
        timed: false,
        ..plain
    };
    assert_eq!(executed(&untimed), (25, 17, 168));
    // Small numbers take fewer instructions.
    let small = Records {
        entry: 0x7FF,
        ..plain
    };
    assert_eq!(executed(&small).0, 28);
}

/// The time shows readers if a signal handler moved to another window in between.
#[test]
fn the_time_is_read_before_the_window() {
    for exit in [Some(0x11_2345), None] {
        let (code, ..) = emit(&Records {
            exit,
            placed: exit.is_none(),
            ..records()
        });
        let entry = straight(&code, 0);
        let place = |what: &str| entry.iter().position(|text| text.contains(what));
        let window = place("lsr").expect("the window");
        assert!(
            place("cntvct_el0").expect("the time") < window,
            "{entry:#?}"
        );
    }
}

#[test]
fn exit_halves_begin_with_the_mark() {
    // movz xzr, #0x6f64
    assert_eq!(RETURN_POINT, 0xD28D_EC9F);
    let (code, ..) = emit(&with(MANY, MANY, Signing::None));
    let exit = straight(&code, 0).len() * 4;
    assert_eq!(code[exit..exit + 4], RETURN_POINT.to_le_bytes());
}

/// What is true before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Truth {
    lowered: i64,
    /// The return address is in its register; or it is in the shadow.
    register: bool,
    shadow: bool,
    /// How it is signed in its register.
    signing: Signing,
    /// The register that holds the shadow's address.
    place: Option<u8>,
}

/// How an instruction changes this.
fn step(truth: &mut Truth, insn: &Insn) {
    match insn.hint() {
        Some(29) => assert_eq!(core::mem::take(&mut truth.signing), Signing::A),
        Some(31) => assert_eq!(core::mem::take(&mut truth.signing), Signing::B),
        _ => {}
    }
    if truth
        .place
        .is_some_and(|place| insn.effects().changes & general(place) != 0)
    {
        truth.place = None;
    }
    if let Some(added) = insn.added().filter(|_| insn.rd() == SP) {
        truth.lowered -= added;
    } else if insn.kind == Kind::AddExtended && !insn.bit(30) {
        truth.place = Some(insn.rd());
    } else if let Some(memory) = insn.memory() {
        if memory.base == SP {
            truth.lowered -= memory.moves.unwrap_or(0);
        }
        if Some(memory.base) == truth.place && insn.is_load() && insn.rd() == LINK {
            truth.register = true;
            truth.place = None;
        } else if Some(memory.base) == truth.place && memory.writes {
            truth.shadow = insn.rd() != ZERO;
        }
    } else if insn.kind == Kind::LogicalImmediate && insn.rd() == LINK {
        // This removes the mark of an open frame.
        truth.register = true;
    } else if insn.hint().is_none() && insn.effects().changes & general(LINK) != 0 {
        truth.register = false;
    }
}

/// Checks what a row says.
fn check_rule(rule: Rule, truth: &Truth, what: &dyn Fn() -> String) {
    match rule {
        Rule::Lowered { bytes, shadow } => {
            assert_eq!(i64::from(bytes), truth.lowered, "{}", what());
            let there = if shadow { truth.shadow } else { truth.register };
            let plain = shadow || truth.signing == Signing::None;
            assert!(there && plain, "{}", what());
        }
        Rule::Frame {
            base: SP,
            offset,
            saved,
        } => {
            let signing = hodo_isa::aarch64::cfa::signing(saved[SIGNED]);
            assert_eq!(i64::from(offset), truth.lowered, "{}", what());
            assert_eq!(signing, truth.signing, "{}", what());
            assert!(
                truth.register && saved[..SIGNED] == [0; SIGNED],
                "{}",
                what()
            );
        }
        other => panic!("{other:?} {}", what()),
    }
}

/// Follows all paths through a stub.
fn check_rows(records: &Records, agent: u64) {
    let (code, rows, body) = emit_with(records, &layout(), agent);
    let signing = records.registers.signing;
    let entry = Truth {
        lowered: 0,
        register: true,
        shadow: false,
        signing,
        place: None,
    };
    let mut seen = vec![None; code.len()];
    let mut open = vec![(0usize, entry)];
    while let Some((at, mut truth)) = open.pop() {
        if at == body {
            assert_eq!((truth.lowered, truth.signing), (0, signing), "the body");
            continue;
        }
        if seen[at].is_some() {
            continue;
        }
        seen[at] = Some(truth);
        let row = rows.iter().rev().find(|row| row.at as usize <= at);
        let insn = Insn::new(&code[at..], BASE + at as u64);
        let what = || {
            format!(
                "{at:#x}: {} {truth:?} {records:?}",
                text(&code[at..], insn.addr)
            )
        };
        check_rule(row.expect("a row").rule, &truth, &what);
        let inside = |address: u64| (BASE..BASE + code.len() as u64).contains(&address);
        let to = |address: u64| (address - BASE) as usize;
        let next = at + 4;
        match insn.flow() {
            Flow::Branch(target) => open.extend([(next, truth), (to(target), truth)]),
            Flow::Jump(target) if inside(target) => open.push((to(target), truth)),
            Flow::Jump(_) | Flow::IndirectJump => {
                // The agent returns to the address after its parameter words.
                let back = [pop(BETWEEN[0]), 0xF940_07F1]; // or: ldr x17, [sp, #8]
                let words = code[next..].chunks(4);
                let words =
                    words.take_while(|word| !back.iter().any(|back| **word == back.to_le_bytes()));
                open.push((next + 4 * words.count(), truth));
            }
            Flow::Call(target) => {
                // The body returns to the instruction after it.
                open.push((
                    to(target),
                    Truth {
                        shadow: false,
                        ..entry_of(truth)
                    },
                ));
                truth.register = false;
                truth.place = None;
                open.push((next, truth));
            }
            Flow::Return { how: How::Plain } => {
                assert!(truth.register && truth.lowered == 0, "{}", what());
            }
            Flow::Next if matches!(insn.hint(), Some(25 | 27)) => {
                truth.signing = if insn.hint() == Some(25) {
                    Signing::A
                } else {
                    Signing::B
                };
                open.push((next, truth));
            }
            Flow::Next => {
                step(&mut truth, &insn);
                open.push((next, truth));
            }
            other => panic!("{other:?} {}", what()),
        }
    }
}

/// A called body has a return address of its own.
fn entry_of(truth: Truth) -> Truth {
    Truth {
        register: true,
        place: None,
        ..truth
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

/// All variants, with several sets of free registers.
pub(super) fn variants() -> impl Iterator<Item = Records> {
    let sets = [0, 1 << 15, 3 << 12, 7 << 12, MANY];
    let signings = [Signing::None, Signing::A, Signing::B];
    let free = sets.into_iter().flat_map(move |a| sets.map(|b| (a, b)));
    let all = free.flat_map(move |free| signings.map(|signing| (free, signing)));
    all.flat_map(|((free, free_after), signing)| {
        (0..256).map(move |number| Records {
            registers: with(free, free_after, signing).registers,
            ..variant(number)
        })
    })
}

#[test]
fn rows_say_where_the_frame_is() {
    for records in variants() {
        check_rows(&records, AGENT);
    }
    // An agent that `b` does not reach.
    check_rows(&with(0, 0, Signing::A), BASE - (1 << 30));
}

/// The flags, vector registers, what the platform has reserved, and the registers that calls of the agent use.
#[test]
fn stubs_change_nothing_but_their_own_registers() {
    for (number, records) in variants().enumerate() {
        let layout = Layout {
            atomics: number % 2 == 0,
            ..layout()
        };
        let (code, _, body) = emit_with(&records, &layout, AGENT);
        // The agent's parameters are no instructions.
        let mut skip = false;
        for insn in insns(&code[..body], 0) {
            let kept = FLAGS | general(PLATFORM) | general(BETWEEN[1]);
            let effects = insn.effects();
            skip |= insn.target() == Some(AGENT);
            if insn.word == pop(BETWEEN[0]) {
                skip = false;
            }
            if skip {
                continue;
            }
            let line = text(&insn.word.to_le_bytes(), insn.addr);
            assert_eq!(effects.changes & kept, 0, "{line}");
            assert!(
                !line.contains('v') || line.starts_with("mrs") || line.starts_with("mov"),
                "{line}"
            );
        }
    }
}

/// If the word that leads to the control block is still zero, the first access faults and its base register is
/// corrected. Addresses that were computed from the register before would stay wrong.
#[test]
fn the_first_use_of_the_control_block_is_an_access_through_its_register() {
    for number in 0..256u32 {
        let (code, ..) = emit(&variant(number));
        let entry: Vec<Insn> = insns(&code, 0).take(straight(&code, 0).len()).collect();
        let at = entry.iter().position(|insn| insn.kind == Kind::ReadSystem);
        let at = at.expect("the thread pointer");
        let block = entry[at].rd();
        let loaded = entry[at + 1].memory().expect("the block's load");
        assert_eq!((loaded.base, loaded.distance), (block, Some(8)));
        let uses = |insn: &&Insn| {
            insn.memory().is_some_and(|memory| memory.base == block)
                || insn.effects().reads & general(block) != 0
        };
        let used = entry[at + 2..]
            .iter()
            .find(uses)
            .expect("a use of the block");
        let base = used.memory().map(|memory| memory.base);
        assert_eq!(
            base,
            Some(block),
            "{number:#x}: {}",
            straight(&code, 0).join("\n")
        );
    }
}

/// The value that instructions without branches leave in a register, given this stack pointer.
fn result(code: &[u8], register: u8, sp: u64) -> u64 {
    let mut x = [0u64; 32];
    for insn in insns(code, 0) {
        let (rd, part) = (usize::from(insn.rd()), insn.field(21, 2) * 16);
        let bits = u64::from(insn.field(5, 16)) << part;
        let width = if insn.bit(31) {
            u64::MAX
        } else {
            u32::MAX.into()
        };
        x[rd] = match (insn.kind, insn.field(29, 2)) {
            (Kind::MoveWide, 0) => !bits & width,
            (Kind::MoveWide, 2) => bits,
            (Kind::MoveWide, 3) => x[rd] & !(0xFFFF << part) | bits,
            (Kind::AddImmediate, _) if insn.rn() == SP => {
                sp.wrapping_add_signed(insn.added().expect("a number"))
            }
            (Kind::LogicalRegister, 1) => {
                let shifted = x[usize::from(insn.rm())] << insn.field(10, 6);
                (x[usize::from(insn.rn())] | shifted) & 0xFFFF_FFFF
            }
            _ => panic!("{}", text(&insn.word.to_le_bytes(), 0)),
        };
    }
    x[usize::from(register)]
}

#[test]
fn records_have_their_numbers_and_bits_of_the_stack_pointer() {
    let s = 0x3F_1234_5670u64;
    for id in [1, 0x7FF, 0xFFFF, 0x1_0000, 0x1_2345, 0x4_0005, 0xF_FFFF] {
        for (kind, lowered) in [0u32, 1, 2]
            .into_iter()
            .flat_map(|a| [0u16, 16, 32].map(|b| (a, b)))
        {
            let info = id | kind << 20;
            let (layout, records) = (layout(), records());
            let runtime = runtime(AGENT);
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
                signing: Signing::None,
            };
            stub.number(info, 15, 14);
            let found = result(&bytes, 15, s - u64::from(lowered)) as u32;
            let expected = info | (s as u32) << layout.sp_shift;
            assert_eq!(found, expected, "{id:#x} {kind} {lowered}");
        }
    }
}

/// Processors without instructions that add to memory reserve it instead.
#[test]
fn records_take_their_places_by_one_instruction_or_a_reservation() {
    let texts = |atomics| {
        let layout = Layout {
            atomics,
            ..layout()
        };
        let (code, ..) = emit_with(&with(MANY, MANY, Signing::None), &layout, AGENT);
        straight(&code, 0)
    };
    let has = |texts: &[String], what: &str| texts.iter().any(|text| text.starts_with(what));
    let (with, without) = (texts(true), texts(false));
    assert!(has(&with, "ldadd") && !has(&with, "ldxr"), "{with:#?}");
    assert!(!has(&without, "ldadd") && has(&without, "ldxr"));
    let at = without.iter().position(|text| text.starts_with("ldxr"));
    let at = at.expect("a reservation");
    // Nothing else is accessed before the store.
    assert!(without[at + 1].starts_with("add"), "{without:#?}");
    assert!(without[at + 2].starts_with("stxr"), "{without:#?}");
}
