//! What is found to be between `lr` and `sc`.

use alloc::vec::Vec;

use super::Part::{self, Between, First, Last, Outside};
use super::{Immovable, steps};

const LR: u32 = 0x1005_27AF; // lr.w a5, (a0)
const SC: u32 = 0x18C5_272F; // sc.w a4, a2, (a0)
const NOP: u32 = 0x13;
const RET: u32 = 0x8067;

/// bne a5, a1, by this distance
fn bne(distance: i64) -> u32 {
    super::super::encode::b(1, 15, 11, distance)
}

fn jump(distance: i64) -> u32 {
    super::super::encode::j(0, distance)
}

fn call(distance: i64) -> u32 {
    super::super::encode::j(1, distance)
}

fn found(words: &[u32]) -> Vec<Part> {
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let steps = steps(&code, 0x1000);
    for step in &steps {
        let reserved = step.immovable == Some(Immovable::Reserved);
        assert_eq!(reserved, step.part != Outside, "{step:?}");
    }
    steps.iter().map(|step| step.part).collect()
}

#[test]
fn a_loop_that_compares_and_swaps() {
    // lr; bne out; sc; bne to the lr; out: ret
    let parts = found(&[NOP, LR, bne(12), SC, bne(-12), RET]);
    assert_eq!(parts, [Outside, First, Between, Last, Outside, Outside]);
}

#[test]
fn code_far_away_is_between_and_the_way_out_is_not() {
    let parts = found(&[
        LR,
        bne(20), // to the far part
        SC,
        NOP,
        RET,
        NOP,       // nothing leads here
        NOP,       // the far part
        jump(-20), // to the sc
    ]);
    let expected = [
        First, Between, Last, Outside, Outside, Between, Between, Between,
    ];
    // Code that nothing leads to runs into the far part; unseen code may lead to it.
    assert_eq!(parts, expected);
}

#[test]
fn a_branch_backwards_within() {
    // jump over; back: nop; jump to the sc; lr; bne back; sc; ret
    let parts = found(&[jump(12), NOP, jump(12), LR, bne(-12), SC, RET]);
    assert_eq!(
        parts,
        [Outside, Between, Between, First, Between, Last, Outside]
    );
}

#[test]
fn an_lr_without_an_sc_takes_nothing_with_it() {
    assert_eq!(found(&[LR, NOP, RET]), [First, Outside, Outside]);
    // A second lr starts a new sequence, but the first one may extend to it.
    let parts = found(&[LR, NOP, LR, NOP, SC, RET]);
    assert_eq!(parts, [First, Outside, First, Between, Last, Outside]);
}

#[test]
fn an_sc_without_an_lr_takes_all_before_it() {
    // A function in the same code that is called within a sequence.
    let parts = found(&[LR, call(12), SC, RET, NOP, SC, RET]);
    assert_eq!(
        parts,
        [First, Between, Last, Outside, Between, Last, Outside]
    );
    assert_eq!(found(&[NOP, SC]), [Between, Last]);
}
