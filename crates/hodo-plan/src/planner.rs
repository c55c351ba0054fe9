//! The planner.

use crate::image::{Image, Text};
use crate::model::{
    EntryOnlyReason, Extra, Mode, Plan, PlanError, PlanOptions, PlannedFunction, SitePlan, Tactic,
};
use crate::{libcalls, modes};
use hodo_arch::x86_64::relocate::relocated_len;
use hodo_arch::x86_64::scan::{Flow, Sweep, is_padding};
use hodo_symbols::Function;
use std::path::Path;

/// Plans the image in `bytes`, which is the content of the file `path`.
///
/// # Errors
/// If the file is no readable x86-64 ELF image.
pub fn plan(path: &Path, bytes: &[u8], options: &PlanOptions) -> Result<Plan, PlanError> {
    let _ = path;
    let image = Image::parse(bytes)?;
    let mut plan = Plan {
        build_id: image.build_id(),
        ..Plan::default()
    };
    if options.functions {
        let functions = hodo_symbols::functions(bytes)?;
        plan.functions = plan_functions(&image, &functions);
    }
    if options.libcalls {
        let slots = libcalls::slots(&image);
        plan.libcalls = libcalls::plt(&image, &slots);
    }
    Ok(plan)
}

fn plan_functions(image: &Image<'_>, functions: &[Function]) -> Vec<PlannedFunction> {
    let mut targets = Vec::new();
    for text in &image.text {
        for insn in Sweep::new(text.bytes, text.addr) {
            match insn.flow {
                Flow::Branch(to) | Flow::Jump(to) => targets.push((to, insn.addr)),
                // A recursive call is a new entry.
                Flow::Call(to) => targets.push((to, u64::MAX)),
                _ => {}
            }
        }
    }
    targets.sort_unstable();
    let mut planned = Vec::with_capacity(functions.len());
    for (index, function) in functions.iter().enumerate() {
        let next = functions.get(index + 1).map(|f| f.addr);
        planned.push(PlannedFunction {
            name: function.name.clone(),
            addr: function.addr,
            size: function.size,
            outcome: plan_function(image, function, next, &targets),
        });
    }
    planned
}

fn plan_function(
    image: &Image<'_>,
    function: &Function,
    next: Option<u64>,
    targets: &[(u64, u64)],
) -> Result<SitePlan, String> {
    let names = || std::iter::once(&function.name).chain(&function.aliases);
    if let Some(reason) = names().find_map(|name| modes::untouchable(name)) {
        return Err(reason.to_owned());
    }
    let text = image
        .text_at(function.addr)
        .ok_or("it is not in executable code")?;
    let limit = next.unwrap_or(u64::MAX).min(text.end());
    let end = match function.size {
        0 => limit,
        size => function.addr.saturating_add(size).min(limit),
    };
    let mode = if function.addr == image.entry {
        Mode::EntryOnly(EntryOnlyReason::NotCalled)
    } else {
        names()
            .map(|name| modes::by_name(name))
            .find(|mode| *mode != Mode::Call)
            .unwrap_or(Mode::Call)
    };
    let starts_with_endbr = slice(text, function.addr, end).starts_with(&[0xF3, 0x0F, 0x1E, 0xFA]);
    let behind = function.addr + 4;
    let mut last = Err("it is empty".to_owned());
    let candidates = starts_with_endbr.then_some(behind);
    for patch in candidates.into_iter().chain([function.addr]) {
        last = jump(text, patch, end, limit, targets).map(|displaced_end| SitePlan {
            tactic: Tactic::Jump,
            mode,
            patch,
            patch_len: 5,
            displaced: patch..displaced_end,
            extra: Extra::None,
        });
        if last.is_ok() {
            break;
        }
    }
    last
}

fn slice<'a>(text: &Text<'a>, from: u64, to: u64) -> &'a [u8] {
    let from = (from - text.addr) as usize;
    let to = (to - text.addr) as usize;
    text.bytes.get(from..to).unwrap_or_default()
}

/// Where the displaced instructions of a 5-byte jump at `patch` end.
fn jump(
    text: &Text<'_>,
    patch: u64,
    end: u64,
    limit: u64,
    targets: &[(u64, u64)],
) -> Result<u64, String> {
    let mut at = patch;
    for insn in Sweep::new(slice(text, patch, end), patch) {
        at = insn.addr + u64::from(insn.len);
        if at >= patch + 5 {
            break;
        }
        match insn.flow {
            Flow::Next | Flow::Branch(_) => {}
            Flow::Invalid => return Err("it has bytes that are no instruction".to_owned()),
            _ => break,
        }
    }
    if at < patch + 5 && (patch + 5 > limit || at < end || !is_padding(slice(text, at, patch + 5)))
    {
        return Err("there is no room for a jump".to_owned());
    }
    let first = targets.partition_point(|t| t.0 <= patch);
    if targets.get(first).is_some_and(|t| t.0 < at.max(patch + 5)) {
        return Err("a branch leads into the window".to_owned());
    }
    let from = targets.partition_point(|t| t.0 < patch);
    let inner = targets[from..first]
        .iter()
        .any(|t| t.1 >= patch && t.1 < end);
    if inner {
        return Err("a loop leads back to the entry".to_owned());
    }
    relocated_len(slice(text, patch, at), patch).map_err(|error| error.to_string())?;
    Ok(at)
}
