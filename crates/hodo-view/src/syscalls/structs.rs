//! Kernel structures that arguments point to. Their sizes depend on the instruction set
//! ([`hodo_trace::syscalls::Sizes`]).

use super::errors;
use super::names::{self, CLONE, EPOLL, FAMILY, MAGIC, SA, STATX, STFLAGS};
use super::text::{address, flags, hex, name, number, octal, one, quoted, signals, with_flags};

/// Formats the type and the permissions of a file.
pub(super) fn mode(mode: u64) -> String {
    const TYPES: &names::Names = &[
        (0o010_000, "S_IFIFO"),
        (0o020_000, "S_IFCHR"),
        (0o040_000, "S_IFDIR"),
        (0o060_000, "S_IFBLK"),
        (0o100_000, "S_IFREG"),
        (0o120_000, "S_IFLNK"),
        (0o140_000, "S_IFSOCK"),
    ];
    let kind = name(mode & 0o170_000, TYPES);
    let mut text = kind.map_or_else(String::new, |kind| format!("{kind}|"));
    for (bit, name) in [
        (0o4000, "S_ISUID|"),
        (0o2000, "S_ISGID|"),
        (0o1000, "S_ISVTX|"),
    ] {
        if mode & bit != 0 {
            text.push_str(name);
        }
    }
    text + &octal(mode & 0o777)
}

/// Returns the major and the minor number of a device.
pub(super) fn parts_of_device(dev: u64) -> (u64, u64) {
    let major = dev >> 8 & 0xFFF | dev >> 32 & !0xFFF;
    (major, dev & 0xFF | dev >> 12 & 0xFFFF_FF00)
}

pub(super) fn device(major: u64, minor: u64) -> String {
    format!("makedev({}, {})", hex(major), hex(minor))
}

/// Formats `struct stat`: 144 bytes on x86-64, 128 on newer instruction sets.
pub(super) fn stat(bytes: &[u8]) -> String {
    let (mode_at, device_at) = match bytes.len() {
        144.. => (24, 40),
        _ => (16, 32),
    };
    let st_mode = number(bytes, mode_at, 4);
    let what = match st_mode & 0o170_000 {
        0o020_000 | 0o060_000 => {
            let (major, minor) = parts_of_device(number(bytes, device_at, 8));
            format!("st_rdev={}", device(major, minor))
        }
        _ => format!("st_size={}", number(bytes, 48, 8).cast_signed()),
    };
    format!("{{st_mode={}, {what}, ...}}", mode(st_mode))
}

pub(super) const ATTRIBUTES: &names::Names = &[
    (0x4, "STATX_ATTR_COMPRESSED"),
    (0x10, "STATX_ATTR_IMMUTABLE"),
    (0x20, "STATX_ATTR_APPEND"),
    (0x40, "STATX_ATTR_NODUMP"),
    (0x800, "STATX_ATTR_ENCRYPTED"),
    (0x1000, "STATX_ATTR_AUTOMOUNT"),
    (0x2000, "STATX_ATTR_MOUNT_ROOT"),
    (0x10_0000, "STATX_ATTR_VERITY"),
    (0x20_0000, "STATX_ATTR_DAX"),
];

/// Formats what is wanted or known of a file.
pub(super) fn statx_mask(mask: u64) -> String {
    match mask & 0xFFF {
        0xFFF => with_flags("STATX_ALL", mask & !0xFFF, STATX),
        known if known & 0x7FF == 0x7FF => with_flags("STATX_BASIC_STATS", mask & !0x7FF, STATX),
        _ => flags(mask, STATX, "STATX_???"),
    }
}

/// Formats `struct statx`.
pub(super) fn statx(bytes: &[u8]) -> String {
    let mask = number(bytes, 0, 4);
    let attributes = number(bytes, 8, 8);
    let stx_mode = number(bytes, 28, 2);
    format!(
        "{{stx_mask={}, stx_attributes={}, stx_mode={}, stx_size={}, ...}}",
        statx_mask(mask),
        flags(attributes, ATTRIBUTES, "STATX_ATTR_???"),
        mode(stx_mode),
        number(bytes, 40, 8)
    )
}

