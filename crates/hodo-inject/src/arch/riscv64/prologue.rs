//! Frames of functions without unwind tables, read from their code: most C on RISC-V is compiled without tables.

use hodo_isa::riscv64::cfa::{Row, Rule, function_rows};
use hodo_isa::riscv64::regs::SP;

use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

/// How many bytes of a function are read at most.
const MOST: usize = 8192;

/// How the code of one function uses the stack.
#[derive(Debug)]
pub struct Made {
    start: u64,
    rows: Vec<Row>,
}

impl Made {
    /// For the function at an address, which ends before `end`. Its code must be the original one.
    pub fn of(memory: &Memory, start: u64, end: Option<u64>) -> Self {
        let most = end.map_or(MOST as u64, |end| end.saturating_sub(start));
        let mut code = vec![0; most.min(MOST as u64) as usize];
        // Fewer bytes may be left in the mapping.
        while memory.read(TargetAddr(start), &mut code).is_err() {
            code.truncate(code.len() / 8 * 4);
        }
        let rows = function_rows(&code, start);
        Self { start, rows }
    }

    /// How far below S it keeps its return address, if that is always at the same place.
    pub fn kept(&self) -> Option<i32> {
        let mut places = self.rows.iter().filter_map(|row| match row.rule {
            Rule::Frame { saved, .. } if saved[0] != 0 => Some(i32::from(saved[0]) * 8),
            _ => None,
        });
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    /// S of a thread that is at `pc` in it, as far as the code shows it without the frame pointer.
    pub fn frame(&self, pc: u64, sp: u64) -> Option<u64> {
        let offset = u32::try_from(pc.checked_sub(self.start)?).ok()?;
        let at = self.rows.partition_point(|row| row.at <= offset);
        match self.rows.get(at.checked_sub(1)?)?.rule {
            Rule::Frame {
                base: SP, offset, ..
            } => Some(sp.wrapping_add_signed(offset.into())),
            _ => None,
        }
    }
}
