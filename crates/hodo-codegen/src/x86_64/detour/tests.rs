use super::*;
use alloc::boxed::Box;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

fn layout() -> Layout {
    Layout {
        cursor: 8,
        limit: 16,
        epoch: 24,
        chain_top: 240,
        chain_lo: 248,
        chain_size: 65536,
        record_size: 8,
        bucket: 32,
        bucket_size: 4096,
        lost: 40,
        base: 88,
        ..Layout::default()
    }
}

fn emitted(displaced: &[u8], probes: &[Probe<'_>]) -> Result<(Vec<u8>, Detour), DetourError> {
    let runtime = Runtime {
        epoch: 0x10_0000,
        chunk: 0x10_0010,
        ..Runtime::default()
    };
    let mut bytes = Vec::new();
    let mut code = Masm::new(&mut bytes, 0x20_0000);
    let resume = 0x40_1000 + displaced.len() as u64;
    let detour = emit(
        &mut code,
        &layout(),
        &runtime,
        &Place::new(displaced, 0x40_1000, resume),
        probes,
    )?;
    Ok((bytes, detour))
}

fn event() -> Action {
    let rdi = Source::Register(7);
    Action::Record(Event {
        info: 5,
        payload: 0x0030_0002,
        timed: true,
        rdpid: true,
        values: vec![
            Fetch::Word(Source::Register(0)),
            Fetch::Word(Source::Register(4)),
            Fetch::Word(Source::Register(13)),
            Fetch::Load(Source::Memory(Box::new(rdi.clone()), 8), -4, 2),
            Fetch::Text(rdi, 16),
            Fetch::Word(Source::Number(0x1234_5678_9ABC)),
        ],
    })
}

/// A block with everything that a block can contain and continue after.
fn block() -> Action {
    let value = |index| Box::new(Test::Value(index, Bits::ALL));
    let rsi = Source::Register(6);
    let Action::Record(event) = event() else {
        panic!("an event");
    };
    let five = Box::new(Test::Number(5));
    let divided = Test::Combine(Arithmetic::Divide, true, value(0), value(3));
    let compared = Test::Compare(Comparison::Less, true, Box::new(divided), five);
    let texts = Test::Or(
        Box::new(Test::Same(Text::Value(4), Text::Thread(224))),
        Box::new(Test::Fits(Text::Value(4), Atom::pattern(b"a*[b-d]?*e"))),
    );
    Action::Block(Box::new(Block {
        base: 88,
        switch: Some(1025),
        condition: Some(Test::And(Box::new(compared), Box::new(texts))),
        values: event.values.clone(),
        deeds: vec![
            Deed::Count(Counter::Thread(-64)),
            Deed::Record(event, Some(1024), true),
            Deed::Histogram(Histogram {
                table: -4096,
                size: 10,
                keys: vec![
                    Key::Number(Test::Value(0, Bits::ALL), Part::Linear(3, true)),
                    Key::Text(Text::Value(4)),
                    Key::Text(Text::Thread(224)),
                ],
                sums: vec![Test::Value(3, Bits::ALL)],
            }),
            Deed::Switch(1026, false),
            Deed::Name(rsi, 224),
        ],
    }))
}

/// Everything that is pushed is popped, in every detour, wherever control leaves its code.
#[test]
fn the_stack_is_balanced() {
    let event = event();
    let count = Action::Count(Counter::Thread(-64));
    let shared = Action::Count(Counter::Shared { base: 32, at: -8 });
    let block = block();
    for action in [&event, &count, &shared, &block] {
        for flags_dead in [false, true] {
            // mov eax, 1; nop
            let probe = Probe {
                offset: 0,
                when: When::Hit,
                flags_dead,
                free: 0,
                action,
            };
            let (bytes, detour) = emitted(&[0xB8, 1, 0, 0, 0], &[probe]).expect("a detour");
            let (offset, after) = detour.map[0];
            assert_eq!(offset, 0);
            let mut depth = 0i64;
            let mut decoder = Decoder::with_ip(64, &bytes, 0x20_0000, DecoderOptions::NONE);
            for instruction in &mut decoder {
                assert!(!instruction.is_invalid());
                if instruction.ip() == after {
                    break;
                }
                depth += match instruction.mnemonic() {
                    Mnemonic::Push => 8,
                    Mnemonic::Pop => -8,
                    Mnemonic::Lea if instruction.op0_register() == iced_x86::Register::RSP => {
                        -(instruction.memory_displacement64() as i64)
                    }
                    _ => 0,
                };
            }
            assert_eq!(depth, 0);
        }
    }
}

/// A hit whose key is divided by zero is counted like one whose key cannot be read.
#[test]
fn divisions_by_zero_in_histograms_are_lost_hits() {
    let value = |index| Box::new(Test::Value(index, Bits::ALL));
    let divided = |by| Test::Combine(Arithmetic::Divide, true, value(0), by);
    let masked = Test::Combine(Arithmetic::And, false, value(1), value(0));
    let action = Action::Block(Box::new(Block {
        base: 88,
        switch: None,
        condition: None,
        values: vec![
            Fetch::Word(Source::Register(0)),
            Fetch::Load(Source::Register(7), 0, 8),
        ],
        deeds: vec![Deed::Histogram(Histogram {
            table: -4096,
            size: 10,
            keys: vec![Key::Number(divided(value(1)), Part::Each)],
            sums: vec![divided(Box::new(masked))],
        })],
    }));
    let probe = Probe {
        offset: 0,
        when: When::Hit,
        flags_dead: false,
        free: 0,
        action: &action,
    };
    let (bytes, detour) = emitted(&[0xB8, 1, 0, 0, 0], &[probe]).expect("a detour");
    let unread = detour.faults[0].1;
    assert!(detour.faults.iter().all(|fault| fault.1 == unread));
    let mut decoder = Decoder::with_ip(64, &bytes, 0x20_0000, DecoderOptions::NONE);
    let instructions: Vec<_> = decoder.iter().collect();
    let after_test = |pair: &&[iced_x86::Instruction]| {
        pair[0].mnemonic() == Mnemonic::Test && pair[0].op0_register() == iced_x86::Register::RCX
    };
    let zero: Vec<_> = instructions.windows(2).filter(after_test).collect();
    assert_eq!(zero.len(), 2);
    for pair in zero {
        assert_eq!(pair[1].mnemonic(), Mnemonic::Je);
        assert_eq!(pair[1].near_branch_target(), unread);
    }
    // Each intermediate result has a place of its own: no two share a word of the frame.
    let stored = instructions.iter().filter(|instruction| {
        instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == iced_x86::OpKind::Memory
            && instruction.memory_base() == iced_x86::Register::RSP
    });
    let mut places: Vec<_> = stored.map(|one| one.memory_displacement64()).collect();
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!((places.len(), count), (4, 4));
}

#[test]
fn every_load_has_a_way_out() {
    let action = event();
    let probe = Probe {
        offset: 0,
        when: When::Hit,
        flags_dead: false,
        free: 0,
        action: &action,
    };
    let (bytes, detour) = emitted(&[0xB8, 1, 0, 0, 0], &[probe]).expect("a detour");
    // One for the pointer, one for the value, one for the string.
    assert_eq!(detour.faults.len(), 3);
    for (load, recover) in detour.faults {
        let at = (load - 0x20_0000) as usize;
        let mut decoder = Decoder::with_ip(64, &bytes[at..], load, DecoderOptions::NONE);
        assert_eq!(decoder.decode().op1_kind(), iced_x86::OpKind::Memory);
        assert_eq!(bytes[(recover - 0x20_0000) as usize], 0x81);
    }
}

#[test]
fn probes_come_before_their_instructions() {
    let count = Action::Count(Counter::Thread(-64));
    let probe = |offset| Probe {
        offset,
        when: When::Hit,
        flags_dead: true,
        free: 0,
        action: &count,
    };
    // push rbp; mov rbp, rsp; ret: two probes at the second, one at the third
    let code = [0x55, 0x48, 0x89, 0xE5, 0xC3];
    let (bytes, detour) = emitted(&code, &[probe(1), probe(1), probe(4)]).expect("a detour");
    let inc = [0x65, 0x48, 0xFF, 0x04, 0x25, 0xC0, 0xFF, 0xFF, 0xFF];
    let expected = [&[0x55][..], &inc, &inc, &[0x48, 0x89, 0xE5], &inc, &[0xC3]].concat();
    assert_eq!(bytes, expected);
    let map: Vec<_> = detour.map.iter().map(|m| (m.0, m.1 - 0x20_0000)).collect();
    assert_eq!(map, [(0, 0), (1, 19), (4, 31)]);
    let error = emitted(&code, &[probe(2)]).expect_err("not an instruction");
    assert_eq!(error, DetourError::NoInstruction(2));
}

#[test]
fn blocks_are_as_large_as_they_say_at_most() {
    let Action::Block(block) = block() else {
        panic!("a block");
    };
    let said = size(&block, &layout());
    let action = Action::Block(block);
    let probe = Probe {
        offset: 0,
        when: When::Hit,
        flags_dead: false,
        free: 0,
        action: &action,
    };
    let (bytes, detour) = emitted(&[0x90], &[probe]).expect("a detour");
    assert!((bytes.len() as u64) <= said + 16, "{} {said}", bytes.len());
    // If a load of a condition faults, control goes where the condition is false, with the same stack as there.
    let outside =
        |&(load, next): &(u64, u64)| load <= next && next < 0x20_0000 + bytes.len() as u64;
    assert!(detour.faults.len() > 8, "{}", detour.faults.len());
    assert!(detour.faults.iter().all(outside), "{:x?}", detour.faults);
}

#[test]
fn each_number_has_a_system_call_of_its_own() {
    let count = Action::Count(Counter::Thread(-8));
    let calls: Vec<Call> = (0..9)
        .map(|index| Call {
            number: 100 + 3 * index,
            enter: vec![count.clone()],
            exit: vec![event()],
        })
        .collect();
    let action = Action::Calls(calls.clone());
    // mov eax, 103; syscall; ret
    let code = [0xB8, 103, 0, 0, 0, 0x0F, 0x05, 0xC3];
    for flags_dead in [false, true] {
        let probe = Probe {
            offset: 5,
            when: When::Hit,
            flags_dead,
            free: 0,
            action: &action,
        };
        let (bytes, detour) = emitted(&code, &[probe]).expect("it is possible");
        let decoder = Decoder::with_ip(64, &bytes, 0x20_0000, DecoderOptions::NONE);
        let all: Vec<_> = decoder.into_iter().collect();
        let made = all
            .iter()
            .filter(|insn| insn.mnemonic() == Mnemonic::Syscall);
        let made: Vec<u64> = made.map(iced_x86::Instruction::ip).collect();
        assert_eq!(made.len(), calls.len() + 1);
        let known: Vec<u64> = detour.syscalls.iter().map(|call| call.0).collect();
        assert_eq!(known, made);
        assert!(detour.syscalls.iter().all(|call| call.1 == 0x40_1005));
        let after: Vec<(usize, u64)> = made.iter().map(|at| (5, at + 2)).collect();
        assert_eq!(detour.calls, after);
        for call in &calls {
            let compared = all.iter().filter(|insn| {
                insn.mnemonic() == Mnemonic::Cmp
                    && insn.try_immediate(1).ok() == Some(call.number.into())
            });
            assert!(compared.count() > 0, "{}", call.number);
        }
    }
}
