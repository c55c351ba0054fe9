//! Code that a program writes is fetched after `fence.i`, not before.

use hodo_rvmodel::encode::lrw2spc;
use hodo_rvmodel::hart::{Hart, Step};
use hodo_rvmodel::memory::{Memory, Unmapped};
use hodo_rvmodel::params::{Proposals, Side};

const CODE: u64 = 0x1_0000;
const SW_A1_TO_A2: u32 = 0x00B6_2023;
const SD_A1_TO_A2: u32 = 0x00B6_3023;
const FENCE: u32 = 0x0FF0_000F;
const FENCE_I: u32 = 0x0000_100F;
const ADD_1_TO_A0: u32 = 0x0015_0513;
const ADD_2_TO_A0: u32 = 0x0025_0513;

/// Executes instructions. They get a1 and a2.
fn run(code: &[u32], a1: u64, a2: u64, proposals: Proposals) -> Hart {
    let mut hart = Hart::new(Memory::new(Unmapped::Faults), proposals);
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    hart.memory.map(CODE, 0x1000);
    hart.memory.put(CODE, &bytes);
    (hart.pc, hart.x[11], hart.x[12]) = (CODE, a1, a2);
    for _ in code {
        assert_eq!(hart.step(), Step::Executed, "at {:#x}", hart.pc);
    }
    hart
}

#[test]
fn a_missing_fence_is_seen() {
    // The third instruction is written by the first.
    let run = |fence| {
        let code = [SW_A1_TO_A2, fence, ADD_1_TO_A0];
        let mut hart = run(&code, ADD_2_TO_A0.into(), CODE + 8, Proposals::default());
        assert_eq!(hart.memory.load(CODE + 8, 4), Ok(ADD_2_TO_A0.into()));
        hart.x[10]
    };
    assert_eq!(run(FENCE_I), 2);
    // The other fence is for loads and stores.
    assert_eq!(run(FENCE), 1);
    // What is written after it needs another one.
    let code = [FENCE_I, SW_A1_TO_A2, ADD_1_TO_A0];
    let again = self::run(&code, ADD_2_TO_A0.into(), CODE + 8, Proposals::default());
    assert_eq!(again.x[10], 1);
}

#[test]
fn literals_that_are_read_as_code_is_need_a_fence_too() {
    let run = |fence, side| {
        let proposals = Proposals {
            side,
            ..Proposals::default()
        };
        let lrw2spc = lrw2spc(proposals.immediate, 0x40).expect("near");
        let code = [SD_A1_TO_A2, fence, lrw2spc];
        run(&code, 0x5000, CODE + 8 + 0x40, proposals).spc
    };
    assert_eq!(run(FENCE_I, Side::Instruction), Some(0x5000));
    assert_eq!(run(FENCE, Side::Instruction), Some(0));
    assert_eq!(run(FENCE, Side::Data), Some(0x5000));
}
