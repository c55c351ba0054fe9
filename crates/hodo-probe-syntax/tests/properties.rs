//! Random definitions are printed and read back. Random texts are read or refused without a panic.

use hodo_probe_syntax::registers::{riscv64, x86_64};
use hodo_probe_syntax::{
    Action, BinaryOp, Bucket, Container, Definition, Expr, FetchArg, HistKey, HistSort, Histogram,
    Location, Offset, ProbeKind, ProbeName, Register, Scalar, SortBy, Source, Symbol, Type,
    UnaryOp, parse,
};

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Returns a number of any size.
    fn number(&mut self) -> u64 {
        let bits = self.below(64);
        self.next() >> bits
    }

    /// Returns 1 to 8 of these characters.
    fn text(&mut self, characters: &str) -> String {
        let characters: Vec<char> = characters.chars().collect();
        (0..=self.below(8))
            .map(|_| self.pick(&characters))
            .collect()
    }

    fn any_text(&mut self) -> String {
        self.text("ab1 \"'\\:+%*?[]()<>=,.~é€\n\t\r\u{1}\u{7f}#/@$\u{a0}")
    }

    fn identifier(&mut self) -> String {
        format!(
            "{}{}",
            self.pick(&["a", "B", "_", "print", "if"]),
            self.text("abZ_09")
        )
    }
}

fn place(random: &mut Random) -> Location {
    match random.below(4) {
        0 => Location::FileOffset(random.number()),
        1 => Location::Line {
            file: random.any_text() + ".c",
            line: (random.number() as u32).max(1),
        },
        kind => Location::Symbol {
            symbol: if kind == 2 {
                Symbol::Name(random.any_text())
            } else {
                Symbol::Pattern(random.text("ab*?_~.@<>()") + "*")
            },
            offset: match random.below(3) {
                0 => Offset::EveryInstruction,
                1 => Offset::Bytes(random.number()),
                _ => Offset::Bytes(0),
            },
        },
    }
}

fn source(random: &mut Random, kind: ProbeKind, entry: bool, nesting: usize) -> Source {
    match random.below(11) {
        0 | 1 if nesting < 5 => loop {
            let address = source(random, kind, entry, nesting + 1);
            if !matches!(address, Source::Comm | Source::Text(_)) {
                let address = Box::new(address);
                let offset = random.number().cast_signed();
                return Source::Memory { offset, address };
            }
        },
        2 if entry && kind == ProbeKind::Entry => Source::Argument(random.below(128) as u16 + 1),
        3 if kind == ProbeKind::Return => Source::ReturnValue,
        4 => Source::Stack(random.below(2048) as u16),
        5 => random.pick(&[Source::StackPointer, Source::Comm]),
        6 => Source::Address(random.number()),
        7 => Source::FileOffset(random.number()),
        8 => Source::Immediate(random.number().cast_signed()),
        9 => Source::Text(random.any_text()),
        10 => {
            let mut text = random.identifier();
            for _ in 0..random.below(4) {
                match random.below(4) {
                    0 => text += &format!("[{}]", random.number()),
                    n => {
                        text += [".", "->", "::"][n - 1];
                        text += &random.identifier();
                    }
                }
            }
            Source::Variable(text)
        }
        _ if cfg!(target_arch = "riscv64") => {
            let all: Vec<_> = riscv64::Register::all().collect();
            Source::Register(Register::Riscv64(random.pick(&all)))
        }
        _ => {
            let all: Vec<_> = x86_64::Register::all().collect();
            Source::Register(Register::X86_64(random.pick(&all)))
        }
    }
}

fn number_type(random: &mut Random) -> Type {
    let bits = random.pick(&[8, 16, 32, 64]);
    let scalars = [
        Scalar::U(bits),
        Scalar::S(bits),
        Scalar::X(bits),
        Scalar::Char,
        Scalar::Symbol,
    ];
    if random.one_in(4) {
        let container = random.pick(&[
            Container::Bits8,
            Container::Bits16,
            Container::Bits32,
            Container::Bits64,
        ]);
        let width = random.below(usize::from(container.bits())) as u8 + 1;
        let offset = random.below(usize::from(container.bits() - width) + 1) as u8;
        return Type::Bitfield {
            signed: offset & 1 != 0,
            width,
            offset,
            container,
        };
    }
    Type::Scalar(random.pick(&scalars))
}

fn fetch_arg(random: &mut Random, kind: ProbeKind, entry: bool, index: usize) -> FetchArg {
    let source = source(random, kind, entry, 0);
    let memory = source.is_memory();
    let ty = match source {
        Source::Comm | Source::Text(_) => Type::Scalar(Scalar::String),
        _ => match random.below(4) {
            0 if memory => Type::Scalar(Scalar::String),
            1 if memory => {
                let scalar = random.pick(&[Scalar::String, Scalar::U(8), Scalar::Char]);
                Type::Array(scalar, random.below(64) as u16 + 1)
            }
            _ => number_type(random),
        },
    };
    FetchArg {
        name: match random.below(8) {
            0 => format!("arg{}", index + 1),
            _ => format!("{}{index}", random.identifier()),
        },
        source,
        ty: (!random.one_in(3)).then_some(ty),
    }
}

