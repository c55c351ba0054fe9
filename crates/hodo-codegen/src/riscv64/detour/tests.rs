use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use super::super::masm::Masm as Code;
use super::super::stub::tests::layout as stub_layout;
use super::*;
use hodo_isa::Via;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::regs::{SP, ZERO};
use hodo_isa::riscv64::text;

const FROM: u64 = 0x40_1000;
const AT: u64 = 0x20_0000;

fn layout() -> Layout {
    Layout {
        epoch_end: 264,
        to_shadow: 272,
        atomics: true,
        sp_mask: 0,
        ..stub_layout()
    }
}

fn emitted(displaced: &[u8], probes: &[Probe<'_>]) -> Result<(Vec<u8>, Detour), DetourError> {
    let runtime = Runtime {
        epoch: 0x10_0000,
        chunk: 0x10_0010,
        shadow: 0x10_0020,
        syscalls: Some((0x10_0030, 0x10_0040)),
        ..Runtime::default()
    };
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, AT);
    let place = Place {
        back: Via::Free(6),
        ..Place::new(displaced, FROM, FROM + displaced.len() as u64)
    };
    let detour = emit(&mut code, &layout(), &runtime, &place, probes)?;
    Ok((bytes, detour))
}

fn probe(offset: usize, free: u32, action: &Action) -> Probe<'_> {
    Probe {
        offset,
        when: When::Hit,
        flags_dead: false,
        free,
        action,
    }
}

/// The instructions between two addresses.
fn instructions(bytes: &[u8], from: u64, to: u64) -> Vec<Insn> {
    let mut all = Vec::new();
    let mut at = from;
    while at < to {
        let insn = Insn::new(&bytes[(at - AT) as usize..], at);
        at = insn.end();
        all.push(insn);
    }
    assert_eq!(at, to);
    all
}

fn listing(bytes: &[u8], from: u64, to: u64) -> Vec<alloc::string::String> {
    let all = instructions(bytes, from, to).into_iter();
    all.map(|insn| text(&bytes[(insn.addr - AT) as usize..], insn.addr))
        .collect()
}

/// `addi a0, a0, 1`, `add a1, a1, a0`
const TWO: [u8; 8] = [0x13, 0x05, 0x15, 0x00, 0xB3, 0x85, 0xA5, 0x00];

#[test]
fn counting_takes_twelve_instructions_at_most() {
    let near = Action::Count(Counter::Thread(-1_234_568));
    for (free, most) in [(0, 12), (1 << 28, 10), (0x3000_0000, 6), (u32::MAX, 6)] {
        let (bytes, detour) = emitted(&TWO, &[probe(4, free, &near)]).expect("a detour");
        let count = instructions(&bytes, detour.before[1], detour.map[1].1).len();
        assert!(count <= most, "{count} with {free:#x}");
    }
    let (bytes, detour) = emitted(&TWO, &[probe(4, 0x3000_0000, &near)]).expect("a detour");
    assert_eq!(
        listing(&bytes, detour.before[1], detour.map[1].1),
        [
            "ld t3, -8(tp)",
            "lui t4, 0xffed3",
            "c.add t3, t4",
            "addi t3, t3, -1672",
            "c.li t4, 1",
            "amoadd.d zero, t4, (t3)",
        ]
    );
}

#[test]
fn probes_come_before_their_instructions() {
    let count = Action::Count(Counter::Thread(-64));
    let at = |offset| probe(offset, 0xF000_0000, &count);
    let (bytes, detour) = emitted(&TWO, &[at(4), at(4), at(8)]).expect("a detour");
    let places: Vec<_> = detour.map.iter().map(|place| place.0).collect();
    assert_eq!(places, [0, 4, 8]);
    assert_eq!(detour.before[0], detour.map[0].1);
    let lines = listing(&bytes, AT, AT + bytes.len() as u64);
    let which: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("amoadd") || line.contains("a0"))
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect();
    assert_eq!(which, ["addi", "amoadd.d", "amoadd.d", "add", "amoadd.d"]);
    assert_eq!(lines.last().map(|line| &line[..4]), Some("jalr"));
    let error = emitted(&TWO, &[at(2)]).expect_err("not an instruction");
    assert_eq!(error, DetourError::NoInstruction(2));
}

/// A loop over the whole code stays in the detour, and reaches the probes again.
#[test]
fn branches_lead_to_probes() {
    let count = Action::Count(Counter::Thread(-64));
    // addi a0, a0, -1; bne a0, zero, -4
    let code = [0x13, 0x05, 0xF5, 0xFF, 0xE3, 0x1E, 0x05, 0xFE];
    let (bytes, detour) = emitted(&code, &[probe(0, 0, &count)]).expect("a detour");
    let insn = Insn::new(&bytes[(detour.map[1].1 - AT) as usize..], detour.map[1].1);
    assert_eq!(
        insn.flow(),
        hodo_isa::riscv64::scan::Flow::Branch(detour.before[0])
    );
}

