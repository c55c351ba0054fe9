//! Only some functions are observed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Access, Block, Client, Event, Events};
use hodo_mem::places::Functions;
use hodo_module::glob::glob;
use regex::Regex;

/// A function, and perhaps its file.
#[derive(Debug)]
struct Pattern {
    function: Regex,
    file: Option<Regex>,
}

impl Pattern {
    fn new(text: &str) -> Result<Self> {
        let (function, file) = match text.rsplit_once('@') {
            Some((function, file)) => (function, Some(file)),
            None => (text, None),
        };
        let wrong = || format!("{text:?} is not a pattern of functions");
        Ok(Self {
            function: glob(function).with_context(wrong)?,
            file: file.map(glob).transpose().with_context(wrong)?,
        })
    }

    fn matches(&self, function: &str, file: &str) -> bool {
        // The name of a library without its version.
        let short = file.split_once(".so").map_or(file, |(short, _)| short);
        let is_file = |wanted: &Regex| wanted.is_match(file) || wanted.is_match(short);
        self.function.is_match(function) && self.file.as_ref().is_none_or(is_file)
    }
}

/// Which functions are observed.
#[derive(Debug)]
pub struct Selection {
    only: Vec<Pattern>,
    skip: Vec<Pattern>,
}

impl Selection {
    /// # Errors
    /// If one of the patterns is none.
    pub fn new(only: &[String], skip: &[String]) -> Result<Self> {
        let all = |texts: &[String]| -> Result<Vec<Pattern>> {
            texts.iter().map(|text| Pattern::new(text)).collect()
        };
        Ok(Self {
            only: all(only)?,
            skip: all(skip)?,
        })
    }

    fn is_all(&self) -> bool {
        self.only.is_empty() && self.skip.is_empty()
    }

    fn selects(&self, function: &str, file: &str) -> bool {
        let in_list = |list: &[Pattern]| list.iter().any(|one| one.matches(function, file));
        (self.only.is_empty() || in_list(&self.only)) && !in_list(&self.skip)
    }
}

/// A client that hears only of selected functions.
#[derive(Debug)]
pub struct Selected<C> {
    client: C,
    selection: Selection,
    /// By number: whether the block is selected.
    blocks: Vec<bool>,
    files: HashMap<PathBuf, Functions>,
    any: bool,
}

impl<C> Selected<C> {
    pub fn new(client: C, selection: Selection) -> Self {
        Self {
            client,
            selection,
            blocks: Vec::new(),
            files: HashMap::new(),
            any: false,
        }
    }

    /// Whether functions were to be selected, but none of these was executed.
    pub fn is_useless(&self) -> bool {
        !self.any && !self.selection.is_all()
    }

    /// The client.
    pub fn into_client(self) -> C {
        self.client
    }

    fn is_selected(&self, block: &Block) -> bool {
        let known = self.blocks.get(block.id as usize);
        self.selection.is_all() || known.is_some_and(|&known| known)
    }
}

impl<C: Client> Client for Selected<C> {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.client.thread(thread, process, tid);
    }

    fn block(&mut self, block: &Arc<Block>) {
        if !self.selection.is_all() {
            let number = block.id as usize;
            if self.blocks.len() <= number {
                self.blocks.resize(number + 1, false);
            }
            let (file, offset) = block.file.clone().unwrap_or_default();
            let new = || Functions::of(&file);
            let functions = self.files.entry(file.clone()).or_insert_with(new);
            let function = functions.name(offset).unwrap_or_default();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            self.blocks[number] = self.selection.selects(&function, &name);
        }
        self.client.block(block);
    }

    fn events(&self) -> Events {
        self.client.events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        self.client.event(thread, event);
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.is_selected(block) {
            self.any = true;
            self.client.executed(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        if self.is_selected(block) {
            self.client.fetched(thread, block, insn);
        }
    }

    #[inline]
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        if self.is_selected(block) {
            self.client.accessed(thread, block, access);
        }
    }

    fn continues(&mut self, thread: u32) {
        self.client.continues(thread);
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        if self.is_selected(block) {
            self.any = true;
            self.client.counted(thread, block, upto, times);
        }
    }

    fn end(&mut self) -> Result<()> {
        self.client.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_selected_by_name_and_file() {
        let texts = |texts: &[&str]| {
            texts
                .iter()
                .map(|&text| text.to_owned())
                .collect::<Vec<_>>()
        };
        let selection = |only: &[&str], skip: &[&str]| {
            Selection::new(&texts(only), &texts(skip)).expect("patterns")
        };
        assert!(selection(&[], &[]).selects("any", "file"));
        let some = selection(&["mem*@libc", "main"], &["memset"]);
        assert!(some.selects("memcpy", "libc.so.6"));
        assert!(some.selects("main", "bash"));
        assert!(!some.selects("memset", "libc.so.6"));
        assert!(!some.selects("memcpy", "bash"));
        assert!(!some.selects("other", "libc.so.6"));
        assert!(Selection::new(&texts(&["[a"]), &[]).is_err());
    }
}
