//! Whether the processor checks where functions return to: Guarded Control Stacks.
//!
//! With them, calls also put the return address on a stack that only calls and returns change. A return to another
//! address, such as that of a stub, is a fault. A thread turns them on for itself (`PR_SET_SHADOW_STACK_STATUS`). glibc
//! does so when a program begins, if its tunable `glibc.cpu.aarch64_gcs` asks for it, depending on the files' property
//! `GNU_PROPERTY_AARCH64_FEATURE_1_GCS`.

use hodo_ptrace::auxv;

/// A bit of AT_HWCAP (`arch/arm64/include/uapi/asm/hwcap.h`).
const GCS: u64 = 1 << 32;

/// What is said once.
const ONLY_ENTRIES: &str = "the processor checks where functions return to (Guarded Control Stacks): only their \
    entries are recorded. To see returns, run the program with GLIBC_TUNABLES=glibc.cpu.aarch64_gcs=0";

/// Returns what to say if threads of a process have such stacks: the kernel lists their mappings in `/proc/PID/smaps`,
/// with the flag `ss`. The register set `NT_ARM_GCS` says the same of a thread, but only of a stopped one.
pub fn guards_returns(pid: i32) -> Option<&'static str> {
    // Where the processor has none, the file is not read: the kernel makes it slowly.
    let has_stack = auxv::of(pid).is_ok_and(|auxiliary| offers(&auxiliary))
        && std::fs::read_to_string(format!("/proc/{pid}/smaps"))
            .is_ok_and(|smaps| has_guarded_stack(&smaps));
    has_stack.then_some(ONLY_ENTRIES)
}

/// Returns what to say if a program that hodo starts will have such stacks from its beginning. What its files say is
/// not asked: with some values of the tunable it does not matter, and libraries are not known yet.
pub fn will_guard_returns() -> Option<&'static str> {
    let own = std::process::id().cast_signed();
    let will = auxv::of(own).is_ok_and(|auxiliary| offers(&auxiliary))
        && std::env::var("GLIBC_TUNABLES").is_ok_and(|tunables| asks(&tunables));
    will.then_some(ONLY_ENTRIES)
}

/// Whether processor and kernel have them.
fn offers(auxiliary: &[u8]) -> bool {
    auxv::find(auxiliary, libc::AT_HWCAP).is_some_and(|features| features & GCS != 0)
}

/// Whether a list of mappings contains a guarded stack.
fn has_guarded_stack(smaps: &str) -> bool {
    let mut flags = smaps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"));
    flags.any(|flags| flags.split_whitespace().any(|flag| flag == "ss"))
}

/// Whether tunables of glibc ask for them: any number but 0. The last one counts.
fn asks(tunables: &str) -> bool {
    let values = tunables.split(':');
    let mut values = values.filter_map(|tunable| tunable.strip_prefix("glibc.cpu.aarch64_gcs="));
    values.next_back().is_some_and(|value| {
        let digits = value.trim_start_matches("0x");
        digits.contains(|digit| digit != '0')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_that_have_guarded_stacks_are_known() {
        let auxiliary = |features: u64| -> Vec<u8> {
            let words = [6, 4096, libc::AT_HWCAP, features, 0, 0];
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        assert!(offers(&auxiliary(GCS | 0xFF)));
        assert!(!offers(&auxiliary(!GCS)));
        assert!(!offers(&[]));
    }

    #[test]
    fn guarded_stacks_are_found_among_mappings() {
        let usual = "aaaad0000000-aaaad0001000 r-xp 00000000 fe:01 12 /usr/bin/ss\n\
                     Rss:                   4 kB\n\
                     VmFlags: rd ex mr mw me bt\n";
        let stack = "ffff90000000-ffff90010000 rw-p 00000000 00:00 0\n\
                     VmFlags: rd wr mr mw me ac ss\n";
        assert!(!has_guarded_stack(usual));
        assert!(has_guarded_stack(&[usual, stack].concat()));
        assert!(has_guarded_stack(&[stack, usual].concat()));
    }

    #[test]
    fn the_tunable_of_glibc_is_read() {
        for asked in ["glibc.cpu.aarch64_gcs=1", "a=0:glibc.cpu.aarch64_gcs=0x2"] {
            assert!(asks(asked), "{asked}");
        }
        for not in [
            "",
            "glibc.cpu.aarch64_gcs=0",
            "glibc.cpu.aarch64_gcs=0x0",
            "glibc.cpu.aarch64_gcs=",
            "glibc.malloc.check=1",
            "glibc.cpu.aarch64_gcs=1:glibc.cpu.aarch64_gcs=0",
        ] {
            assert!(!asks(not), "{not}");
        }
    }

    #[test]
    fn this_process_has_none_where_the_processor_has_none() {
        // SAFETY: it only queries a state.
        let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
        let own = guards_returns(std::process::id().cast_signed());
        assert!(features & GCS != 0 || own.is_none());
    }
}
