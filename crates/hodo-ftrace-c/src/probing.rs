//! What others need who put breakpoints and jumps into code: where call sites are, whose code they must leave alone,
//! and calls at these sites instead.

use std::ffi::{c_char, c_int, c_ulong};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use hodo_ftrace::Vectors;
use hodo_ftrace::dynamic::{self, Module, Ops, Site};
use hodo_sys::lock;

use crate::change::{Error, answer, change};
use crate::filter::Filter;
use crate::hooks::hooks;
use crate::known::{All, Who};
use crate::tracers::{hodo_ftrace_error, hodo_ftrace_update, number, taken, who};

/// A call site, for C.
#[repr(C)]
#[derive(Debug)]
pub struct ReservedCode {
    start: c_ulong,
    end: c_ulong,
    flags: c_ulong,
}

/// In `flags`: a tracer can be given registers.
const HAS_REGISTERS: c_ulong = 1;
/// In `flags`: the function has done nothing yet.
const IS_FIRST: c_ulong = 2;

/// Finds the first call site with bytes in a range of code. Returns 1 if there is one, 0 if not.
///
/// # Safety
/// `site` is null, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_reserved(
    start: c_ulong,
    end: c_ulong,
    site: *mut ReservedCode,
) -> c_int {
    let Some(reserved) = dynamic::reserved(start as usize..end as usize) else {
        return 0;
    };
    let flag = |is: bool, flag| if is { flag } else { 0 };
    if !site.is_null() {
        let found = ReservedCode {
            start: reserved.code.start as c_ulong,
            end: reserved.code.end as c_ulong,
            flags: flag(reserved.has_registers, HAS_REGISTERS) | flag(reserved.is_first, IS_FIRST),
        };
        // SAFETY: as the caller promises.
        unsafe { site.write(found) };
    }
    1
}

/// Has a tracer see the functions with these call sites, too, or no longer. It sees no others.
///
/// # Safety
/// `ops` is null, or stays as it is as long as the process exists. There are `count` addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_sites(
    ops: *const Ops,
    ips: *const c_ulong,
    count: c_ulong,
    on: c_int,
) -> c_int {
    let sites = match count {
        0 => &[],
        // SAFETY: as the caller promises.
        count => unsafe { std::slice::from_raw_parts(ips.cast::<usize>(), count as usize) },
    };
    // SAFETY: as the caller promises.
    answer(unsafe { hooks(ops) }.and_then(|ops| set_sites(ops, sites, on != 0))) as c_int
}

fn set_sites(
    ops: Option<(&'static Ops, Vectors)>,
    sites: &[usize],
    on: bool,
) -> Result<usize, Error> {
    let hooks = ops.ok_or_else(|| Error::Wrong("there is no tracer: ops is null".to_owned()))?;
    let ops = hooks.0;
    let who = who(ops);
    let result = change(None, |all| {
        if all.bit(who).is_none() {
            *all.filter(who) = Filter::list();
            let number = number(hooks)?;
            all.set_bit(who, 1 << number, true);
        }
        if on {
            check(all, sites)?;
        }
        select(all, who, sites, on)
    });
    // Another site may have failed.
    match result {
        Err(error) if !are_written(ops, sites, on) => {
            if on {
                let _ = change(None, |all| select(all, who, sites, false));
            }
            Err(error)
        }
        _ => Ok(0),
    }
}

fn check(all: &All, sites: &[usize]) -> Result<(), Error> {
    let mut known: Vec<usize> = all.sites().map(|listed| listed.site.address()).collect();
    known.sort_unstable();
    match sites.iter().find(|site| known.binary_search(site).is_err()) {
        None => Ok(()),
        Some(site) => Err(Error::Wrong(format!(
            "{site:#x} is not the address of a call site; hodo_ftrace_each_site lists them"
        ))),
    }
}

fn select(all: &mut All, who: Who, sites: &[usize], on: bool) -> Result<usize, Error> {
    let filter = all.filter(who);
    for site in sites {
        filter.set_address(*site, !on);
    }
    match all.select(who) {
        (count, None) => Ok(count),
        (_, Some(function)) => {
            let filter = all.filter(who);
            for site in sites {
                filter.set_address(*site, true);
            }
            all.select(who);
            Err(taken(&function))
        }
    }
}

/// Returns whether the code of these sites calls a tracer, or does not.
fn are_written(ops: &Ops, sites: &[usize], on: bool) -> bool {
    let bit = dynamic::number(ops).map_or(0, |number| 1 << number);
    sites
        .iter()
        .all(|address| match dynamic::site_at(*address) {
            Some(site) => site.written() == site.wanted() && (site.wanted() & bit != 0) == on,
            None => !on,
        })
}

/// What `hodo-probe` looks for.
#[repr(C)]
#[derive(Debug)]
pub struct Probing {
    version: c_ulong,
    lock: &'static AtomicU64,
    update: extern "C" fn() -> c_int,
    reserved: unsafe extern "C" fn(c_ulong, c_ulong, *mut ReservedCode) -> c_int,
    set_sites: unsafe extern "C" fn(*const Ops, *const c_ulong, c_ulong, c_int) -> c_int,
    error: extern "C" fn() -> *const c_char,
    modules: &'static AtomicPtr<Module>,
    site_size: c_ulong,
    site_longest: c_ulong,
}

/// It is found by its name.
#[unsafe(no_mangle)]
pub static hodo_ftrace_probing: Probing = Probing {
    version: 1,
    lock: &lock::OWNER,
    update: hodo_ftrace_update,
    reserved: hodo_ftrace_reserved,
    set_sites: hodo_ftrace_set_sites,
    error: hodo_ftrace_error,
    modules: dynamic::first(),
    site_size: size_of::<Site>() as c_ulong,
    site_longest: dynamic::LONGEST as c_ulong,
};
