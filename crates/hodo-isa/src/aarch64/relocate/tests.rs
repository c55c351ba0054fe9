use super::*;
use crate::aarch64::text;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const FROM: u64 = 0x40_0000;
const TO: u64 = 0x120_0000;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn moved(code: &[u32], options: &Options<'_>) -> Result<Vec<String>, RelocateError> {
    let code = words(code);
    let moved = relocate(&code, FROM, TO, options)?;
    assert_eq!(relocated_len(&code, FROM, options), Ok(moved.bytes.len()));
    let chunks = moved.bytes.chunks(4).enumerate();
    Ok(chunks
        .map(|(index, bytes)| text(bytes, TO + index as u64 * 4))
        .collect())
}

fn near(code: &[u32]) -> Vec<String> {
    moved(code, &Options::new(Reach::Jump)).expect("it can be moved")
}

#[test]
fn addresses_are_formed_anew() {
    // adr x1, .+8; adrp x2, .+4096; ldr x3, .+16; nop
    let found = near(&[0x1000_0041, 0xB000_0002, 0x5800_0083, 0xD503_201F]);
    let expected = [
        "adrp x1, 0x400000",
        "add x1, x1, #0x8",
        "adrp x2, 0x401000",
        "add x2, x2, #0x0",
        "adrp x3, 0x400000",
        "add x3, x3, #0x18",
        "ldr x3, [x3]",
    ];
    assert_eq!(found, expected);
}

#[test]
fn vector_registers_are_loaded_by_another_one() {
    // ldr q0, .+16
    let kept = [
        "str x16, [sp, #-0x10]!",
        "adrp x16, 0x400000",
        "add x16, x16, #0x10",
        "ldr q0, [x16]",
        "ldr x16, [sp], #0x10",
    ];
    assert_eq!(near(&[0x9C00_0080]), kept);
    let options = Options {
        dead: &|_| 1 << 9,
        ..Options::new(Reach::Jump)
    };
    let found = moved(&[0x9C00_0080], &options).expect("it can be moved");
    let free = ["adrp x9, 0x400000", "add x9, x9, #0x10", "ldr q0, [x9]"];
    assert_eq!(found, free);
}

