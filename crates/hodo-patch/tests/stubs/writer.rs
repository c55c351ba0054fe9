//! Writes C programs with everything that compilers treat specially: tables, computed jumps, loops at a function's
//! start, tail calls, all kinds of arguments and results, library calls.

use std::fmt::Write;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What all programs begin with. Each call uses up fuel, so that they end.
const HEAD: &str = "
typedef unsigned long word;
struct pair { long a, b; };
struct mixed { double d; int i; };
struct large { long a[5]; };
extern word strlen(const char *);
extern void *memcpy(void *, const void *, word);
extern char *strchr(const char *, int);
extern int snprintf(char *, word, const char *, ...);
extern void qsort(void *, word, word, int (*)(const void *, const void *));
static volatile long fuel;
static long state[16];
__attribute__((visibility(\"default\"))) long gen_counts[256];
#define CALL(x) (fuel-- > 0 ? (x) : 1)
";

/// A program of this many functions, `gen_0` and so on, and `gen_all`, which calls them.
pub fn program(random: &mut Random, count: u64, counted: bool, nested: bool) -> String {
    let mut text = String::from(HEAD);
    for index in 0..count {
        let linkage = random.pick(&["", "static "]);
        let _ = writeln!(text, "{linkage}long gen_{index}(long a, long b);");
    }
    let table: Vec<_> = (0..count).map(|index| format!("gen_{index}")).collect();
    let _ = writeln!(
        text,
        "static long (*const functions[])(long, long) = {{{}}};",
        table.join(", ")
    );
    for index in 0..count {
        let mut writer = Writer {
            random,
            text: &mut text,
            index,
            count,
            counted,
            nested,
        };
        writer.function();
    }
    let _ = writeln!(
        text,
        "__attribute__((visibility(\"default\"))) long gen_all(long n, long most) {{
            long sum = n;
            for (int i = 0; i < {count}; i++)
                for (int j = 0; j < 6; j++) {{
                    fuel = most;
                    sum = sum * 31 + functions[i](n + j * 5 - 3, sum & 63);
                }}
            for (int i = 0; i < 16; i++) sum = sum * 31 + state[i], state[i] = 0;
            return sum;
        }}"
    );
    text
}

struct Writer<'w> {
    random: &'w mut Random,
    text: &'w mut String,
    index: u64,
    count: u64,
    counted: bool,
    nested: bool,
}

