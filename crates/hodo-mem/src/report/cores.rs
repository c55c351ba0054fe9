//! What processors do to each other's caches, as text and JSON.

use std::io::Write;

use crate::cache::Counts;
use crate::coherence::Coherence;
use anyhow::Result;
use serde_json::{Value, json};

/// What happened in all.
pub(super) fn events(
    cores: u32,
    total: &Counts,
    events: Coherence,
    out: &mut dyn Write,
) -> Result<()> {
    let Coherence {
        invalidations,
        upgrades,
        transfers,
    } = events;
    let [apart, same] = total.sharing_misses;
    writeln!(
        out,
        "{cores} processors: {invalidations} lines taken from others, {upgrades} by processors that had them, too; \
         {transfers} modified lines passed on"
    )?;
    let all = (total.misses[0] + total.misses[1]).max(1);
    let percent = 100.0 * (apart + same) as f64 / all as f64;
    writeln!(
        out,
        "D1 misses because of other processors: {same} true sharing, {apart} false sharing ({percent:.1} %)"
    )?;
    Ok(())
}

/// The same as JSON.
pub(super) fn json(cores: u32, total: &Counts, events: Coherence) -> Value {
    let [apart, same] = total.sharing_misses;
    json!({
        "cores": cores,
        "invalidations": events.invalidations,
        "upgrades": events.upgrades,
        "transfers": events.transfers,
        "true_sharing_misses": same,
        "false_sharing_misses": apart,
    })
}

/// What misses because of other processors, most misses first.
pub(super) fn table<'c>(
    what: &str,
    rows: impl Iterator<Item = (String, &'c Counts)>,
    top: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let sum = |counts: &Counts| counts.sharing_misses[0] + counts.sharing_misses[1];
    let mut rows: Vec<(String, &Counts)> = rows.filter(|(_, counts)| sum(counts) > 0).collect();
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(sum(counts)));
    writeln!(out, "\n  true sharing  false sharing  {what}")?;
    for (name, counts) in rows.into_iter().take(top) {
        let [apart, same] = counts.sharing_misses;
        writeln!(out, "{same:>14} {apart:>14}  {name}")?;
    }
    Ok(())
}
