//! Only some functions are observed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use hodo_dbi::{Access, Accesses, Block, Choice, Client, Event, Events, Listener, Message};
use hodo_mem::places::Functions;
use hodo_module::glob::glob;
use regex::Regex;

use crate::args::FunctionArgs;

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
    files: Mutex<HashMap<PathBuf, InFile>>,
}

/// What is known of a file.
#[derive(Debug)]
struct InFile {
    functions: Functions,
    /// Whether each function is selected of which that was asked, and of code that is in none.
    selected: HashMap<Option<String>, bool>,
}

impl Selection {
    /// # Errors
    /// If one of the patterns is none.
    pub fn new(args: &FunctionArgs) -> Result<Self> {
        let all = |texts: &[String]| -> Result<Vec<Pattern>> {
            texts.iter().map(|text| Pattern::new(text)).collect()
        };
        Ok(Self {
            only: all(&args.only)?,
            skip: all(&args.skip)?,
            files: Mutex::default(),
        })
    }

    /// All functions.
    pub fn all() -> Self {
        Self {
            only: Vec::new(),
            skip: Vec::new(),
            files: Mutex::default(),
        }
    }

    /// Whether all functions are selected.
    pub fn is_all(&self) -> bool {
        self.only.is_empty() && self.skip.is_empty()
    }

    fn selects(&self, function: &str, file: &str) -> bool {
        let in_list = |list: &[Pattern]| list.iter().any(|one| one.matches(function, file));
        (self.only.is_empty() || in_list(&self.only)) && !in_list(&self.skip)
    }

    /// Whether a function is selected, by its name and file.
    pub fn selects_function(&self, function: &str, file: Option<&Path>) -> bool {
        let file = file.and_then(Path::file_name).unwrap_or_default();
        self.selects(function, &file.to_string_lossy())
    }

    /// Whether code is selected that is at this place in a file.
    pub fn selects_at(&self, path: &Path, offset: u64) -> bool {
        self.is_all() || self.choose(Some((path, offset))).observed
    }

    /// Whether code is selected that is at this place in a file, or in none.
    fn choose(&self, place: Option<(&Path, u64)>) -> Choice {
        let Some((path, offset)) = place else {
            return Choice {
                observed: self.selects("", ""),
                until: u64::MAX,
            };
        };
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || InFile {
            functions: Functions::of(path),
            selected: HashMap::new(),
        };
        let file = files.entry(path.to_owned()).or_insert_with(new);
        let (function, until) = file.functions.around(offset);
        let observed = match file.selected.get(&function) {
            Some(&known) => known,
            None => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let selected = self.selects(function.as_deref().unwrap_or_default(), &name);
                file.selected.insert(function, selected);
                selected
            }
        };
        Choice { observed, until }
    }

    /// The events that a client wants, of selected code.
    fn of_events(self: &Arc<Self>, events: Events) -> Events {
        if self.is_all() {
            return events;
        }
        let this = Arc::clone(self);
        events.only_of(move |place| this.choose(place))
    }
}

/// A client or a listener that receives only what selected functions do.
#[derive(Debug)]
pub struct Selected<C> {
    client: C,
    selection: Arc<Selection>,
    /// By number: whether the block is selected.
    blocks: Vec<bool>,
    /// Only this thread is selected.
    thread: Option<u32>,
    any: bool,
}

impl<C> Selected<C> {
    pub fn new(client: C, selection: Selection) -> Self {
        Self {
            client,
            selection: Arc::new(selection),
            blocks: Vec::new(),
            thread: None,
            any: false,
        }
    }

    /// If there is one: only what this thread does is received. Events of others are, too: memory that one thread
    /// allocates is freed by another.
    pub fn of_thread(self, thread: Option<u32>) -> Self {
        Self { thread, ..self }
    }

    /// Says so if functions or a thread were to be selected, but nothing of these was executed.
    pub fn warn_if_useless(&self) {
        if let Some(thread) = self.thread.filter(|_| !self.any) {
            warn_user!("hodo: nothing was executed that --thread {thread} selects");
            return;
        }
        if !self.any && !self.selection.is_all() {
            warn_user!("hodo: nothing was executed that --only and --skip select");
        }
    }

    /// The client.
    pub fn into_client(self) -> C {
        self.client
    }

    #[inline(always)]
    fn is_selected(&self, thread: u32, block: &Block) -> bool {
        if self.thread.is_some_and(|only| only != thread) {
            return false;
        }
        let known = self.blocks.get(block.id as usize);
        self.selection.is_all() || known.is_some_and(|&known| known)
    }
}

impl<C: Client> Client for Selected<C> {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.client.thread(thread, process, tid);
    }

    fn block_again(&mut self, block: &Arc<Block>) {
        self.client.block_again(block);
    }

    fn block(&mut self, block: &Arc<Block>) {
        if !self.selection.is_all() {
            let number = block.id as usize;
            if self.blocks.len() <= number {
                self.blocks.resize(number + 1, false);
            }
            let place = block.file.as_ref();
            let place = place.map(|(file, offset)| (file.as_path(), *offset));
            self.blocks[number] = self.selection.choose(place).observed;
        }
        self.client.block(block);
    }

    fn events(&self) -> Events {
        self.selection.of_events(self.client.events())
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        self.client.event(thread, event);
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.is_selected(thread, block) {
            self.any = true;
            self.client.executed(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        if self.is_selected(thread, block) {
            self.any = true;
            self.client.visit(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        if self.is_selected(thread, block) {
            self.client.fetched(thread, block, insn);
        }
    }

    #[inline]
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        if self.is_selected(thread, block) {
            self.client.accessed(thread, block, access);
        }
    }

    fn continues(&mut self, thread: u32) {
        self.client.continues(thread);
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        if self.is_selected(thread, block) {
            self.any = true;
            self.client.counted(thread, block, upto, times);
        }
    }

    fn has_enough(&self) -> bool {
        self.client.has_enough()
    }

    fn end(&mut self) -> Result<()> {
        self.client.end()
    }
}

impl<L: Listener> Listener for Selected<L> {
    fn hear(&mut self, message: &Message) -> Result<()> {
        self.any |= matches!(message, Message::Block(block) if block.is_observed());
        self.client.hear(message)
    }

    fn events(&self) -> Events {
        self.selection.of_events(self.client.events())
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
            let (only, skip) = (texts(only), texts(skip));
            Selection::new(&FunctionArgs { only, skip }).expect("patterns")
        };
        assert!(selection(&[], &[]).selects("any", "file"));
        let some = selection(&["mem*@libc", "main"], &["memset"]);
        assert!(some.selects("memcpy", "libc.so.6"));
        assert!(some.selects("main", "bash"));
        assert!(!some.selects("memset", "libc.so.6"));
        assert!(!some.selects("memcpy", "bash"));
        assert!(!some.selects("other", "libc.so.6"));
        let wrong = FunctionArgs {
            only: texts(&["[a"]),
            skip: Vec::new(),
        };
        assert!(Selection::new(&wrong).is_err());
    }
}
