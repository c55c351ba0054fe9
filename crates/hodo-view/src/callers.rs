//! The functions that contain addresses, and the chains of callers on recorded stacks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use hodo_symbols::{Registers, Style, Unwinder, demangle, interrupted};
use hodo_trace::Task;
use hodo_trace::format::{ISLAND, STACK_WORDS};
use hodo_trace::meta::Map;
use serde_json::{Value, json};

use crate::format::printable;
use crate::source::Source;

/// At most this many callers are shown.
const MOST: usize = 512;

/// A file that is mapped into processes.
struct File {
    /// Its segments: offset in the file, length in bytes, link-time address.
    segments: Vec<(u64, u64, u64)>,
    /// Its functions, sorted by address: start, end, name.
    functions: Vec<(u64, u64, String)>,
    unwinder: Unwinder,
}

impl File {
    fn read(path: &Path, bytes: &[u8]) -> Option<Self> {
        use object::{Object, ObjectSegment};
        let elf = object::File::parse(bytes).ok()?;
        let segment = |segment: object::Segment<'_, '_>| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        };
        let symbols = hodo_symbols::symbols_of(path, bytes).ok()?;
        let function = |function: hodo_symbols::Function| {
            let name = printable(demangle(&function.name, Style::Simple));
            let end = function.addr.saturating_add(function.size);
            (function.addr, end, name)
        };
        let mut functions: Vec<_> = symbols.functions.into_iter().map(function).collect();
        functions.sort();
        Some(Self {
            segments: elf.segments().map(segment).collect(),
            functions,
            unwinder: Unwinder::new(bytes),
        })
    }

    /// Returns the link-time address of the byte at this offset in the file.
    fn address(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&(u64, u64, u64)| {
            (segment.0..segment.0.saturating_add(segment.1)).contains(&offset)
        };
        let (start, _, addr) = self.segments.iter().find(inside)?;
        Some(addr.wrapping_add(offset - start))
    }

    /// Returns the function at a link-time address, and the offset within it.
    fn function(&self, addr: u64) -> Option<(&str, u64)> {
        let after = self
            .functions
            .partition_point(|function| function.0 <= addr);
        let (start, end, name) = self.functions.get(after.checked_sub(1)?)?;
        (addr < *end).then(|| (name.as_str(), addr - start))
    }
}

/// An address of a process.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    addr: u64,
    path: Option<String>,
    /// The link-time address in the file.
    link: u64,
    function: Option<(String, u64)>,
}

impl Located {
    /// Formats the address as ftrace does.
    pub fn text(&self) -> String {
        match (&self.function, &self.path) {
            // An address without a name is shown as a number.
            (Some((name, _)), _) if !name.starts_with('<') => name.clone(),
            (_, Some(path)) => printable(format!("{path}[+{:#x}]", self.link)),
            (_, None) => format!("<{:x}>", self.addr),
        }
    }

    /// Formats the function and the offset.
    pub fn symbol(&self) -> Option<String> {
        let (name, distance) = self.function.as_ref()?;
        Some(format!("{name}+{distance:#x}"))
    }

    pub fn json(&self) -> Value {
        json!({
            "addr": self.addr, "path": self.path,
            "symbol": self.function.as_ref().map(|(name, _)| name),
            "offset": self.function.as_ref().map(|(_, distance)| distance),
        })
    }
}

/// What an event holds of a stack, from the stack pointer upwards.
#[derive(Debug)]
pub(crate) enum Stack {
    /// A copy of the stack, and of its shadow, which holds the return addresses of traced functions. Either may be
    /// empty.
    Copied(Vec<u8>, Vec<u8>),
    /// The words that are needed to find the callers. The return addresses of traced functions are the real ones.
    Packed(Vec<Option<u64>>),
}

