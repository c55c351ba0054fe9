//! Demangles names.

use std::cell::RefCell;
use std::collections::HashMap;

use cpp_demangle::{DemangleOptions, Symbol};

/// How much of a name is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Style {
    /// `ns::foo`: without arguments of functions or templates, and without a return type.
    #[default]
    Simple,
    /// `ns::foo<int>(char const*)`.
    Full,
    /// As in the file.
    Raw,
}

/// At most this many names are cached.
const REMEMBERED: usize = 1024;

thread_local! {
    /// Demangling is slow, and the same name is often needed again, for each event or instruction of a function.
    static KNOWN: RefCell<HashMap<(String, Style), String>> = RefCell::default();
}

/// Returns the readable form of a symbol's name, or the name itself if it is not mangled.
#[must_use]
pub fn demangle(name: &str, style: Style) -> String {
    if style == Style::Raw || !name.starts_with('_') {
        return name.to_owned();
    }
    KNOWN.with_borrow_mut(|known| {
        let key = (name.to_owned(), style);
        if let Some(text) = known.get(&key) {
            return text.clone();
        }
        if known.len() == REMEMBERED {
            known.clear();
        }
        let text = taken_apart(name, style);
        known.insert(key, text.clone());
        text
    })
}

/// Returns all ways in which people write a symbol's name, with more and more of it: `ns::foo`, `ns::foo<int>`,
/// `ns::foo<int>(char)` and `int ns::foo<int>(char)`.
#[must_use]
pub fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![demangle(name, Style::Simple)];
    let mangled = name.split('.').next().unwrap_or_default();
    if let Ok(symbol) = Symbol::new(mangled).as_ref()
        && (name.starts_with("_Z") || name.starts_with("___Z"))
        && rustc_demangle::try_demangle(name).is_err()
    {
        let shorter = DemangleOptions::new().no_return_type();
        let options = [shorter.no_params(), shorter];
        let texts = options.map(|options| symbol.demangle_with_options(&options).ok());
        all.extend(texts.into_iter().flatten());
    }
    all.push(demangle(name, Style::Full));
    all.dedup();
    all
}

/// A quick check that rules out most symbols whose readable form does not contain a text. Demangling is slow, and large
/// programs have hundreds of thousands of names.
#[derive(Debug, Clone)]
pub struct Sieve {
    /// A word that a mangled name spells like the readable one, or `None` if the texts have no such word.
    word: Option<String>,
}

impl Sieve {
    /// Creates a check for names that contain all of these texts.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let is_other = |c: char| !(c.is_ascii_alphabetic() || c == '_');
        let words = texts.into_iter().flat_map(|text| text.split(is_other));
        // Readable names of Rust contain hexadecimal numbers.
        let is_number = |word: &str| word.bytes().all(|c| matches!(c, b'a'..=b'f'));
        let literal = words.filter(|word| !is_number(word) && !MADE.contains(word));
        Self {
            word: literal.max_by_key(|word| word.len()).map(str::to_owned),
        }
    }

    /// Returns whether the readable form of `name` may contain the texts.
    #[must_use]
    pub fn lets_through(&self, name: &str) -> bool {
        (self.word.as_ref()).is_none_or(|word| name.contains(word.as_str()))
    }
}

/// Words that occur in readable names without being spelled in mangled ones: abbreviations, types, operators, special
/// names. Sources: the Itanium C++ ABI, section 5.1, and Rust's RFC 2603.
const MADE: &str = "std allocator basic_string string char_traits basic_istream basic_ostream basic_iostream istream ostream iostream \
    operator new delete co_await cast sizeof alignof typeid throw noexcept const volatile restrict complex imaginary \
    void wchar_t bool char signed unsigned short int long __int128 float double __float128 decimal16 decimal32 decimal64 decimal128 \
    half char8_t char16_t char32_t auto decltype nullptr_t true false this NULL va_list objc_object objcproto \
    anonymous namespace lambda unnamed type default arg string literal vtable for VTT typeinfo name fn virtual non thunk to covariant return \
    construction in guard variable reference temporary TLS init wrapper function transaction clone safe java Class resource template parameter \
    object hidden alias clone part cold isra constprop abi structured binding initializer requires concept \
    i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize f16 f32 f64 f128 str as mut dyn impl extern closure shim vtable _ C \
    __vector _Float _Complex _Imaginary _Sat _Accum _Fract _BitInt __fp16 __bf16 enable_if _block_invoke invocation block \
    override offset vtt initialization global constructors destructors keyed constructor destructor allocating base complete deleting maybe charge \
    invalid syntax recursion limit reached size unsafe";

