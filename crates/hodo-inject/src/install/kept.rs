//! Which stubs are kept for the next recording.

use twox_hash::XxHash3_128;

use crate::recorder::Recorder;
use hodo_module::Chosen;
use hodo_module::Module;
use hodo_module::cache::Stubs;

/// Fewer stubs than this are built as quickly as they are read. Dynamic linkers have fewer.
const FEWEST: usize = 128;

/// Where the stubs of a module are kept, if they are kept: those of recordings without filters, with nearly all
/// functions. With filters, there would be as many variants as there are patterns. Keeping stubs takes longer than
/// building them, and many programs are recorded only once before they are rebuilt: so it is done only for files that
/// have been recorded before.
/// `depends`: what else they depend on ([`hodo_patch::Island::kept_for`]).
pub(super) fn place(module: &Module, recorder: &dyn Recorder, depends: [u64; 5]) -> Option<Stubs> {
    let recording = recorder.recording();
    let is_plain = module.image.planned_before.get()
        && !recording.filtered
        && recording.depth.is_none()
        && recording.shortest.is_none()
        && recording.switch.is_none()
        && !recorder.probes(&module.image);
    let possible = module.plan.functions.iter().filter(|f| f.outcome.is_ok());
    let chosen = module.functions.len();
    if !is_plain || chosen + module.libcalls.len() < FEWEST || chosen < possible.count() / 10 * 9 {
        return None;
    }
    let first = module.first_id();
    let mut made_of = Vec::with_capacity(8 * (chosen + module.libcalls.len()) + 64);
    for all in [&module.functions, &module.libcalls] {
        made_of.extend((all.len() as u64).to_le_bytes());
        for &Chosen { index, id, filter } in all {
            if filter {
                return None;
            }
            made_of.extend((index as u32).to_le_bytes());
            made_of.extend((id - first).to_le_bytes());
        }
    }
    made_of.extend(depends.into_iter().flat_map(u64::to_le_bytes));
    made_of.push(u8::from(module.plan.has_exits()));
    made_of.extend(format!("{recording:?}").bytes());
    Stubs::new(&module.image, XxHash3_128::oneshot(&made_of))
}
