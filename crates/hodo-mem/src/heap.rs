//! Allocations of memory, from the calls of functions that allocate it.

use std::path::Path;
use std::str::FromStr;

use hodo_dbi::{Event, Events};
use object::{Object as _, ObjectSymbol, SymbolKind};
use rustc_hash::FxHashMap;

use crate::places::{segments, to_offset};

/// What a function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    /// Allocates as many bytes as this argument says.
    Allocate(usize),
    /// Allocates as many elements of as many bytes as the first two arguments say.
    AllocateArray,
    /// Allocates as many bytes as the third argument says, and writes the address to where the first one points.
    AllocateTo,
    /// Moves what the first argument points to. The second one says how many bytes it will have.
    Move,
    /// The same with elements.
    MoveArray,
    /// Frees what the first argument points to.
    Free,
}

/// What functions of allocators do that have such a prefix before their names.
const PREFIXES: [&str; 7] = [
    "__libc_",
    "__GI___libc_",
    "je_",
    "tc_",
    "mi_",
    "rp",
    "__wrap_",
];

/// How many of these are the C library's.
const KNOWN: usize = 11;

/// What functions do that have these names.
const NAMES: [(&str, Function); 21] = [
    ("malloc", Function::Allocate(0)),
    ("valloc", Function::Allocate(0)),
    ("pvalloc", Function::Allocate(0)),
    ("memalign", Function::Allocate(1)),
    ("aligned_alloc", Function::Allocate(1)),
    ("calloc", Function::AllocateArray),
    ("posix_memalign", Function::AllocateTo),
    ("realloc", Function::Move),
    ("reallocarray", Function::MoveArray),
    ("free", Function::Free),
    ("cfree", Function::Free),
    // CPython: objects are parts of larger memory.
    ("PyObject_Malloc", Function::Allocate(0)),
    ("PyObject_Calloc", Function::AllocateArray),
    ("PyObject_Realloc", Function::Move),
    ("PyObject_Free", Function::Free),
    ("PyMem_Malloc", Function::Allocate(0)),
    ("PyMem_Calloc", Function::AllocateArray),
    ("PyMem_Realloc", Function::Move),
    ("PyMem_Free", Function::Free),
    ("PyMem_RawMalloc", Function::Allocate(0)),
    ("PyMem_RawFree", Function::Free),
];

/// The operators of C++ that allocate and free, by the beginnings of their names (Itanium C++ ABI, section 5.1.3).
const OPERATORS: [(&str, Function); 4] = [
    ("_Znw", Function::Allocate(0)),
    ("_Zna", Function::Allocate(0)),
    ("_Zdl", Function::Free),
    ("_Zda", Function::Free),
];

impl Function {
    fn by_name(name: &str) -> Option<Self> {
        let operator = OPERATORS.iter().find(|(start, _)| name.starts_with(start));
        let own = || {
            let mut prefixes = PREFIXES.iter();
            let short = prefixes.find_map(|prefix| name.strip_prefix(prefix));
            let short = short.unwrap_or(name);
            NAMES.iter().find(|(known, _)| *known == short)
        };
        operator.or_else(own).map(|&(_, function)| function)
    }
}

/// The calls of functions that allocate and free.
#[must_use]
pub fn events() -> Events {
    let name = |name: &str| Function::by_name(name).map(|_| name.to_owned());
    Events::default().functions(move |file| functions(file, name).unwrap_or_default())
}

/// A function of a program's own allocator, and the one of the C library that it is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocator {
    name: String,
    like: String,
}

impl FromStr for Allocator {
    type Err = String;

    /// Of NAME=LIKE.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let known = NAMES.iter().map(|(name, _)| *name).take(KNOWN);
            let known: Vec<&str> = known.collect();
            format!(
                "{text:?} is not NAME=LIKE, as my_alloc=malloc: LIKE is one of {}",
                known.join(", ")
            )
        };
        let (name, like) = text.split_once('=').ok_or_else(wrong)?;
        if name.is_empty() || Function::by_name(like).is_none() {
            return Err(wrong());
        }
        Ok(Self {
            name: name.to_owned(),
            like: like.to_owned(),
        })
    }
}

