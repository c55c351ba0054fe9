//! How the agent's system calls preserve a thread's vector registers.
//!
//! Linux discards vector registers at each system call, if it supports them at all; if so, `prctl` says whether a
//! thread may use them. What a program may use is decided when it is executed: vectors are among the processor features
//! that it is told of (AT_HWCAP) only if it may use them. This cannot be revoked before it executes another program, so
//! an instruction that saves them never faults. A thread that may not use them can permit them to itself, which hodo
//! does not notice.

use hodo_trace::format::tcb;

/// `prctl`: may the thread use vector registers?
const PR_RISCV_V_GET_CONTROL: libc::c_int = 70;

/// The value of [`tcb::FLAGS`] for a thread that is not under a seccomp filter.
pub fn calls(tid: i32) -> u64 {
    // SAFETY: this only queries a state.
    let known = unsafe { libc::prctl(PR_RISCV_V_GET_CONTROL) } >= 0;
    if !known {
        return 0;
    }
    // If the vector cannot be read, the program counts as not told.
    let auxiliary = hodo_ptrace::auxv::of(tid).unwrap_or_default();
    match told(&auxiliary) {
        true => tcb::VECTORS,
        // They would be lost if the thread has permitted them to itself; and only those of the standard extension can
        // be saved.
        false => tcb::NO_CALLS,
    }
}

/// Whether a program with this auxiliary vector was told that there are vector registers.
fn told(auxiliary: &[u8]) -> bool {
    const V: u64 = 1 << (b'V' - b'A');
    hodo_ptrace::auxv::find(auxiliary, libc::AT_HWCAP).is_some_and(|features| features & V != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_of_vector_registers() {
        let auxiliary = |features: u64| -> Vec<u8> {
            let words = [6, 4096, libc::AT_HWCAP, features, 0, 0];
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        // IMAFDC, with V and without.
        assert!(told(&auxiliary(0x20_112D)));
        assert!(!told(&auxiliary(0x112D)));
        assert!(!told(&auxiliary(0x20_112D)[..24]));
        assert!(!told(&[]));
    }

    #[test]
    fn what_this_process_may_do_is_known() {
        // SAFETY: these only query a state.
        let (control, features) = unsafe {
            let control = libc::prctl(PR_RISCV_V_GET_CONTROL);
            (control, libc::getauxval(libc::AT_HWCAP))
        };
        let on = features >> (b'V' - b'A') & 1 == 1;
        let expected = match (control < 0, on) {
            (true, _) => 0,
            (false, true) => tcb::VECTORS,
            (false, false) => tcb::NO_CALLS,
        };
        assert_eq!(calls(std::process::id().cast_signed()), expected);
        // Linux agrees with what it has reported about the processor.
        assert!(
            control < 0 || (control & 3 == 2) == on,
            "{control} {features:#x}"
        );
    }
}