#[test]
fn branches_to_elsewhere_are_jumped_over() {
    // b.eq .+64; cbnz w3, .+64; tbz x4, #33, .+64
    let found = near(&[0x5400_0200, 0x3500_0203, 0xB608_0204]);
    let expected = [
        "b.ne 0x1200008",
        "b 0x400040",
        "cbz w3, 0x1200010",
        "b 0x400044",
        "tbnz x4, #0x21, 0x1200018",
        "b 0x400048",
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_leads_within_stays_within() {
    // adr x0, .; cbz x0, .+8; b .-8; tbnz w1, #0, .-4
    let found = near(&[0x1000_0000, 0xB400_0040, 0x17FF_FFFE, 0x3707_FFE1]);
    let expected = [
        "adrp x0, 0x400000",
        "add x0, x0, #0x0",
        "cbz x0, 0x1200010",
        "b 0x1200000",
        "tbnz w1, #0x0, 0x120000c",
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_leads_far_out_leaves_by_pads() {
    let options = Options {
        dead: &|_| 1 << 9,
        pads: &|at| Some(0x1234_5678_9000 + (at - FROM)),
        ..Options::new(Reach::Any)
    };
    let exit = |pad: u16| {
        [
            "str x16, [sp, #-0x10]!".to_owned(),
            format!("mov x16, #{pad:#x}"),
            "movk x16, #0x5678, lsl #16".to_owned(),
            "movk x16, #0x1234, lsl #32".to_owned(),
            "movk x16, #0x0, lsl #48".to_owned(),
            "br x16".to_owned(),
        ]
    };
    // cbz x0, .+64; cbz x0, .+4; b .+64
    let found = moved(&[0xB400_0200, 0xB400_0020, 0x1400_0010], &options).expect("moved");
    assert_eq!(found[0], "cbnz x0, 0x120001c");
    assert_eq!(found[1..7], exit(0x9000));
    // What stays within needs no pad.
    assert_eq!(found[7], "cbz x0, 0x1200020");
    assert_eq!(found[8..], exit(0x9008));
    // bl .+64
    let found = moved(&[0x9400_0010], &options).expect("moved");
    assert_eq!(found[0], "mov x30, #0x4");
    assert_eq!(found[1], "movk x30, #0x40, lsl #16");
    assert_eq!(found[4..], exit(0x9000));
    let code = words(&[0xB400_0200, 0x1400_0010]);
    let exits = relocate(&code, FROM, TO, &options).expect("moved").exits;
    let found: Vec<_> = exits.iter().map(|exit| (exit.old, exit.new)).collect();
    assert_eq!(found, [(0, 4), (4, 4 + EXIT as usize)]);
}

#[test]
fn calls_return_to_the_original() {
    // bl .+64
    let found = near(&[0x9400_0010]);
    let expected = ["adrp x30, 0x400000", "add x30, x30, #0x4", "b 0x400040"];
    assert_eq!(found, expected);
    // blr x8
    let found = near(&[0xD63F_0100]);
    assert_eq!(found[2], "br x8");
    // blr x30: it needs another register.
    let none = moved(&[0xD63F_03C0], &Options::new(Reach::Jump));
    assert_eq!(none, Err(RelocateError::NoRegister { offset: 0 }));
    let options = Options {
        dead: &|_| 1 << 17 | 1 << 16,
        ..Options::new(Reach::Jump)
    };
    let found = moved(&[0xD63F_03C0], &options).expect("a register is free");
    let expected = [
        "mov x16, x30",
        "adrp x30, 0x400000",
        "add x30, x30, #0x4",
        "br x16",
    ];
    assert_eq!(found, expected);
    // Nothing may come after them.
    let inside = moved(&[0x9400_0010, 0xD503_201F], &Options::new(Reach::Jump));
    assert_eq!(inside, Err(RelocateError::CallInside { offset: 4 }));
}

#[test]
fn calls_return_to_the_moved_code() {
    let options = Options {
        link: Link::Moved,
        ..Options::new(Reach::Jump)
    };
    // bl .+64; blr x8; nop
    let found = moved(&[0x9400_0010, 0xD63F_0100, 0xD503_201F], &options).expect("it is near");
    assert_eq!(found, ["bl 0x400040", "blr x8"]);
    let far = Options {
        reach: Reach::Page,
        ..options
    };
    let found = moved(&[0x9400_0010], &far).expect("no register is needed");
    assert_eq!(
        found,
        ["adrp x30, 0x400000", "add x30, x30, #0x40", "blr x30"]
    );
}

#[test]
fn far_jumps_need_a_register() {
    // b .+64
    let none = moved(&[0x1400_0010], &Options::new(Reach::Page));
    assert_eq!(none, Err(RelocateError::NoRegister { offset: 0 }));
    let options = Options {
        dead: &|_| 1 << 3 | 1 << PLATFORM | FLAGS_BIT,
        ..Options::new(Reach::Any)
    };
    let found = moved(&[0x1400_0010], &options).expect("a register is free");
    let expected = [
        "mov x3, #0x40",
        "movk x3, #0x40, lsl #16",
        "movk x3, #0x0, lsl #32",
        "movk x3, #0x0, lsl #48",
        "br x3",
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_is_too_far_away_is_refused() {
    let far = |to: u64, code: u32, reach: Reach| {
        let options = Options {
            dead: &|_| 1 << 16,
            ..Options::new(reach)
        };
        relocate(&words(&[code]), FROM, to, &options).map(|moved| moved.falls_through)
    };
    let out = Err(RelocateError::OutOfRange { offset: 0 });
    // b .: up to 128 MiB back
    assert_eq!(far(FROM + (1 << 27), 0x1400_0000, Reach::Jump), Ok(false));
    // (the code's own start is within it, and a branch there stays so: .+4 is not)
    assert_eq!(
        far(FROM + (1 << 27) + 4, 0x1400_0001, Reach::Jump),
        Ok(false)
    );
    assert_eq!(far(FROM + (1 << 27) + 8, 0x1400_0001, Reach::Jump), out);
    assert_eq!(
        far(FROM + (1 << 27) + 8, 0x1400_0001, Reach::Page),
        Ok(false)
    );
    // adr: up to 4 GiB
    assert_eq!(far(FROM + (1 << 32), 0x1000_0000, Reach::Jump), Ok(true));
    assert_eq!(far(FROM + (1 << 32) + 4096, 0x1000_0000, Reach::Jump), out);
    assert_eq!(far(1 << 47, 0x1000_0000, Reach::Any), Ok(true));
}

#[test]
fn gaps_are_what_branches_lead_to() {
    // cbz x0, .+8; nop; mov x1, x2
    let code = words(&[0xB400_0040, 0xD503_201F, 0xAA02_03E1]);
    let options = Options::new(Reach::Jump);
    let moved =
        relocate_apart(&code, FROM, TO, &options, &[(0, 4), (8, 8)]).expect("it is movable");
    let texts: Vec<_> = (0..5)
        .map(|at| text(&moved.bytes[at * 4..], TO + at as u64 * 4))
        .collect();
    let expected = [
        "brk #0x0",
        "cbz x0, 0x1200008",
        "brk #0x0",
        "brk #0x0",
        "mov x1, x2",
    ];
    assert_eq!(texts, expected);
    let new: Vec<_> = moved.map.iter().map(|moved| moved.new).collect();
    assert_eq!(new, [4, 8, 16]);
}

#[test]
fn what_stays_says_why() {
    let why = |word: u32| moved(&[word], &Options::new(Reach::Jump)).expect_err("it stays");
    let immovable = |why| RelocateError::Immovable { offset: 0, why };
    assert_eq!(why(0xD400_0001), immovable(Immovable::SystemCall));
    assert_eq!(why(0x885F_FC01), immovable(Immovable::Reserved));
    assert_eq!(why(0xD420_0000), immovable(Immovable::Breakpoint));
}
