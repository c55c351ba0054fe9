//! Definitions and how they are parsed, and invalid texts with their error messages.

use hodo_probe_syntax::registers::{riscv64, x86_64};
use hodo_probe_syntax::{
    Action, BinaryOp, Bucket, Container, Expr, HistKey, HistSort, Histogram, Location, Offset,
    ParseError, ProbeKind, ProbeName, Register, Scalar, SortBy, Source, Symbol, Type, UnaryOp,
    parse,
};

const RISCV64: bool = cfg!(target_arch = "riscv64");

/// Returns the same text with registers of the processor that this is built for, or `None` if the text is about
/// x86-64's.
fn here(text: &str) -> Option<String> {
    if !RISCV64 {
        return Some(text.to_owned());
    }
    let own = [
        "%rip", "%ip", "%rax", "%ax", "%flags", "%rex", "%xmm0", "%st0",
    ];
    if own.iter().any(|name| text.contains(name)) {
        return None;
    }
    // These names have the same lengths, so the marks are in the same columns.
    let names = [
        ("di", "a0"),
        ("si", "a1"),
        ("dx", "a2"),
        ("bp", "s0"),
        ("sp", "sp"),
    ];
    let own = names
        .into_iter()
        .fold(text.to_owned(), |text, (name, other)| {
            let other = format!("%{other}");
            let text = text.replace(&format!("%r{name}"), &other);
            text.replace(&format!("%{name}"), &other)
        });
    Some(own)
}

#[track_caller]
fn good(text: &str) -> hodo_probe_syntax::Definition {
    let text = here(text).expect("registers of all processors");
    parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn bad(text: &str) -> ParseError {
    parse(&here(text).expect("registers of all processors")).expect_err(text)
}

/// `good.txt` has pairs of lines: a definition, and its printed form.
#[test]
fn definitions_are_printed_in_one_form() {
    let lines: Vec<&str> = include_str!("good.txt").lines().collect();
    assert!(lines.len() > 100 && lines.len().is_multiple_of(2));
    for pair in lines.chunks_exact(2) {
        let text = pair[0].strip_prefix("  ").expect("indented");
        let printed = pair[1].strip_prefix(" = ").expect("marked");
        let Some(printed) = here(printed) else {
            continue;
        };
        let definition = good(text);
        assert_eq!(definition.to_string(), printed, "of {text}");
        assert_eq!(good(&printed), definition, "of {text}");
    }
}

/// `bad.txt` has pairs of lines: a text, and the message shown below it.
#[test]
fn errors_show_where_and_what() {
    let text = include_str!("bad.txt");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 300 && lines.len().is_multiple_of(2));
    for pair in lines.chunks_exact(2) {
        let (Some(text), Some(below)) = (here(pair[0]), here(pair[1])) else {
            continue;
        };
        let shown = bad(&text[2..]).to_string();
        let expected = format!("in probe definition:\n{text}\n{below}");
        assert_eq!(shown, expected);
    }
}

#[test]
fn an_empty_text_is_not_a_definition() {
    for text in ["", "  ", "\n"] {
        let error = bad(text);
        assert_eq!(error.position, text.len());
        assert_eq!(&*error.found, "");
        assert_eq!(
            &*error.message,
            "expected a probe: p PATH:FUNCTION or r PATH:FUNCTION, but the definition ends here"
        );
    }
}

#[test]
fn an_error_has_its_parts() {
    let error = bad("p /bin/bäsh:main  +x(%di)");
    assert_eq!((error.position, error.column()), (20, 19));
    assert_eq!(
        (&*error.found, &*error.expected),
        ("x", "an offset in bytes")
    );
    assert_eq!(error.hint, None);
    let (wrong, hint) = match RISCV64 {
        true => ("%zer", "did you mean zero?"),
        false => ("%rex", "did you mean rax?"),
    };
    let error = parse(&format!("p x:f\t{wrong}")).expect_err(wrong);
    assert_eq!((&*error.found, &*error.expected), (wrong, ""));
    assert_eq!(error.hint.as_deref(), Some(hint));
    // A tab is shown as wide as the mark assumes.
    let shown = format!("\n  p x:f {wrong}\n        ^ ");
    assert!(error.to_string().contains(&shown));
}

