//! The C interface of tracers with filters.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;

use hodo_ftrace::Vectors;
use hodo_ftrace::dynamic::{self, ENTRY, GRAPH, Ops, PER_THREAD};

use crate::change::{Error, answer, change, last_error};
use crate::filter::Filter;
use crate::hooks::hooks;
use crate::known::{All, Who};

/// Registers a tracer.
///
/// # Safety
/// `ops` is null, or stays as it is as long as the process exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_register(ops: *const Ops) -> c_int {
    // SAFETY: as the caller promises.
    answer(unsafe { hooks(ops) }.and_then(register)) as c_int
}

fn register(ops: Option<(&'static Ops, Vectors)>) -> Result<usize, Error> {
    let ops = ops.ok_or_else(|| Error::Wrong("there is no tracer: ops is null".to_owned()))?;
    let who = who(ops.0);
    change(None, |all| {
        if all.bit(who).is_some() {
            return Err(Error::Wrong("the tracer is registered already".to_owned()));
        }
        let number = number(ops)?;
        match all.set_bit(who, 1 << number, true) {
            None => Ok(0),
            Some(function) => {
                all.set_bit(who, 1 << number, false);
                dynamic::unregister(number);
                Err(taken(&function))
            }
        }
    })
}

/// Gives a tracer a number.
pub(crate) fn number((ops, vectors): (&'static Ops, Vectors)) -> Result<usize, Error> {
    dynamic::register_keeping(ops, vectors).ok_or_else(|| {
        Error::Wrong(format!(
            "there are {} tracers, and no more are possible",
            dynamic::MASKS
        ))
    })
}

pub(crate) fn taken(function: &str) -> Error {
    Error::Wrong(format!(
        "{function} cannot be shown to this tracer: another one changes registers there, or it calls mcount, which comes \
         too late to change them; select other functions with hodo_ftrace_set_filter, or build it with {}",
        crate::arch::ENTRY_OPTIONS
    ))
}

/// Unregisters a tracer.
///
/// # Safety
/// `ops` is null, or a tracer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_unregister(ops: *const Ops) -> c_int {
    // SAFETY: as the caller promises.
    let result = registered(unsafe { ops.as_ref() }).and_then(|who| {
        change(None, |all| {
            let bit = bit(all, who)?;
            all.set_bit(who, bit, false);
            all.drop_filter(who);
            dynamic::unregister(bit.trailing_zeros() as usize);
            Ok(0)
        })
    });
    answer(result) as c_int
}

pub(crate) fn who(ops: &Ops) -> Who {
    Who::Ops(core::ptr::from_ref(ops) as usize)
}

fn registered(ops: Option<&Ops>) -> Result<Who, Error> {
    let ops = ops.ok_or_else(|| Error::Wrong("there is no tracer: ops is null".to_owned()))?;
    Ok(who(ops))
}

fn bit(all: &All, who: Who) -> Result<u64, Error> {
    all.bit(who)
        .ok_or_else(|| Error::Wrong("the tracer is not registered".to_owned()))
}

/// Changes which functions a tracer wants to see. Returns how many it sees now, or would.
fn set_filter(who: Who, pattern: *const c_char, not: bool, reset: bool) -> c_long {
    // SAFETY: the callers promise that it is null, or ends with a zero.
    let pattern =
        (!pattern.is_null()).then(|| unsafe { CStr::from_ptr(pattern) }.to_string_lossy());
    let result = change(None, |all| {
        let filter = all.filter(who);
        let before = filter.clone();
        if reset && not {
            filter.reset_not();
        } else if reset {
            filter.reset();
        }
        let added = match &pattern {
            None => Ok(()),
            Some(text) if not => filter.add_not(text),
            Some(text) => filter.add(text),
        };
        if let Err(error) = added {
            *filter = before;
            return Err(Error::Wrong(error));
        }
        selected(all, who, before)
    });
    answer(result)
}

/// Has a tracer see what its filter says now. If it cannot, it keeps the filter that it had.
fn selected(all: &mut All, who: Who, before: Filter) -> Result<usize, Error> {
    let (count, refused) = all.select(who);
    let Some(function) = refused else {
        return Ok(count);
    };
    *all.filter(who) = before;
    all.select(who);
    Err(taken(&function))
}

/// Adds functions to those that a tracer wants to see.
///
/// # Safety
/// `ops` is null, or a tracer. `pattern` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_filter(
    ops: *const Ops,
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    // SAFETY: as the caller promises.
    match registered(unsafe { ops.as_ref() }) {
        Ok(who) => set_filter(who, pattern, false, reset != 0),
        Err(error) => answer(Err(error)),
    }
}

/// Adds functions to those that a tracer does not want to see.
///
/// # Safety
/// As for [`hodo_ftrace_set_filter`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_notrace(
    ops: *const Ops,
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    // SAFETY: as the caller promises.
    match registered(unsafe { ops.as_ref() }) {
        Ok(who) => set_filter(who, pattern, true, reset != 0),
        Err(error) => answer(Err(error)),
    }
}

