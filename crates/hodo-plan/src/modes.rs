//! Functions that are known by name and of which only the entry can be recorded.

use hodo_isa::code::InstructionSet;

use crate::model::{EntryOnlyReason, Mode};

/// Returns the mode of a function with one of these names.
pub(crate) fn by_name(isa: &'static dyn InstructionSet, name: &str) -> Mode {
    let bare = name.trim_start_matches('_');
    let reason = match bare {
        "setjmp" | "sigsetjmp" | "xsetjmp" | "vfork" | "libc_vfork" | "getcontext"
        | "swapcontext" | "savectx" | "GI_vfork" => EntryOnlyReason::ReturnsTwice,
        "dlsym" | "dlvsym" | "dlopen" | "dlmopen" | "libc_dlopen" | "libc_dlsym"
        | "libc_dlopen_mode" | "dlerror_run" | "libc_dlvsym" | "dlmopen_rpl" | "dlinfo"
        | "mcount" | "fentry" => EntryOnlyReason::ReadsReturnAddress,
        "start" | "start_context" | "dl_start_user" | "dl_start" | "rt_sigreturn" | "clone"
        | "clone3" | "clone_internal" | "tls_get_addr" | "tls_get_addr_slow" | "morestack" => {
            EntryOnlyReason::NotCalled
        }
        _ if bare.starts_with("dl_runtime_resolve")
            || bare.starts_with("dl_runtime_profile")
            || bare.starts_with("dl_tlsdesc") =>
        {
            EntryOnlyReason::NotCalled
        }
        _ if bare.starts_with("Unwind_")
            || bare.starts_with("uw_")
            || bare.starts_with("unw_")
            || bare.starts_with("ZN9libunwind") =>
        {
            EntryOnlyReason::WalksStack
        }
        _ if isa.is_thunk(bare) => EntryOnlyReason::MovesReturnAddress,
        _ => return Mode::Call,
    };
    Mode::EntryOnly(reason)
}

/// Returns why a function must not be changed, or `None` if it may be.
pub(crate) fn untouchable(name: &str) -> Option<&'static str> {
    match name {
        "__restore_rt" | "_restore_rt" => Some("unwinders know it by its bytes"),
        // `-msave-restore` on RISC-V: entries and returns of other functions would lead through it.
        _ if name.starts_with("__riscv_save_") || name.starts_with("__riscv_restore_") => {
            Some("it saves or restores registers as a part of the functions that use it")
        }
        // Clang's outliner (`-Oz`): some of these pieces contain the prologues or returns of others.
        _ if name.starts_with("OUTLINED_FUNCTION_") => {
            Some("it is a piece that several functions share, a part of the functions that use it")
        }
        _ => None,
    }
}
