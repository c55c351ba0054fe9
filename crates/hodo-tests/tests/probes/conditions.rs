//! Conditions of probes, checked against a reference that uses the events of the same hits.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use hodo_probe_syntax::{BinaryOp, Expr, Scalar, Type, UnaryOp};
use hodo_tests::probing::{PARTS, path, probe, probed, text};
use hodo_tests::{Kind, build};
use serde_json::Value;

/// The arguments that conditions refer to, in `values.c`.
fn arguments() -> String {
    let [_, third, _, fourth, fifth] = PARTS;
    format!(
        "a=$arg1 b=$arg2:s64 c={third}:u8 d={fourth}:s32 e=+0($arg5):u16 f=+2($arg5):s8 g=+8($arg5) s=+0($arg6):string \
         t=+16($arg5):string w={fifth}:b5@3/16 k=\\-3:s8"
    )
}

/// The value of a condition, by C's rules for 64 bits; `None`: the condition as a whole is false.
#[derive(Clone, Copy, Debug)]
struct Number {
    bits: u64,
    unsigned: bool,
}

fn signed(bits: u64) -> Option<Number> {
    let unsigned = false;
    Some(Number { bits, unsigned })
}

/// An event's arguments.
struct Hit<'a> {
    event: &'a Value,
    definition: &'a hodo_probe_syntax::Definition,
}

