//! What is known about a signal that was received, as strace writes it.

use hodo_trace::meta::Signal;

use super::errors::sig;
use super::names::Names;
use super::text::{address, name};

// Numbers of signals on Linux.
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SIGCHLD: i32 = 17;

const COMMON: &Names = &[(0, "SI_USER"), (0x80, "SI_KERNEL")];
/// Negative codes, stored without their sign.
const SENT: &Names = &[
    (1, "SI_QUEUE"),
    (2, "SI_TIMER"),
    (3, "SI_MESGQ"),
    (4, "SI_ASYNCIO"),
    (5, "SI_SIGIO"),
    (6, "SI_TKILL"),
];
const CHILD: &Names = &[
    (1, "CLD_EXITED"),
    (2, "CLD_KILLED"),
    (3, "CLD_DUMPED"),
    (4, "CLD_TRAPPED"),
    (5, "CLD_STOPPED"),
    (6, "CLD_CONTINUED"),
];
const SEGV: &Names = &[
    (1, "SEGV_MAPERR"),
    (2, "SEGV_ACCERR"),
    (3, "SEGV_BNDERR"),
    (4, "SEGV_PKUERR"),
];
const BUS: &Names = &[(1, "BUS_ADRALN"), (2, "BUS_ADRERR"), (3, "BUS_OBJERR")];

/// Formats `siginfo_t`.
pub(super) fn information(signal: &Signal) -> String {
    let number = signal.signal;
    let names = match number {
        SIGCHLD => CHILD,
        SIGSEGV => SEGV,
        SIGBUS => BUS,
        _ => &[],
    };
    let code = signal.code;
    let bits = u64::from(code.unsigned_abs());
    let own = (code > 0).then(|| name(bits, names)).flatten();
    let known = if code < 0 {
        name(bits, SENT)
    } else {
        own.or_else(|| name(bits, COMMON))
    };
    let mut text = format!("{{si_signo={}", sig(u64::from(number.unsigned_abs())));
    text += &match known {
        Some(known) => format!(", si_code={known}"),
        None => format!(", si_code={code}"),
    };
    let [pid, uid, status, user, system] = signal.sender;
    if matches!(code, 0 | -1 | -6) || own.is_some() && number == SIGCHLD {
        text += &format!(", si_pid={pid}, si_uid={uid}");
    }
    if own.is_some() && number == SIGCHLD {
        let status = match code {
            1 => status.to_string(),
            _ => sig(status.unsigned_abs()),
        };
        text += &format!(", si_status={status}, si_utime={user}, si_stime={system}");
    } else if own.is_some() {
        text += &format!(", si_addr={}", address(signal.addr));
    }
    text + "}"
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGUSR1: i32 = 10;
    const SIGALRM: i32 = 14;

    #[test]
    fn signals_are_told() {
        let told = |signal, code| {
            information(&Signal {
                id: 1,
                counter: 0,
                signal,
                code,
                sender: [7, 8, 9, 1, 2],
                addr: 0x10,
                call: None,
            })
        };
        assert_eq!(
            told(SIGCHLD, 1),
            "{si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=7, si_uid=8, si_status=9, si_utime=1, si_stime=2}"
        );
        assert!(told(SIGCHLD, 2).contains("si_status=SIGKILL, "));
        assert_eq!(
            told(SIGUSR1, -6),
            "{si_signo=SIGUSR1, si_code=SI_TKILL, si_pid=7, si_uid=8}"
        );
        assert_eq!(
            told(SIGSEGV, 1),
            "{si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=0x10}"
        );
        assert_eq!(told(SIGALRM, 0x80), "{si_signo=SIGALRM, si_code=SI_KERNEL}");
        assert_eq!(told(64, 77), "{si_signo=SIGRT_32, si_code=77}");
    }
}