fn is_text(arg: &FetchArg) -> bool {
    matches!(
        arg.effective_type(),
        None | Some(Type::Scalar(Scalar::String))
    )
}

fn is_number(arg: &FetchArg) -> bool {
    !matches!(
        arg.effective_type(),
        Some(Type::Scalar(Scalar::String) | Type::Array(..))
    )
}

/// Returns the indices of the arguments that fit, as expressions.
fn those(args: &[FetchArg], fits: impl Fn(&FetchArg) -> bool) -> impl Iterator<Item = Expr> {
    let indices = args.iter().enumerate().filter(move |(_, arg)| fits(arg));
    indices.map(|(index, _)| Expr::Arg(index))
}

fn number(random: &mut Random, args: &[FetchArg], depth: usize) -> Expr {
    if depth == 0 || random.one_in(4) {
        let mut leaves = vec![
            Expr::Pid,
            Expr::Tid,
            Expr::Cpu,
            Expr::Number(random.number()),
        ];
        leaves.extend(those(args, is_number));
        return random.pick(&leaves);
    }
    let operand = |random: &mut Random| Box::new(number(random, args, depth - 1));
    match random.below(24) {
        0..4 => {
            let op = random.pick(&[UnaryOp::Not, UnaryOp::Complement, UnaryOp::Negate]);
            Expr::Unary(op, operand(random))
        }
        4..8 => {
            let op = random.pick(&[BinaryOp::Equal, BinaryOp::NotEqual, BinaryOp::Matches]);
            let pattern = Expr::Text(random.any_text());
            let mut texts = vec![Expr::Comm, Expr::Text(random.any_text())];
            texts.extend(those(args, is_text));
            let right = match op {
                BinaryOp::Matches => pattern,
                _ => random.pick(&texts),
            };
            Expr::Binary(op, Box::new(random.pick(&texts)), Box::new(right))
        }
        n => {
            use BinaryOp::*;
            let ops = [
                Or,
                And,
                BitOr,
                BitXor,
                BitAnd,
                Equal,
                NotEqual,
                Less,
                LessEqual,
                Greater,
                GreaterEqual,
                ShiftLeft,
                ShiftRight,
                Add,
                Subtract,
                Multiply,
            ];
            let left = operand(random);
            let right = operand(random);
            if random.one_in(8) && *right != Expr::Number(0) {
                return Expr::Binary(random.pick(&[Divide, Remainder]), left, right);
            }
            Expr::Binary(ops[n - 8], left, right)
        }
    }
}

fn histogram(random: &mut Random, args: &[FetchArg]) -> Histogram {
    let mut values = vec![Expr::Pid, Expr::Tid, Expr::Cpu];
    let numbers: Vec<Expr> = those(args, is_number).collect();
    values.extend(numbers.iter().cloned());
    let mut keys: Vec<HistKey> = Vec::new();
    for _ in 0..=random.below(3) {
        let value = random.pick(&values);
        if keys.iter().all(|key| key.value != value) {
            let linear = Bucket::Linear(random.number().max(1));
            let bucket = random.pick(&[Bucket::Each, Bucket::Log2, linear]);
            keys.push(HistKey { value, bucket });
        }
    }
    let mut sums: Vec<usize> = Vec::new();
    for value in numbers {
        if let Expr::Arg(index) = value
            && random.one_in(2)
        {
            sums.push(index);
        }
    }
    let mut orders = vec![SortBy::Hits];
    orders.extend((0..keys.len()).map(SortBy::Key));
    // If a sum is also a key, its name means the key.
    let only_sum = |sum: usize| keys.iter().all(|key| key.value != Expr::Arg(sum));
    orders.extend(
        (0..sums.len())
            .filter(|&n| only_sum(sums[n]))
            .map(SortBy::Value),
    );
    let mut sort = Vec::new();
    for by in orders {
        if random.one_in(3) {
            let descending = random.one_in(2);
            sort.push(HistSort { by, descending });
        }
    }
    Histogram {
        keys,
        values: sums,
        sort,
        size: random.below(1 << 20) as u32 + 1,
    }
}

fn action(random: &mut Random, args: &[FetchArg], leaves: bool) -> Action {
    let probe = ProbeName {
        group: random.one_in(2).then(|| random.identifier()),
        name: random.identifier(),
    };
    match random.below(10) {
        0 => Action::Print,
        1 => Action::Count,
        2 | 3 => Action::Hist(histogram(random, args)),
        4 => Action::StackTrace,
        5 => Action::Snapshot(random.below(65536) as u32 + 1),
        6 => random.pick(&[Action::Enable(probe.clone()), Action::Disable(probe)]),
        7 => Action::TraceOn,
        8 if leaves => Action::Return(random.number().cast_signed()),
        _ => Action::TraceOff,
    }
}