impl Hit<'_> {
    fn arg(&self, index: usize) -> (&Value, Option<Type>) {
        let arg = &self.definition.args[index];
        (&self.event["args"][&arg.name], arg.effective_type())
    }

    fn text(&self, expr: &Expr) -> Option<Option<String>> {
        match expr {
            Expr::Text(text) => Some(Some(text.clone())),
            Expr::Comm => Some(self.event["comm"].as_str().map(str::to_owned)),
            Expr::Arg(index) => match self.arg(*index) {
                (value, Some(Type::Scalar(Scalar::String))) => {
                    Some(value.as_str().map(str::to_owned))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn number(&self, expr: &Expr) -> Option<Number> {
        match expr {
            Expr::Number(bits) => Some(Number {
                bits: *bits,
                unsigned: *bits > i64::MAX as u64,
            }),
            Expr::Arg(index) => {
                let (value, ty) = self.arg(*index);
                let number = value.as_u64();
                let bits = number.or_else(|| value.as_i64().map(i64::cast_unsigned))?;
                let unsigned = matches!(ty, Some(Type::Scalar(Scalar::U(64) | Scalar::X(64))));
                Some(Number { bits, unsigned })
            }
            Expr::Pid => signed(self.event["pid"].as_u64()?),
            Expr::Tid => signed(self.event["tid"].as_u64()?),
            Expr::Cpu => signed(self.event["cpu"].as_u64()?),
            Expr::Unary(op, operand) => {
                let Number { bits, unsigned } = self.number(operand)?;
                match op {
                    UnaryOp::Not => signed(u64::from(bits == 0)),
                    UnaryOp::Complement => Some(Number {
                        bits: !bits,
                        unsigned,
                    }),
                    UnaryOp::Negate => Some(Number {
                        bits: bits.wrapping_neg(),
                        unsigned,
                    }),
                }
            }
            Expr::Binary(op, left, right) => self.binary(*op, left, right),
            Expr::Text(_) | Expr::Comm => panic!("a text is not a number"),
        }
    }

    fn binary(&self, op: BinaryOp, left: &Expr, right: &Expr) -> Option<Number> {
        if let (Some(left), Some(right)) = (self.text(left), self.text(right)) {
            let (left, right) = (left?, right?);
            return signed(u64::from(match op {
                BinaryOp::Equal => left == right,
                BinaryOp::NotEqual => left != right,
                _ => fits(right.as_bytes(), left.as_bytes()),
            }));
        }
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            let first = self.number(left)?.bits != 0;
            if first == (op == BinaryOp::Or) {
                return signed(u64::from(first));
            }
            return signed(u64::from(self.number(right)?.bits != 0));
        }
        let (left, right) = (self.number(left)?, self.number(right)?);
        let unsigned = left.unsigned || right.unsigned;
        let (x, y) = (left.bits, right.bits);
        let (sx, sy) = (x.cast_signed(), y.cast_signed());
        let less = if unsigned { x < y } else { sx < sy };
        let shift = (y & 63) as u32;
        let compared = |truth: bool| signed(u64::from(truth));
        let bits = match op {
            BinaryOp::Equal => return compared(x == y),
            BinaryOp::NotEqual => return compared(x != y),
            BinaryOp::Less => return compared(less),
            BinaryOp::LessEqual => return compared(less || x == y),
            BinaryOp::Greater => return compared(!less && x != y),
            BinaryOp::GreaterEqual => return compared(!less),
            BinaryOp::ShiftLeft => {
                return Some(Number {
                    bits: x << shift,
                    unsigned: left.unsigned,
                });
            }
            BinaryOp::ShiftRight => {
                let bits = match left.unsigned {
                    true => x >> shift,
                    false => (sx >> shift).cast_unsigned(),
                };
                return Some(Number {
                    bits,
                    unsigned: left.unsigned,
                });
            }
            BinaryOp::BitOr => x | y,
            BinaryOp::BitXor => x ^ y,
            BinaryOp::BitAnd => x & y,
            BinaryOp::Add => x.wrapping_add(y),
            BinaryOp::Subtract => x.wrapping_sub(y),
            BinaryOp::Multiply => x.wrapping_mul(y),
            BinaryOp::Divide | BinaryOp::Remainder if y == 0 => return None,
            BinaryOp::Divide if unsigned => x / y,
            BinaryOp::Divide => sx.wrapping_div(sy).cast_unsigned(),
            BinaryOp::Remainder if unsigned => x % y,
            BinaryOp::Remainder => sx.wrapping_rem(sy).cast_unsigned(),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Matches => panic!("done above"),
        };
        Some(Number { bits, unsigned })
    }
}

/// Patterns with `*` and `?` and classes of single characters.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let Some((&first, rest)) = pattern.split_first() else {
        return text.is_empty();
    };
    if first == b'*' {
        return (0..=text.len()).any(|skipped| fits(rest, &text[skipped..]));
    }
    let Some((&byte, remaining)) = text.split_first() else {
        return false;
    };
    match first {
        b'?' => fits(rest, remaining),
        b'[' => {
            let end = rest.iter().position(|&c| c == b']').expect("a class ends");
            let (inside, after) = (&rest[..end], &rest[end + 1..]);
            let (none, inside) = match inside.strip_prefix(b"!") {
                Some(inside) => (true, inside),
                None => (false, inside),
            };
            inside.contains(&byte) != none && fits(after, remaining)
        }
        first => first == byte && fits(rest, remaining),
    }
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 32) % limit
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    /// The text of a condition.
    fn expression(&mut self, depth: u32) -> String {
        const OPERATORS: [&str; 18] = [
            "||", "&&", "==", "!=", "<<", ">>", "<=", ">=", "<", ">", "|", "^", "&", "+", "-", "*",
            "/", "%",
        ];
        match self.below(if depth == 0 { 6 } else { 20 }) {
            0 => self.below(300).to_string(),
            1 => match self.below(2) {
                0 => format!("{:#x}", self.next()),
                _ => (1u64 << self.below(64)).to_string(),
            },
            2..=3 => self.one(&["a", "b", "c", "d", "e", "f", "g"]).to_owned(),
            4 => self.one(&["w", "k", "pid", "tid", "'x'"]).to_owned(),
            5 => self.texts(),
            6..=8 => {
                let operator = self.one(&["!", "~", "-"]);
                format!("{operator}{}", self.expression(depth - 1))
            }
            _ => {
                let operator = self.one(&OPERATORS);
                let (left, right) = (self.expression(depth - 1), self.expression(depth - 1));
                format!("({left} {operator} {right})")
            }
        }
    }

    fn texts(&mut self) -> String {
        const WORDS: [&str; 7] = ["\"\"", "\"ab\"", "\"abab\"", "\"text\"", "s", "t", "s"];
        const PARTS: [&str; 9] = ["*", "?", "a", "b", "ab", "[ab]", "[!a]", "x", "*"];
        let left = self.one(&WORDS);
        match self.below(3) {
            0 => format!("({left} == {})", self.one(&WORDS)),
            1 => format!("({left} != {})", self.one(&WORDS)),
            _ => {
                let parts: String = (0..self.below(5)).map(|_| self.one(&PARTS)).collect();
                format!("({left} ~ \"{parts}\")")
            }
        }
    }
}