fn taken_apart(name: &str, style: Style) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // `{:#}` omits the hash.
        return match style {
            Style::Full => rust.to_string(),
            _ => format!("{rust:#}"),
        };
    }
    if !name.starts_with("_Z") && !name.starts_with("___Z") {
        return name.to_owned();
    }
    // The suffix of names such as `foo.part.0` is kept as it is.
    let (mangled, suffix) = name.find('.').map_or((name, ""), |at| name.split_at(at));
    let Ok(symbol) = Symbol::new(mangled) else {
        return name.to_owned();
    };
    let options = DemangleOptions::new();
    let options = match style {
        Style::Full => options,
        _ => options.no_params().no_return_type(),
    };
    let Ok(text) = symbol.demangle_with_options(&options) else {
        return name.to_owned();
    };
    match style {
        Style::Full if suffix.is_empty() => text,
        Style::Full => format!("{text} [{suffix}]"),
        _ => as_uftrace(&without_templates(&text)),
    }
}

/// Writes lambdas (`$_0`) and conversions as uftrace does, and drops the qualifiers of methods.
fn as_uftrace(text: &str) -> String {
    let mut text = text.to_owned();
    for qualifier in [" &&", " &", " volatile", " const"] {
        if let Some(rest) = text.strip_suffix(qualifier) {
            text.truncate(rest.len());
        }
    }
    while let Some(start) = text.find("{lambda(") {
        let Some(end) = text[start..].find('}') else {
            break;
        };
        let number = text[start..start + end].rsplit_once('#');
        let number: u32 = number.and_then(|(_, n)| n.parse().ok()).unwrap_or(1);
        text.replace_range(
            start..=start + end,
            &format!("$_{}", number.saturating_sub(1)),
        );
    }
    if let Some((scope, to)) = text.rsplit_once("::operator ")
        && !matches!(to, "new" | "new[]" | "delete" | "delete[]")
        && !to.starts_with("\"\"")
    {
        text = format!("{scope}::operator(cast)");
    }
    text
}