#[test]
fn default_groups_and_names_come_from_file_and_place() {
    let names = [
        ("p /bin/bash:main", "probe_bash", "main"),
        ("p /lib/libc.so.6:malloc", "probe_libc", "malloc"),
        ("p libstdc++-x.so:f", "probe_libstdc__", "f"),
        ("p /x/.hidden:f", "probe__hidden", "f"),
        ("p /bin/bash:main+4", "probe_bash", "main_4"),
        ("p /bin/bash:main+*", "probe_bash", "main"),
        ("p /bin/bash:main%return", "probe_bash", "main__return"),
        ("r /bin/bash:main", "probe_bash", "main__return"),
        ("p /bin/bash:'ns::f(int)'", "probe_bash", "ns__f_int_"),
        ("p /bin/bash:*+*", "probe_bash", "all"),
        ("p /bin/bash:read*", "probe_bash", "read_"),
        ("p /bin/my-bash:0x10", "probe_my", "p_my_bash_0x10"),
        ("p /bin/bash:src/main.c:12", "probe_bash", "main_c_12"),
        ("p /bin/bash:'3d.c':12", "probe_bash", "_3d_c_12"),
        ("p:other /bin/bash:main", "probe_bash", "other"),
        ("p:io/other /bin/bash:main", "io", "other"),
        ("p:io/ /bin/bash:main", "io", "main"),
        ("/bin/bash:main", "probe_bash", "main"),
    ];
    for (text, group, name) in names {
        let definition = good(text);
        assert_eq!(
            (&*definition.group, &*definition.name),
            (group, name),
            "{text}"
        );
        assert_eq!(definition.named, text.contains("other"), "{text}");
    }
}

