//! Static keys of files that are being mapped.

use anyhow::Result;
use hodo_ptrace::Memory;

use crate::recorder::Recorder;
use crate::space::Space;
use crate::space::keys::Mapped;

/// Holds keys when files were mapped, before their code runs. Failures are remarks.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn mapped(
    pid: i32,
    memory: &Memory,
    files: &[Mapped],
    space: &mut Space,
    recorder: &mut dyn Recorder,
) -> Result<()> {
    add(files, space, recorder);
    space.note(memory)?;
    if let Err(error) = space.keys_mut().hold(memory) {
        let text = format!("static keys: {error:#}");
        recorder.remark(pid, &text)?;
    }
    Ok(())
}

/// Notes which keys of files have to be held, if any matter.
pub(super) fn add(files: &[Mapped], space: &mut Space, recorder: &dyn Recorder) {
    if recorder.wants_keys() {
        space
            .keys_mut()
            .add(files, |key, path| recorder.wants_key(key, path));
    }
}