/// Returns a definition. It has the default group and name, unless it is given others.
fn definition(random: &mut Random) -> Definition {
    let mut place = place(random);
    let mut kind = random.pick(&[ProbeKind::Entry, ProbeKind::Return]);
    if kind == ProbeKind::Return {
        match &mut place {
            Location::Symbol { offset, .. } => *offset = Offset::Bytes(0),
            Location::FileOffset(_) => {}
            Location::Line { .. } | Location::Usdt { .. } => kind = ProbeKind::Entry,
        }
    }
    let entry = place.may_begin_function();
    let usdt = matches!(place, Location::Usdt { .. });
    let after = kind == ProbeKind::Entry && !usdt && random.one_in(4);
    let entry = entry && !after;
    let mut args: Vec<FetchArg> = Vec::new();
    for index in 0..random.below(6) {
        let arg = fetch_arg(random, kind, entry, index);
        if args.iter().all(|other| other.name != arg.name) {
            args.push(arg);
        }
    }
    let depth = random.below(7);
    let condition = random.one_in(2).then(|| number(random, &args, depth));
    let mut actions: Vec<Action> = Vec::new();
    let mut leaves = entry && kind == ProbeKind::Entry;
    for _ in 0..random.below(4) {
        let action = action(random, &args, leaves);
        leaves &= !matches!(action, Action::Return(_));
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    let mut path = random.any_text();
    if random.one_in(2) {
        path = format!("/{path}");
    }
    // The defaults come from a text with only file and place.
    let mut plain = Definition {
        kind,
        group: "g".to_owned(),
        name: "n".to_owned(),
        named: true,
        path,
        place,
        after: false,
        args: Vec::new(),
        condition: None,
        actions: Vec::new(),
    };
    if random.one_in(2) {
        let text = plain.to_string().replacen(":g/n", "", 1);
        plain = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        if random.one_in(3) {
            plain.group = random.identifier();
        }
    } else {
        plain.group = random.identifier();
        plain.name = random.identifier();
    }
    Definition {
        after,
        args,
        condition,
        actions,
        ..plain
    }
}

#[test]
fn printed_definitions_are_read_back_unchanged() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let definition = definition(&mut random);
        let text = definition.to_string();
        let again = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, definition, "{text}");
    }
}

/// Parses any text. It must yield a printable error, or a definition that can be read back.
fn survives(text: &str) -> bool {
    match parse(text) {
        Ok(definition) => {
            let printed = definition.to_string();
            match parse(&printed) {
                Ok(again) => assert_eq!(again, definition, "{text:?} as {printed:?}"),
                Err(error) => panic!("{text:?}: {error}"),
            }
            true
        }
        Err(error) => {
            assert_eq!(&*error.text, text);
            assert!(text.is_char_boundary(error.position), "{text:?}");
            assert!(
                text[error.position..].starts_with(&*error.found),
                "{text:?}"
            );
            assert!(error.to_string().contains(&*error.message));
            false
        }
    }
}

#[test]
fn any_bytes_are_read_or_refused() {
    let mut random = Random(0xdead_beef_cafe_f00d);
    for _ in 0..20_000 {
        let length = random.below(40);
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        survives(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn damaged_definitions_are_read_or_refused() {
    let examples = include_str!("good.txt")
        .lines()
        .chain(include_str!("bad.txt").lines());
    let examples: Vec<&str> = examples
        .map(|line| line.trim_start_matches([' ', '=', '^']))
        .collect();
    let tokens = [
        " ",
        ":",
        "+",
        "*",
        "%return",
        "%",
        "$arg1",
        "'",
        "\"",
        "\\",
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        "if ",
        "p ",
        "r ",
        "0x",
        "1",
        "operator",
        "::",
        "->",
        " print",
        " hist:keys=",
        " return ",
        "é",
        "\0",
        "\n",
    ];
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut read = 0;
    for _ in 0..50_000 {
        let mut text: Vec<char> = random.pick(&examples).chars().collect();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len() + 1);
            let end = (at + random.below(4)).min(text.len());
            let put = match random.below(3) {
                0 => Vec::new(),
                1 => random.pick(&tokens).chars().collect(),
                _ => {
                    let from = random.below(text.len() + 1);
                    let to = (from + random.below(12)).min(text.len());
                    text[from..to].to_vec()
                }
            };
            text.splice(at..end, put);
        }
        read += usize::from(survives(&text.into_iter().collect::<String>()));
    }
    // Some are still valid definitions.
    assert!(read > 1000, "{read}");
}