#[test]
fn places() {
    let name = |name: &str, offset| Location::Symbol {
        symbol: Symbol::Name(name.to_owned()),
        offset,
    };
    let places = [
        ("x:main", name("main", Offset::Bytes(0)), ProbeKind::Entry),
        (
            "x:main+0x10",
            name("main", Offset::Bytes(16)),
            ProbeKind::Entry,
        ),
        (
            "x:main+*",
            name("main", Offset::EveryInstruction),
            ProbeKind::Entry,
        ),
        (
            "x:main%return",
            name("main", Offset::Bytes(0)),
            ProbeKind::Return,
        ),
        (
            "x:a::b(int)+4",
            name("a::b(int)", Offset::Bytes(4)),
            ProbeKind::Entry,
        ),
        ("x:'a b*'", name("a b*", Offset::Bytes(0)), ProbeKind::Entry),
        (
            "x:operator+",
            name("operator+", Offset::Bytes(0)),
            ProbeKind::Entry,
        ),
        (
            "x:f@@V_1.2",
            name("f@@V_1.2", Offset::Bytes(0)),
            ProbeKind::Entry,
        ),
        ("r x:16", Location::FileOffset(16), ProbeKind::Return),
        ("x:0x16", Location::FileOffset(22), ProbeKind::Entry),
        (
            "x:a/b.c:3",
            Location::Line {
                file: "a/b.c".to_owned(),
                line: 3,
            },
            ProbeKind::Entry,
        ),
        (
            "x:m*[!a]n?",
            Location::Symbol {
                symbol: Symbol::Pattern("m*[!a]n?".to_owned()),
                offset: Offset::Bytes(0),
            },
            ProbeKind::Entry,
        ),
    ];
    for (text, place, kind) in places {
        let definition = good(text);
        assert_eq!((definition.place, definition.kind), (place, kind), "{text}");
        assert_eq!(definition.path, "x");
    }
    assert_eq!(good(r"p a\:b\ c\\:f").path, r"a:b c\");
    assert_eq!(good(r#"p "a:b c":f"#).path, "a:b c");
}

#[test]
fn fetched_values() {
    let di = || {
        Source::Register(match RISCV64 {
            true => Register::Riscv64(riscv64::Register::X(10)),
            false => Register::X86_64(x86_64::Register {
                whole: x86_64::Whole::Rdi,
                part: x86_64::Part::All,
            }),
        })
    };
    let memory = |offset, address| Source::Memory {
        offset,
        address: Box::new(address),
    };
    let scalar = |scalar| Some(Type::Scalar(scalar));
    let values = [
        ("%di", di(), None, scalar(Scalar::X(64))),
        (
            "%rdi:s16",
            di(),
            scalar(Scalar::S(16)),
            scalar(Scalar::S(16)),
        ),
        ("$arg2", Source::Argument(2), None, scalar(Scalar::X(64))),
        ("$stack", Source::StackPointer, None, scalar(Scalar::X(64))),
        ("$stack3", Source::Stack(3), None, scalar(Scalar::X(64))),
        ("$comm", Source::Comm, None, scalar(Scalar::String)),
        (r"\-5", Source::Immediate(-5), None, scalar(Scalar::X(64))),
        (
            r#"\"a b""#,
            Source::Text("a b".to_owned()),
            None,
            scalar(Scalar::String),
        ),
        ("@16", Source::Address(16), None, scalar(Scalar::X(64))),
        (
            "@+0x10",
            Source::FileOffset(16),
            None,
            scalar(Scalar::X(64)),
        ),
        ("p->x", Source::Variable("p->x".to_owned()), None, None),
        (
            "x:ustring",
            Source::Variable("x".to_owned()),
            scalar(Scalar::String),
            scalar(Scalar::String),
        ),
        (
            "+8(-010(%di))",
            memory(8, memory(-8, di())),
            None,
            scalar(Scalar::X(64)),
        ),
        ("+u0(%di)", memory(0, di()), None, scalar(Scalar::X(64))),
    ];
    for (text, source, ty, effective) in values {
        let definition = good(&format!("p x:f v={text}"));
        let arg = &definition.args[0];
        assert_eq!(
            (&*arg.name, &arg.source, arg.ty),
            ("v", &source, ty),
            "{text}"
        );
        assert_eq!(arg.effective_type(), effective, "{text}");
    }
    let types = |text: &str| good(&format!("p x:f +0(%di):{text}")).args[0].ty;
    assert_eq!(types("u8[64]"), Some(Type::Array(Scalar::U(8), 64)));
    assert_eq!(types("string[1]"), Some(Type::Array(Scalar::String, 1)));
    let bits = |signed| Type::Bitfield {
        signed,
        width: 3,
        offset: 61,
        container: Container::Bits64,
    };
    assert_eq!(types("b3@61/64"), Some(bits(false)));
    assert_eq!(types("sb3@61/64"), Some(bits(true)));
}

#[test]
fn conditions_bind_as_in_c() {
    let same = [
        ("arg1 + 2 * 3", "arg1 + (2 * 3)"),
        ("arg1 - 2 - 3", "(arg1 - 2) - 3"),
        ("arg1 << 1 + 2", "arg1 << (1 + 2)"),
        ("arg1 < 1 << 2", "arg1 < (1 << 2)"),
        ("1 & arg1 == 2", "1 & (arg1 == 2)"),
        ("1 == arg1 < 2", "1 == (arg1 < 2)"),
        ("1 ^ arg1 & 2", "1 ^ (arg1 & 2)"),
        ("1 | arg1 ^ 2", "1 | (arg1 ^ 2)"),
        ("1 && arg1 | 2", "1 && (arg1 | 2)"),
        ("1 || arg1 && 2", "1 || (arg1 && 2)"),
        ("!arg1 + 1", "(!arg1) + 1"),
        ("-arg1 % 2", "(-arg1) % 2"),
        ("~arg1", "((~(arg1)))"),
        ("arg1>=1&&arg1<=2", "(arg1 >= 1) && (arg1 <= 2)"),
    ];
    for (plain, explicit) in same {
        let plain = good(&format!("p x:f %di if {plain}")).condition;
        let explicit_condition = good(&format!("p x:f %di if {explicit}")).condition;
        assert_eq!(plain, explicit_condition, "{explicit}");
    }
    let number = |number| Box::new(Expr::Number(number));
    let condition = good("p x:f %di if arg1 != -'a' - 0x10").condition;
    let negated = Expr::Unary(UnaryOp::Negate, number(97));
    let difference = Expr::Binary(BinaryOp::Subtract, Box::new(negated), number(16));
    let whole = Expr::Binary(
        BinaryOp::NotEqual,
        Box::new(Expr::Arg(0)),
        Box::new(difference),
    );
    assert_eq!(condition, Some(whole));
}

#[test]
fn an_argument_hides_a_built_in_of_the_same_name() {
    let definition = good("p x:f pid=%di if pid == tid hist:keys=pid");
    let Some(Expr::Binary(_, left, right)) = definition.condition else {
        panic!("{:?}", definition.condition);
    };
    assert_eq!((*left, *right), (Expr::Arg(0), Expr::Tid));
}

#[test]
fn actions() {
    let probe = |group: Option<&str>, name: &str| ProbeName {
        group: group.map(str::to_owned),
        name: name.to_owned(),
    };
    let definition = good(
        "p x:f print, count stacktrace traceon , traceoff snapshot snapshot of 64 bytes enable:a \
         disable g/b return -1",
    );
    let expected = [
        Action::Print,
        Action::Count,
        Action::StackTrace,
        Action::TraceOn,
        Action::TraceOff,
        Action::Snapshot(256),
        Action::Snapshot(64),
        Action::Enable(probe(None, "a")),
        Action::Disable(probe(Some("g"), "b")),
        Action::Return(-1),
    ];
    assert_eq!(definition.actions, expected);
    let definition = good(
        "p x:f a=%di b=%si hist:keys=a.log2,comm,tid.buckets=10:vals=hitcount,b:sort=b.descending,a,hitcount:size=64",
    );
    let key = |value, bucket| HistKey { value, bucket };
    let order = |by, descending| HistSort { by, descending };
    let histogram = Histogram {
        keys: vec![
            key(Expr::Arg(0), Bucket::Log2),
            key(Expr::Comm, Bucket::Each),
            key(Expr::Tid, Bucket::Linear(10)),
        ],
        values: vec![1],
        sort: vec![
            order(SortBy::Value(0), true),
            order(SortBy::Key(0), false),
            order(SortBy::Hits, false),
        ],
        size: 64,
    };
    assert_eq!(definition.actions, [Action::Hist(histogram)]);
}

#[test]
fn errors_say_what_needs_a_function() {
    let cases = [
        ("p x:f", false),
        ("p x:16 %di", false),
        ("p x:16 $arg1", true),
        ("p x:16 +0(+8($arg1))", true),
        ("p x:16 return 5", true),
        ("r x:16", true),
    ];
    for (text, needs) in cases {
        assert_eq!(good(text).needs_function(), needs, "{text}");
    }
}

#[test]
fn there_are_limits() {
    let nested = |n: usize| format!("p x:f a={}%di{}", "+0(".repeat(n), ")".repeat(n));
    good(&nested(64));
    assert_eq!(
        &*bad(&nested(65)).message,
        "more than 64 dereferences inside each other"
    );
    for (before, after) in [("(", ")"), ("!", ""), ("-(", ")")] {
        let nested = |n: usize| format!("p x:f if {}pid{}", before.repeat(n), after.repeat(n));
        good(&nested(64 / before.len()));
        assert_eq!(
            &*bad(&nested(64 / before.len() + 1)).message,
            "more than 64 parentheses and signs inside each other"
        );
    }
    let row = |n: usize| format!("p x:f if pid{}", " + 1".repeat(n));
    good(&row(255));
    assert_eq!(&*bad(&row(256)).message, "more than 256 operators in a row");
    // All operators of each precedence, nested as deeply as possible. The stack must be large enough to refuse this.
    let level = "1 || 1 && 1 | 1 ^ 1 & 1 == 1 < 1 << 1 + 1 * !(";
    let deep = |n: usize| format!("p x:f if {}1{}", level.repeat(n), ")".repeat(n));
    good(&deep(20));
    assert_eq!(&*bad(&deep(32)).message, "more than 256 operators in a row");
    let many = |n: usize| format!("p x:f{}", " %di".repeat(n));
    assert_eq!(good(&many(128)).args.len(), 128);
    assert_eq!(
        &*bad(&many(129)).message,
        "a probe has at most 128 arguments"
    );
    let long = |n: usize| format!("p x:{}", "ä".repeat(n));
    good(&long(8190));
    let error = bad(&long(8191));
    assert_eq!(&*error.message, "a definition has at most 16384 bytes");
    assert_eq!(error.position, 16384);
    assert_eq!(bad(&format!("{}a", long(8191))).position, 16384);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn registers_have_the_names_of_the_kernel_and_of_the_processor() {
    use x86_64::{Part, Whole};
    let cases = [
        ("ax", Whole::Rax, Part::All),
        ("rax", Whole::Rax, Part::All),
        ("eax", Whole::Rax, Part::Low32),
        ("al", Whole::Rax, Part::Low8),
        ("ah", Whole::Rax, Part::High8),
        ("r8", Whole::R8, Part::All),
        ("r8d", Whole::R8, Part::Low32),
        ("r8w", Whole::R8, Part::Low16),
        ("r8b", Whole::R8, Part::Low8),
        ("ip", Whole::Rip, Part::All),
        ("sp", Whole::Rsp, Part::All),
        ("flags", Whole::Flags, Part::All),
    ];
    for (name, whole, part) in cases {
        let register = Register::X86_64(x86_64::Register { whole, part });
        assert_eq!(Register::named(name), Some(register), "{name}");
    }
    for name in Register::names() {
        let register = Register::named(name).expect(name);
        assert_eq!(
            Register::named(&register.to_string()),
            Some(register),
            "{name}"
        );
    }
    let all: Vec<_> = x86_64::Register::all().collect();
    let mut printed: Vec<String> = all.iter().map(ToString::to_string).collect();
    printed.sort();
    printed.dedup();
    assert_eq!(printed.len(), all.len());
    let value = 0x1122_3344_5566_7788;
    assert_eq!(Part::All.of(value), value);
    assert_eq!(Part::Low32.of(value), 0x5566_7788);
    assert_eq!(Part::Low16.of(value), 0x7788);
    assert_eq!(Part::Low8.of(value), 0x88);
    assert_eq!(Part::High8.of(value), 0x77);
}

#[test]
fn post_is_a_word_after_the_place() {
    let definition = good("p:name x:f+4 post $comm if pid > 1 count");
    assert!(definition.after);
    assert_eq!(definition.args.len(), 1);
    assert_eq!(definition.actions, [Action::Count]);
    let text = definition.to_string();
    assert!(text.starts_with("p:probe_x/name x:f+0x4 post "), "{text}");
    assert_eq!(good(&text), definition);
    assert!(good("x:f post").after);
    assert!(!good("x:f").after);
    // A variable with that name, and other names that begin so.
    let definition = good("x:f post=post posted");
    assert!(!definition.after);
    assert_eq!(definition.args.len(), 2);
    for text in [
        "r x:f post",
        "x:f%return post",
        "x:%a:b post arg1",
        "x:f post $arg1",
        "x:f post return:1",
    ] {
        assert!(hodo_probe_syntax::parse(text).is_err(), "{text}");
    }
}
