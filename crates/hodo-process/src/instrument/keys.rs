//! Static keys of files that are being mapped.

use anyhow::Result;
use hodo_ptrace::Memory;
use serde_json::json;

use super::Work;
use crate::space::Space;
use crate::space::keys::Mapped;

/// Holds keys when files were mapped, before their code runs. What goes wrong is a remark.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn mapped(
    pid: i32,
    memory: &Memory,
    files: &[Mapped],
    space: &mut Space,
    context: &mut Work<'_>,
) -> Result<()> {
    add(files, space, context);
    space.note(memory)?;
    if let Err(error) = space.keys.hold(memory) {
        let text = format!("static keys: {error:#}");
        let remark = json!({"remark": {"pid": pid, "text": text}});
        context.session.log(&remark)?;
    }
    Ok(())
}

/// Notes which keys of files are to be held, if any matter.
pub(super) fn add(files: &[Mapped], space: &mut Space, context: &Work<'_>) {
    let probes = &context.modules.probes;
    if probes.want_keys() {
        let is_wanted =
            |key: &hodo_symbols::Key, path: &std::path::Path| probes.want_key(key, path);
        space.keys.add(files, is_wanted);
    }
}