/// Formats `struct statfs`.
pub(super) fn statfs(bytes: &[u8]) -> String {
    let word = |at| number(bytes, at, 8);
    let kind = name(word(0), MAGIC).map_or_else(|| hex(word(0)), str::to_owned);
    let mut text = format!("{{f_type={kind}");
    for (at, field) in [
        (8, "f_bsize"),
        (16, "f_blocks"),
        (24, "f_bfree"),
        (32, "f_bavail"),
        (40, "f_files"),
        (48, "f_ffree"),
    ] {
        text += &format!(", {field}={}", word(at));
    }
    let id = |at| hex(number(bytes, at, 4));
    text += &format!(", f_fsid={{val=[{}, {}]}}", id(56), id(60));
    text += &format!(", f_namelen={}, f_frsize={}", word(64), word(72));
    text + &format!(", f_flags={}}}", flags(word(80), STFLAGS, "ST_???"))
}

/// Formats `struct utsname`.
pub(super) fn uname(bytes: &[u8]) -> String {
    let field = |index| uname_field(bytes, index);
    format!("{{sysname={}, nodename={}, ...}}", field(0), field(1))
}

/// Formats one of the six strings of `struct utsname`.
pub(super) fn uname_field(bytes: &[u8], index: usize) -> String {
    let text = bytes.iter().skip(65 * index).take(65).copied();
    let text: Vec<u8> = text.take_while(|&byte| byte != 0).collect();
    quoted(&text, 65, false)
}

/// Formats `struct timespec` (`nsec`) or `struct timeval` (`usec`).
pub(super) fn time(bytes: &[u8], unit: &str) -> String {
    let part = |at| number(bytes, at, 8).cast_signed();
    format!("{{tv_sec={}, tv_{unit}={}}}", part(0), part(8))
}

/// Formats `struct itimerval`.
pub(super) fn interval(bytes: &[u8]) -> String {
    let part = |at: usize| time(bytes.get(at..).unwrap_or_default(), "usec");
    format!("{{it_interval={}, it_value={}}}", part(0), part(16))
}

/// Formats `struct rusage`.
pub(super) fn usage(bytes: &[u8]) -> String {
    let part = |at: usize| time(bytes.get(at..).unwrap_or_default(), "usec");
    format!("{{ru_utime={}, ru_stime={}, ...}}", part(0), part(16))
}

/// Formats `struct rlimit64`.
pub(super) fn limits(bytes: &[u8]) -> String {
    let limit = |at| match number(bytes, at, 8) {
        u64::MAX => "RLIM64_INFINITY".to_owned(),
        value if value > 1024 && value % 1024 == 0 => format!("{}*1024", value / 1024),
        value => value.to_string(),
    };
    format!("{{rlim_cur={}, rlim_max={}}}", limit(0), limit(8))
}

/// Formats the kernel's `struct sigaction`: 32 bytes, or 24 on instruction sets without `sa_restorer`.
pub(super) fn action(bytes: &[u8]) -> String {
    let word = |at| number(bytes, at, 8);
    let handler = match word(0) {
        0 => "SIG_DFL".to_owned(),
        1 => "SIG_IGN".to_owned(),
        value => hex(value),
    };
    let has_restorer = bytes.len() >= 32;
    let restorer = match word(8) & 0x0400_0000 {
        _ if !has_restorer => String::new(),
        0 => String::new(),
        _ => format!(", sa_restorer={}", address(word(16))),
    };
    let member = if word(8) & 4 != 0 {
        "sa_sigaction"
    } else {
        "sa_handler"
    };
    format!(
        "{{{member}={handler}, sa_mask={}, sa_flags={}{restorer}}}",
        signals(word(if has_restorer { 24 } else { 16 })),
        flags(word(8), SA, "SA_???")
    )
}