impl Stack {
    /// Unpacks a stack: the number of bytes examined, a bit for each word, and the words whose bit is set. A word that
    /// is missing counts as not recorded.
    pub fn unpack(words: &[u64]) -> Self {
        const GROUPS: usize = STACK_WORDS as usize / 64;
        let length = words.first().map_or(0, |&bytes| bytes / 8);
        let bits = words.get(1..1 + GROUPS).unwrap_or_default();
        let mut kept = words.iter().skip(1 + GROUPS).copied();
        let word = |number: u64| {
            let group = bits.get((number / 64) as usize)?;
            (group >> (number % 64) & 1 == 1).then(|| kept.next())?
        };
        Self::Packed((0..length.min(STACK_WORDS)).map(word).collect())
    }

    /// Returns the word at a distance from the stack pointer.
    fn word(&self, distance: u64) -> Option<u64> {
        match self {
            Self::Copied(bytes, _) => word(bytes, distance),
            Self::Packed(words) => {
                let number = usize::try_from(distance / 8).ok()?;
                (distance.is_multiple_of(8)).then(|| *words.get(number)?)?
            }
        }
    }

    /// Returns what the shadow holds for that word.
    fn real(&self, distance: u64) -> Option<u64> {
        match self {
            // `--check-frames` marks the highest bit.
            Self::Copied(_, shadow) => {
                Some(word(shadow, distance)? & !(1 << 63)).filter(|&real| real != 0)
            }
            Self::Packed(_) => None,
        }
    }
}

fn word(memory: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let word = memory.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// A chain of callers.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// The frames, innermost first.
    pub frames: Vec<Located>,
    /// Whether the outermost frame was found.
    pub complete: bool,
}

/// What is mapped where.
#[derive(Default)]
pub(crate) struct Addresses {
    /// By process: the mappings in the order in which they were made, each with its time in nanoseconds.
    maps: HashMap<i32, Vec<(u64, Map)>>,
    files: RefCell<HashMap<String, Option<Rc<File>>>>,
}

impl Addresses {
    pub fn new(source: &Source) -> Self {
        let mut maps: HashMap<i32, Vec<_>> = HashMap::new();
        for map in &source.trace.maps {
            let ns = source.scale.nanoseconds(map.counter);
            maps.entry(map.pid).or_default().push((ns, map.clone()));
        }
        Self {
            maps,
            files: RefCell::default(),
        }
    }

    /// Takes over what has been mapped since the last call.
    pub fn update(&mut self, source: &Source) {
        self.maps = Self::new(source).maps;
    }

    fn file(&self, source: &Source, path: &str) -> Option<Rc<File>> {
        let mut files = self.files.borrow_mut();
        let read = || File::read(Path::new(path), &source.file(path)?).map(Rc::new);
        files.entry(path.to_owned()).or_insert_with(read).clone()
    }

    /// Returns the mapping that contains an address at a time. A process also has the mappings that its parent had when
    /// it began.
    fn map(&self, source: &Source, task: &Task, ns: u64, addr: u64) -> Option<&Map> {
        let (mut task, mut before) = (task, ns);
        loop {
            let maps = self.maps.get(&task.pid).into_iter().flatten();
            let mut maps = maps.filter(|(at, map)| {
                (*at <= before || !source.timed()) && (map.start..map.end).contains(&addr)
            });
            if let Some((_, map)) = maps.next_back() {
                return Some(map);
            }
            let parent = (task.parent as usize).checked_sub(1)?;
            before = source.scale.nanoseconds(task.began);
            task = source.trace.tasks.get(parent)?;
        }
    }

    /// Returns whether an address is in our own code.
    fn is_island(&self, source: &Source, (task, ns): (&Task, u64), addr: u64) -> bool {
        let map = self.map(source, task, ns, addr);
        map.is_some_and(|map| map.path == ISLAND)
    }

    /// Returns the file that is mapped at an address, and the link-time address in it.
    fn find(
        &self,
        source: &Source,
        (task, ns): (&Task, u64),
        addr: u64,
    ) -> Option<(String, Rc<File>, u64)> {
        let map = self.map(source, task, ns, addr)?;
        let file = self.file(source, &map.path)?;
        let link = file.address((addr - map.start).checked_add(map.offset)?)?;
        Some((map.path.clone(), file, link))
    }