/// Drops `<...>`, except in operators and names such as `<lambda>`.
fn without_templates(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut depth = 0usize;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if depth == 0
            && let Some(after) = rest.strip_prefix("operator")
            && !out.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        {
            let symbols = [
                "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "<", ">",
            ];
            out.push_str("operator");
            rest = after;
            if let Some(symbol) = symbols.iter().find(|s| rest.starts_with(**s)) {
                out.push_str(symbol);
                rest = &rest[symbol.len()..];
            }
            continue;
        }
        match c {
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            '-' if depth > 0 && rest.starts_with("->") => rest = &rest[1..],
            _ if depth == 0 => out.push(c),
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use object::{Object, ObjectSymbol};

    use super::*;

    #[test]
    fn simple_names() {
        let simple = |name| demangle(name, Style::Simple);
        assert_eq!(simple("main"), "main");
        assert_eq!(simple("_ZN2ns3fooEi"), "ns::foo");
        assert_eq!(
            simple("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector::push_back"
        );
        assert_eq!(
            simple("_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc"),
            "std::operator<<"
        );
        assert_eq!(
            simple("_ZN4core3fmt5write17h0123456789abcdefE"),
            "core::fmt::write"
        );
        assert_eq!(simple("_ZN2ns3fooEi.part.0"), "ns::foo");
        assert_eq!(simple("_Zgarbage"), "_Zgarbage");
        assert_eq!(simple("_ZZ4mainENKUliE_clEi"), "main::$_0::operator()");
        assert_eq!(simple("_ZNK3BoxcvbEv"), "Box::operator(cast)");
        assert_eq!(simple("_ZN3BoxnwEm"), "Box::operator new");
        assert_eq!(simple("_ZNKR3Box3getEv"), "Box::get");
    }

    #[test]
    fn a_sieve_passes_every_name_with_the_text() {
        let through = |text: &str, name: &str| Sieve::new([text]).lets_through(name);
        assert!(through("ns::foo", "_ZN2ns3fooEi"));
        assert!(!through("ns::bar", "_ZN2ns3fooEi"));
        // Words that mangled names do not spell are not searched for.
        assert!(through(
            "std::operator<<",
            "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc"
        ));
        assert!(through("main::$_0::operator()", "_ZZ4mainENKUliE_clEi"));
        assert!(through("ring", "_ZNSsC1Ev"));
        assert!(through("", "_ZN2ns3fooEi"));
        // Every word of the readable form passes.
        for name in [
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_ZN12_GLOBAL__N_11fEv",
            "_ZTVN10__cxxabiv117__class_type_infoE",
            "_ZThn16_N3foo3barEv",
            "_ZNKSs4findEPKcmm",
            "_ZN4core3fmt5write17h0123456789abcdefE",
            "_ZN65_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE",
            "_RNvNtCs1234_7mycrate3foo3bar",
            "_RNvYNtC7mycrate3FooNtB3_3Bar3baz",
            "_ZN3foo3barEv.part.0",
            "_ZGVZ4mainE1x",
            "_ZNSolsEi",
            "_Znwm",
            "_ZN1AD1Ev",
        ] {
            for style in [Style::Simple, Style::Full] {
                let text = demangle(name, style);
                let words = text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_'));
                for word in words.filter(|word| !word.is_empty()) {
                    assert!(through(word, name), "{name}: {text}: {word}");
                }
            }
        }
    }

    /// Uses the names of this test itself, and of the C++ library if it is installed.
    #[test]
    fn a_sieve_passes_every_word_of_real_names() {
        let own = std::env::current_exe().expect("the test has a path");
        let others = ["/usr/lib/x86_64-linux-gnu/libstdc++.so.6"].map(Into::into);
        for path in std::iter::once(own).chain(others) {
            let Ok(bytes) = std::fs::read(path) else {
                continue;
            };
            let file = object::File::parse(&*bytes).expect("an ELF file");
            let names = file.symbols().chain(file.dynamic_symbols());
            for name in names.filter_map(|symbol| symbol.name().ok()) {
                for style in [Style::Simple, Style::Full] {
                    let text = taken_apart(name, style);
                    let sieve = Sieve::new([text.as_str()]);
                    assert!(sieve.lets_through(name), "{name}: {text}: {sieve:?}");
                    for word in text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_')) {
                        let sieve = Sieve::new([word]);
                        assert!(sieve.lets_through(name), "{name}: {text}: {word}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_have_several_spellings() {
        assert_eq!(spellings("main"), ["main"]);
        assert_eq!(
            spellings("_ZN4shop5twiceIiEET_S1_"),
            [
                "shop::twice",
                "shop::twice<int>",
                "shop::twice<int>(int)",
                "int shop::twice<int>(int)"
            ]
        );
        assert_eq!(
            spellings("_ZN4shop3addEii"),
            ["shop::add", "shop::add(int, int)"]
        );
        let rust = spellings("_ZN4core3fmt5write17h0123456789abcdefE");
        assert_eq!(
            rust,
            ["core::fmt::write", "core::fmt::write::h0123456789abcdef"]
        );
        assert_eq!(spellings("_Zgarbage"), ["_Zgarbage"]);
    }

    #[test]
    fn full_names() {
        assert_eq!(demangle("_ZN2ns3fooEi", Style::Full), "ns::foo(int)");
        assert_eq!(demangle("_ZN2ns3fooEi", Style::Raw), "_ZN2ns3fooEi");
    }
}
