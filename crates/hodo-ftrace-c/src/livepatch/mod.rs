//! The C interface of [`hodo_ftrace::livepatch`], and what it needs from Linux.

mod ask;
mod parts;
mod stacks;
mod tasks;
mod walk;

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hodo_ftrace::dynamic::{Entry, Site};
use hodo_ftrace::livepatch::{Function, Patch, Phase};
use hodo_sys::lock;

use crate::change::{Error, answer, change};
use crate::known::All;
use crate::loaded::{Loaded, with_loaded};
use ask::{Asker, Caller, Straggler, Why};
use parts::Parts;

/// A function of a patch, for C.
#[repr(C)]
#[derive(Debug)]
pub struct CFunction {
    old_name: *const c_char,
    old_func: *const c_void,
    new_func: *const c_void,
}

/// A patch, for C. Its address says which one it is.
#[repr(C)]
#[derive(Debug)]
pub struct CPatch {
    functions: *const CFunction,
    count: c_ulong,
}

/// A thread that has not changed, for C.
#[repr(C)]
#[derive(Debug)]
pub struct CThread {
    tid: c_long,
    function: *const c_char,
    why: *const c_char,
}

/// A patch that is not off, or not quite.
struct Known {
    /// The address of what the program has passed.
    key: usize,
    patch: &'static Patch,
    bit: u64,
    /// The names of its functions, in their order.
    names: Vec<String>,
}

/// The patches, and who asks threads. It is used by whoever holds the lock of `hodo_sys`.
#[derive(Default)]
struct State {
    patches: Vec<Known>,
    asker: Asker,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The state, for whoever holds the lock.
fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn known(&self, key: usize) -> Option<&Known> {
        self.patches.iter().find(|known| known.key == key)
    }
}

/// When the library starts.
pub fn start() {
    ask::start();
    tasks::note_foreign();
}

/// After a fork, in the child.
pub fn in_child() {
    ask::in_child();
    tasks::note_foreign();
}

fn wrong<T>(text: String) -> Result<T, Error> {
    Err(Error::Wrong(text))
}

/// What a patch is made of.
struct Made {
    functions: Vec<Function>,
    names: Vec<String>,
}

/// Finds the functions of a patch, sorted by their sites.
fn make(all: &All, loaded: &[Loaded], functions: &[CFunction]) -> Result<Made, String> {
    let mut made: Vec<(Function, String)> = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let number = number + 1;
        let name = (!function.old_name.is_null()).then(|| {
            // SAFETY: the program promises that it ends with a zero.
            unsafe { CStr::from_ptr(function.old_name) }.to_string_lossy()
        });
        let [old, new] = [function.old_func, function.new_func].map(|pointer| pointer as usize);
        if name.is_none() && old == 0 {
            return Err(format!(
                "function {number} of the patch has neither old_name nor old_func"
            ));
        }
        if new == 0 {
            return Err(format!("function {number} of the patch has no new_func"));
        }
        let site = all
            .site_of(name.as_deref(), old)
            .map_err(|error| format!("function {number} of the patch: {error}"))?;
        let old = parts::find(loaded, site.address())
            .map_err(|error| format!("function {number} of the patch: {error}"))?;
        check_site(site, &old)?;
        let new = parts::find(loaded, new)
            .map_err(|error| format!("the new version of {}: {error}", old.name))?;
        let entry = function.new_func as usize;
        if new.ranges[0].start != entry {
            return Err(format!(
                "the new version of {}: {entry:#x} is inside {}, not its entry",
                old.name, new.name
            ));
        }
        if old.ranges[0] == new.ranges[0] {
            return Err(format!(
                "the new version of {} is the same function",
                old.name
            ));
        }
        if made.iter().any(|(other, _)| other.site == site.address()) {
            return Err(format!("{} is in the patch twice", old.name));
        }
        let function = Function {
            site: site.address(),
            old: old.ranges.leak(),
            entry,
            new: new.ranges.leak(),
        };
        made.push((function, old.name));
    }
    made.sort_by_key(|(function, _)| function.site);
    let (functions, names) = made.into_iter().unzip();
    Ok(Made { functions, names })
}

