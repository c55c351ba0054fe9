use alloc::string::String;
use alloc::vec::Vec;

use super::super::text;
use super::*;

const FROM: u64 = 0x1_0000;
const TO: u64 = 0x2_0000;
/// beq a0, a1, +0x400; c.j -2; jal ra, +0x100; jalr ra, 8(ra); c.jalr a0
const BEQ: [u8; 4] = [0x63, 0x00, 0xB5, 0x40];
const BACK: [u8; 2] = [0xFD, 0xBF];
const CALL: [u8; 4] = [0xEF, 0x00, 0x00, 0x10];
const CALL_BY_LINK: [u8; 4] = [0xE7, 0x80, 0x80, 0x00];
const CALL_A0: [u8; 2] = [0x02, 0x95];
const NOP: [u8; 2] = [1, 0];

/// The moved code as text.
fn moved(code: &[u8], options: &Options<'_>) -> Vec<String> {
    let moved = relocate(code, FROM, TO, options).expect("it can be moved");
    let len = relocated_len(code, FROM, options);
    assert_eq!(len, Ok(moved.bytes.len()));
    let mut lines = Vec::new();
    let mut at = 0;
    while at < moved.bytes.len() {
        let addr = TO + at as u64;
        lines.push(text(&moved.bytes[at..], addr));
        at += usize::from(Insn::new(&moved.bytes[at..], addr).len);
    }
    lines
}

fn with(reach: Reach, dead: &dyn Fn(u64) -> u32) -> Options<'_> {
    Options {
        dead,
        ..Options::new(reach)
    }
}

/// t1
fn one(_: u64) -> u32 {
    1 << 6
}

#[test]
fn branches_become_their_opposites() {
    let near = moved(&BEQ, &Options::new(Reach::Jump));
    assert_eq!(near, ["bne a0, a1, 0x20008", "jal zero, 0x10400"]);
    let far = moved(&BEQ, &with(Reach::Pair, &one));
    let expected = [
        "bne a0, a1, 0x2000c",
        "auipc t1, 0xffff0",
        "jalr zero, 1020(t1)",
    ];
    assert_eq!(far, expected);
    let any = moved(&BEQ, &with(Reach::Any, &one));
    assert_eq!((any[0].as_str(), any.len()), ("bne a0, a1, 0x2001c", 8));
}

#[test]
fn without_a_register_branches_leave_by_places_near_their_targets() {
    let options = Options {
        pads: &|at| (at == FROM).then_some(0x1_3000),
        ..Options::new(Reach::Pair)
    };
    let expected = [
        "bne a0, a1, 0x20010",
        "c.addi sp, -16",
        "c.sdsp t1, 0(sp)",
        "auipc t1, 0xffff3",
        "jalr zero, -8(t1)",
    ];
    assert_eq!(moved(&BEQ, &options), expected);
    // A free register is preferred.
    let options = Options {
        dead: &one,
        ..options
    };
    assert_eq!(moved(&BEQ, &options).len(), 3);
    // Two calls through their own link register: one whose target is known, and one whose target is not.
    let free = moved(&CALL_BY_LINK, &options);
    assert_eq!((free[0].as_str(), free.len()), ("addi t1, ra, 8", 4));
    let options = Options {
        pads: &|_| Some(0x1_3000),
        ..Options::new(Reach::Pair)
    };
    let expected = [
        "auipc ra, 0xffff0",
        "addi ra, ra, 4",
        "c.addi sp, -16",
        "c.sdsp t1, 0(sp)",
        "auipc t1, 0xffff3",
        "jalr zero, -12(t1)",
    ];
    assert_eq!(moved(&CALL_BY_LINK, &options), expected);
    let unknown = relocate(&CALL_BY_LINK, FROM, TO, &Options::new(Reach::Pair));
    assert_eq!(
        unknown.unwrap_err(),
        RelocateError::NoRegister { offset: 0 }
    );
}

#[test]
fn addresses_stay() {
    // auipc a0, 0x1
    let code = [0x17, 0x15, 0, 0];
    let expected = ["auipc a0, 0xffff1", "addi a0, a0, 0"];
    assert_eq!(moved(&code, &Options::new(Reach::Jump)), expected);
    // Into the zero register: a hint.
    let code = [0x17, 0x10, 0, 0];
    assert_eq!(
        moved(&code, &Options::new(Reach::Jump)),
        ["auipc zero, 0x1"]
    );
}

#[test]
fn calls_return_where_they_are_told() {
    let near = moved(&CALL, &Options::new(Reach::Jump));
    assert_eq!(
        near,
        ["auipc ra, 0xffff0", "addi ra, ra, 4", "jal zero, 0x10100"]
    );
    let by_link = moved(&CALL_BY_LINK, &with(Reach::Jump, &one));
    let expected = [
        "addi t1, ra, 8",
        "auipc ra, 0xffff0",
        "addi ra, ra, 0",
        "jalr zero, 0(t1)",
    ];
    assert_eq!(by_link, expected);
    let by_a0 = moved(&CALL_A0, &Options::new(Reach::Pair));
    assert_eq!(
        by_a0,
        ["auipc ra, 0xffff0", "addi ra, ra, 2", "jalr zero, 0(a0)"]
    );
    let moved_link = |reach| Options {
        link: Link::Moved,
        ..Options::new(reach)
    };
    assert_eq!(moved(&CALL, &moved_link(Reach::Jump)), ["jal ra, 0x10100"]);
    let pair = moved(&CALL, &moved_link(Reach::Pair));
    assert_eq!(pair, ["auipc ra, 0xffff0", "jalr ra, 256(ra)"]);
    assert_eq!(
        moved(&CALL_BY_LINK, &moved_link(Reach::Any)),
        ["jalr ra, 8(ra)"]
    );
    // After a call that returns to the copy, code continues.
    let code = [&CALL[..], &CALL_A0, &[0x13, 5, 5, 0]].concat();
    let all = relocate(&code, FROM, TO, &moved_link(Reach::Jump)).expect("it can be moved");
    assert!(all.falls_through);
}