impl Writer<'_> {
    /// A number, sometimes large.
    fn number(&mut self) -> i64 {
        let bits = self.random.pick(&[3, 6, 12, 20, 40]);
        self.random.below(1 << bits) as i64 - (1 << (bits - 1))
    }

    /// An expression of `a`, `b` and `x`.
    fn value(&mut self, depth: u32) -> String {
        if depth == 0 {
            return match self.random.below(5) {
                0 => self.number().to_string() + "L",
                1 => format!("state[{}]", self.random.below(16)),
                kind => ["x", "a", "b"][kind as usize - 2].to_owned(),
            };
        }
        let (left, right) = (self.value(depth - 1), self.value(depth - 1));
        match self.random.below(9) {
            0 => format!("({left} + {right})"),
            1 => format!("({left} - {right})"),
            2 => format!("({left} * {right})"),
            3 => format!("({left} ^ {right})"),
            4 => format!("({left} < {right} ? {left} : {right})"),
            5 => format!("(long)((word){left} >> ({right} & 31))"),
            6 => format!("(int)({left} | {right})"),
            7 => format!("({left} / ({right} | 1L << 40))"),
            _ => self.call(&left, &right),
        }
    }

    /// A function to call. Compilers turn calls of the same function into loops, which would not count.
    fn other(&mut self) -> u64 {
        let other = self.random.below(self.count);
        match self.counted && other == self.index {
            true => (other + 1) % self.count,
            false => other,
        }
    }

    fn call(&mut self, left: &str, right: &str) -> String {
        let other = self.other();
        match self.random.below(4) {
            0 => format!(
                "CALL(functions[({left} & 7) % {}]({left}, {right}))",
                self.count
            ),
            _ => format!("CALL(gen_{other}({left}, {right}))"),
        }
    }

    fn statement(&mut self) -> String {
        let value = self.value(2);
        match self.random.below(6) {
            0 => format!("state[{}] += {value};", self.random.below(16)),
            1 => format!("if ({value} > b) x ^= {};", self.value(1)),
            2 => format!(
                "for (int i = 0; i < ({value} & 3); i++) x += i * {};",
                self.value(1)
            ),
            _ => format!("x = {value};"),
        }
    }

    fn statements(&mut self, most: u64) -> String {
        let count = self.random.below(most + 1);
        (0..count)
            .map(|_| self.statement())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn function(&mut self) {
        let index = self.index;
        let count = match self.counted {
            true => format!("gen_counts[{index}]++;"),
            false => String::new(),
        };
        let (value, other, some) = (self.value(2), self.value(1), self.statements(4));
        let (left, right) = (self.value(1), self.value(1));
        let parts = Parts {
            value,
            other,
            some,
            left,
            right,
            tail: self.other(),
        };
        let (before, body) = match self.random.below(18) {
            kind @ 0..8 => (String::new(), self.short(kind, &parts)),
            8 | 9 => (String::new(), self.switch(&parts)),
            kind @ (10 | 11) => (String::new(), labels(kind, &parts)),
            kind @ 12..17 => self.helped(kind, &parts),
            _ => (String::new(), self.with_stack(&parts)),
        };
        let hidden = ["noinline", "noinline, noclone", "noinline, noipa"];
        let hidden = self.random.pick(&hidden);
        let _ = writeln!(
            self.text,
            "{before}__attribute__(({hidden})) long gen_{index}(long a, long b) {{ {count} long x = a ^ 5; {body} }}"
        );
    }

    /// A one-line body: a leaf, a loop at the start, or a call at the end.
    fn short(&mut self, kind: u64, parts: &Parts) -> String {
        let Parts {
            value,
            other,
            some,
            tail,
            ..
        } = parts;
        match kind {
            0 => format!("return {value};"),
            1 => "return a;".to_owned(),
            2 => format!("return a + {};", self.random.below(100)),
            // Loops at the start.
            3 => "do a = a * 3 + b; while (b-- > 0 && a < 1000000); return a;".to_owned(),
            4 => {
                format!(
                    "while (b > 0) {{ b >>= 1; a ^= b * {}; }} return a;",
                    self.random.below(99)
                )
            }
            5 => {
                format!(
                    "for (;;) {{ x += a; a >>= 1; if (a <= 0) return x; if ((b += 3) > 90) return {other}; }}"
                )
            }
            6 => format!("return fuel-- > 0 ? gen_{tail}(b, a) : 1;"),
            _ => {
                format!(
                    "{some} if (fuel-- <= 0) return x; return functions[(a & 15) % {}](b, 0);",
                    self.count
                )
            }
        }
    }

    fn switch(&mut self, parts: &Parts) -> String {
        let Parts { other, .. } = parts;
        let mut body = String::new();
        let cases = 4 + self.random.below(20);
        let _ = write!(body, "switch (a & 31) {{");
        for case in 0..cases {
            let (value, some) = (self.value(1), self.statements(1));
            let end = self.random.pick(&["break;", "return x;", ""]);
            let _ = write!(body, "case {case}: {some} x += {value}; {end} ");
        }
        let _ = write!(body, "default: x = {other}; }} return x;");
        body
    }

    /// A function preceded by helpers with many kinds of arguments.
    fn helped(&mut self, kind: u64, parts: &Parts) -> (String, String) {
        let index = self.index;
        let Parts {
            some, left, right, ..
        } = parts;
        let mut before = String::new();
        let body = match kind {
            12 => {
                let _ = write!(
                    before,
                    "__attribute__((noinline)) static long gen_sum_{index}(int n, ...) {{
                        long s = 0; __builtin_va_list l; __builtin_va_start(l, n);
                        while (n-- > 0) s = s * 7 + __builtin_va_arg(l, long);
                        s += (long)__builtin_va_arg(l, double); __builtin_va_end(l); return s; }}\n"
                );
                format!(
                    "{some} return gen_sum_{index}(9, a, b, x, 4L, (long)({left}), 6L, 7L, 8L, (long)({right}), 2.5 * (int)a);"
                )
            }
            13 => {
                let _ = write!(
                    before,
                    "__attribute__((noinline)) double gen_mix_{index}(double p, float q, long r, struct mixed m) {{ return p * q - r + m.d * m.i; }}
                    __attribute__((noinline)) struct mixed gen_turn_{index}(struct mixed m, float f) {{ m.d += f; m.i ^= 3; return m; }}\n"
                );
                format!(
                    "struct mixed m = {{(int)a, (int)b & 1023}}; m = gen_turn_{index}(m, (short)b); {some}
                    return x + (long)(gen_mix_{index}((short)a, (short)b, b & 63, m) * 0.001);"
                )
            }
            14 => {
                let _ = write!(
                    before,
                    "__attribute__((noinline)) struct pair gen_pair_{index}(long a, long b) {{ struct pair p = {{b, a * 3}}; return p; }}
                    __attribute__((noinline)) struct large gen_large_{index}(long a, struct large l, long b) {{ l.a[a & 3] += b; l.a[4]--; return l; }}\n"
                );
                format!(
                    "struct large l = {{{{a, b, x, 4, 5}}}}; struct pair p = gen_pair_{index}(a, b); {some}
                    l = gen_large_{index}(b, l, p.a); return l.a[0] ^ l.a[1] ^ l.a[2] ^ l.a[3] ^ p.b ^ l.a[4] ^ x;"
                )
            }
            15 => {
                let _ = write!(
                    before,
                    "__attribute__((noinline)) static long gen_many_{index}(long a, long b, long c, long d, long e, long f, long g, long h, long i, int j, char k)
                    {{ return a + 2 * b - 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + k; }}\n"
                );
                format!(
                    "{some} return gen_many_{index}(a, b, x, {left}, 5, 6, 7, 8, {right}, (int)a, (char)b);"
                )
            }
            _ => {
                let _ = writeln!(
                    before,
                    "static int gen_order_{index}(const void *p, const void *q) {{ long a = *(long *)p, b = *(long *)q; return a < b ? -1 : a > b; }}"
                );
                format!(
                    "long l[8] = {{a, b, x, 4, {left}, 2, {right}, 0}}; char c[64]; qsort(l, 8, sizeof *l, gen_order_{index});
                    x += snprintf(c, sizeof c, \"%ld %d %.3f\", l[3], (int)b, (double)(short)a); {some}
                    return x + strlen(c) + l[2] + (strchr(c, '.') ? 1 : 7);"
                )
            }
        };
        (before, body)
    }

    /// A body that contains a function, or an array of variable length.
    fn with_stack(&mut self, parts: &Parts) -> String {
        let Parts { other, some, .. } = parts;
        match self.nested && self.random.one_in(2) {
            true => {
                format!(
                    "long inner(long c) {{ x += c * b; return fuel-- > 0 && c > 0 ? inner(c - 1) + a : x; }} {some} return inner(b & 7) + {other};"
                )
            }
            false => {
                format!(
                    "char c[(b & 31) + 9]; {some} memcpy(c, state, 8); c[8] = (char)a; c[(b & 31) + 8] = 0; return x + c[3] + c[8] + strlen(c + (b & 31) + 8);"
                )
            }
        }
    }
}

