//! System calls of which only numbers are known.

use hodo_abi::Isa;
use hodo_trace::syscalls::by_number;

use super::arg_kinds::words;
use super::errors::{error, sig};

/// A system call of this machine, with its arguments as numbers.
#[must_use]
pub fn plain_call(number: u64, arguments: &[u64]) -> String {
    let isa = Isa::NATIVE;
    let name = by_number(isa, number).map_or_else(
        || format!("syscall_{number:#x}"),
        |call| call.name.to_owned(),
    );
    let count = words(isa, number).map_or(arguments.len(), <[_]>::len);
    let arguments = arguments.iter().take(count);
    let arguments: Vec<String> = arguments.map(|value| format!("{value:#x}")).collect();
    format!("{name}({})", arguments.join(", "))
}

/// What a system call returns: a number, or the name of an error.
#[must_use]
pub fn plain_result(result: u64) -> String {
    let name = error(result.wrapping_neg()).map(|(name, _)| name);
    name.map_or_else(|| format!("{result:#x}"), str::to_owned)
}

/// The name of a signal.
#[must_use]
pub fn signal_name(number: u32) -> String {
    sig(number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_as_many_arguments_as_they_take() {
        let close = hodo_trace::syscalls::number(Isa::NATIVE, "close");
        let Some(close) = close else {
            return;
        };
        assert_eq!(plain_call(close, &[3, 4, 5]), "close(0x3)");
        assert_eq!(plain_call(99_999, &[3, 4]), "syscall_0x1869f(0x3, 0x4)");
        assert_eq!(plain_result(12), "0xc");
        assert_eq!(plain_result(2u64.wrapping_neg()), "ENOENT");
        assert_eq!(signal_name(11), "SIGSEGV");
    }
}