#[test]
fn calls_of_the_start_lead_to_the_original() {
    // addi a0, a0, 0; jal ra, -4; at FROM
    let code = [0x13, 5, 5, 0, 0xEF, 0xF0, 0xDF, 0xFF];
    let back = format!("{FROM:#x}");
    let moved_link = Options {
        link: Link::Moved,
        ..Options::new(Reach::Jump)
    };
    for options in [Options::new(Reach::Jump), moved_link] {
        let lines = moved(&code, &options);
        let last = lines.last().expect("a jump");
        assert!(last.starts_with("jal ") && last.ends_with(&back), "{last}");
    }
}

#[test]
fn loops_stay_within_and_nops_go() {
    // nop; addi a0, a0, 0; c.j -4 to the addi
    let code = [&NOP[..], &[0x13, 5, 5, 0], &[0xF5, 0xBF]].concat();
    let lines = moved(&code, &Options::new(Reach::Jump));
    assert_eq!(lines, ["addi a0, a0, 0", "jal zero, 0x20000"]);
    let map = relocate(&code, FROM, TO, &Options::new(Reach::Jump)).map(|moved| moved.map);
    let map: Vec<_> = map
        .expect("it can be moved")
        .iter()
        .map(|m| (m.old, m.new))
        .collect();
    assert_eq!(map, [(0, 0), (2, 0), (6, 4)]);
    // A branch to itself passes the gap each time.
    let gaps = [(0, 6)];
    let itself = [0x63, 0, 0, 0];
    let moved = relocate_apart(&itself, FROM, TO, &Options::new(Reach::Any), &gaps);
    let bytes = moved.expect("it can be moved").bytes;
    assert_eq!(bytes[..6], [0x02, 0x90, 0x02, 0x90, 0x02, 0x90]);
    assert_eq!(text(&bytes[6..], TO + 6), "beq zero, zero, 0x20000");
}

#[test]
fn branches_within_long_code_are_long() {
    // beq to the last of many
    let mut code = b(0, 0, 0, 2400).to_le_bytes().to_vec();
    code.extend_from_slice(&[0x17, 0x15, 0, 0].repeat(600));
    let lines = moved(&code, &Options::new(Reach::Jump));
    assert_eq!(lines[0], "bne zero, zero, 0x20008");
    // After 599 addresses of eight bytes.
    assert_eq!(lines[1], "jal zero, 0x212c0");
}

#[test]
fn refusals() {
    let refused = |code: &[u8], reach| {
        relocate(code, FROM, TO, &Options::new(reach)).expect_err("it cannot be moved")
    };
    let code = [&CALL[..], &NOP].concat();
    assert_eq!(
        refused(&code, Reach::Jump),
        RelocateError::CallInside { offset: 4 }
    );
    assert_eq!(
        refused(&BEQ, Reach::Pair),
        RelocateError::NoRegister { offset: 0 }
    );
    let code = [&NOP[..], &CALL_BY_LINK].concat();
    assert_eq!(
        refused(&code, Reach::Jump),
        RelocateError::NoRegister { offset: 2 }
    );
    let code = [&[0x13, 5, 5, 0][..], &BACK].concat();
    assert_eq!(
        refused(&code, Reach::Jump),
        RelocateError::TargetInside { offset: 4 }
    );
    let why = Immovable::SystemCall;
    let error = refused(&[0x73, 0, 0, 0], Reach::Jump);
    assert_eq!(error, RelocateError::Immovable { offset: 0, why });
    let far = relocate(&BACK, FROM, FROM + (1 << 20), &Options::new(Reach::Jump));
    assert_eq!(far, Err(RelocateError::OutOfRange { offset: 0 }));
    // The only dead register is the link itself.
    let ra = |_| 1 << 1;
    let far = relocate(&CALL, FROM, TO, &with(Reach::Pair, &ra));
    assert_eq!(far, Err(RelocateError::NoRegister { offset: 0 }));
}

#[test]
fn system_calls_move_where_that_is_wanted() {
    let options = Options {
        system_calls: true,
        ..Options::new(Reach::Jump)
    };
    assert_eq!(moved(&[0x73, 0, 0, 0], &options), ["ecall"]);
}

#[test]
fn link_registers_are_taken_last() {
    assert_eq!(choose(FIXED), None);
    assert_eq!(choose(1 << 1 | 1 << 5 | 1 << 7), Some(7));
    assert_eq!(choose(1 << 1 | 1 << 2), Some(1));
}
