//! Writing all sites for which something has changed.

use super::host::{Errno, Pages, Text};
use super::modules::{Module, each_module};
use super::site::Site;
use super::tracers;
use crate::arch;

/// Why a site was not changed. It calls what it called before, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its code cannot be written.
    Write(usize, Errno),
    /// There is no memory that it can call.
    Room(usize),
    /// What is there is neither a call nor what it is without one: somebody else has changed it. A site that nobody
    /// wants is reported once, if it may have called somebody; one that never did is left to whoever has changed it.
    Changed(usize),
}

/// Written as no mask is: the site's code may be anything that a change goes through.
const UNKNOWN: u64 = !0;

/// What a site's code is to call for a mask.
fn target(module: &Module, site: &Site, mask: u64) -> Option<usize> {
    let kind = arch::kind(site.entry(), tracers::with_registers(mask));
    let at = module.trampoline(mask, kind)?;
    // SAFETY: it is the address of a site.
    Some(unsafe { arch::reached(site.address(), at, module.copy()) })
}

/// Returns whether there is what can be at a site.
fn is_site(site: &Site) -> bool {
    // SAFETY: it is the address of a site.
    unsafe { arch::is_site(site.form(), site.address(), site.kept()) }
}

/// Makes the code of all sites call what they [want](Site::wanted), and only that. All are changed together, in
/// one to three steps with a barrier after each. A thread calls the old or the new tracers at each site.
///
/// If one site fails, the others are changed nevertheless. Returns how many were changed, and the first failure. A site
/// that has failed is tried again by the next call. It must not be called by two threads at once.
pub fn apply(host: &(impl Text + Pages)) -> (usize, Option<Failure>) {
    let mut failure = None;
    let changed = |site: &&Site| site.wanted() != site.written();
    for module in each_module() {
        for site in module.sites().iter().filter(changed) {
            let wanted = site.wanted();
            let kind = arch::kind(site.entry(), tracers::with_registers(wanted));
            let made = wanted == 0
                || !site.form().calls_trampoline()
                || module.make_trampoline(host, wanted, kind);
            if !made {
                failure = failure.or(Some(Failure::Room(site.address())));
            }
            if !is_site(site) && (wanted != 0 || site.written() != UNKNOWN) {
                failure = failure.or(Some(Failure::Changed(site.address())));
            }
        }
    }
    let mut count = 0;
    for step in 0..arch::STEPS {
        let mut is_written = false;
        for module in each_module() {
            for site in module.sites().iter().filter(changed) {
                match write_step(host, module, site, step) {
                    Ok(written) => is_written |= written,
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        if (is_written || step == 0)
            && let Err(error) = host.sync()
        {
            return (count, failure.or(Some(Failure::Write(0, error))));
        }
    }
    for module in each_module() {
        for site in module.sites().iter().filter(changed) {
            let wanted = site.wanted();
            let to = target(module, site, wanted);
            // SAFETY: it is the address of a site.
            if unsafe { arch::is_done(site.form(), site.address(), site.kept(), wanted != 0, to) } {
                site.set_written(wanted);
                count += 1;
            } else if site.written() != 0 || is_site(site) {
                site.set_written(UNKNOWN);
            }
            // Otherwise it calls nobody: nothing was written over what somebody else has put there.
        }
    }
    (count, failure)
}

/// Writes what has to be written at a site in one step. Returns false if there is nothing.
fn write_step(
    host: &impl Text,
    module: &Module,
    site: &Site,
    step: usize,
) -> Result<bool, Failure> {
    let address = site.address();
    let wanted = site.wanted();
    let to = target(module, site, wanted);
    if wanted != 0 && site.form().calls_trampoline() && to.is_none() {
        return Ok(false);
    }
    if !is_site(site) {
        return Ok(false);
    }
    // SAFETY: it is the address of a site.
    let change = unsafe { arch::step(site.form(), address, site.kept(), wanted != 0, to, step) };
    let Some((distance, bytes)) = change else {
        return Ok(false);
    };
    let at = address + distance;
    // SAFETY: each step leaves a site that threads may execute.
    unsafe { host.write(at, bytes.as_slice()) }.map_err(|error| Failure::Write(address, error))?;
    Ok(true)
}