/// Returns an error if a function cannot be redirected at its site.
fn check_site(site: &Site, old: &Parts) -> Result<(), String> {
    if site.entry() == Entry::First && site.form().calls_trampoline() {
        return Ok(());
    }
    Err(format!(
        "{} cannot be patched: its call site is not at its entry; build it with {}",
        old.name,
        crate::arch::ENTRY_OPTIONS
    ))
}

/// The patch that is passed from C, and its functions.
fn passed<'a>(patch: *const CPatch) -> Result<(usize, &'a [CFunction]), Error> {
    // SAFETY: the program promises that it is null, or a patch.
    let Some(given) = (unsafe { patch.as_ref() }) else {
        return wrong("there is no patch: it is null".to_owned());
    };
    if given.functions.is_null() || given.count == 0 {
        return wrong("the patch has no functions".to_owned());
    }
    // SAFETY: as above.
    let functions = unsafe { std::slice::from_raw_parts(given.functions, given.count as usize) };
    Ok((patch as usize, functions))
}

fn busy(state: &State, other: &Patch) -> Error {
    let known = state
        .patches
        .iter()
        .find(|known| core::ptr::eq(known.patch, other));
    let names = known.map_or(String::new(), |known| known.names.join(", "));
    Error::Wrong(format!(
        "another patch is in transition ({names}), and there can be one at a time: wait for it, or disable it"
    ))
}

/// Begins a transition to the new versions.
fn enable(key: usize, functions: &[CFunction]) -> Result<(), Error> {
    finish(key)?;
    let mut begun = None;
    let done = change(None, |all| {
        let mut guard = state();
        let state = guard.get_or_insert_default();
        if let Some(known) = state.known(key) {
            return match known.patch.phase() {
                Phase::On | Phase::Enabling => wrong("the patch is enabled already".to_owned()),
                // Its sites may be off, or belong to another library by now.
                Phase::Off => wrong(
                    "another thread is switching the patch off at this moment; enable it again later".to_owned(),
                ),
                Phase::Disabling => {
                    known.patch.start(true).map_err(|other| busy(state, other))
                }
            };
        }
        let loaded = with_loaded(|loaded| loaded).unwrap_or_default();
        let made = make(all, &loaded, functions).map_err(Error::Wrong)?;
        // It is never freed: a thread may be on its way through a site.
        let patch: &'static Patch = Box::leak(Box::new(Patch::new(made.functions.leak())));
        let Some(bit) = patch.register() else {
            return wrong("there are too many tracers and patches".to_owned());
        };
        if let Err(other) = patch.start(true) {
            patch.unregister();
            return Err(busy(state, other));
        }
        let sites: Vec<usize> = patch
            .functions()
            .iter()
            .map(|function| function.site)
            .collect();
        let refused = all.set_patch(bit, |site| sites.contains(&site));
        if let Some(name) = refused {
            all.set_patch(bit, |_| false);
            patch.cancel();
            patch.unregister();
            return wrong(format!(
                "{name} cannot be patched: another patch, or a tracer that changes registers, has it already"
            ));
        }
        begun = Some((patch, bit));
        state.patches.push(Known {
            key,
            patch,
            bit,
            names: made.names,
        });
        Ok(())
    });
    if let (Err(_), Some((patch, bit))) = (&done, begun) {
        // Some sites could not be written. The others are switched off again; no thread has changed yet.
        let _ = change(None, |all| {
            all.set_patch(bit, |_| false);
            Ok(())
        });
        let _guard = lock::take();
        patch.cancel();
        patch.unregister();
        if let Some(state) = state().as_mut() {
            state.patches.retain(|known| known.key != key);
        }
    }
    done
}

