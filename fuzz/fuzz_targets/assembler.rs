//! Instructions of the x86-64 macro assembler, with any operands: a disassembler must read what was intended.
#![no_main]

#[path = "../../crates/hodo-isa/tests/x86_64/mod.rs"]
mod assembler;

use std::sync::OnceLock;

use assembler::{Case, Choose, all, check};
use hodo_fuzz::Bytes;
use libfuzzer_sys::fuzz_target;

impl Choose for Bytes<'_> {
    fn below(&mut self, end: u32) -> u32 {
        u32::from(u16::from_le_bytes(self.take())) % end
    }

    fn number(&mut self, edges: &[i64]) -> i64 {
        let (first, last) = (edges[0], edges[edges.len() - 1]);
        let any = i64::from_le_bytes(self.take());
        match i128::from(last) - i128::from(first) + 1 {
            all if all > u64::MAX.into() => any,
            all => (i128::from(first) + i128::from(any.cast_unsigned()) % all) as i64,
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    let all = ALL.get_or_init(all);
    let mut choose = Bytes(bytes);
    let which = choose.below(all.len() as u32);
    check(all[which as usize], &mut choose);
});
