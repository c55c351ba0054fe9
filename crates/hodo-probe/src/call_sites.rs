//! Probes at the call sites of a function tracer, as the kernel has them (`CONFIG_KPROBES_ON_FTRACE`): the tracer calls
//! the probe, and nothing is written. Nothing else of a call site is probed, moved or overwritten.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;

use super::arch;
use super::call_site::CallSite;
use super::environment;
use super::refusal::Refusal;
use super::site::Site;
use hodo_sys::branches;

/// Looks at code that was loaded since the last time. No lock is held.
pub(super) fn update() {
    if let Some(tracer) = environment::current().call_sites() {
        tracer.update();
    }
}

/// The first call site that has bytes in a range of code.
pub(super) fn find(code: Range<u64>) -> Option<CallSite> {
    environment::current().call_sites()?.find(code)
}

/// Returns whether code has a part that somebody else changes: a call site or a static branch.
pub(super) fn is_reserved(code: Range<u64>) -> bool {
    branches::any(code.clone()) || find(code).is_some()
}

/// The call site where a probe is that was asked for at an address: the one at this address, or `landing` bytes after
/// it.
pub(super) fn of_probe(addr: u64, landing: u64) -> Result<Option<CallSite>, Refusal> {
    let refused = |code: Range<u64>, reason: &str| Refusal::CallSite {
        code,
        reason: reason.into(),
    };
    let after = addr + landing;
    let site = match find(addr..addr + 1) {
        None if landing != 0 => find(after..after + 1).filter(|site| site.code.start == after),
        found => found,
    };
    let Some(site) = site else {
        return Ok(None);
    };
    if site.code.start != addr && site.code.start != after {
        return Err(refused(site.code, "put the probe at its first byte"));
    }
    if !site.has_registers {
        return Err(refused(
            site.code,
            &format!(
                "it calls the function that the compiler has made it call, which gives no registers; put the probe \
                 before or after it, or build the program with {}",
                arch::ENTRY_OPTIONS
            ),
        ));
    }
    Ok(Some(site))
}

/// Returns an error if the breakpoint of a site would be in a call site that was not there when the site was made.
pub(super) fn check(site: &Site) -> Result<(), Refusal> {
    let code = site.addr()..site.next();
    match find(code) {
        None => Ok(()),
        Some(found) => Err(Refusal::CallSite {
            code: found.code,
            reason: "put the probe at its first byte; it has become one after the probe was registered, or begins inside \
                     the instruction"
                .into(),
        }),
    }
}

/// Has the tracer call the probes of some sites from now on, and no longer those of others.
pub(super) fn set(sites: &[(&'static Site, bool)]) -> Result<(), Refusal> {
    for on in [true, false] {
        let changed = |(site, wanted): &&(&'static Site, bool)| {
            *wanted == on && (site.called.load(Ordering::Acquire) != 0) != on
        };
        let changed: Vec<&'static Site> = sites
            .iter()
            .filter(changed)
            .map(|(site, _)| *site)
            .collect();
        let (Some(first), Some(tracer)) = (changed.first(), environment::current().call_sites())
        else {
            continue;
        };
        let addresses: Vec<u64> = changed.iter().map(|site| site.addr()).collect();
        tracer
            .set(&addresses, on)
            .map_err(|reason| Refusal::CallSite {
                code: first.addr()..first.next(),
                reason,
            })?;
        for site in changed {
            site.called.store(u32::from(on), Ordering::Release);
        }
    }
    Ok(())
}
