//! Finds where jumps through registers and memory lead.

use core::ops::ControlFlow;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::code::Origin;

/// Where a jump gets its target, as far as the instructions before it show. `path` gives code and address of each, the
/// jump first, then backward.
#[must_use]
pub fn origin<'c>(path: impl IntoIterator<Item = (&'c [u8], u64)>) -> Origin {
    let decode = |(code, addr)| Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    let mut path = path.into_iter().map(decode);
    let Some(last) = path.next() else {
        return Origin::Computed;
    };
    if last.op0_kind() != OpKind::Register {
        // A jump through memory, which holds whole addresses.
        return Origin::Loaded;
    }
    let mut search = Search {
        register: last.op0_register(),
        sum: None,
        leaves: false,
        extended: false,
    };
    for raw in path {
        if let ControlFlow::Break(origin) = search.step(&raw) {
            return origin;
        }
    }
    search.end()
}

/// What is known when following the code backward.
struct Search {
    /// The register whose value is sought.
    register: Register,
    /// The two that were added: the distance and the address that it is relative to.
    sum: Option<[Register; 2]>,
    /// The function's frame is removed before the jump.
    leaves: bool,
    /// A separate instruction extends the distance to 64 bits, as in unoptimized code.
    extended: bool,
}

impl Search {
    /// The result if nothing more is found.
    fn end(&self) -> Origin {
        match self.sum {
            // The frame is gone: this is a tail call.
            None if self.leaves => Origin::Loaded,
            None => Origin::Open,
            Some(_) => Origin::Computed,
        }
    }

    /// Goes back over one instruction; breaks with the result.
    fn step(&mut self, raw: &Instruction) -> ControlFlow<Origin> {
        if matches!(
            raw.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        ) {
            // A value that the call returned, or that it preserved.
            self.leaves = true;
            return ControlFlow::Break(self.end());
        }
        if let Some(sum) = self.sum
            && raw.mnemonic() == Mnemonic::Cdqe
            && sum.contains(&Register::RAX)
        {
            self.extended = true;
            return ControlFlow::Continue(());
        }
        let on_stack = raw.op0_register() == Register::RSP && raw.mnemonic() == Mnemonic::Add;
        self.leaves |= on_stack || matches!(raw.mnemonic(), Mnemonic::Pop | Mnemonic::Leave);
        let writes = raw.op_count() > 0
            && raw.op0_kind() == OpKind::Register
            && !matches!(
                raw.mnemonic(),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt | Mnemonic::Jmp
            );
        if !writes {
            return ControlFlow::Continue(());
        }
        let to = raw.op0_register().full_register();
        match self.sum {
            Some(sum) if sum.contains(&to) => self.summand(raw, to, sum),
            None if to == self.register => self.source(raw, to),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Handles an instruction that writes one of the two that are added.
    fn summand(&self, raw: &Instruction, to: Register, sum: [Register; 2]) -> ControlFlow<Origin> {
        let entry = raw.is_ip_rel_memory_operand() || raw.memory_index_scale() == 4;
        if raw.mnemonic() == Mnemonic::Movsxd && raw.op1_kind() == OpKind::Memory && entry {
            let other = if sum[0] == to { sum[1] } else { sum[0] };
            // The distance may overwrite the register with the table's start; then that is not what is added.
            return ControlFlow::Break(match raw.memory_base() {
                base if base == other && base != to => Origin::Table,
                _ => Origin::Distances,
            });
        }
        let loads = self.extended
            && raw.mnemonic() == Mnemonic::Mov
            && raw.op0_register() == Register::EAX
            && raw.op1_kind() == OpKind::Memory;
        if loads {
            return ControlFlow::Break(Origin::Table);
        }
        // The address that the distance is relative to may be formed between the two.
        match raw.mnemonic() {
            Mnemonic::Lea if raw.is_ip_rel_memory_operand() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(Origin::Computed),
        }
    }

    /// Handles an instruction that writes the register whose value is sought.
    fn source(&mut self, raw: &Instruction, to: Register) -> ControlFlow<Origin> {
        match raw.mnemonic() {
            Mnemonic::Mov if raw.op1_kind() == OpKind::Register => {
                self.register = raw.op1_register().full_register();
            }
            Mnemonic::Mov | Mnemonic::Pop => return ControlFlow::Break(Origin::Loaded),
            Mnemonic::Lea if raw.is_ip_rel_memory_operand() => {
                return ControlFlow::Break(Origin::Loaded);
            }
            Mnemonic::Lea
                if raw.memory_index() != Register::None
                    && raw.memory_index_scale() == 1
                    && raw.memory_displacement64() == 0 =>
            {
                self.sum = Some([raw.memory_base(), raw.memory_index()]);
            }
            Mnemonic::Add if raw.op1_kind() == OpKind::Register => {
                self.sum = Some([to, raw.op1_register().full_register()]);
            }
            // Pointers in memory may be protected this way.
            Mnemonic::Xor | Mnemonic::Ror => {}
            _ => return ControlFlow::Break(Origin::Computed),
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::steps::{Step, Steps};
    use super::*;

    #[test]
    fn origins_of_jumps() {
        fn of(code: &[u8]) -> Origin {
            let steps: Vec<Step> = Steps::new(code, 0).collect();
            let at = |step: &Step| (&code[step.addr as usize..step.end() as usize], step.addr);
            origin(steps.iter().rev().map(at))
        }
        // jmp rax, alone; pop rbx before it
        assert_eq!(of(&[0xFF, 0xE0]), Origin::Open);
        assert_eq!(of(&[0x5B, 0xFF, 0xE0]), Origin::Loaded);
        // movsxd rax, dword [rdx+rax*4]; add rax, rdx; jmp rax
        let table = [0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xD0, 0xFF, 0xE0];
        assert_eq!(of(&table), Origin::Table);
        // mov rax, [rdi]; jmp rax
        assert_eq!(of(&[0x48, 0x8B, 0x07, 0xFF, 0xE0]), Origin::Loaded);
        // jmp [rdi+8]
        assert_eq!(of(&[0xFF, 0x67, 8]), Origin::Loaded);
        // lea rax, [rax+rcx*8]; jmp rax
        assert_eq!(of(&[0x48, 0x8D, 0x04, 0xC8, 0xFF, 0xE0]), Origin::Computed);
        // add rax, rcx; jmp rax
        assert_eq!(of(&[0x48, 0x01, 0xC8, 0xFF, 0xE0]), Origin::Computed);
    }
}