fn event() -> Action {
    let a0 = Source::Register(10);
    Action::Record(Event {
        info: 5,
        payload: 0x0030_0002,
        timed: true,
        rdpid: false,
        values: vec![
            Fetch::Word(Source::Register(9)),
            Fetch::Word(Source::Register(SP)),
            Fetch::Load(Source::Memory(Box::new(a0.clone()), 8), -4, 2),
            Fetch::Text(a0, 16),
            Fetch::Word(Source::Number(0x1234_5678_9ABC)),
        ],
    })
}

#[test]
fn every_load_has_a_way_out() {
    let action = event();
    let (bytes, detour) = emitted(&TWO, &[probe(0, 0, &action)]).expect("a detour");
    // One for the pointer, one for the value, one for the string.
    assert_eq!(detour.faults.len(), 3);
    for (load, recover) in detour.faults {
        let line = text(&bytes[(load - AT) as usize..], load);
        assert!(line.starts_with('l') && line.ends_with("(t3)"), "{line}");
        let line = text(&bytes[(recover - AT) as usize..], recover);
        assert!(line.starts_with("lwu"), "{line}");
    }
}

#[test]
fn what_the_processor_has_not_is_refused() {
    for source in [Source::Flags, Source::Segment(0)] {
        let values = vec![Fetch::Word(source)];
        let Action::Record(event) = event() else {
            panic!("an event");
        };
        let action = Action::Record(Event { values, ..event });
        let error = emitted(&TWO, &[probe(0, 0, &action)]).expect_err("no such register");
        assert_eq!(
            error.to_string(),
            "it asks for a register that this processor does not have"
        );
    }
}

#[test]
fn blocks_are_as_large_as_they_say_at_most() {
    let Action::Record(event) = event() else {
        panic!("an event");
    };
    let value = |index| Box::new(Test::Value(index, Bits::ALL));
    let five = Box::new(Test::Number(5));
    let compared = Test::Compare(Comparison::Less, true, value(2), five);
    let fits = Test::Fits(Text::Value(3), Atom::pattern(b"a*[b-d]?*e"));
    let block = Block {
        base: 88,
        switch: Some(1025),
        condition: Some(Test::And(Box::new(compared), Box::new(fits))),
        values: event.values.clone(),
        deeds: vec![
            Deed::Count(Counter::Thread(-64)),
            Deed::Record(event, Some(1024), true),
            Deed::Histogram(Histogram {
                table: -4096,
                size: 10,
                keys: vec![
                    Key::Number(Test::Value(0, Bits::ALL), Part::Linear(3, true)),
                    Key::Text(Text::Value(3)),
                ],
                sums: vec![Test::Value(2, Bits::ALL)],
            }),
        ],
    };
    let said = size(&block, &layout());
    let action = Action::Block(Box::new(block));
    let (bytes, _) = emitted(&TWO, &[probe(0, 0, &action)]).expect("a detour");
    assert!((bytes.len() as u64) <= said + 16, "{} {said}", bytes.len());
}

#[test]
fn numbers_are_made_of_few_instructions() {
    let mut random = 0x2545_F491_4F6C_DD1Du64;
    for shift in 0..64 {
        for _ in 0..50 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            for number in [random >> shift, !(random >> shift), 1 << shift] {
                let mut asm = Asm::default();
                asm.li(10, number);
                let bytes = asm.lay(0).map(|laid| laid.bytes).unwrap_or_default();
                assert!(!bytes.is_empty() && bytes.len() <= 28);
                assert_eq!(run(&bytes), number, "{number:#x}");
            }
        }
    }
}

/// What instructions that only compute leave in `a0`.
fn run(bytes: &[u8]) -> u64 {
    use hodo_isa::riscv64::decode::operand::{imm_i, imm_u};
    let mut value = 0u64;
    let mut at = 0;
    while at < bytes.len() {
        let insn = Insn::new(&bytes[at..], 0);
        at += usize::from(insn.len);
        let by = imm_i(insn.word);
        value = match insn.word & 0x707F {
            0x13 if insn.rs1() == ZERO => by.cast_unsigned(),
            0x13 => value.wrapping_add_signed(by),
            0x1013 => value << (by & 63),
            0x1B => i64::from(value.wrapping_add_signed(by) as i32).cast_unsigned(),
            _ if insn.word & 0x7F == 0x37 => imm_u(insn.word).cast_unsigned(),
            _ => panic!("{:#x}", insn.word),
        };
    }
    value
}
