//! Prints a hash of code of each kind, for each instruction set: for changes that are to leave all of it as it is.
//! What is emitted is chosen at random, the same each time.

use std::hash::{DefaultHasher, Hash, Hasher};

use hodo_codegen::detour::{
    Action, Arithmetic, Atom, Bits, Block, Comparison, Counter, Deed, Event, Fetch, Histogram, Key,
    Part, Place, Probe, Source, Test, Text, When,
};
use hodo_codegen::hooks::{IslandLayout, LimitCall, Raise};
use hodo_codegen::stub::{Body, Layout, Records, Registers, Runtime, Scope};
use hodo_codegen::{riscv64, x86_64};
use hodo_isa::{Signing, Via};

const BASE: u64 = 0x20_0000_0000;
const AGENT: u64 = BASE - 0x1000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    fn number(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(4),
            1 => self.below(5000),
            2 => self.below(1 << 33),
            3 => self.below(300).wrapping_neg(),
            _ => self.next(),
        }
    }

    fn offset(&mut self) -> i32 {
        match self.below(4) {
            0 => 0,
            1 => self.below(512) as i32 - 256,
            2 => self.below(8192) as i32 - 4096,
            _ => self.next() as i32 >> 4,
        }
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn layout() -> Layout {
    Layout {
        cursor: 0,
        limit: 8,
        epoch: 16,
        epoch_end: 1008,
        shadow_lo: 24,
        shadow_len: 32,
        window: 1000,
        lowered_windows: 944,
        handed_on: 928,
        window_size: 1 << 14,
        islands: [(40, 48), (56, 64)],
        inside: 176,
        depth: 184,
        frames: 320,
        chain_top: 240,
        chain_lo: 248,
        chain_size: 65536,
        shadow_distance: 0x20_0000_0840,
        to_shadow: 1016,
        atomics: true,
        block: -8,
        record_size: 8,
        sp_shift: 18,
        sp_mask: 0xFFC0_0000,
        bucket: 96,
        bucket_size: 4096,
        lost: 80,
        base: 88,
        owner: 59,
    }
}

fn runtime(random: &mut Random) -> Runtime {
    Runtime {
        epoch: AGENT,
        chunk: AGENT + 16,
        shadow: AGENT + 32,
        window: AGENT + 48,
        record: AGENT + 64,
        frame: AGENT + 80,
        tails: AGENT + 96,
        tail: AGENT + 112,
        syscalls: Some((AGENT + 128, AGENT + 144)),
        stack: random.flip().then_some(AGENT + 160),
    }
}

fn records(random: &mut Random, via: &[Via]) -> Records {
    let entry_only = random.below(4) == 0;
    Records {
        entry: 0x1_2345 + random.below(1 << 30) as u32,
        exit: (!entry_only).then_some(0x11_2345),
        tail: 0x21_2345,
        timed: random.flip(),
        scope: random.pick(&[Scope::Any, Scope::Inside, Scope::Filter]),
        depth: random.flip().then_some(3),
        check: random.flip().then_some(7),
        shortest: random.flip().then_some(1000),
        switch: random.flip().then_some(4000),
        placed: entry_only,
        hands_on: false,
        registers: Registers {
            free: random.next() as u32 & 0xF003_FCE0,
            free_after: random.next() as u32 & 0xF003_F0E0,
            via: random.pick(via),
            signing: Signing::None,
        },
    }
}

fn source(random: &mut Random, registers: u64) -> Source {
    match random.below(12) {
        0 => Source::Number(random.number()),
        1 => Source::Here,
        2 => Source::Caller(random.below(64) * 8),
        3 => Source::Near(random.offset().into()),
        4 => Source::Memory(Box::new(source(random, registers)), random.offset()),
        5 => Source::Plus(Box::new(source(random, registers)), random.offset().into()),
        6 => Source::ThreadPointer,
        7 => Source::Flags,
        _ => Source::Register(random.below(registers) as u8),
    }
}

fn fetch(random: &mut Random, registers: u64) -> Fetch {
    let of = source(random, registers);
    match random.below(8) {
        0 | 1 => Fetch::Load(of, random.offset(), random.pick(&[1, 2, 4, 8])),
        2 => Fetch::Text(of, random.offset()),
        3 => Fetch::Bytes(of, random.offset(), random.below(100) as u32),
        4 => Fetch::Thread(224, 2),
        _ => Fetch::Word(of),
    }
}

fn bits(random: &mut Random) -> Bits {
    let shift = random.below(63) as u8;
    match random.flip() {
        true => Bits::ALL,
        false => Bits {
            shift,
            width: 1 + random.below(64 - u64::from(shift)) as u8,
            signed: random.flip(),
        },
    }
}

/// Of values of which the first three are words and the fourth is a text.
fn test(random: &mut Random, depth: u32) -> Test {
    let inner = |random: &mut Random| Box::new(test(random, depth - 1));
    let kinds = if depth == 0 { 4 } else { 12 };
    match random.below(kinds) {
        0 => Test::Number(random.number()),
        1 | 2 => Test::Value(random.below(3) as usize, bits(random)),
        3 => Test::Thread(224),
        4 => Test::Not(inner(random)),
        5 => Test::Complement(inner(random)),
        6 => Test::Negate(inner(random)),
        7 => Test::And(inner(random), inner(random)),
        8 => Test::Or(inner(random), inner(random)),
        9 => {
            use Comparison::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
            let all = [Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual];
            let comparison = random.pick(&all);
            Test::Compare(comparison, random.flip(), inner(random), inner(random))
        }
        10 => {
            use Arithmetic::{
                Add, And, Divide, Multiply, Or, Remainder, ShiftLeft, ShiftRight, Subtract, Xor,
            };
            let all = [
                Or, Xor, And, Add, Subtract, Multiply, ShiftLeft, ShiftRight, Divide, Remainder,
            ];
            let arithmetic = random.pick(&all);
            Test::Combine(arithmetic, random.flip(), inner(random), inner(random))
        }
        _ if random.flip() => Test::Same(text(random), text(random)),
        _ => {
            let patterns: [&[u8]; 4] = [b"a*b", b"[a-c]?x*", b"abc", b"*[!q]*long one*"];
            Test::Fits(text(random), Atom::pattern(random.pick(&patterns)))
        }
    }
}

fn text(random: &mut Random) -> Text {
    match random.below(3) {
        0 => Text::Fixed(b"a text of some bytes"[..random.below(20) as usize].to_vec()),
        1 => Text::Thread(224),
        _ => Text::Value(3),
    }
}

fn counter(random: &mut Random) -> Counter {
    let at = random.offset() & !7;
    match random.flip() {
        true => Counter::Thread(at),
        false => Counter::Shared { base: 88, at },
    }
}

fn event(random: &mut Random, registers: u64) -> Event {
    Event {
        info: 5,
        payload: 0x0030_0002,
        timed: random.flip(),
        rdpid: random.flip(),
        values: (0..random.below(6))
            .map(|_| fetch(random, registers))
            .collect(),
    }
}

fn deed(random: &mut Random, registers: u64) -> Deed {
    match random.below(7) {
        0 => Deed::Count(counter(random)),
        1 => {
            let ratio = random.flip().then_some(2000);
            Deed::Record(event(random, registers), ratio, random.flip())
        }
        2 | 3 => {
            let keys = (0..1 + random.below(3)).map(|_| match random.below(5) {
                0 => Key::Text(text(random)),
                1 => Key::Number(test(random, 2), Part::Log2),
                2 => {
                    let part = Part::Linear(1 + random.below(5000), random.flip());
                    Key::Number(test(random, 2), part)
                }
                _ => Key::Number(test(random, 2), Part::Each),
            });
            Deed::Histogram(Histogram {
                table: 0x1_0000,
                size: 100,
                keys: keys.collect(),
                sums: (0..random.below(3)).map(|_| test(random, 1)).collect(),
            })
        }
        4 => Deed::Switch(2000, random.flip()),
        5 => Deed::Name(source(random, registers), 224),
        _ => Deed::Return(random.number()),
    }
}

fn action(random: &mut Random, registers: u64) -> Action {
    match random.below(8) {
        0 => Action::Count(counter(random)),
        1 => Action::Record(event(random, registers)),
        _ => {
            let word = |random: &mut Random| loop {
                let fetch = fetch(random, registers);
                if matches!(fetch, Fetch::Word(_) | Fetch::Load(..)) {
                    return fetch;
                }
            };
            let mut values: Vec<Fetch> = (0..3).map(|_| word(random)).collect();
            values.push(Fetch::Text(source(random, registers), random.offset()));
            let condition = random.flip().then(|| test(random, 3));
            Action::Block(Box::new(Block {
                base: 88,
                switch: random.flip().then_some(2008),
                values,
                condition,
                deeds: (0..1 + random.below(3))
                    .map(|_| deed(random, registers))
                    .collect(),
            }))
        }
    }
}

fn body() -> Result<Body, ()> {
    Ok(Body {
        bytes: vec![0x82, 0x80],
        ..Body::default()
    })
}

/// What hashes an instruction set's code: its stubs, detours and hooks.
macro_rules! hashes {
    ($isa:ident, $registers:literal, $via:expr, $code:expr, $at:expr) => {{
        use $isa::masm::Masm;
        let layout = layout();
        let mut random = Random(1);
        let mut stubs = DefaultHasher::new();
        let mut templates = $isa::stub::Templates::new(layout);
        for _ in 0..4000 {
            let (runtime, records) = (runtime(&mut random), records(&mut random, &$via));
            let (mut bytes, mut rows) = (Vec::new(), Vec::new());
            let mut code = Masm::new(&mut bytes, BASE);
            let emitted =
                $isa::stub::emit_stub(&mut code, &layout, &runtime, &records, &mut rows, |_| {
                    body()
                });
            let mut code = Masm::new(&mut bytes, BASE);
            let again = templates.emit(&mut code, &runtime, &records, &mut rows, |_| body());
            format!("{bytes:?} {emitted:?} {again:?} {rows:?}").hash(&mut stubs);
        }
        let mut detours = DefaultHasher::new();
        let mut total = 0;
        let mut refused = 0;
        for _ in 0..6000 {
            let runtime = runtime(&mut random);
            let action = action(&mut random, $registers);
            let whens = [When::Hit, When::Hit, When::Return, When::Missed];
            let when = random.pick(&whens);
            let probe = Probe {
                offset: if when == When::Hit {
                    random.pick(&$at)
                } else {
                    0
                },
                when,
                flags_dead: random.flip(),
                free: random.next() as u32 & 0xF003_F0E0,
                action: &action,
            };
            let place = Place {
                back: $via[0],
                ..Place::new(
                    &$code,
                    BASE + 0x10_0000,
                    BASE + 0x10_0000 + $code.len() as u64,
                )
            };
            let emit = || {
                let mut bytes = Vec::new();
                let mut code = Masm::new(&mut bytes, BASE);
                let detour = $isa::detour::emit(&mut code, &layout, &runtime, &place, &[probe]);
                refused += u32::from(detour.is_err());
                total += bytes.len();
                format!("{bytes:?} {detour:?}")
            };
            let emitted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(emit));
            emitted.unwrap_or_default().hash(&mut detours);
        }
        let mut hooks = DefaultHasher::new();
        let mut bytes = Vec::new();
        let mut code = Masm::new(&mut bytes, BASE);
        let island = IslandLayout {
            program_headers: 64,
            name: 0x300,
        };
        $isa::hooks::find_object(&mut code, &layout, island);
        $isa::hooks::backtrace(&mut code, &layout, AGENT);
        $isa::hooks::iterate_phdr(&mut code, &layout, island);
        for call in [LimitCall::Set, LimitCall::Get, LimitCall::Both] {
            let (space, data, hard) = (random.number(), random.number(), random.number());
            $isa::hooks::limits(&mut code, call, Raise { space, data, hard });
        }
        bytes.hash(&mut hooks);
        println!(
            "{}: stubs {:016x} detours {:016x} ({total} bytes, {refused} refused) hooks {:016x}",
            stringify!($isa),
            stubs.finish(),
            detours.finish(),
            hooks.finish(),
        );
    }};
}

fn main() {
    // lea rax, [rdi+1]; add rax, rsi; nop; nop
    const X86: [u8; 9] = [0x48, 0x8D, 0x47, 0x01, 0x48, 0x01, 0xF0, 0x90, 0x90];
    // addi a0, a0, 1; add a1, a1, a0
    const RISCV: [u8; 8] = [0x13, 0x05, 0x15, 0x00, 0xB3, 0x85, 0xA5, 0x00];
    std::panic::set_hook(Box::new(|_| {}));
    hashes!(x86_64, 16, [Via::Nothing], X86, [0, 4, 9]);
    hashes!(
        riscv64,
        32,
        [Via::Free(6), Via::Kept(6), Via::Nothing],
        RISCV,
        [0, 4, 8]
    );
}
