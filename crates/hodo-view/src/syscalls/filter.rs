//! Selecting system calls: `openat,read`, `trace=file`, `!read`.

use anyhow::{Result, anyhow, bail};
use hodo_abi::Isa;
use hodo_trace::syscalls::{all, by_number, number};

/// The calls of groups that cannot be recognized by their arguments alone.
const NETWORK: &str = "socket connect accept accept4 sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown bind listen \
    getsockname getpeername socketpair setsockopt getsockopt sendfile";
const PROCESS: &str = "clone clone3 fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill rt_sigqueueinfo \
    pidfd_open pidfd_send_signal unshare";
const MEMORY: &str = "brk mmap munmap mremap mprotect msync mincore madvise mlock mlock2 munlock mlockall munlockall shmat \
    shmdt remap_file_pages mbind pkey_mprotect process_madvise";
const SIGNAL: &str = "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend \
    sigaltstack kill tkill tgkill pause signalfd signalfd4 pidfd_send_signal";

/// Groups that strace has besides those, which its manual page lists as `%NAME` or `%%NAME`.
const MORE: [(&str, &str); 10] = [
    ("%stat", "stat"),
    ("%lstat", "lstat"),
    ("%fstat", "fstat newfstatat"),
    ("%%stat", "stat lstat fstat newfstatat statx"),
    ("%statfs", "statfs"),
    ("%fstatfs", "fstatfs"),
    ("%%statfs", "statfs fstatfs ustat"),
    (
        "%clock",
        "adjtimex clock_adjtime clock_getres clock_gettime clock_settime gettimeofday settimeofday time",
    ),
    (
        "%creds",
        "capget capset getegid geteuid getgid getgroups getresgid getresuid getuid prctl setfsgid setfsuid setgid \
         setgroups setregid setresgid setresuid setreuid setuid",
    ),
    (
        "%ipc",
        "msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget",
    ),
];

/// Returns whether a system call has an argument of one of these kinds.
fn has(machine: Isa, number: u64, words: &[&str]) -> bool {
    by_number(machine, number)
        .and_then(|call| call.args())
        .is_some_and(|mut args| args.any(|arg| words.contains(&arg)))
}

fn group(machine: Isa, name: &str) -> Option<Vec<u64>> {
    let number = |name: &str| number(machine, name);
    let named = |names: &str| names.split_whitespace().filter_map(number).collect();
    let with = |words: &[&str], more: &str| {
        let found = all(machine)
            .map(|(number, _)| number)
            .filter(|&number| has(machine, number, words));
        found
            .chain(more.split_whitespace().filter_map(number))
            .collect()
    };
    Some(match name {
        "file" | "%file" => with(&["path"], "getcwd"),
        "desc" | "%desc" => with(
            &["fd", "at"],
            "epoll_create epoll_create1 eventfd eventfd2 inotify_init inotify_init1 \
            memfd_create mmap pipe pipe2 poll ppoll select pselect6 signalfd timerfd_create",
        ),
        "network" | "%network" | "net" | "%net" => named(NETWORK),
        "process" | "%process" => named(PROCESS),
        "memory" | "%memory" => named(MEMORY),
        "signal" | "%signal" => named(SIGNAL),
        "%pure" => named("getegid geteuid getgid getpgrp getpid getppid gettid getuid"),
        name => {
            let (_, names) = MORE.iter().find(|(group, _)| *group == name)?;
            named(names)
        }
    })
}

/// Returns the numbers of the calls that filters select, for this process's instruction set; `None` means all. A filter
/// is a list of names, groups and regular expressions (`/stat`), separated by commas. It may begin with `trace=` and
/// with `!`. Filters are combined; what a filter with `!` names is removed.
///
/// # Errors
/// If there is no system call of one of the names.
pub fn chosen_syscalls(filters: &[String]) -> Result<Option<Vec<u64>>> {
    chosen(Isa::NATIVE, filters)
}

/// Returns the calls that a regular expression matches, in any part of their names.
fn matching(machine: Isa, pattern: &str) -> Result<Vec<u64>> {
    let regex = regex::Regex::new(pattern).map_err(|error| anyhow!("/{pattern}: {error}"))?;
    let found: Vec<u64> = all(machine)
        .filter(|(_, call)| regex.is_match(call.name))
        .map(|(number, _)| number)
        .collect();
    if found.is_empty() {
        bail!("/{pattern} matches the name of no system call");
    }
    Ok(found)
}

/// Returns whether another instruction set has a system call of this name.
fn elsewhere(machine: Isa, name: &str) -> bool {
    let others = Isa::ALL.into_iter();
    others
        .filter(|other| *other != machine)
        .any(|other| number(other, name).is_some())
}

