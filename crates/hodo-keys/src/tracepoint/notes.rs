//! The notes that describe a tracepoint's probe to tools: `.note.stapsdt` as in `sys/sdt.h`, and
//! `.note.hodo.tracepoint` with the names and types of the arguments.
//!
//! The types are known only in a generic function, whose `asm!` accepts only integer constants. So the texts are packed
//! into words, which the assembler emits as data.

use core::marker::PhantomData;

use super::arch;
use super::argument::Kinds;

/// What a use of `tracepoint!` declares.
#[doc(hidden)]
pub trait Place {
    const GROUP: &'static str;
    const NAME: &'static str;
    const ARGUMENTS: &'static [&'static str];

    fn tracepoint() -> &'static super::Tracepoint;
}

/// A text as words, first byte lowest.
#[derive(Debug, Clone, Copy)]
pub struct Packed<const N: usize> {
    pub words: [u64; N],
    /// Bytes.
    pub length: usize,
}

impl<const N: usize> Packed<N> {
    const EMPTY: Self = Self {
        words: [0; N],
        length: 0,
    };

    const fn byte(mut self, byte: u8) -> Self {
        assert!(
            self.length < N * 8,
            "the names of a tracepoint, its group and its arguments are too long"
        );
        self.words[self.length / 8] |= (byte as u64) << (self.length % 8 * 8);
        self.length += 1;
        self
    }

    const fn text(mut self, text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            self = self.byte(bytes[index]);
            index += 1;
        }
        self
    }
}

/// Words of the text in `.note.stapsdt`: `group\0name\08@%rdi -4@%esi\0`.
const PROBE_WORDS: usize = 32;
/// Words of the text in `.note.hodo.tracepoint`: `group\0name\0length:u64 difference:i32\0`.
const TYPES_WORDS: usize = 64;

/// The texts of a tracepoint's notes.
pub trait Notes {
    /// The place they describe.
    type Place: Place;
    /// The types of the arguments, encoded as a number.
    const KINDS: u64;
    const PROBE: Packed<PROBE_WORDS>;
    const TYPES: Packed<TYPES_WORDS>;
}

/// The texts for a place and its argument types.
pub struct Of<P, K>(PhantomData<(P, K)>);

impl<P: Place, K: Kinds> Notes for Of<P, K> {
    type Place = P;
    const KINDS: u64 = {
        let mut kinds = 1;
        let mut index = 0;
        while index < K::KINDS.len() {
            kinds = kinds << 4 | K::KINDS[index] as u64;
            index += 1;
        }
        kinds
    };
    const PROBE: Packed<PROBE_WORDS> = {
        let mut packed = Packed::EMPTY.text(P::GROUP).byte(0).text(P::NAME).byte(0);
        let mut index = 0;
        while index < K::KINDS.len() {
            let kind = K::KINDS[index];
            if index > 0 {
                packed = packed.byte(b' ');
            }
            if kind.is_signed() {
                packed = packed.byte(b'-');
            }
            packed = packed
                .byte(b'0' + kind.size() as u8)
                .byte(b'@')
                .text(arch::register(index, kind.size()));
            index += 1;
        }
        packed.byte(0)
    };
    const TYPES: Packed<TYPES_WORDS> = {
        let mut packed = Packed::EMPTY.text(P::GROUP).byte(0).text(P::NAME).byte(0);
        let mut index = 0;
        while index < K::KINDS.len() {
            if index > 0 {
                packed = packed.byte(b' ');
            }
            packed = packed
                .text(P::ARGUMENTS[index])
                .byte(b':')
                .text(K::KINDS[index].name());
            index += 1;
        }
        packed.byte(0)
    };
}

/// Fails to compile if names are too long for the notes, whatever the types are. The functions above would report the
/// same, but not at the place of the tracepoint.
pub const fn check(name: &str, arguments: &[&str]) {
    let mut types = name.len() + 2;
    let mut index = 0;
    while index < arguments.len() {
        types += arguments[index].len() + ":bool ".len();
        index += 1;
    }
    assert!(
        name.len() + 2 + "-1@%r10b ".len() * 8 <= PROBE_WORDS * 8,
        "the name of a tracepoint and that of its group are too long: at most 182 bytes together"
    );
    assert!(
        types <= TYPES_WORDS * 8,
        "the names of a tracepoint, its group and its arguments are too long"
    );
}

/// The name of an argument without a raw identifier's prefix.
#[doc(hidden)]
#[must_use]
pub const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// `asm!` with both notes. `$nop`: the instructions, of which the notes have the address of the first. Then registers
/// and their contents.
macro_rules! probe_asm {
    ($notes:ident, $nop:tt, $registers:tt) => {
        $crate::tracepoint::notes::probe_asm!(
            @ $notes, $nop, $registers,
            // The words' operands: first `PROBE_WORDS`, then `TYPES_WORDS`.
            [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            ],
            [
                32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
                64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
            ]
        )
    };
    (
        @ $notes:ident, [$($nop:literal),*], [$(($register:tt, $value:expr)),*],
        [$($probe:literal)*], [$($types:literal)*]
    ) => {
        // SAFETY: the instructions do nothing; the rest is data in its own sections.
        unsafe {
            ::core::arch::asm!(
                "2:",
                $($nop,)*
                // The linker keeps or drops the notes together with the code they describe (SHF_LINK_ORDER). For this
                // the section needs a symbol, one per function, because the assembler merges all sections with the same
                // symbol.
                ".set .Lhodo_tracepoint_{place}_{kinds}, 2b",
                ".pushsection .note.stapsdt,\"o\",@note,.Lhodo_tracepoint_{place}_{kinds}",
                ".balign 4",
                // Readers need the exact length of the text; the padding to four bytes is not part of the note.
                ".4byte 8, 24 + {probe}, 3",
                ".asciz \"stapsdt\"",
                ".8byte 2b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                $(
                    concat!(".if {probe} > 8 * ", $probe, " + 4"),
                    concat!(".8byte {", $probe, "}"),
                    concat!(".elseif {probe} > 8 * ", $probe),
                    concat!(".4byte {", $probe, "}"),
                    ".endif",
                )*
                ".popsection",
                ".pushsection .note.hodo.tracepoint,\"o\",@note,.Lhodo_tracepoint_{place}_{kinds}",
                ".balign 4",
                ".4byte 5, 8 + {types}, 1",
                ".asciz \"hodo\"",
                ".balign 4",
                ".8byte 2b",
                $(
                    concat!(".if {types} > 8 * (", $types, " - 32) + 4"),
                    concat!(".8byte {", $types, "}"),
                    concat!(".elseif {types} > 8 * (", $types, " - 32)"),
                    concat!(".4byte {", $types, "}"),
                    ".endif",
                )*
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",@progbits,.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                $(const $notes::PROBE.words[$probe],)*
                $(const $notes::TYPES.words[$types - 32],)*
                probe = const $notes::PROBE.length,
                types = const $notes::TYPES.length,
                place = sym <$notes::Place as $crate::tracepoint::notes::Place>::tracepoint,
                kinds = const $notes::KINDS,
                $(in($register) $value,)*
                options(readonly, nostack, preserves_flags),
            );
        }
    };
}
pub(crate) use probe_asm;