/// The same events with those of these functions, if a client wants to receive allocations.
#[must_use]
pub fn also(events: Events, allocators: Vec<Allocator>) -> Events {
    if allocators.is_empty() {
        return events;
    }
    let like = move |name: &str| {
        let own = allocators.iter().find(|own| own.name == name);
        own.map(|own| own.like.clone())
    };
    events.also_functions(move |file| functions(file, &like).unwrap_or_default())
}

/// Functions of a file that have a name here: where each begins in it, and that name.
fn functions(path: &Path, name_of: impl Fn(&str) -> Option<String>) -> Option<Vec<(u64, String)>> {
    let bytes = hodo_dbi::contents(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let segments = segments(&bytes);
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let found = symbols.filter_map(|symbol| {
        if symbol.kind() != SymbolKind::Text || !symbol.is_definition() {
            return None;
        }
        let name = name_of(symbol.name().ok()?)?;
        Some((to_offset(&segments, symbol.address())?, name))
    });
    Some(found.collect())
}

/// A change of what is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Memory was allocated.
    Allocated {
        /// Its first address.
        address: u64,
        /// Bytes.
        size: u64,
        /// What the client has said of the call.
        context: u32,
    },
    /// Memory is about to be freed.
    Freed {
        /// Its first address.
        address: u64,
    },
    /// Memory was moved, perhaps to where it was.
    Moved {
        /// Its first address before. 0: it was allocated.
        from: u64,
        /// Its first address.
        to: u64,
        /// Bytes.
        size: u64,
        /// What the client has said of the call.
        context: u32,
    },
}

/// A call that has not returned.
#[derive(Debug, Clone, Copy)]
struct Call {
    function: Option<Function>,
    arguments: [u64; 3],
    context: u32,
}

/// Finds changes of what is allocated. If an allocating function calls another one, only the outer call counts.
#[derive(Debug, Clone, Default)]
pub struct Heap {
    /// By thread.
    calls: FxHashMap<u32, Vec<Call>>,
}

impl Heap {
    /// The change that an event is. `context` is something that the client wants to know of calls.
    pub fn event(
        &mut self,
        thread: u32,
        event: &Event<'_>,
        context: impl FnOnce(u64) -> u32,
    ) -> Option<Change> {
        let calls = self.calls.entry(thread).or_default();
        match *event {
            Event::Called {
                function,
                arguments,
                stack,
                depth,
            } => {
                calls.truncate(depth);
                let function = Function::by_name(function);
                let is_outer = calls.is_empty();
                calls.push(Call {
                    function,
                    arguments,
                    context: if is_outer { context(stack) } else { 0 },
                });
                let address = arguments[0];
                let frees = is_outer && function == Some(Function::Free) && address != 0;
                frees.then_some(Change::Freed { address })
            }
            Event::Returned { result, inner, .. } => {
                let call = calls.pop()?;
                calls.is_empty().then(|| call.ended(result, inner))?
            }
            Event::Executed => {
                calls.clear();
                None
            }
            _ => None,
        }
    }
}

