//! What a hit does, as the emitter of recordings writes it: it counts.

use hodo_codegen::detour::{Action, Counter, Place, Probe, When};
use hodo_codegen::riscv64::{detour, masm::Masm};
use hodo_codegen::stub::{Layout, Runtime};
use hodo_isa::Via;
use hodo_isa::riscv64::regs::KEPT;

use super::{COUNTER, DETOUR, Refused};

/// The action of all probes.
pub const COUNT: Action = Action::Count(Counter::Thread(COUNTER));

/// The control block's place, as a recording has it.
#[must_use]
pub fn layout() -> Layout {
    Layout {
        block: -8,
        ..Layout::default()
    }
}

/// The code of a hit, which uses these registers freely. It has no branch and does not use its own address.
///
/// # Errors
/// If it cannot be emitted.
pub fn hit(free: u32) -> Result<Vec<u8>, Refused> {
    let nop = [1, 0];
    let place = Place {
        back: Via::Free(KEPT),
        ..Place::new(&nop, 0, 2)
    };
    let probe = Probe {
        offset: 0,
        when: When::Hit,
        flags_dead: false,
        free,
        action: &COUNT,
    };
    let mut bytes = Vec::new();
    let mut out = Masm::new(&mut bytes, DETOUR);
    let emitted = detour::emit(&mut out, &layout(), &Runtime::default(), &place, &[probe]);
    let emitted = emitted.map_err(|_| Refused::Encoding)?;
    let range = (emitted.before[0] - DETOUR) as usize..(emitted.map[0].1 - DETOUR) as usize;
    Ok(bytes[range].to_vec())
}