    /// Returns what is at an address. If `back` is set, the address follows a call, and the call is what is looked up.
    pub fn locate(&self, source: &Source, at: (&Task, u64), addr: u64, back: bool) -> Located {
        let found = self.find(source, at, addr - u64::from(back && addr > 0));
        let mut located = Located {
            addr,
            path: None,
            link: 0,
            function: None,
        };
        if let Some((path, file, link)) = found {
            let function = file.function(link);
            let after = u64::from(back);
            located.function = function.map(|(name, distance)| (name.to_owned(), distance + after));
            located.path = Some(path);
            located.link = link.wrapping_add(after);
        }
        located
    }

    /// Returns the callers on a stack. `words` are the registers of a stack trace, then the address of the instruction.
    pub fn chain(&self, source: &Source, at: (&Task, u64), words: &[u64], stack: &Stack) -> Chain {
        let mut chain = Chain {
            frames: Vec::new(),
            complete: false,
        };
        let Some(recorded) = source.trace.info.isa() else {
            return chain;
        };
        let mut registers = Registers::new(recorded);
        let numbers = recorded.stack_trace_registers();
        for (register, word) in numbers.iter().zip(words) {
            registers.set(*register, *word);
        }
        registers.set_instruction(words.get(numbers.len()).copied());
        let Some(bottom) = registers.stack_pointer() else {
            return chain;
        };
        let read = |addr: u64| stack.word(addr.checked_sub(bottom)?);
        let real = |addr: u64| stack.real(addr.checked_sub(bottom)?);
        let mut back = false;
        while chain.frames.len() < MOST {
            let addr = match registers.instruction() {
                Some(addr) if addr != 0 => addr,
                end => {
                    chain.complete = end.is_some();
                    break;
                }
            };
            chain.frames.push(self.locate(source, at, addr, back));
            let told = match self.find(source, at, addr - u64::from(back)) {
                Some((_, file, link)) => file.unwinder.caller(link, &registers, &read),
                None => interrupted(&registers, &read).filter(|caller| {
                    let addr = caller.registers.instruction();
                    addr.is_some_and(|addr| self.find(source, at, addr).is_some())
                }),
            };
            let Some(caller) = told else { break };
            if caller.none {
                chain.complete = true;
                break;
            }
            let before = registers.stack_pointer();
            // The innermost function may not have moved the stack pointer yet.
            let moved = back;
            registers = caller.registers;
            back = !caller.interrupted;
            if let (true, Some(to), Some(frame)) =
                (back, registers.instruction(), registers.stack_pointer())
                && self.is_island(source, at, to)
                && let Some(real) = real(recorded.frame_name(frame))
            {
                registers.set_instruction(Some(real));
            }
            // Stacks grow downwards: the caller's frame is above.
            let after = registers.stack_pointer();
            if back && (after < before || moved && after == before) {
                break;
            }
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_stacks_have_the_words_that_were_kept() {
        let mut words = vec![70 * 8];
        words.extend([0; STACK_WORDS as usize / 64]);
        words[1] = 1 << 1 | 1 << 63;
        words[2] = 1 << 5;
        words.extend([11, 63, 69]);
        let stack = Stack::unpack(&words);
        let found: Vec<_> = (0..72)
            .filter_map(|n| Some((n, stack.word(n * 8)?)))
            .collect();
        assert_eq!(found, [(1, 11), (63, 63), (69, 69)]);
        assert_eq!(stack.word(12), None);
        assert_eq!(stack.real(8), None);
    }

    #[test]
    fn damaged_packed_stacks_have_what_is_there() {
        for words in [&[][..], &[u64::MAX], &[8, u64::MAX]] {
            assert_eq!(Stack::unpack(words).word(0), None);
        }
        let mut words = vec![u64::MAX; 1 + STACK_WORDS as usize / 64];
        words.push(7);
        let stack = Stack::unpack(&words);
        assert_eq!((stack.word(0), stack.word(8)), (Some(7), None));
        assert_eq!(stack.word(!7), None);
    }
}