impl Call {
    /// What a call has done that has returned this.
    fn ended(&self, result: u64, inner: u64) -> Option<Change> {
        let [first, second, third] = self.arguments;
        let allocated = |address: u64, size: u64| {
            (address != 0).then_some(Change::Allocated {
                address,
                size,
                context: self.context,
            })
        };
        let moved = |size: u64| match result {
            0 if size == 0 && first != 0 => Some(Change::Freed { address: first }),
            0 => None,
            to => Some(Change::Moved {
                from: first,
                to,
                size,
                context: self.context,
            }),
        };
        match self.function? {
            Function::Allocate(argument) => allocated(result, self.arguments[argument]),
            Function::AllocateArray => allocated(result, first.saturating_mul(second)),
            // The address was returned by a function within this one.
            Function::AllocateTo if result == 0 && second.is_power_of_two() => {
                let is_aligned = inner.is_multiple_of(second);
                is_aligned.then(|| allocated(inner, third))?
            }
            Function::AllocateTo | Function::Free => None,
            Function::Move => moved(second),
            Function::MoveArray => moved(second.saturating_mul(third)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(function: &str, arguments: [u64; 3], depth: usize) -> Event<'_> {
        Event::Called {
            function,
            arguments,
            stack: 0,
            depth,
        }
    }

    fn returned(function: &str, result: u64, inner: u64) -> Event<'_> {
        Event::Returned {
            function,
            result,
            inner,
        }
    }

    /// What events change, of which the first happens in the first context, and so on.
    fn changes(events: &[Event<'_>]) -> Vec<Change> {
        let mut heap = Heap::default();
        let changes = events.iter().zip(1..);
        let changes = changes.map(|(event, context)| heap.event(0, event, |_| context));
        changes.flatten().collect()
    }

    #[test]
    fn the_outer_call_counts() {
        let events = [
            called("_Znwm", [40, 0, 0], 0),
            called("malloc", [40, 0, 0], 1),
            returned("malloc", 0x1000, 0),
            returned("_Znwm", 0x1000, 0x1000),
            called("_ZdlPvm", [0x1000, 40, 0], 0),
            called("free", [0x1000, 0, 0], 1),
            returned("free", 0, 0),
            returned("_ZdlPvm", 0, 0),
        ];
        let allocated = Change::Allocated {
            address: 0x1000,
            size: 40,
            context: 1,
        };
        assert_eq!(
            changes(&events),
            [allocated, Change::Freed { address: 0x1000 }]
        );
    }

    #[test]
    fn a_call_that_was_left_does_not_hide_later_ones() {
        let events = [
            called("_Znwm", [1 << 60, 0, 0], 0),
            called("malloc", [1 << 60, 0, 0], 1),
            returned("malloc", 0, 0),
            // It has thrown an exception.
            called("malloc", [8, 0, 0], 0),
            returned("malloc", 0x2000, 0),
        ];
        let allocated = Change::Allocated {
            address: 0x2000,
            size: 8,
            context: 4,
        };
        assert_eq!(changes(&events), [allocated]);
    }

    #[test]
    fn sizes_are_where_functions_have_them() {
        let allocated = |name, arguments, result, inner| {
            let all = changes(&[called(name, arguments, 0), returned(name, result, inner)]);
            match all[..] {
                [Change::Allocated { address, size, .. }] => Some((address, size)),
                _ => None,
            }
        };
        assert_eq!(allocated("calloc", [3, 5, 0], 64, 0), Some((64, 15)));
        assert_eq!(
            allocated("je_aligned_alloc", [64, 5, 0], 64, 0),
            Some((64, 5))
        );
        assert_eq!(
            allocated("posix_memalign", [1, 64, 9], 0, 128),
            Some((128, 9))
        );
        assert_eq!(allocated("posix_memalign", [1, 64, 9], 0, 130), None);
        assert_eq!(allocated("posix_memalign", [1, 64, 9], 12, 128), None);
        assert_eq!(allocated("malloc", [9, 0, 0], 0, 0), None);
        assert_eq!(allocated("mallocx", [9, 0, 0], 16, 0), None);
    }

    #[test]
    fn memory_moves() {
        let moved = |arguments, result| {
            changes(&[
                called("realloc", arguments, 0),
                returned("realloc", result, 0),
            ])
        };
        let change = Change::Moved {
            from: 16,
            to: 64,
            size: 100,
            context: 1,
        };
        assert_eq!(moved([16, 100, 0], 64), [change]);
        assert_eq!(moved([16, 0, 0], 0), [Change::Freed { address: 16 }]);
        assert_eq!(moved([16, 100, 0], 0), []);
    }
}
