//! A disassembler reads what the x86-64 macro assembler was asked to write.

#[path = "x86_64/mod.rs"]
mod assembler;

use assembler::{Choose, all, check};

/// Makes all possible choices, one after the other.
#[derive(Default)]
struct Odometer {
    /// What was chosen, and the number of possibilities.
    chosen: Vec<(u32, u32)>,
    next: usize,
}

impl Odometer {
    /// Moves on to the next choices. Returns whether there are any.
    fn turn(&mut self) -> bool {
        self.chosen.truncate(self.next);
        self.next = 0;
        while let Some((chosen, end)) = self.chosen.pop() {
            if chosen + 1 < end {
                self.chosen.push((chosen + 1, end));
                return true;
            }
        }
        false
    }
}

impl Choose for Odometer {
    fn below(&mut self, end: u32) -> u32 {
        if self.next == self.chosen.len() {
            self.chosen.push((0, end));
        }
        self.next += 1;
        self.chosen[self.next - 1].0
    }

    fn number(&mut self, edges: &[i64]) -> i64 {
        edges[self.below(edges.len() as u32) as usize]
    }
}

#[test]
fn what_is_written_is_read() {
    let mut count = 0;
    for case in all() {
        let mut odometer = Odometer::default();
        loop {
            check(case, &mut odometer);
            count += 1;
            if !odometer.turn() {
                break;
            }
        }
    }
    assert!(count > 100_000, "{count}");
    println!("{} instructions in {count} forms", all().len());
}