/// Enables a patch.
///
/// # Safety
/// `patch` is null, or a patch, which stays as it is until it is off again.
unsafe extern "C" fn enable_from(
    patch: *const CPatch,
    _: usize,
    _: usize,
    _: usize,
    stack: usize,
    back: usize,
) -> c_int {
    let caller = Caller { stack, back };
    let result = passed(patch)
        .and_then(|(key, functions)| enable(key, functions).map(|()| key))
        .and_then(|key| advance(key, caller, Some(Instant::now() + FIRST)).map(|_| 0));
    answer(result) as c_int
}

crate::arch::with_caller!(hodo_ftrace_livepatch_enable, enable_from);
crate::arch::with_caller!(hodo_ftrace_livepatch_disable, disable_from);
crate::arch::with_caller!(hodo_ftrace_livepatch_state, state_from);
crate::arch::with_caller!(hodo_ftrace_livepatch_wait, wait_from);
crate::arch::with_caller!(hodo_ftrace_livepatch_each_thread, each_thread_from);

/// How long the first round waits for answers.
const FIRST: Duration = Duration::from_millis(50);

/// Disables a patch.
///
/// # Safety
/// As for [`hodo_ftrace_livepatch_enable`].
unsafe extern "C" fn disable_from(
    patch: *const CPatch,
    _: usize,
    _: usize,
    _: usize,
    stack: usize,
    back: usize,
) -> c_int {
    let caller = Caller { stack, back };
    let disable = |key| {
        let _guard = lock::take().map_err(|lock::Busy| Error::Busy)?;
        let guard = state();
        let state = guard.as_ref();
        let known = state.and_then(|state| Some((state, state.known(key)?)));
        match known {
            Some((state, known))
                if !matches!(known.patch.phase(), Phase::Off | Phase::Disabling) =>
            {
                known.patch.start(false).map_err(|other| busy(state, other))
            }
            _ => wrong("the patch is not enabled".to_owned()),
        }
    };
    let result = passed(patch)
        .and_then(|(key, _)| disable(key).map(|()| key))
        .and_then(|key| advance(key, caller, Some(Instant::now() + FIRST)).map(|_| 0));
    answer(result) as c_int
}

/// Asks all threads once, if the patch is in transition. Returns what it does now.
fn advance(key: usize, caller: Caller, until: Option<Instant>) -> Result<Phase, Error> {
    let phase = {
        let _guard = lock::take().map_err(|lock::Busy| Error::Busy)?;
        let mut guard = state();
        let Some(state) = guard.as_mut() else {
            return Ok(Phase::Off);
        };
        let Some(patch) = state.known(key).map(|known| known.patch) else {
            return Ok(Phase::Off);
        };
        if matches!(patch.phase(), Phase::Enabling | Phase::Disabling) {
            state.asker.until = until;
            state.asker.caller = caller;
            if patch.advance(&mut state.asker) {
                // The signal is given back.
                state.asker = Asker::default();
            }
        }
        patch.phase()
    };
    if phase == Phase::Off {
        finish(key)?;
    }
    Ok(phase)
}

/// Switches the sites of a patch off that no thread uses any more.
fn finish(key: usize) -> Result<(), Error> {
    let mut off = None;
    change(None, |all| {
        let guard = state();
        let known = guard.as_ref().and_then(|state| state.known(key));
        if let Some(known) = known
            && known.patch.phase() == Phase::Off
        {
            all.set_patch(known.bit, |_| false);
            off = Some(known.patch);
        }
        Ok(())
    })?;
    let Some(patch) = off else { return Ok(()) };
    let _guard = lock::take().map_err(|lock::Busy| Error::Busy)?;
    // In the meantime, another thread may have done this, or enabled it again.
    if let Some(state) = state().as_mut()
        && patch.phase() == Phase::Off
        && let Some(at) = state
            .patches
            .iter()
            .position(|known| core::ptr::eq(known.patch, patch))
    {
        patch.unregister();
        state.patches.swap_remove(at);
    }
    Ok(())
}

