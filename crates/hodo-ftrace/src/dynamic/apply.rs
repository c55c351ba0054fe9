//! Writing all sites for which something has changed.

use hodo_sys::poke::{Batch, Bytes, Failed, Session};
use hodo_sys::{Errno, Pages, Text};

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
    let write_failed = |(address, error): Failed| Failure::Write(address, error);
    let session = match Session::begin(host) {
        Ok(session) => session,
        Err(error) => return (0, Some(Failure::Write(0, error))),
    };
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
    let mut batch = Batch::new(&*session);
    for step in 0..arch::STEPS {
        let mut is_written = false;
        for module in each_module() {
            for site in module.sites().iter().filter(changed) {
                let Some((at, bytes)) = next_step(module, site, step) else {
                    continue;
                };
                is_written = true;
                // SAFETY: each step leaves a site that threads may execute.
                let written = unsafe { batch.write(at, bytes) };
                failure = failure.or(written.map_err(write_failed).err());
            }
        }
        failure = failure.or(batch.flush().map_err(write_failed).err());
        if is_written || step == 0 {
            session.sync();
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

/// What has to be written at a site in one step, and where.
fn next_step(module: &Module, site: &Site, step: usize) -> Option<(usize, Bytes)> {
    let address = site.address();
    let wanted = site.wanted();
    let to = target(module, site, wanted);
    if wanted != 0 && site.form().calls_trampoline() && to.is_none() || !is_site(site) {
        return None;
    }
    // SAFETY: it is the address of a site.
    let change = unsafe { arch::step(site.form(), address, site.kept(), wanted != 0, to, step) };
    change.map(|(distance, bytes)| (address + distance, bytes))
}