/// Formats `stack_t`.
pub(super) fn alternate_stack(bytes: &[u8]) -> String {
    let names: &names::Names = &[
        (1, "SS_ONSTACK"),
        (2, "SS_DISABLE"),
        (1 << 31, "SS_AUTODISARM"),
    ];
    format!(
        "{{ss_sp={}, ss_flags={}, ss_size={}}}",
        address(number(bytes, 0, 8)),
        flags(number(bytes, 8, 4), names, "SS_???"),
        number(bytes, 16, 8)
    )
}

/// Formats the status of a child that `wait` returns.
pub(super) fn wait_status(status: u64) -> String {
    let signal = |number| errors::sig(number);
    let low = status & 0x7F;
    match low {
        0 => format!(
            "[{{WIFEXITED(s) && WEXITSTATUS(s) == {}}}]",
            status >> 8 & 0xFF
        ),
        0x7F if status & 0xFFFF == 0xFFFF => "[{WIFCONTINUED(s)}]".to_owned(),
        0x7F => {
            let event = match status >> 16 {
                0 => String::new(),
                event => format!(" | {event:#x} << 16"),
            };
            format!(
                "[{{WIFSTOPPED(s) && WSTOPSIG(s) == {}}}{event}]",
                signal(status >> 8 & 0xFF)
            )
        }
        _ => {
            let core = if status & 0x80 != 0 {
                " && WCOREDUMP(s)"
            } else {
                ""
            };
            format!(
                "[{{WIFSIGNALED(s) && WTERMSIG(s) == {}{core}}}]",
                signal(low)
            )
        }
    }
}

/// Formats the name in the address of an `AF_UNIX` socket, if there is one.
pub(super) fn socket_name(address: &[u8]) -> Option<String> {
    let path = address.get(2..).filter(|path| !path.is_empty())?;
    Some(match path.split_first() {
        // The name of an abstract socket begins with a zero byte and takes up all the rest.
        Some((0, name)) => format!("@{}", quoted(name, 108, false)),
        _ => {
            let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
            quoted(&path[..end], 108, false)
        }
    })
}

/// Formats `struct sockaddr`. Only `len` bytes of it are valid.
pub(super) fn socket_address(bytes: &[u8], len: usize) -> String {
    let bytes = &bytes[..bytes.len().min(len)];
    let family = number(bytes, 0, 2);
    let port = || u16::from_be_bytes([bytes[2], bytes[3]]);
    match family {
        1 => match socket_name(bytes) {
            None => "{sa_family=AF_UNIX}".to_owned(),
            Some(text) => format!("{{sa_family=AF_UNIX, sun_path={text}}}"),
        },
        2 if bytes.len() >= 8 => {
            let ip = std::net::Ipv4Addr::from([bytes[4], bytes[5], bytes[6], bytes[7]]);
            format!(
                "{{sa_family=AF_INET, sin_port=htons({}), sin_addr=inet_addr(\"{ip}\")}}",
                port()
            )
        }
        10 if bytes.len() >= 24 => {
            let ip: [u8; 16] = bytes[8..24].try_into().unwrap_or_default();
            let flow = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            format!(
                "{{sa_family=AF_INET6, sin6_port=htons({}), sin6_flowinfo=htonl({flow}), inet_pton(AF_INET6, \"{}\", \
                 &sin6_addr), sin6_scope_id={}}}",
                port(),
                std::net::Ipv6Addr::from(ip),
                number(bytes, 24, 4)
            )
        }
        16 if bytes.len() >= 12 => format!(
            "{{sa_family=AF_NETLINK, nl_pid={}, nl_groups={:08x}}}",
            number(bytes, 4, 4) as i32,
            number(bytes, 8, 4)
        ),
        _ => format!(
            "{{sa_family={}, sa_data={}}}",
            one(family, FAMILY, "AF_???"),
            quoted(bytes.get(2..).unwrap_or_default(), 14, false)
        ),
    }
}

