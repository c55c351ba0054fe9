//! The executables and libraries that are loaded.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A loaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Where it can be read.
    pub file: PathBuf,
    /// What it is called.
    pub path: PathBuf,
    /// What is added to its addresses.
    pub base: usize,
    /// Where its code is.
    pub code: Vec<Range<usize>>,
    /// All that is loaded of it.
    segments: Vec<Range<usize>>,
    /// Where the index of its frame tables is.
    pub frame_header: Option<Range<usize>>,
}

impl Loaded {
    /// Returns whether an address is in its code.
    pub fn contains(&self, address: usize) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// The segment in which an address is.
    pub fn segment_of(&self, address: usize) -> Option<Range<usize>> {
        let mut all = self.segments.iter();
        all.find(|range| range.contains(&address)).cloned()
    }
}

/// Calls a function with all that is loaded. Nothing is loaded or unloaded while it runs.
pub fn with_loaded<T>(action: impl FnOnce(Vec<Loaded>) -> T) -> Option<T> {
    struct State<F, T> {
        action: Option<F>,
        result: Option<T>,
    }
    extern "C" fn first<F: FnOnce(Vec<Loaded>) -> T, T>(
        _: *mut libc::dl_phdr_info,
        _: usize,
        state: *mut c_void,
    ) -> c_int {
        // SAFETY: it is what was passed below.
        let state = unsafe { &mut *state.cast::<State<F, T>>() };
        // The linker's lock is held, and can be taken again.
        let mut all: Vec<Loaded> = Vec::new();
        // SAFETY: the function gets what it expects.
        unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut all).cast()) };
        state.result = state.action.take().map(|action| action(all));
        1
    }
    let mut state = State {
        action: Some(action),
        result: None,
    };
    // SAFETY: the function gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(callback(&state)), (&raw mut state).cast()) };
    return state.result;

    type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
    fn callback<F: FnOnce(Vec<Loaded>) -> T, T>(_: &State<F, T>) -> Callback {
        first::<F, T>
    }
}

extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
    // SAFETY: the linker passes a valid one.
    let info = unsafe { &*info };
    // SAFETY: it is what was passed above.
    let all = unsafe { &mut *all.cast::<Vec<Loaded>>() };
    let name = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: the linker's name ends with a zero.
        unsafe { CStr::from_ptr(info.dlpi_name) }
    };
    let named = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    let (file, path) = if named.as_os_str().is_empty() && all.is_empty() {
        // The executable is the first; others without a name are not in files.
        let exe = PathBuf::from("/proc/self/exe");
        let path = std::fs::read_link(&exe).unwrap_or_else(|_| exe.clone());
        (exe, path)
    } else {
        (named.clone(), named)
    };
    let base = info.dlpi_addr as usize;
    // SAFETY: there are that many.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        start..start + header.p_filesz as usize
    };
    let segments = || {
        headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
    };
    let code = segments()
        .filter(|header| header.p_flags & libc::PF_X != 0)
        .map(range)
        .collect();
    let frame_header = headers
        .iter()
        .find(|header| header.p_type == libc::PT_GNU_EH_FRAME)
        .map(range);
    all.push(Loaded {
        file,
        path,
        base,
        code,
        segments: segments().map(range).collect(),
        frame_header,
    });
    0
}
