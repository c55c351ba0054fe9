//! What arguments point to, other than one structure of a known size: strings, buffers, lists.

use hodo_trace::syscalls::piece;

use super::args::Call;
use super::names::{MSGFLAGS, POLL};
use super::read::Piece;
use super::structs;
use super::text::{address, flags, number, put_quoted, quoted, quoted_hex};

impl Call<'_> {
    pub(super) fn path(self, at: usize) -> String {
        match self.before(at) {
            Some(piece) if piece.flags & piece::FAULT == 0 => {
                quoted(piece.bytes, usize::MAX, piece.flags & piece::ENDS == 0)
            }
            _ => address(self.value(at)),
        }
    }

    pub(super) fn strings(self, at: usize) -> String {
        let mut shown = Vec::new();
        for piece in self.pieces(at, false) {
            if piece.flags & piece::MORE != 0 {
                if number(piece.bytes, 0, 8) != 0 {
                    shown.push("...".to_owned());
                }
                continue;
            }
            shown.push(quoted(
                piece.bytes,
                self.enter.limit,
                piece.flags & piece::ENDS == 0,
            ));
        }
        match (shown.is_empty(), self.value(at)) {
            (true, value) => address(value),
            _ => format!("[{}]", shown.join(", ")),
        }
    }

    /// Appends bytes that the program passes.
    pub(super) fn buffer(self, at: usize, len: u64, out: &mut String) {
        match self.before(at) {
            Some(piece) if piece.flags & piece::FAULT == 0 => {
                put_quoted(
                    out,
                    piece.bytes,
                    self.enter.limit,
                    len > piece.bytes.len() as u64,
                );
            }
            _ => *out += &address(self.value(at)),
        }
    }

    /// Appends bytes that the kernel returns.
    pub(super) fn out(self, at: usize, out: &mut String) {
        match (self.success(), self.after(at)) {
            (Some(0), _) if self.value(at) != 0 => out.push_str("\"\""),
            (Some(len), Some(piece)) if piece.flags & piece::FAULT == 0 => {
                let more = len > piece.bytes.len() as u64;
                match &*self.name() {
                    "getrandom" => *out += &quoted_hex(piece.bytes, self.enter.limit, more),
                    _ => put_quoted(out, piece.bytes, self.enter.limit, more),
                }
            }
            _ => *out += &address(self.value(at)),
        }
    }

    /// Formats pairs of address and length, and the bytes that they point to. Only the first `valid` bytes count.
    pub(super) fn vectors(self, at: usize, after: bool, count: u64, valid: u64) -> String {
        let mut pieces = self.pieces(at, after);
        match pieces.next() {
            Some(list) => elements(list, pieces, count, (valid, self.enter.limit)),
            None => address(self.value(at)),
        }
    }

    /// Formats `struct msghdr`.
    pub(super) fn message(self, at: usize, after: bool) -> String {
        let mut pieces = self.pieces(at, after);
        let Some(header) = pieces.next().filter(|piece| piece.bytes.len() == 56) else {
            return address(self.value(at));
        };
        let word = |at| number(header.bytes, at, 8);
        let valid = if after {
            self.success().unwrap_or(0)
        } else {
            u64::MAX
        };
        let vectors = match pieces.next() {
            Some(list) => elements(list, pieces, word(24), (valid, self.enter.limit)),
            None => address(word(16)),
        };
        let control = match word(40) {
            0 => String::new(),
            _ => format!(", msg_control={}", address(word(32))),
        };
        format!(
            "{{msg_name={}, msg_namelen={}, msg_iov={vectors}, msg_iovlen={}{control}, msg_controllen={}, msg_flags={}}}",
            address(word(0)),
            number(header.bytes, 8, 4),
            word(24),
            word(40),
            flags(number(header.bytes, 48, 4), MSGFLAGS, "MSG_???")
        )
    }

    pub(super) fn polled(self, at: usize, count: u64) -> String {
        let Some(piece) = self
            .before(at)
            .filter(|piece| piece.flags & piece::FAULT == 0)
        else {
            return address(self.value(at));
        };
        let entries = piece.bytes.chunks_exact(8).map(|entry| {
            let events = flags(number(entry, 4, 2), POLL, "POLL???");
            let fd = self.listed(number(entry, 0, 4) as i32);
            format!("{{fd={fd}, events={events}}}")
        });
        let shown: Vec<String> = entries.collect();
        let more = if (shown.len() as u64) < count {
            ", ..."
        } else {
            ""
        };
        format!("[{}{more}]", shown.join(", "))
    }

    /// Formats the result of `poll`.
    pub(super) fn poll_result(self, count: u64) -> Option<String> {
        let piece = self.after(0)?;
        let ready = piece
            .bytes
            .chunks_exact(8)
            .filter(|entry| number(entry, 6, 2) != 0);
        let shown: Vec<String> = ready
            .map(|entry| {
                let events = flags(number(entry, 6, 2), POLL, "POLL???");
                format!("{{fd={}, revents={events}}}", number(entry, 0, 4) as i32)
            })
            .collect();
        let more = match (shown.len() as u64) < count {
            true => ", ...",
            false => "",
        };
        Some(format!("[{}{more}]", shown.join(", ")))
    }

    /// Formats a set of descriptors.
    pub(super) fn set(self, bytes: &[u8]) -> String {
        let most = self.value(0).min(1024) as usize;
        let fds = structs::set_bits(bytes, most).map(|fd| self.listed(fd as i32));
        format!("[{}]", fds.collect::<Vec<String>>().join(" "))
    }

    /// Formats the result of `select`.
    pub(super) fn select_result(self) -> String {
        let mut shown = Vec::new();
        for (at, set) in [(1, "in"), (2, "out"), (3, "except")] {
            if let Some(piece) = self.after(at)
                && piece.bytes.iter().any(|&byte| byte != 0)
            {
                let bits = structs::bits(piece.bytes, self.value(0).min(1024) as usize);
                if bits != "[]" {
                    shown.push(format!("{set} {bits}"));
                }
            }
        }
        shown.join(", ")
    }
}

/// Returns the elements of a list of pairs.
fn elements<'p>(
    list: Piece<'p>,
    mut pieces: impl Iterator<Item = Piece<'p>>,
    count: u64,
    (valid, limit): (u64, usize),
) -> String {
    let mut left = valid;
    let mut shown = Vec::new();
    for pair in list.bytes.chunks_exact(16) {
        let (base, len) = (number(pair, 0, 8), number(pair, 8, 8));
        let content = match len {
            0 => None,
            _ => pieces.next(),
        };
        let len_here = len.min(left);
        left -= len_here;
        let base = match content {
            Some(piece) if piece.flags & piece::FAULT == 0 => {
                let known = &piece.bytes[..piece.bytes.len().min(len_here as usize)];
                quoted(known, limit, len_here > known.len() as u64)
            }
            None if len == 0 && base != 0 => "\"\"".to_owned(),
            _ => address(base),
        };
        shown.push(format!("{{iov_base={base}, iov_len={len}}}"));
    }
    let more = if (shown.len() as u64) < count {
        ", ..."
    } else {
        ""
    };
    format!("[{}{more}]", shown.join(", "))
}