/// Formats `struct flock`. If `holder` is set, the process that holds the lock is shown.
pub(super) fn lock(bytes: &[u8], holder: bool) -> String {
    const TYPES: &names::Names = &[(0, "F_RDLCK"), (1, "F_WRLCK"), (2, "F_UNLCK")];
    let part = |at| number(bytes, at, 8).cast_signed();
    let pid = match holder {
        true => format!(", l_pid={}", number(bytes, 24, 4) as i32),
        false => String::new(),
    };
    format!(
        "{{l_type={}, l_whence={}, l_start={}, l_len={}{pid}}}",
        one(number(bytes, 0, 2), TYPES, "F_???"),
        one(number(bytes, 2, 2), names::WHENCE, "SEEK_???"),
        part(8),
        part(16)
    )
}

/// Formats `struct winsize`.
pub(super) fn window(bytes: &[u8]) -> String {
    let part = |at| number(bytes, at, 2);
    format!(
        "{{ws_row={}, ws_col={}, ws_xpixel={}, ws_ypixel={}}}",
        part(0),
        part(2),
        part(4),
        part(6)
    )
}

/// Formats an `int` that an argument points to.
pub(super) fn number_at(bytes: &[u8]) -> String {
    format!("[{}]", number(bytes, 0, 4) as i32)
}

/// Formats `struct epoll_event`: 12 bytes where it is packed, otherwise 16.
pub(super) fn epoll_event(bytes: &[u8]) -> String {
    let data = if bytes.len() >= 16 { 8 } else { 4 };
    format!(
        "{{events={}, data={{u32={}, u64={}}}}}",
        flags(number(bytes, 0, 4), EPOLL, "EPOLL???"),
        number(bytes, data, 4),
        number(bytes, data, 8)
    )
}

/// Formats `struct clone_args`.
pub(super) fn clone_args(bytes: &[u8]) -> String {
    let word = |at| number(bytes, at, 8);
    let given = word(0);
    let mut text = format!("{{flags={}", flags(given, CLONE, "CLONE_???"));
    let fields = [
        (8, "pidfd", given & 0x1000 != 0),
        (16, "child_tid", given & 0x0120_0000 != 0),
        (24, "parent_tid", given & 0x0010_0000 != 0),
    ];
    for (at, field, shown) in fields {
        if shown {
            text += &format!(", {field}={}", address(word(at)));
        }
    }
    let signal = match word(32) {
        0 => "0".to_owned(),
        number => errors::sig(number),
    };
    text += &format!(
        ", exit_signal={signal}, stack={}, stack_size={}",
        address(word(40)),
        hex(word(48))
    );
    if given & 0x0008_0000 != 0 {
        text += &format!(", tls={}", address(word(56)));
    }
    text + "}"
}

/// Formats the bits of a set, such as a set of descriptors or processors.
pub(super) fn bits(bytes: &[u8], most: usize) -> String {
    let bits: Vec<String> = set_bits(bytes, most).map(|bit| bit.to_string()).collect();
    format!("[{}]", bits.join(" "))
}

