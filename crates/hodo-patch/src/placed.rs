//! Where our code is, and which code of the program it replaces.

/// The runtime addresses of a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stub {
    /// Its first byte.
    pub start: u64,
    /// The displaced instructions.
    pub body: u64,
    /// The code after them.
    pub slow: u64,
    /// Where they were; 0: there are none.
    pub original: u64,
    /// Where the state is still the one at the original address.
    pub entry: u64,
}

/// The runtime addresses of a displaced instruction. A thread may be moved from one address to the other as long as it
/// has executed nothing at either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where it was.
    pub original: u64,
    /// Where its probes begin; if there are none, the copy itself.
    pub before: u64,
    /// The copy.
    pub copy: u64,
    /// It follows a system call that a probe makes for the program: only a thread in that call may come here.
    pub call: bool,
    /// The jump to our code comes right after it, so a thread at the original address comes to that code as well.
    pub leads: bool,
}

/// Where displaced instructions are. There may be millions, so only the differences from one to the next are stored:
/// most take three or four bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copies {
    bytes: Vec<u8>,
    last: Last,
}

/// The base of the differences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Last {
    original: u64,
    copy: u64,
}

impl Copies {
    /// Adds one.
    pub fn push(&mut self, copied: Copied) {
        let Copied {
            original,
            before,
            copy,
            call,
            leads,
        } = copied;
        self.signed(original.wrapping_sub(self.last.original));
        self.signed(before.wrapping_sub(self.last.copy));
        // The code of probes precedes the copy, so this is hardly ever negative.
        let length = copy.wrapping_sub(before);
        let flags = u128::from(leads) << 1 | u128::from(call);
        self.number(u128::from(length) << 2 | flags);
        self.last = Last { original, copy };
    }

    fn signed(&mut self, difference: u64) {
        let difference = difference.cast_signed();
        self.number((difference << 1 ^ difference >> 63).cast_unsigned().into());
    }

    /// Seven bits per byte, the lowest first.
    fn number(&mut self, mut rest: u128) {
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Copied> + '_ {
        let mut bytes = self.bytes.iter();
        let mut number = move || {
            let mut all = 0;
            for shift in (0u32..).step_by(7) {
                let byte = *bytes.next()?;
                all |= u128::from(byte & 0x7F) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            Some(all)
        };
        let signed = |rest: u128| (rest as u64 >> 1) ^ (rest as u64 & 1).wrapping_neg();
        let mut last = Last::default();
        std::iter::from_fn(move || {
            let original = last.original.wrapping_add(signed(number()?));
            let before = last.copy.wrapping_add(signed(number()?));
            let length = number()?;
            let copy = before.wrapping_add((length >> 2) as u64);
            last = Last { original, copy };
            Some(Copied {
                original,
                before,
                copy,
                call: length & 1 != 0,
                leads: length & 2 != 0,
            })
        })
    }

    /// Keeps those for which `stays` holds.
    pub fn retain(&mut self, stays: impl Fn(&Copied) -> bool) {
        *self = self.iter().filter(stays).collect();
    }
}

impl Extend<Copied> for Copies {
    fn extend<I: IntoIterator<Item = Copied>>(&mut self, all: I) {
        all.into_iter().for_each(|copied| self.push(copied));
    }
}

impl FromIterator<Copied> for Copies {
    fn from_iter<I: IntoIterator<Item = Copied>>(all: I) -> Self {
        let mut copies = Self::default();
        copies.extend(all);
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_kept_whatever_their_addresses() {
        let copied = |original, before, copy, call| Copied {
            original,
            before,
            copy,
            call,
            leads: copy & 2 != 0,
        };
        let all = [
            copied(0x5555_0000_1000, 0x5554_0000_0000, 0x5554_0000_0009, false),
            copied(0x5555_0000_1003, 0x5554_0000_000C, 0x5554_0000_000C, false),
            copied(0x5555_0000_1001, 0x5554_0000_0008, 0x5554_0000_0008, true),
            copied(0, u64::MAX, 0, false),
            copied(u64::MAX, 0, u64::MAX, true),
            copied(1 << 63, 1 << 63, 0, true),
        ];
        let mut copies: Copies = all.into_iter().collect();
        assert_eq!(copies.iter().collect::<Vec<_>>(), all);
        assert!(copies.bytes.len() < 100);
        let copy = copies.clone();
        copies.extend(copy.iter());
        assert_eq!(copies.iter().count(), 12);
        copies.retain(|copied| copied.call);
        assert_eq!(
            copies
                .iter()
                .filter(|copied| copied.original == 1 << 63)
                .count(),
            2
        );
        assert_eq!(copies.iter().count(), 6);
        copies.clear();
        assert!(copies.is_empty() && copies.iter().next().is_none());
    }
}