/// Adds the function with a site to those that a tracer wants to see, or takes it away.
///
/// # Safety
/// `ops` is null, or a tracer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_filter_ip(
    ops: *const Ops,
    ip: c_ulong,
    remove: c_int,
    reset: c_int,
) -> c_long {
    // SAFETY: as the caller promises.
    let result = registered(unsafe { ops.as_ref() }).and_then(|who| {
        change(None, |all| {
            let sites = || all.sites().map(|listed| listed.site.address());
            if !sites().any(|address| address == ip as usize) {
                let text = format!(
                    "{ip:#x} is not the address of a call site; hodo_ftrace_each_site lists them"
                );
                return Err(Error::Wrong(text));
            }
            let filter = all.filter(who);
            let before = filter.clone();
            if reset != 0 {
                filter.reset();
            }
            filter.set_address(ip as usize, remove != 0);
            selected(all, who, before)
        })
    });
    answer(result)
}

/// [`hodo_ftrace_set_filter`] for the hook for entries.
///
/// # Safety
/// `pattern` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_entry_filter(
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    set_filter(Who::Entry, pattern, false, reset != 0)
}

/// [`hodo_ftrace_set_notrace`] for the hook for entries.
///
/// # Safety
/// `pattern` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_entry_notrace(
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    set_filter(Who::Entry, pattern, true, reset != 0)
}

/// [`hodo_ftrace_set_filter`] for the hooks for entries and returns.
///
/// # Safety
/// `pattern` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_graph_filter(
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    set_filter(Who::Graph, pattern, false, reset != 0)
}

/// [`hodo_ftrace_set_notrace`] for the hooks for entries and returns.
///
/// # Safety
/// `pattern` is null, or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_graph_notrace(
    pattern: *const c_char,
    reset: c_int,
) -> c_long {
    set_filter(Who::Graph, pattern, true, reset != 0)
}

/// Switches a tracer on or off in the calling thread.
///
/// # Safety
/// `ops` is null, or a tracer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_set_thread(ops: *const Ops, on: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let result = unsafe { ops.as_ref() }
        .ok_or_else(|| Error::Wrong("there is no tracer: ops is null".to_owned()))
        .and_then(|ops| {
            if ops.flags & PER_THREAD == 0 {
                let text = "the tracer has no flag HODO_FTRACE_PER_THREAD, so it sees all threads";
                return Err(Error::Wrong(text.to_owned()));
            }
            let number = dynamic::number(ops)
                .ok_or_else(|| Error::Wrong("the tracer is not registered".to_owned()))?;
            dynamic::set_thread(number, on != 0);
            Ok(0)
        });
    answer(result) as c_int
}

/// Looks at what is loaded now.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_update() -> c_int {
    match change(None, |_| Ok(0)) {
        // There is nothing to look at.
        Err(Error::Off) => 0,
        result => answer(result) as c_int,
    }
}

/// Looks at a file whose code has not run yet.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_module_loaded(inside: *const c_void) {
    answer(change(Some(inside as usize), |_| Ok(0)));
}

/// Forgets a file that is about to be unloaded.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_module_unloaded(inside: *const c_void) {
    answer(change(None, |all| {
        all.forget(inside as usize);
        Ok(0)
    }));
}

/// A call site, for C.
#[repr(C)]
#[derive(Debug)]
pub struct ListedSite {
    ip: c_ulong,
    name: *const c_char,
    path: *const c_char,
    tracers: c_ulong,
}

/// Calls a function with each site, until it returns something else than 0. Returns how many places cannot become
/// sites.
///
/// # Safety
/// `each` can be called so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_ftrace_each_site(
    each: extern "C" fn(*const ListedSite, *mut c_void) -> c_int,
    data: *mut c_void,
) -> c_long {
    answer(change(None, |all| {
        for listed in all.sites() {
            let name = CString::new(listed.name).unwrap_or_default();
            let path = CString::new(listed.path.as_os_str().as_bytes()).unwrap_or_default();
            let site = ListedSite {
                ip: listed.site.address() as c_ulong,
                name: name.as_ptr(),
                path: path.as_ptr(),
                tracers: c_ulong::from(listed.site.wanted().count_ones()),
            };
            if each(&raw const site, data) != 0 {
                break;
            }
        }
        Ok(all.refused())
    }))
}

/// Why the last function in the calling thread has failed.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_ftrace_error() -> *const c_char {
    last_error()
}

/// Has one of the unfiltered hooks called at sites, or not.
pub(crate) fn set_hook(who: Who, on: bool) -> c_int {
    let bit = if who == Who::Entry { ENTRY } else { GRAPH };
    answer(change(None, |all| {
        all.set_bit(who, bit, on);
        Ok(0)
    })) as c_int
}