/// Returns the numbers of the bits that are set, of the first `most` ones.
pub(super) fn set_bits(bytes: &[u8], most: usize) -> impl Iterator<Item = usize> {
    (0..most.min(8 * bytes.len())).filter(|bit| bytes[bit / 8] >> (bit % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_children() {
        assert_eq!(
            wait_status(3 << 8),
            "[{WIFEXITED(s) && WEXITSTATUS(s) == 3}]"
        );
        assert_eq!(
            wait_status(9),
            "[{WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL}]"
        );
        assert_eq!(
            wait_status(0x8B),
            "[{WIFSIGNALED(s) && WTERMSIG(s) == SIGSEGV && WCOREDUMP(s)}]"
        );
        assert_eq!(
            wait_status(0x137F),
            "[{WIFSTOPPED(s) && WSTOPSIG(s) == SIGSTOP}]"
        );
        assert_eq!(wait_status(0xFFFF), "[{WIFCONTINUED(s)}]");
    }

    #[test]
    fn addresses_of_sockets() {
        let path = b"\x01\0/run/x\0yz";
        assert_eq!(
            socket_address(path, path.len()),
            "{sa_family=AF_UNIX, sun_path=\"/run/x\"}"
        );
        assert_eq!(
            socket_address(b"\x01\0\0name", 7),
            "{sa_family=AF_UNIX, sun_path=@\"name\"}"
        );
        assert_eq!(
            socket_address(&[2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 16),
            "{sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr(\"127.0.0.1\")}"
        );
        assert_eq!(
            socket_address(&[2, 0], 2),
            "{sa_family=AF_INET, sa_data=\"\"}"
        );
        assert_eq!(
            socket_address(&[], 0),
            "{sa_family=AF_UNSPEC, sa_data=\"\"}"
        );
    }

    #[test]
    fn locks_and_windows() {
        let mut bytes = [0; 32];
        bytes[0] = 1;
        bytes[2] = 2;
        bytes[8..16].copy_from_slice(&(-3i64).to_le_bytes());
        bytes[16] = 10;
        bytes[24] = 7;
        assert_eq!(
            lock(&bytes, true),
            "{l_type=F_WRLCK, l_whence=SEEK_END, l_start=-3, l_len=10, l_pid=7}"
        );
        bytes[0] = 9;
        assert_eq!(
            lock(&bytes, false),
            "{l_type=0x9 /* F_??? */, l_whence=SEEK_END, l_start=-3, l_len=10}"
        );
        assert_eq!(
            window(&[24, 0, 80, 0, 0, 1, 2, 0]),
            "{ws_row=24, ws_col=80, ws_xpixel=256, ws_ypixel=2}"
        );
        assert_eq!(number_at(&[0xFE, 0xFF, 0xFF, 0xFF, 1]), "[-2]");
    }

    #[test]
    fn structures_differ_between_machines() {
        let stat_of = |size: usize, mode: usize, device: usize| {
            let mut bytes = vec![0; size];
            bytes[mode..mode + 4].copy_from_slice(&0o100_644u32.to_le_bytes());
            bytes[48..56].copy_from_slice(&77u64.to_le_bytes());
            let file = stat(&bytes);
            bytes[mode..mode + 4].copy_from_slice(&0o020_620u32.to_le_bytes());
            bytes[device..device + 8].copy_from_slice(&0x8803u64.to_le_bytes());
            (file, stat(&bytes))
        };
        let file = "{st_mode=S_IFREG|0644, st_size=77, ...}".to_owned();
        let terminal = "{st_mode=S_IFCHR|0620, st_rdev=makedev(0x88, 0x3), ...}".to_owned();
        assert_eq!(stat_of(144, 24, 40), (file.clone(), terminal.clone()));
        assert_eq!(stat_of(128, 16, 32), (file, terminal));

        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        assert_eq!(
            action(&words(&[0x1000, 0x1400_0000, 0x2000, 2])),
            "{sa_handler=0x1000, sa_mask=[INT], sa_flags=SA_RESTORER|SA_RESTART, sa_restorer=0x2000}"
        );
        assert_eq!(
            action(&words(&[0x1000, 0x1000_0000, 2])),
            "{sa_handler=0x1000, sa_mask=[INT], sa_flags=SA_RESTART}"
        );
        let mut packed = 1u32.to_le_bytes().to_vec();
        packed.extend(words(&[0x1_0000_0002]));
        let shown = "{events=EPOLLIN, data={u32=2, u64=4294967298}}";
        assert_eq!(epoll_event(&packed), shown);
        assert_eq!(epoll_event(&words(&[1, 0x1_0000_0002])), shown);
    }

    #[test]
    fn modes_of_files() {
        assert_eq!(mode(0o100_644), "S_IFREG|0644");
        assert_eq!(mode(0o041_777), "S_IFDIR|S_ISVTX|0777");
        assert_eq!(mode(0o104_755), "S_IFREG|S_ISUID|0755");
    }
}
