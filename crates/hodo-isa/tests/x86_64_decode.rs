//! The quick decoder, compared with iced on the code of this test and on random bytes.

use std::collections::BTreeMap;

use hodo_isa::x86_64::decode::{Kind, decode};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::{Object, ObjectSection, SectionKind};

/// What iced says of the kind.
fn kind(insn: &Instruction) -> Kind {
    match insn.code() {
        Code::Retnq_imm16 | Code::Retnw_imm16 => return Kind::ReturnPop,
        Code::Syscall => return Kind::SystemCall,
        Code::Ud2 | Code::Int3 | Code::Int1 | Code::Hlt => return Kind::Stop,
        _ => {}
    }
    match insn.flow_control() {
        FlowControl::ConditionalBranch if insn.is_jcc_short_or_near() => Kind::Branch,
        FlowControl::ConditionalBranch => Kind::Loop,
        FlowControl::UnconditionalBranch if insn.is_jmp_short_or_near() => Kind::Jump,
        FlowControl::Call if insn.is_call_near() => Kind::Call,
        FlowControl::Return if matches!(insn.code(), Code::Retnq | Code::Retnw) => Kind::Return,
        FlowControl::Return => Kind::Stop,
        FlowControl::IndirectBranch | FlowControl::IndirectCall => Kind::Group5,
        _ if matches!(
            insn.code(),
            Code::Inc_rm64
                | Code::Inc_rm32
                | Code::Inc_rm16
                | Code::Dec_rm64
                | Code::Dec_rm32
                | Code::Dec_rm16
                | Code::Push_rm64
                | Code::Push_rm16
        ) =>
        {
            Kind::Group5
        }
        _ => Kind::Plain,
    }
}

/// Whether iced has an operand in memory that a ModRM byte or an offset names.
fn has_memory(insn: &Instruction) -> bool {
    (0..insn.op_count()).any(|index| insn.op_kind(index) == OpKind::Memory)
}

/// Compares one instruction, or only its length. Returns this, or nothing if iced knows none.
fn compare(bytes: [u8; 16], all: bool) -> Option<usize> {
    let mut decoder = Decoder::new(64, &bytes[..15], DecoderOptions::NONE);
    let insn = decoder.decode();
    if insn.is_invalid() {
        return None;
    }
    let ours = decode(&bytes);
    let shown = || format!("{bytes:02x?}: {insn:?}: {ours:?}");
    let Some(ours) = ours else {
        panic!("{}", shown());
    };
    assert_eq!(usize::from(ours.len), insn.len(), "{}", shown());
    if !all {
        return Some(insn.len());
    }
    assert_eq!(ours.kind, kind(&insn), "{}", shown());
    assert_eq!(
        ours.rip != 0,
        has_memory(&insn) && insn.is_ip_rel_memory_operand(),
        "{}",
        shown()
    );
    if has_memory(&insn) && insn.memory_segment() == Register::GS {
        assert_eq!(ours.segment, 0x65, "{}", shown());
    }
    if ours.memory {
        assert!(has_memory(&insn), "{}", shown());
    }
    Some(insn.len())
}

#[test]
fn the_code_of_this_test_is_decoded_as_iced_does() {
    let path = std::env::current_exe().expect("this test");
    let file = std::fs::read(path).expect("can be read");
    let file = object::File::parse(&*file).expect("ELF");
    if file.architecture() != object::Architecture::X86_64 {
        println!("skipped: this test is not built for x86-64");
        return;
    }
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        let mut code = section.data().expect("content").to_vec();
        let end = code.len();
        code.resize(end + 16, 0xCC);
        let mut at = 0;
        while at < end {
            let bytes: [u8; 16] = code[at..at + 16].try_into().expect("sixteen bytes");
            at += compare(bytes, true).unwrap_or(1);
            if let Some(insn) = decode(&bytes) {
                *kinds.entry(format!("{:?}", insn.kind)).or_default() += 1;
            }
        }
    }
    assert!(kinds.len() >= 7, "{kinds:?}");
    assert!(kinds.values().sum::<u32>() > 20_000, "{kinds:?}");
}

#[test]
fn random_bytes_have_the_lengths_that_iced_finds() {
    let mut state = 7u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state ^ state >> 29
    };
    let mut good = 0;
    for round in 0..300_000u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random().to_le_bytes());
        bytes[8..].copy_from_slice(&random().to_le_bytes());
        // One prefix and one opcode after the other.
        let start = match round % 4 {
            0 => 0,
            1 => {
                bytes[0] =
                    [0x0F, 0xC5, 0xC4, 0x62, 0x66, 0x48, 0xF2, 0xF3][(round / 4 % 8) as usize];
                1
            }
            _ => {
                bytes[0] = 0x0F;
                1
            }
        };
        bytes[start] = (round / 32) as u8;
        // Forms whose length depends on the processor, or that only AMD or only Intel has.
        let prefixes = bytes
            .iter()
            .take_while(|b| matches!(b, 0x66 | 0x67 | 0xF2 | 0xF3 | 0x40..=0x4F));
        if prefixes.count() > 0 && bytes.contains(&0x66) {
            continue;
        }
        // Moves of control and debug registers, which programs cannot make, have no memory operand.
        let is_move = |pair: &[u8]| pair[0] == 0x0F && matches!(pair[1], 0x20..=0x27);
        if bytes.windows(2).take(3).any(is_move) {
            continue;
        }
        good += u32::from(compare(bytes, false).is_some());
    }
    assert!(good > 50_000, "{good}");
}
