//! What clients receive besides accesses: calls of functions that they name, system calls, and signals.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Finds functions in a file: where each begins in it, and its name.
type Find = dyn Fn(&Path) -> Vec<(u64, String)> + Send + Sync;

/// Chooses code by its file, and where it is in that. `None`: it is from no file.
type Choose = dyn Fn(Option<(&Path, u64)>) -> Choice + Send + Sync;

/// Whether code is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Whether the instruction that was asked about is.
    pub observed: bool,
    /// The same is true of what comes after it, up to here in the file.
    pub until: u64,
}

impl Choice {
    /// All code.
    const ALL: Self = Self {
        observed: true,
        until: u64::MAX,
    };
}

/// Which events a client wants to receive, and of what code. Signals are always received; the others make records
/// longer.
#[derive(Clone, Default)]
pub struct Events {
    functions: Option<Arc<Find>>,
    choose: Option<Arc<Choose>>,
    pub(crate) system_calls: bool,
    order: bool,
    pub(crate) lossy: bool,
    pub(crate) expanded: bool,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("functions", &self.functions.is_some())
            .field("choose", &self.choose.is_some())
            .field("system_calls", &self.system_calls)
            .field("order", &self.order)
            .field("lossy", &self.lossy)
            .field("expanded", &self.expanded)
            .finish()
    }
}

impl Events {
    /// Calls and returns of functions. `find` finds these in a file: where each begins in it, and the name by which the
    /// client receives it.
    #[must_use]
    pub fn functions(
        mut self,
        find: impl Fn(&Path) -> Vec<(u64, String)> + Send + Sync + 'static,
    ) -> Self {
        self.functions = Some(Arc::new(find));
        self
    }

    /// If calls of functions are wanted, those of these, too.
    #[must_use]
    pub fn also_functions(
        mut self,
        find: impl Fn(&Path) -> Vec<(u64, String)> + Send + Sync + 'static,
    ) -> Self {
        self.functions = self.functions.map(|own| -> Arc<Find> {
            Arc::new(move |file: &Path| {
                let mut found = own(file);
                found.extend(find(file));
                found
            })
        });
        self
    }

    /// Executions and accesses only of chosen code; the rest runs as under the bare engine. `choose` is asked about
    /// each block of code: about its file and where its first instruction is in that, if it is from one. Events are
    /// still received, wherever they are.
    #[must_use]
    pub fn only_of(
        mut self,
        choose: impl Fn(Option<(&Path, u64)>) -> Choice + Send + Sync + 'static,
    ) -> Self {
        self.choose = Some(Arc::new(choose));
        self
    }

    /// Whether calls of functions are wanted.
    pub(crate) fn wants_functions(&self) -> bool {
        self.functions.is_some()
    }

    /// System calls.
    #[must_use]
    pub fn system_calls(mut self) -> Self {
        self.system_calls = true;
        self
    }

    /// The program does not wait for the client: if that is too slow, parts of what threads do are lost. How much that
    /// was is an event. Only for [`crate::Observe::Accesses`].
    #[must_use]
    pub fn lossy(mut self) -> Self {
        self.lossy = true;
        self
    }

    /// Before the program executes gathers, scatters, and masked loads and stores, they are expanded as
    /// [`crate::Replacing::expand_scatter_gather`] does, and threads record each access by itself, instead of the
    /// registers from which all addresses come. The accesses are the same ones.
    #[must_use]
    pub fn expanded(mut self) -> Self {
        self.expanded = true;
        self
    }

    /// What the threads of a process do at the same time comes about together: see [`crate::Client::continues`].
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.order = true;
        self
    }
}

/// Something that a thread does, or that becomes of what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'e> {
    /// It calls a function.
    Called {
        /// The name.
        function: &'e str,
        /// The first arguments that are numbers or addresses. The function may have fewer.
        arguments: [u64; 3],
        /// Where the stack has the return address.
        stack: u64,
        /// How many other functions that the client has named have been called and did not return.
        depth: usize,
    },
    /// A function that it has called returns to where that was called.
    Returned {
        /// The name.
        function: &'e str,
        /// What it returns.
        result: u64,
        /// What another function of the same file returned to it before that. 0: nothing has.
        inner: u64,
    },
    /// It makes a system call.
    SystemCall {
        /// The kernel's number.
        number: u64,
        /// All of its arguments. It may have fewer.
        arguments: [u64; 6],
    },
    /// A system call is over. For some, this is not received: they do not return, or to another place.
    SystemCallEnded {
        /// What it returns: a negative number is an error.
        result: u64,
    },
    /// It has mapped a file whose code may be executed, as `dlopen` does.
    Mapped {
        /// The file.
        file: &'e Path,
        /// Where it is.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where in the file that begins.
        offset: u64,
    },
    /// It is the first one of a process, which has a copy of the memory of the process that has made it.
    Forked {
        /// The thread that has made the process.
        maker: u32,
    },
    /// It has executed another program: the memory of its process is new.
    Executed,
    /// Nothing is received about this many instructions: see [`Events::lossy`]. What comes next is right, but for
    /// results of calls that began before.
    Lost {
        /// The number.
        instructions: u64,
    },
    /// It gets a signal that it has a handler for, which comes next.
    Signal {
        /// The kernel's number.
        signal: u32,
    },
}

/// Functions of a file, by where they begin in it.
pub(crate) type Functions = FxHashMap<u64, String>;

/// What the engine knows of the events that are wanted.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    events: Events,
    files: RefCell<FxHashMap<PathBuf, Rc<Functions>>>,
}

impl Watch {
    pub(crate) fn new(events: Events) -> Self {
        Self {
            events,
            files: RefCell::default(),
        }
    }

    /// Whether parts may be lost.
    pub(crate) fn may_lose(&self) -> bool {
        self.events.lossy
    }

    /// Whether system calls are wanted.
    pub(crate) fn system_calls(&self) -> bool {
        self.events.system_calls
    }

    /// Whether what other threads have done must be received before what a thread has done since then. Memory is
    /// allocated by one thread and used by others.
    pub(crate) fn order_matters(&self) -> bool {
        self.events.order || self.functions_wanted()
    }

    /// Whether calls of some functions are wanted.
    pub(crate) fn functions_wanted(&self) -> bool {
        self.events.functions.is_some()
    }

    /// Whether code is observed.
    pub(crate) fn choice(&self, file: Option<(&Path, u64)>) -> Choice {
        let choose = self.events.choose.as_ref();
        choose.map_or(Choice::ALL, |choose| choose(file))
    }

    /// Whether some code may not be observed.
    pub(crate) fn chooses(&self) -> bool {
        self.events.choose.is_some()
    }

    /// The functions of a file whose calls are wanted.
    pub(crate) fn functions(&self, file: &Path) -> Rc<Functions> {
        let Some(find) = &self.events.functions else {
            return Rc::default();
        };
        if let Some(found) = self.files.borrow().get(file) {
            return Rc::clone(found);
        }
        let found: Rc<Functions> = Rc::new(find(file).into_iter().collect());
        let mut files = self.files.borrow_mut();
        files.insert(file.to_owned(), Rc::clone(&found));
        found
    }
}