/// What a patch does: 0 off, 1 enabling, 2 on, 3 disabling. Asks all threads if it is in transition.
///
/// # Safety
/// As for [`hodo_ftrace_livepatch_enable`].
unsafe extern "C" fn state_from(
    patch: *const CPatch,
    _: usize,
    _: usize,
    _: usize,
    stack: usize,
    back: usize,
) -> c_int {
    let caller = Caller { stack, back };
    let until = Some(Instant::now() + FIRST);
    let result = passed(patch).and_then(|(key, _)| advance(key, caller, until));
    answer(result.map(|phase| match phase {
        Phase::Off => 0,
        Phase::Enabling => 1,
        Phase::On => 2,
        Phase::Disabling => 3,
    })) as c_int
}

/// Waits until a patch is in no transition. Returns 1 then, and 0 after that many milliseconds; a negative number waits
/// for ever.
///
/// # Safety
/// As for [`hodo_ftrace_livepatch_enable`].
unsafe extern "C" fn wait_from(
    patch: *const CPatch,
    milliseconds: c_long,
    _: usize,
    _: usize,
    stack: usize,
    back: usize,
) -> c_int {
    let caller = Caller { stack, back };
    let most = u64::try_from(milliseconds).ok().map(Duration::from_millis);
    let until = most.and_then(|most| Instant::now().checked_add(most));
    let wait = |key| {
        let mut pause = Duration::from_micros(500);
        loop {
            if matches!(advance(key, caller, until)?, Phase::On | Phase::Off) {
                return Ok(1);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(0);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(4));
        }
    };
    answer(passed(patch).and_then(|(key, _)| wait(key))) as c_int
}

/// Calls a function with each thread that has not changed, until it returns something else than 0. Returns how many
/// there are.
///
/// # Safety
/// As for [`hodo_ftrace_livepatch_enable`]; `each` can be called so.
unsafe extern "C" fn each_thread_from(
    patch: *const CPatch,
    each: extern "C" fn(*const CThread, *mut c_void) -> c_int,
    data: *mut c_void,
    _: usize,
    stack: usize,
    back: usize,
) -> c_long {
    let caller = Caller { stack, back };
    let until = Some(Instant::now() + FIRST);
    let result = passed(patch).and_then(|(key, _)| {
        advance(key, caller, until)?;
        let list = stragglers(key)?;
        for (straggler, name) in &list {
            let why = CString::new(explain(straggler.why)).unwrap_or_default();
            let thread = CThread {
                tid: c_long::from(straggler.task),
                function: name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
                why: why.as_ptr(),
            };
            if each(&raw const thread, data) != 0 {
                break;
            }
        }
        Ok(list.len())
    });
    answer(result)
}

/// What is said of a thread that has not changed.
fn explain(why: Why) -> String {
    let pc = match why {
        Why::Text(text) => return text.to_owned(),
        Why::Above(pc) => pc,
    };
    let loaded = with_loaded(|loaded| loaded).unwrap_or_default();
    let file = loaded.iter().find(|file| file.contains(pc));
    let place = file.map_or_else(
        || format!("{pc:#x}"),
        |file| format!("{:#x} in {}", pc - file.base, file.path.display()),
    );
    format!(
        "may be inside the version that is left: the frame at {place} has no unwind table \
         (-fasynchronous-unwind-tables makes them), and above it the stack has an address in that version"
    )
}

/// The threads that have not changed, with the functions in which they are.
fn stragglers(key: usize) -> Result<Vec<(Straggler, Option<CString>)>, Error> {
    let _guard = lock::take().map_err(|lock::Busy| Error::Busy)?;
    let guard = state();
    let Some((state, known)) = guard
        .as_ref()
        .and_then(|state| Some((state, state.known(key)?)))
    else {
        return Ok(Vec::new());
    };
    if matches!(known.patch.phase(), Phase::On | Phase::Off) {
        return Ok(Vec::new());
    }
    let name = |site: usize| {
        let functions = known.patch.functions();
        let at = functions
            .iter()
            .position(|function| function.site == site)?;
        CString::new(known.names[at].as_str()).ok()
    };
    let all = state.asker.stragglers.iter();
    Ok(all
        .map(|straggler| (straggler.clone(), straggler.site.and_then(name)))
        .collect())
}