fn chosen(machine: Isa, filters: &[String]) -> Result<Option<Vec<u64>>> {
    if filters.is_empty() {
        return Ok(None);
    }
    let (mut chosen, mut but) = (Vec::new(), Vec::new());
    let mut any = false;
    for filter in filters {
        let names = filter
            .strip_prefix("trace=")
            .or_else(|| filter.strip_prefix("t="))
            .unwrap_or(filter);
        let (list, names) = match names.strip_prefix('!') {
            Some(names) => (&mut but, names),
            None => {
                any = true;
                (&mut chosen, names)
            }
        };
        for name in names.split(',') {
            if let Some(pattern) = name.strip_prefix('/') {
                list.extend(matching(machine, pattern)?);
                continue;
            }
            match (name, number(machine, name), group(machine, name)) {
                (_, Some(number), _) => list.push(number),
                (_, _, Some(group)) => list.extend(group),
                ("all", ..) => list.extend(all(machine).map(|(number, _)| number)),
                ("none", ..) => {}
                _ if elsewhere(machine, name) => {
                    bail!("there is no system call {name:?} on {}", machine.name())
                }
                _ => bail!(
                    "there is no system call {name:?}, and no group of that name (file, desc, network, process, memory, signal)"
                ),
            }
        }
    }
    if !any {
        chosen.extend(all(machine).map(|(number, _)| number));
    }
    chosen.retain(|number| !but.contains(number));
    chosen.sort_unstable();
    chosen.dedup();
    Ok(Some(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_on(machine: Isa, filters: &[&str]) -> Vec<&'static str> {
        let filters: Vec<String> = filters.iter().map(|&f| f.to_owned()).collect();
        let chosen = chosen(machine, &filters).unwrap().unwrap();
        chosen
            .into_iter()
            .filter_map(|number| by_number(machine, number))
            .map(|call| call.name)
            .collect()
    }

    fn names(filters: &[&str]) -> Vec<&'static str> {
        names_on(Isa::X86_64, filters)
    }

    #[test]
    fn each_machine_has_its_numbers() {
        let riscv = |filters: &[&str]| names_on(Isa::Riscv64, filters);
        assert_eq!(riscv(&["openat,read"]), ["openat", "read"]);
        assert!(riscv(&["file"]).contains(&"newfstatat"));
        assert!(!riscv(&["file"]).contains(&"open"));
        assert!(riscv(&["process"]).contains(&"clone"));
        let open = ["open".to_owned()];
        let error = chosen(Isa::Riscv64, &open).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no system call \"open\" on riscv64"
        );
        assert!(chosen(Isa::X86_64, &open).is_ok());
    }

    #[test]
    fn names_and_groups_choose() {
        assert_eq!(names(&["openat,read"]), ["read", "openat"]);
        assert_eq!(names(&["trace=read", "write"]), ["read", "write"]);
        assert!(names(&["trace=file"]).contains(&"openat"));
        assert!(!names(&["%file"]).contains(&"read"));
        assert!(names(&["desc"]).contains(&"read"));
        let others = names(&["!read,write"]);
        assert!(!others.contains(&"read") && others.contains(&"openat"));
        assert!(!names(&["memory", "!mmap"]).contains(&"mmap"));
        assert_eq!(chosen_syscalls(&[]).unwrap(), None);
    }

    #[test]
    fn all_groups_of_strace_and_regular_expressions_choose() {
        assert_eq!(names(&["%stat"]), ["stat"]);
        assert_eq!(names(&["%%statfs"]), ["ustat", "statfs", "fstatfs"]);
        assert!(names(&["%pure"]).contains(&"getpid"));
        for (group, calls) in MORE {
            // Each word is a name, and none of them is lost.
            assert_eq!(
                names(&[group]).len(),
                calls.split_whitespace().count(),
                "{group}"
            );
        }
        assert_eq!(
            names(&["/^(un)?link(at)?$"]),
            ["link", "unlink", "unlinkat", "linkat"]
        );
        assert!(!names(&["!/at$"]).contains(&"openat"));
        let refused = |filter: &str| chosen_syscalls(&[filter.to_owned()]).unwrap_err();
        assert_eq!(
            refused("/nosuch").to_string(),
            "/nosuch matches the name of no system call"
        );
        assert!(refused("/(").to_string().starts_with("/(: "));
    }

    #[test]
    fn a_wrong_name_is_refused() {
        let error = chosen_syscalls(&["reed".to_owned()])
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "there is no system call \"reed\", and no group of that name (file, desc, network, process, memory, signal)"
        );
    }
}
