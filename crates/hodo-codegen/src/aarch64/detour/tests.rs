use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use super::super::masm::Masm as Code;
use super::*;
use hodo_isa::aarch64::decode::Insn;
use hodo_isa::aarch64::regs::SP;
use hodo_isa::aarch64::text;

const FROM: u64 = 0x40_1000;
const AT: u64 = 0x20_0000;

fn layout() -> Layout {
    Layout {
        limit: 8,
        epoch: 16,
        epoch_end: 264,
        shadow_lo: 24,
        shadow_len: 32,
        to_shadow: 272,
        atomics: true,
        block: 8,
        bucket: 96,
        bucket_size: 4096,
        lost: 80,
        base: 88,
        owner: 59,
        chain_size: 65536,
        ..Layout::default()
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
    let place = Place::new(displaced, FROM, FROM + displaced.len() as u64);
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
        at = insn.addr + 4;
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

/// `add x0, x0, #1`, `add x1, x1, x0`
const TWO: [u8; 8] = 0x8B00_0021_9100_0400u64.to_le_bytes();

#[test]
fn counting_takes_twelve_instructions_at_most() {
    let near = Action::Count(Counter::Thread(-1_234_568));
    for (free, most) in [(0, 12), (1 << 9, 10), (0x600, 6), (u32::MAX, 6)] {
        let (bytes, detour) = emitted(&TWO, &[probe(4, free, &near)]).expect("a detour");
        let count = instructions(&bytes, detour.before[1], detour.map[1].1).len();
        assert!(count <= most, "{count} with {free:#x}");
    }
    let (bytes, detour) = emitted(&TWO, &[probe(4, 0x600, &near)]).expect("a detour");
    assert_eq!(
        listing(&bytes, detour.before[1], detour.map[1].1),
        [
            "mrs x9, tpidr_el0",
            "ldr x9, [x9, #0x8]",
            "sub x9, x9, #0x12d, lsl #12",
            "sub x9, x9, #0x688",
            "mov x10, #0x1",
            "stadd x10, [x9]",
        ]
    );
}

#[test]
fn probes_come_before_their_instructions() {
    let count = Action::Count(Counter::Thread(-64));
    let at = |offset| probe(offset, 0x600, &count);
    let (bytes, detour) = emitted(&TWO, &[at(4), at(4), at(8)]).expect("a detour");
    let places: Vec<_> = detour.map.iter().map(|place| place.0).collect();
    assert_eq!(places, [0, 4, 8]);
    assert_eq!(detour.before[0], detour.map[0].1);
    let lines = listing(&bytes, AT, AT + bytes.len() as u64);
    let which: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("stadd") || line.contains("x0"))
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect();
    assert_eq!(which, ["add", "stadd", "stadd", "add", "stadd"]);
    assert_eq!(lines.last().map(|line| &line[..4]), Some("b 0x"));
    let error = emitted(&TWO, &[at(2)]).expect_err("not an instruction");
    assert_eq!(error, DetourError::NoInstruction(2));
}

/// A loop over the whole code stays in the detour, and reaches the probes again.
#[test]
fn branches_lead_to_probes() {
    let count = Action::Count(Counter::Thread(-64));
    // sub x0, x0, #1; cbnz x0, -4
    let code = 0xB5FF_FFE0_D100_0400u64.to_le_bytes();
    let (bytes, detour) = emitted(&code, &[probe(0, 0, &count)]).expect("a detour");
    let insn = Insn::new(&bytes[(detour.map[1].1 - AT) as usize..], detour.map[1].1);
    assert_eq!(
        insn.flow(),
        hodo_isa::aarch64::scan::Flow::Branch(detour.before[0])
    );
}

fn event() -> Action {
    let first = Source::Register(0);
    Action::Record(Event {
        info: 5,
        payload: 0x0030_0002,
        timed: true,
        rdpid: false,
        values: vec![
            Fetch::Word(Source::Register(9)),
            Fetch::Word(Source::Register(SP)),
            Fetch::Load(Source::Memory(Box::new(first.clone()), 8), -4, 2),
            Fetch::Text(first, 16),
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
        assert!(line.starts_with("ld") && line.contains("[x11"), "{line}");
        let line = text(&bytes[(recover - AT) as usize..], recover);
        assert!(line.starts_with("ldr w"), "{line}");
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

/// A probe that compares registers saves the flags where they are needed, one that counts does not.
#[test]
fn flags_are_saved_where_they_are_needed() {
    let (record, count) = (event(), Action::Count(Counter::Thread(-64)));
    for (action, flags_dead, saves) in [
        (&record, false, true),
        (&record, true, false),
        (&count, false, false),
    ] {
        let probe = Probe {
            flags_dead,
            ..probe(4, 0, action)
        };
        let (bytes, detour) = emitted(&TWO, &[probe]).expect("a detour");
        let lines = listing(&bytes, detour.before[1], detour.map[1].1);
        let has = |name: &str| lines.iter().any(|line| line.contains(name));
        assert_eq!(has("s3_3_c4_c2_0"), saves, "{lines:#?}");
        assert_eq!(has("cmp"), action == &record);
    }
}

/// Return probes compare addresses at the beginning and, after jumps between functions, at the return.
#[test]
fn flags_are_kept_for_callers_that_expect_them() {
    let count = Action::Count(Counter::Thread(-64));
    let flags = |flags_dead| {
        let returns = Probe {
            when: When::Return,
            flags_dead,
            ..probe(0, 0, &count)
        };
        let (bytes, _) = emitted(&TWO, &[returns]).expect("a detour");
        let lines = listing(&bytes, AT, AT + bytes.len() as u64);
        let with = |name: &str| {
            let flags = lines.iter().filter(|line| line.contains("s3_3_c4_c2_0"));
            flags.filter(|line| line.starts_with(name)).count()
        };
        (with("mrs"), with("msr"))
    };
    // At the beginning, which is left at five places, and in the second return.
    assert_eq!(flags(false), (2, 5));
    assert_eq!(flags(true), (0, 0));
}

/// Without LSE, two instructions and a loop count.
#[test]
fn processors_without_atomic_instructions_count_too() {
    let near = Action::Count(Counter::Thread(-64));
    let layout = Layout {
        atomics: false,
        ..layout()
    };
    let mut bytes = Vec::new();
    let place = Place::new(&TWO, FROM, FROM + 8);
    let probe = probe(0, 0xE00, &near);
    let mut code = Code::new(&mut bytes, AT);
    let runtime = Runtime::default();
    let detour = emit(&mut code, &layout, &runtime, &place, &[probe]).expect("a detour");
    let lines = listing(&bytes, detour.before[0], detour.map[0].1);
    let expected = [
        "ldxr x10, [x9]",
        "add x10, x10, #0x1",
        "stxr w11, x10, [x9]",
    ];
    assert_eq!(lines[3..6], expected);
    assert!(lines[6].starts_with("cbnz w11"), "{lines:?}");
}