/// A body that jumps to addresses from a table.
fn labels(kind: u64, parts: &Parts) -> String {
    let Parts {
        other,
        some,
        left,
        right,
        ..
    } = parts;
    match kind {
        10 => {
            format!(
                    "static const void *const labels[] = {{&&l0, &&l1, &&l2, &&l3}}; {some}
                    goto *labels[a & 3]; l0: x += {left}; if (fuel-- > 0) goto *labels[b & 3]; return x;
                    l1: x -= {right}; if (fuel-- > 0) goto *labels[(x ^ b) & 3]; return x; l2: x *= 3; l3: return x + {other};"
                )
        }
        _ => {
            format!(
                    "static const int labels[] = {{&&l0 - &&l1, &&l1 - &&l1, &&l2 - &&l1, &&l3 - &&l1}};
                    goto *(&&l1 + labels[a & 3]); l0: x += {left}; if (fuel-- > 0) goto *(&&l1 + labels[b & 3]); return x;
                    l1: x -= {right}; if (fuel-- > 0) goto *(&&l1 + labels[(x ^ b) & 3]); return x; l2: x *= 5; l3: return x ^ a;"
                )
        }
    }
}

/// The parts that the bodies of a function are built from.
struct Parts {
    /// An expression two operations deep.
    value: String,
    other: String,
    some: String,
    left: String,
    right: String,
    /// The function that is called last.
    tail: u64,
}