/// One run with a probe that prints all arguments, and one for each of many conditions: each must have the hits for
/// which the condition is true of the printed arguments.
#[test]
fn random_conditions_hold_when_they_should() {
    let program = build("conditions.c", Kind::Pie, &[]);
    let file = path(&program);
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let (mut yes, mut no) = (0, 0);
    for _ in 0..4 {
        let arguments = arguments();
        let all = format!("p:all {file}:values {arguments}");
        let conditions = (0..60).map(|number| {
            let expression = random.expression(4);
            format!("p:c{number} {file}:values {arguments} if {expression}")
        });
        let definitions: Vec<String> = std::iter::once(all)
            .chain(conditions)
            .filter(|text| hodo_probe_syntax::parse(text).is_ok())
            .collect();
        assert!(definitions.len() > 30);
        let parsed: BTreeMap<String, _> = definitions
            .iter()
            .map(|text| hodo_probe_syntax::parse(text).expect("a definition"))
            .map(|definition| (definition.name.clone(), definition))
            .collect();
        let events = probed(&definitions, &[file], 1);
        let hits: Vec<&[Value]> = events.chunk_by(|_, next| next["name"] != "all").collect();
        assert_eq!(hits.len(), 120);
        for hit in hits {
            for (name, definition) in &parsed {
                let Some(condition) = &definition.condition else {
                    continue;
                };
                let event = &hit[0];
                let here = Hit { event, definition };
                let is = here.number(condition).is_some_and(|n| n.bits != 0);
                let mut shown = hit.iter().filter(|event| event["name"] == **name);
                let first = shown.next();
                assert_eq!(first.is_some(), is, "{definition}: {event}");
                if let Some(first) = first {
                    assert_eq!(first["args"], event["args"], "{definition}");
                }
                match is {
                    true => yes += 1,
                    false => no += 1,
                }
            }
        }
    }
    assert!(yes > 1000 && no > 1000, "{yes} {no}");
}

/// Conditions on every function of a file, some often true and some never, while a command runs: it must print what it
/// prints alone, and the counts must be what the conditions say.
fn everywhere(file: &str, command: &[&str]) {
    let alone = Command::new(command[0])
        .args(&command[1..])
        .env("LC_ALL", "C")
        .output()
        .expect("the program can be run");
    let [_, _, second, ..] = PARTS;
    let args = format!("a=$arg1 b={second}:s32 c=+0($arg1):u32 s=+0($arg2):string");
    let definitions = [
        format!("p:all {file}:* count"),
        format!("p:odd {file}:* {args} if a & 1 count"),
        format!("p:even {file}:* {args} if !(a & 1) count"),
        format!("p:never {file}:* {args} if a > 5 && a + 0 < 3 || pid != pid count"),
        format!("p:texts {file}:* {args} if s ~ \"*[a-z]*e*\" && c != 7 || b / (b - 1) == 3 count"),
        format!("p:hist {file}:* {args} if b % 7 == 2 hist:keys=b.log2,comm:vals=b"),
    ];
    let mut options = vec!["--format", "json"];
    for definition in &definitions {
        options.extend(["-e", definition]);
    }
    let output = probe(&options, command);
    assert_eq!(alone.status, output.status, "{file}: {command:?}");
    assert!(
        output.stdout.starts_with(&alone.stdout),
        "{file}: {command:?}"
    );
    let mut hits: BTreeMap<String, u64> = BTreeMap::new();
    for line in text(&output.stdout[alone.stdout.len()..]).lines() {
        let line: Value = serde_json::from_str(line).expect("an object");
        let name = line["name"].as_str().expect("a name").to_owned();
        *hits.entry(name).or_default() += line["hits"].as_u64().expect("hits");
    }
    assert!(hits["all"] > 100, "{file}: {hits:?}");
    assert_eq!(hits["odd"] + hits["even"], hits["all"], "{file}: {hits:?}");
    assert_eq!(hits["never"], 0, "{file}");
    assert!(hits["texts"] < hits["all"], "{file}: {hits:?}");
}

#[test]
fn conditions_on_every_function_of_real_programs() {
    let script = "f() { local x=$1; [ $x -gt 0 ] && f $((x-1)); }; f 20; for i in 1 2 3; do echo $i; done | tac; \
                  trap 'echo bye' EXIT; echo a | sed s/a/b/; (exit 3); echo $?";
    everywhere("bash", &["bash", "-c", script]);
    if Path::new("/usr/bin/sqlite3").exists() {
        let sql = "with recursive t(i) as (select 1 union all select i+1 from t where i<30) select count(*), sum(i) from t";
        everywhere("libsqlite3.so.0", &["/usr/bin/sqlite3", ":memory:", sql]);
    }
    if Path::new("/usr/bin/python3").exists() {
        let program = "import json; print(json.dumps({str(i): i * i for i in range(20)}))";
        everywhere("python3", &["/usr/bin/python3", "-S", "-c", program]);
    }
}
