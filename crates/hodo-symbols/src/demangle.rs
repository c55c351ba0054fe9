//! Names as people write them.

use std::cell::RefCell;
use std::collections::HashMap;

use cpp_demangle::{DemangleOptions, Symbol};

/// How much of a name is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Style {
    /// `ns::foo`: no arguments of functions or templates, no return type.
    #[default]
    Simple,
    /// `ns::foo<int>(char const*)`.
    Full,
    /// As it is in the file.
    Raw,
}

/// Names that are remembered.
const REMEMBERED: usize = 1024;

thread_local! {
    /// To take names apart is slow, and who asks for one asks again, for each event or instruction of the function.
    static KNOWN: RefCell<HashMap<(String, Style), String>> = RefCell::default();
}

/// The readable form of a symbol's name; the name itself where it is not mangled.
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

fn taken_apart(name: &str, style: Style) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // `{:#}` leaves out the hash.
        return match style {
            Style::Full => rust.to_string(),
            _ => format!("{rust:#}"),
        };
    }
    if !name.starts_with("_Z") && !name.starts_with("___Z") {
        return name.to_owned();
    }
    // `foo.part.0` and the like: the suffix is kept as it is.
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

/// The names that uftrace gives to lambdas (`$_0`) and conversions, and none of the qualifiers of methods.
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

/// Drops `<...>` but for operators and names such as `<lambda>`.
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
    fn full_names() {
        assert_eq!(demangle("_ZN2ns3fooEi", Style::Full), "ns::foo(int)");
        assert_eq!(demangle("_ZN2ns3fooEi", Style::Raw), "_ZN2ns3fooEi");
    }
}
