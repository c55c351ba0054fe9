//! The results of system calls.

use super::args::Call;
use super::errors::error;
use super::text::{flags, hex, octal, put_signed};

/// Calls whose results are not always plain numbers.
const SPECIAL: [&str; 11] = [
    "mmap", "brk", "mremap", "shmat", "umask", "fcntl", "poll", "ppoll", "select", "pselect6",
    "prctl",
];

/// Formats the result as strace does, without `= `. `?` means that the call never returned.
pub(super) fn result(call: Call<'_>) -> String {
    let mut text = String::new();
    put_result(call, &mut text);
    text
}

/// Appends the same text.
pub(super) fn put_result(call: Call<'_>, out: &mut String) {
    match (call.exit, call.success()) {
        (Some(exit), Some(_)) if !SPECIAL.contains(&&*call.name()) => {
            put_signed(out, exit.value.cast_signed());
        }
        _ => *out += &special(call),
    }
}

fn special(call: Call<'_>) -> String {
    let Some(exit) = call.exit else {
        return "?".to_owned();
    };
    let value = exit.value;
    if call.success().is_none() {
        let number = value.wrapping_neg();
        // These codes are internal to the kernel. The signal decides whether the call is restarted.
        let again = match number {
            512 => Some("? ERESTARTSYS (To be restarted if SA_RESTART is set)"),
            513 => Some("? ERESTARTNOINTR (To be restarted)"),
            514 => Some("? ERESTARTNOHAND (To be restarted if no handler)"),
            516 => Some("? ERESTART_RESTARTBLOCK (Interrupted by signal)"),
            _ => None,
        };
        if let Some(again) = again {
            return again.to_owned();
        }
        return match error(number) {
            Some((name, text)) => format!("-1 {name} ({text})"),
            None => format!("-1 (errno {number})"),
        };
    }
    let signed = value.cast_signed();
    match &*call.name() {
        "mmap" | "brk" | "mremap" | "shmat" => hex(value),
        "umask" => octal(value),
        "fcntl" => match call.value(1) {
            1 if value != 0 => format!(
                "{value:#x} (flags {})",
                flags(value, &[(1, "FD_CLOEXEC")], "FD_???")
            ),
            3 => format!("{} (flags {})", hex(value), call.open_flags(value)),
            _ => signed.to_string(),
        },
        "poll" | "ppoll" => match (value, call.poll_result(value)) {
            (0, _) => "0 (Timeout)".to_owned(),
            (_, Some(ready)) => format!("{value} ({ready})"),
            _ => value.to_string(),
        },
        "select" | "pselect6" => match (value, call.select_result()) {
            (0, _) => "0 (Timeout)".to_owned(),
            (_, ready) if !ready.is_empty() => format!("{value} ({ready})"),
            _ => value.to_string(),
        },
        "prctl" if call.value(0) == 3 => {
            let names = ["SUID_DUMP_DISABLE", "SUID_DUMP_USER", "SUID_DUMP_ROOT"];
            match names.get(value as usize) {
                Some(name) => format!("{value} ({name})"),
                None => value.to_string(),
            }
        }
        _ => signed.to_string(),
    }
}
