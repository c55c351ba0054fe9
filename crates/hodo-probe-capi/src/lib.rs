//! The engine of `hodo-probe` for C. `include/hodo-probe.h` describes it.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

use hodo_probe::{Engine, Execution, Handler, Probe, Refusal, Registers, Request};

/// `hodo_request`.
#[repr(C)]
#[derive(Debug)]
pub struct CRequest {
    addr: *const c_void,
    function_start: *const c_void,
    function_end: *const c_void,
    before: Option<Handler>,
    after: Option<Handler>,
    returning: Option<Handler>,
    data: *mut c_void,
    execution: c_int,
    disabled: c_int,
    count: c_int,
}

unsafe extern "C" {
    /// From the compiler's unwinder, which the standard library is linked with.
    fn __register_frame(tables: *const u8);
}

// The linker sets the symbol only in the shared library, see `build.rs`.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.hodo_probe_mark, \"aw\"",
    ".balign 8",
    ".weak hodo_probe_has_no_other_code",
    ".hidden hodo_probe_has_no_other_code",
    ".globl hodo_probe_mark",
    ".hidden hodo_probe_mark",
    "hodo_probe_mark: .quad hodo_probe_has_no_other_code",
    ".popsection",
);

unsafe extern "C" {
    static hodo_probe_mark: usize;
}

fn engine() -> Result<Engine, Refusal> {
    let engine = Engine::new()?;
    // SAFETY: the assembly above defines it, and nothing changes it.
    if unsafe { hodo_probe_mark } != 0 {
        engine.take_file();
    }
    // SAFETY: it is the function that `register_frames` requires.
    unsafe { engine.register_frames(__register_frame) }?;
    Ok(engine)
}

impl CRequest {
    fn request(&self) -> Result<Request, Refusal> {
        let mut request = Request::at(self.addr as u64).data(self.data);
        if !self.function_start.is_null() {
            request = request.function(self.function_start as u64..self.function_end as u64);
        }
        if let Some(handler) = self.before {
            request = request.before(handler);
        }
        if let Some(handler) = self.after {
            request = request.after(handler);
        }
        if let Some(handler) = self.returning {
            request = request.returning(handler);
        }
        let ways = [
            Execution::OutOfLine,
            Execution::Simulated,
            Execution::Boosted,
            Execution::Optimized,
            Execution::CallSite,
        ];
        if self.execution != 0 {
            let way = ways.into_iter().find(|way| *way as c_int == self.execution);
            request = request.execution(way.ok_or(Refusal::NoExecution(self.execution))?);
        }
        if self.disabled != 0 {
            request = request.disabled();
        }
        if self.count != 0 {
            request = request.count();
        }
        Ok(request)
    }
}

/// Registers a probe.
///
/// # Safety
/// The request must be valid, and meet what [`Engine::register`] requires; the buffer must have the given size, or be
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_register(
    request: *const CRequest,
    error: *mut c_char,
    size: usize,
) -> *mut Probe {
    // SAFETY: as the caller promises.
    let request = unsafe { &*request }.request();
    // SAFETY: as the caller promises.
    let register = |request| engine().and_then(|engine| unsafe { engine.register(&request) });
    let result = request.and_then(register);
    match result {
        Ok(probe) => Box::into_raw(Box::new(probe)),
        Err(refusal) => {
            let text = refusal.to_string();
            if !error.is_null() && size > 0 {
                let len = text.len().min(size - 1);
                // SAFETY: the buffer has `size` bytes.
                unsafe {
                    error.copy_from_nonoverlapping(text.as_ptr().cast(), len);
                    error.add(len).write(0);
                }
            }
            std::ptr::null_mut()
        }
    }
}

/// Registers many probes together.
///
/// # Safety
/// There must be `count` requests and places for probes; otherwise as [`hodo_probe_register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_register_all(
    requests: *const CRequest,
    count: usize,
    probes: *mut *mut Probe,
) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: as the caller promises.
    let (requests, probes) = unsafe {
        (
            std::slice::from_raw_parts(requests, count),
            std::slice::from_raw_parts_mut(probes, count),
        )
    };
    probes.fill(std::ptr::null_mut());
    let Ok(engine) = engine() else { return 0 };
    let (places, requests): (Vec<usize>, Vec<Request>) = requests
        .iter()
        .enumerate()
        .filter_map(|(place, request)| Some((place, request.request().ok()?)))
        .unzip();
    let mut good = 0;
    // SAFETY: as the caller promises.
    let results = unsafe { engine.register_all(&requests) };
    for (place, probe) in places.into_iter().zip(results) {
        let place = &mut probes[place];
        if let Ok(probe) = probe {
            *place = Box::into_raw(Box::new(probe));
            good += 1;
        }
    }
    good
}

/// The library's version, as in `Cargo.toml`.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Unregisters a probe.
///
/// # Safety
/// It must have been registered, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_unregister(probe: *mut Probe) -> c_int {
    // SAFETY: as the caller promises.
    let probe = unsafe { Box::from_raw(probe) };
    status(probe.unregister())
}

fn status(result: Result<(), Refusal>) -> c_int {
    if result.is_ok() { 0 } else { -1 }
}

/// Enables or disables probes together.
///
/// # Safety
/// There must be `count` probes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_set_enabled(
    probes: *const *const Probe,
    count: usize,
    enabled: c_int,
) -> c_int {
    let probes: Vec<&Probe> = match count {
        0 => Vec::new(),
        // SAFETY: as the caller promises.
        count => unsafe {
            std::slice::from_raw_parts(probes, count)
                .iter()
                .map(|probe| &**probe)
                .collect()
        },
    };
    status(engine().and_then(|engine| engine.set_enabled(&probes, enabled != 0)))
}

/// How its instruction is executed.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_execution(probe: &Probe) -> c_int {
    probe.execution() as c_int
}

/// Hits, if the probe counts them.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_count(probe: &Probe) -> u64 {
    probe.count()
}

/// Hits that were not answered.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_missed(probe: &Probe) -> u64 {
    probe.missed()
}

/// Returns that were not answered.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_missed_returns(probe: &Probe) -> u64 {
    probe.missed_returns()
}

/// Faults of its handlers.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_probe_faults(probe: &Probe) -> u64 {
    probe.faults()
}

/// Calls a function with a line for each probe. Returns how many there are, or -1.
///
/// # Safety
/// `each` can be called so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_list(
    each: extern "C" fn(line: *const c_char, data: *mut c_void),
    data: *mut c_void,
) -> c_long {
    let Ok(armed) = engine().and_then(Engine::armed) else {
        return -1;
    };
    for probe in &armed {
        let line = CString::new(probe.to_string()).unwrap_or_default();
        each(line.as_ptr(), data);
    }
    armed.len() as c_long
}

/// Makes the function that begins here return a value without running.
///
/// # Safety
/// The probe must be at a function's first instruction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hodo_probe_return_now(registers: &mut Registers, value: u64) {
    // SAFETY: as the caller promises.
    unsafe { registers.return_now(value) };
}
