//! Kernel structures with all of their fields (`-v`).

use super::structs::{ATTRIBUTES, device, mode, parts_of_device, statx_mask, time, uname_field};
use super::text::{flags, number};

/// Formats `struct stat`. Times have comments, which say when that was at this difference from UTC.
pub(super) fn stat(bytes: &[u8], offset: i64) -> String {
    let is_long = bytes.len() >= 144;
    let word = |at| number(bytes, at, 8);
    let half = |at| number(bytes, at, 4);
    let (links, st_mode, owner, rdev, block) = match is_long {
        true => (word(16), half(24), 28, 40, word(56)),
        false => (half(20), half(16), 24, 32, half(56)),
    };
    let of = |device_at: usize| {
        let (major, minor) = parts_of_device(word(device_at));
        device(major, minor)
    };
    let what = match st_mode & 0o170_000 {
        0o020_000 | 0o060_000 => format!("st_rdev={}", of(rdev)),
        _ => format!("st_size={}", word(48).cast_signed()),
    };
    let mut text = format!(
        "{{st_dev={}, st_ino={}, st_mode={}, st_nlink={links}, st_uid={}, st_gid={}, st_blksize={block}, \
         st_blocks={}, {what}",
        of(0),
        word(8),
        mode(st_mode),
        half(owner),
        half(owner + 4),
        word(64),
    );
    for (at, name) in [(72, "atime"), (88, "mtime"), (104, "ctime")] {
        let (seconds, nanoseconds) = (word(at).cast_signed(), word(at + 8));
        let comment = comment(seconds, nanoseconds, offset);
        text += &format!(", st_{name}={seconds}{comment}, st_{name}_nsec={nanoseconds}");
    }
    text + "}"
}

/// Formats `struct statx`.
pub(super) fn statx(bytes: &[u8], offset: i64) -> String {
    const MOUNT: u64 = 0x1000;
    let word = |at| number(bytes, at, 8);
    let half = |at| number(bytes, at, 4);
    let attributes = |at| flags(word(at), ATTRIBUTES, "STATX_ATTR_???");
    let mask = half(0);
    let mut text = format!(
        "{{stx_mask={}, stx_blksize={}, stx_attributes={}, stx_nlink={}, stx_uid={}, stx_gid={}, stx_mode={}, \
         stx_ino={}, stx_size={}, stx_blocks={}, stx_attributes_mask={}",
        statx_mask(mask),
        half(4),
        attributes(8),
        half(16),
        half(20),
        half(24),
        mode(number(bytes, 28, 2)),
        word(32),
        word(40),
        word(48),
        attributes(56),
    );
    let times = [
        (0x20, 64, "atime"),
        (0x800, 80, "btime"),
        (0x80, 96, "ctime"),
        (0x40, 112, "mtime"),
    ];
    for (_, at, name) in times.into_iter().filter(|(bit, ..)| mask & bit != 0) {
        let (seconds, nanoseconds) = (word(at).cast_signed(), half(at + 8));
        let comment = comment(seconds, nanoseconds, offset);
        text += &format!(", stx_{name}={{tv_sec={seconds}, tv_nsec={nanoseconds}}}{comment}");
    }
    text += &format!(
        ", stx_rdev_major={}, stx_rdev_minor={}, stx_dev_major={}, stx_dev_minor={}",
        half(128),
        half(132),
        half(136),
        half(140)
    );
    if mask & MOUNT != 0 {
        text += &format!(", stx_mnt_id={:#x}", word(144));
    }
    text + "}"
}

/// Formats `struct utsname`.
pub(super) fn uname(bytes: &[u8]) -> String {
    let names = [
        "sysname",
        "nodename",
        "release",
        "version",
        "machine",
        "domainname",
    ];
    let fields = names.iter().enumerate();
    let fields = fields.map(|(at, name)| format!("{name}={}", uname_field(bytes, at)));
    format!("{{{}}}", fields.collect::<Vec<String>>().join(", "))
}

/// Formats `struct rusage`.
pub(super) fn usage(bytes: &[u8]) -> String {
    let names = [
        "maxrss", "ixrss", "idrss", "isrss", "minflt", "majflt", "nswap", "inblock", "oublock",
        "msgsnd", "msgrcv", "nsignals", "nvcsw", "nivcsw",
    ];
    let part = |at: usize| time(bytes.get(at..).unwrap_or_default(), "usec");
    let mut text = format!("{{ru_utime={}, ru_stime={}", part(0), part(16));
    for (index, name) in names.iter().enumerate() {
        text += &format!(", ru_{name}={}", number(bytes, 32 + 8 * index, 8));
    }
    text + "}"
}

/// Returns a comment that says when a time was; none for zero, which stands for no time.
fn comment(seconds: i64, nanoseconds: u64, offset: i64) -> String {
    if (seconds, nanoseconds) == (0, 0) {
        return String::new();
    }
    let local = seconds.saturating_add(offset);
    let (day, second) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    let (year, month, day) = date(day);
    let part = match nanoseconds {
        0 => String::new(),
        _ => format!(".{nanoseconds:09}"),
    };
    let sign = if offset < 0 { '-' } else { '+' };
    let minutes = offset.unsigned_abs() / 60;
    format!(
        " /* {year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}{part}{sign}{:02}{:02} */",
        second / 3600,
        second / 60 % 60,
        second % 60,
        minutes / 60,
        minutes % 60
    )
}

/// Returns year, month and day for a number of days since 1970.
fn date(days: i64) -> (i64, i64, i64) {
    // Years begin in March, so that leap days are their last ones; eras of 400 years are all alike.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * era + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_dates() {
        assert_eq!(comment(0, 0, 0), "");
        assert_eq!(
            comment(1_795_547_317, 813_580_396, 0),
            " /* 2026-11-24T19:08:37.813580396+0000 */"
        );
        assert_eq!(comment(-1, 0, 0), " /* 1969-12-31T23:59:59+0000 */");
        assert_eq!(
            comment(951_782_400, 0, -12_600),
            " /* 2000-02-28T20:30:00-0330 */"
        );
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
    }
}
