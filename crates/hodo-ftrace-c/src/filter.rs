//! Which functions a tracer wants to see.

use std::collections::BTreeSet;

use glob::Pattern;

/// A pattern for functions, and one for the file that they are in.
#[derive(Clone, Debug)]
struct Which {
    name: Pattern,
    module: Option<Pattern>,
}

/// What is between the two in a pattern, as in the kernel's `set_ftrace_filter`.
const MODULE: &str = ":mod:";

impl Which {
    fn new(text: &str) -> Result<Self, String> {
        let (name, module) = match text.split_once(MODULE) {
            Some((name, module)) => (name, Some(module)),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(format!(
                "the pattern '{text}' has no name; write '*' for all functions"
            ));
        }
        if module == Some("") {
            return Err(format!(
                "the pattern '{text}' has no file after {MODULE}; leave {MODULE} out for all files"
            ));
        }
        // C++ and Rust have names with two colons.
        if name.replace("::", "").contains(':') {
            return Err(format!(
                "the pattern '{text}' has a ':' that is neither part of '::' nor of '{MODULE}'"
            ));
        }
        let pattern = |part: &str| {
            Pattern::new(part).map_err(|error| format!("the pattern '{part}' is wrong: {error}"))
        };
        Ok(Self {
            name: pattern(name)?,
            module: module.map(pattern).transpose()?,
        })
    }

    fn matches(&self, function: &Function<'_>) -> bool {
        let module = self.module.as_ref();
        module.is_none_or(|module| module.matches(function.module))
            && (self.name.matches(function.name)
                || function
                    .demangled
                    .is_some_and(|name| self.name.matches(name)))
    }
}

/// What filters look at.
pub struct Function<'a> {
    pub address: usize,
    pub name: &'a str,
    /// If it is another one.
    pub demangled: Option<&'a str>,
    /// The name of its file, without directories.
    pub module: &'a str,
}

/// All functions, or some.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    only: Vec<Which>,
    only_at: BTreeSet<usize>,
    not: Vec<Which>,
    /// Nothing is wanted but the addresses, also when there are none.
    is_list: bool,
}

impl Filter {
    /// Adds a pattern for functions that are wanted. Without any, all are.
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        self.only.push(Which::new(pattern)?);
        Ok(())
    }

    /// Adds a pattern for functions that are not wanted.
    pub fn add_not(&mut self, pattern: &str) -> Result<(), String> {
        self.not.push(Which::new(pattern)?);
        Ok(())
    }

    /// Adds a function by the address of its site, or takes it away.
    pub fn set_address(&mut self, address: usize, remove: bool) {
        if remove {
            self.only_at.remove(&address);
        } else {
            self.only_at.insert(address);
        }
    }

    /// Makes it a list of addresses, which is empty at first.
    pub fn list() -> Self {
        Self {
            is_list: true,
            ..Self::default()
        }
    }

    /// Wants all functions but those that are not wanted.
    pub fn reset(&mut self) {
        self.only.clear();
        self.only_at.clear();
    }

    /// Wants also those that were not wanted.
    pub fn reset_not(&mut self) {
        self.not.clear();
    }

    /// Returns whether a function is wanted.
    pub fn wants(&self, function: &Function<'_>) -> bool {
        let all = !self.is_list && self.only.is_empty() && self.only_at.is_empty();
        let only = all
            || self.only_at.contains(&function.address)
            || self.only.iter().any(|which| which.matches(function));
        only && !self.not.iter().any(|which| which.matches(function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(filter: &Filter, name: &str) -> bool {
        filter.wants(&Function {
            address: 0x1000,
            name,
            demangled: None,
            module: "libx.so",
        })
    }

    #[test]
    fn patterns_and_addresses_are_added() {
        let mut filter = Filter::default();
        assert!(wants(&filter, "anything"));
        filter.add("read*").expect("a pattern");
        filter.add("write:mod:liby*").expect("a pattern");
        filter.add_not("*_slow").expect("a pattern");
        assert!(wants(&filter, "read_fast") && !wants(&filter, "read_slow"));
        assert!(!wants(&filter, "write"));
        filter.set_address(0x1000, false);
        assert!(wants(&filter, "write"));
        filter.set_address(0x1000, true);
        filter.reset();
        filter.reset_not();
        assert!(wants(&filter, "write") && wants(&filter, "read_slow"));
    }

    #[test]
    fn wrong_patterns_are_errors() {
        let error = Filter::default().add("a[").expect_err("it is wrong");
        assert!(error.starts_with("the pattern 'a[' is wrong: "), "{error}");
        for wrong in ["", ":mod:lib", "work:mod:", "work:mdo:lib"] {
            assert!(Filter::default().add(wrong).is_err(), "{wrong}");
        }
        assert!(Filter::default().add("shop::add").is_ok());
    }
}
