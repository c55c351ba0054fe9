//! System calls as events: `syscalls:sys_enter_NAME` and `syscalls:sys_exit_NAME`, as the kernel's tracepoints are
//! called.
//!
//! A definition that names them becomes one definition for each event, with registers in place of the arguments. All of
//! them together are what is done at each instruction that calls the kernel, by the number of the call.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;
use hodo_codegen::native::detour::{Action, Call};
use hodo_module::Image;
use hodo_module::glob::glob;
use hodo_probe_syntax::{
    Action as Wanted, Definition, Expr, FetchArg, Location, Offset, ProbeKind, Register, SYSCALLS,
    Scalar, Source, Symbol, Type,
};
use hodo_trace::syscalls::{self, Argument, GROUP, Syscall};

use super::arch::Machine;
use super::conditions;
use super::near::near;
use super::values::{fetches, possible};
use super::wanted::ProbePoint;
use super::{Output, Probes};

/// What the names of the events begin with.
const BEGINNINGS: [&str; 2] = ["sys_enter_", "sys_exit_"];
/// The result of a call.
const RESULT: &str = "ret";
/// The number of a call.
const NUMBER: &str = "nr";

/// An event of a system call.
#[derive(Debug, Clone, Copy)]
pub struct CallEvent {
    /// The number of the call.
    pub number: u64,
    /// The call.
    pub call: Syscall,
    /// It happens when the call returns, not when it begins.
    pub exit: bool,
}

impl CallEvent {
    /// Its name, without the group.
    #[must_use]
    pub fn name(&self) -> String {
        let beginning = BEGINNINGS[usize::from(self.exit)];
        format!("{beginning}{}", self.call.name)
    }

    /// Names and types of its arguments, as they are shown if a definition does not name any.
    #[must_use]
    pub fn arguments(&self, isa: Isa) -> Vec<(String, String)> {
        if self.exit {
            return vec![(RESULT.to_owned(), "s64".to_owned())];
        }
        let arguments = syscalls::arguments(isa, self.call).into_iter();
        arguments
            .map(|argument| (argument.name.to_owned(), type_of(argument).to_string()))
            .collect()
    }
}

/// All events of an instruction set.
pub fn all(isa: Isa) -> impl Iterator<Item = CallEvent> {
    syscalls::all(isa)
        .flat_map(|(number, call)| [false, true].map(|exit| CallEvent { number, call, exit }))
}

/// The type of an argument, unless a definition gives another one.
fn type_of(argument: Argument) -> Type {
    let word = argument.kind.split('.').next().unwrap_or_default();
    Type::Scalar(match word {
        "path" => Scalar::String,
        "fd" | "at" | "int" | "id" | "sig" => Scalar::S(32),
        "uint" => Scalar::U(32),
        "size" => Scalar::U(64),
        "off" => Scalar::S(64),
        _ => Scalar::X(64),
    })
}

/// Whether a definition is about system calls.
pub(super) fn is_of_calls(definition: &Definition) -> bool {
    definition.path == SYSCALLS
}

/// What is done at the instructions that call the kernel.
#[derive(Debug, Default)]
pub(super) struct KernelCalls {
    /// By definition.
    events: BTreeMap<usize, CallEvent>,
    /// The calls that definitions name otherwise than by patterns.
    named: BTreeSet<u64>,
    /// Once there is an instruction.
    calls: Option<Rc<Vec<Call>>>,
}

impl KernelCalls {
    /// The definition with this number is that of an event.
    pub fn add(&mut self, number: usize, definition: &Definition, event: CallEvent) {
        if !super::is_many(definition) {
            self.named.insert(event.number);
        }
        self.events.insert(number, event);
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether a definition is that of such an event.
    pub fn has(&self, definition: usize) -> bool {
        self.events.contains_key(&definition)
    }

    /// One of the definitions.
    pub fn first(&self) -> Option<usize> {
        self.events.keys().next().copied()
    }

    /// Whether something is done for a call.
    pub fn has_number(&self, number: u64) -> bool {
        self.events.values().any(|event| event.number == number)
    }

    /// Whether a definition names a call, not by a pattern.
    pub fn names_number(&self, number: u64) -> bool {
        self.named.contains(&number)
    }

    /// How many calls something is done for.
    pub fn numbers(&self) -> usize {
        let numbers: BTreeSet<u64> = self.events.values().map(|event| event.number).collect();
        numbers.len()
    }
}

impl Probes {
    /// What is done at an instruction that calls the kernel: for all numbers, or for the one that it always has.
    pub(super) fn calls_at(
        &mut self,
        number: Option<u64>,
        (addr, image): (u64, &Image),
        output: &mut Output<'_>,
    ) -> Result<Option<Action>> {
        let all = match &self.kernel_calls.calls {
            Some(calls) => Rc::clone(calls),
            None => {
                let calls = Rc::new(self.compiled_calls((addr, image), output)?);
                Rc::clone(self.kernel_calls.calls.insert(calls))
            }
        };
        let is_here = |call: &&Call| number.is_none_or(|number| number == u64::from(call.number));
        let here: Vec<Call> = all.iter().filter(is_here).cloned().collect();
        Ok((!here.is_empty()).then_some(Action::Calls(here)))
    }

    /// The actions of all events, which have their ids and counters from now on. `addr`: the first instruction.
    fn compiled_calls(
        &mut self,
        (addr, image): (u64, &Image),
        output: &mut Output<'_>,
    ) -> Result<Vec<Call>> {
        let mut calls: BTreeMap<u32, Call> = BTreeMap::new();
        let events: Vec<_> = (self.kernel_calls.events.iter())
            .map(|(&definition, &event)| (definition, event))
            .collect();
        for (definition, event) in events {
            let point = ProbePoint {
                definition,
                symbol: "".into(),
                start: addr,
                returns: false,
                resolved: None,
                shown: [].into(),
            };
            let actions = self.actions(&point, addr, image, output)?;
            let is_named = self.kernel_calls.names_number(event.number);
            if is_named && event.call.name == "rt_sigreturn" {
                output.log.warn(
                    "rt_sigreturn: the C library makes this call at a place that unwinders recognize, so that it stays as it is: \
                     events of these calls are not seen",
                );
            }
            let number = u32::try_from(event.number)?;
            let call = calls.entry(number).or_insert_with(|| Call {
                number,
                enter: Vec::new(),
                exit: Vec::new(),
            });
            match event.exit {
                true => call.exit.extend(actions),
                false => call.enter.extend(actions),
            }
        }
        Ok(calls.into_values().collect())
    }
}

/// Makes a definition for each event that one names.
///
/// # Errors
/// If it names none, or asks for what its events do not have.
pub(super) fn expanded(
    machine: &Machine,
    definition: &Definition,
) -> Result<Vec<(CallEvent, Definition)>> {
    suits(definition)?;
    let (events, is_pattern) = named(machine, definition)?;
    let mut expanded = Vec::new();
    let mut first_error = None;
    for event in events {
        match of_event(machine, definition, event) {
            Ok(one) => expanded.push((event, one)),
            // A pattern means those events that have the arguments.
            Err(error) if is_pattern => {
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first_error {
        Some(error) if expanded.is_empty() => {
            Err(error.context("no event that the pattern fits has all these arguments"))
        }
        _ => Ok(expanded),
    }
}

/// Refuses what events of system calls cannot have.
fn suits(definition: &Definition) -> Result<()> {
    if definition.kind == ProbeKind::Return {
        bail!("a system call has no return probe: use p, and the event sys_exit_NAME");
    }
    if definition.after {
        bail!("post: use the event sys_exit_NAME");
    }
    for action in &definition.actions {
        if matches!(action, Wanted::Return(_)) {
            bail!("return: this leaves functions, not system calls");
        }
    }
    Ok(())
}

/// The events that a definition names, and whether by a pattern.
fn named(machine: &Machine, definition: &Definition) -> Result<(Vec<CallEvent>, bool)> {
    let isa = machine.isa;
    let Location::Symbol {
        symbol,
        offset: Offset::Bytes(0),
    } = &definition.place
    else {
        bail!(
            "events of system calls are named {SYSCALLS}:sys_enter_NAME or {SYSCALLS}:sys_exit_NAME; a file with the name \
             {SYSCALLS} is written ./{SYSCALLS}"
        );
    };
    match symbol {
        Symbol::Pattern(text) => {
            let fits = glob(text)?;
            let found: Vec<_> = all(isa)
                .filter(|event| fits.is_match(&event.name()))
                .collect();
            if found.is_empty() {
                bail!(
                    "{SYSCALLS}:{text}: no event of a system call fits this pattern; `hodo list-events '{SYSCALLS}:*'` lists all"
                );
            }
            Ok((found, true))
        }
        Symbol::Name(text) => {
            let found = all(isa).find(|event| event.name() == *text);
            match found {
                Some(event) => Ok((vec![event], false)),
                None => bail!("{SYSCALLS}:{text}: {}", unknown(isa, text)),
            }
        }
    }
}

/// Why there is no event of a name, and which may be meant.
fn unknown(isa: Isa, text: &str) -> String {
    let beginning = BEGINNINGS
        .iter()
        .find(|beginning| text.starts_with(**beginning));
    let name = beginning.map_or(text, |beginning| &text[beginning.len()..]);
    let names = syscalls::all(isa).map(|(_, call)| call.name);
    if beginning.is_none() {
        let text = "events of system calls begin with sys_enter_ or sys_exit_";
        return match syscalls::number(isa, name) {
            Some(_) => format!("{text}; did you mean sys_enter_{name}?"),
            None => format!("{text}; `hodo list-events '{SYSCALLS}:*'` lists all"),
        };
    }
    if let Some(call) = of_function(isa, name) {
        return format!("no such system call; the function {name} of the C library calls {call}");
    }
    match near(name, names) {
        near if near.is_empty() => format!(
            "no such system call on {}; `hodo list-events '{SYSCALLS}:*'` lists all",
            isa.name()
        ),
        near => format!("no such system call; did you mean {}?", near.join(", ")),
    }
}

/// Functions of the C library that make calls of other names: glibc 2.36 and musl 1.2 on 64-bit Linux. The first call
/// is that of x86-64 where instruction sets differ.
const FUNCTIONS: &[(&str, &[&str])] = &[
    ("accept", &["accept"]),
    ("creat", &["creat", "openat"]),
    ("exit", &["exit_group"]),
    ("_exit", &["exit_group"]),
    ("fopen", &["openat"]),
    ("fork", &["clone"]),
    ("fstatat", &["newfstatat"]),
    ("getdents", &["getdents64"]),
    ("malloc", &["brk", "mmap"]),
    ("open", &["openat"]),
    ("open64", &["openat"]),
    ("opendir", &["openat"]),
    ("posix_fadvise", &["fadvise64"]),
    ("posix_spawn", &["clone3"]),
    ("pread", &["pread64"]),
    ("prlimit", &["prlimit64"]),
    ("pselect", &["pselect6"]),
    ("pthread_create", &["clone3"]),
    ("pthread_kill", &["tgkill"]),
    ("pthread_sigmask", &["rt_sigprocmask"]),
    ("pwrite", &["pwrite64"]),
    ("raise", &["tgkill"]),
    ("readdir", &["getdents64"]),
    ("sigaction", &["rt_sigaction"]),
    ("signal", &["rt_sigaction"]),
    ("sigpending", &["rt_sigpending"]),
    ("sigprocmask", &["rt_sigprocmask"]),
    ("sigqueue", &["rt_sigqueueinfo"]),
    ("sigsuspend", &["rt_sigsuspend"]),
    ("sigtimedwait", &["rt_sigtimedwait"]),
    ("sigwait", &["rt_sigtimedwait"]),
    ("sleep", &["clock_nanosleep"]),
    ("nanosleep", &["clock_nanosleep"]),
    ("umount", &["umount2"]),
    ("usleep", &["clock_nanosleep"]),
    ("wait", &["wait4"]),
    ("waitpid", &["wait4"]),
];

/// The call that a function of the C library makes, if it has another name.
fn of_function(isa: Isa, function: &str) -> Option<&'static str> {
    let (_, calls) = FUNCTIONS.iter().find(|(name, _)| *name == function)?;
    let exists = |call: &&&str| syscalls::number(isa, call).is_some();
    calls.iter().find(exists).copied()
}

/// The functions of the C library that make a call under another name.
pub fn functions_of(call: &str) -> impl Iterator<Item = &'static str> {
    FUNCTIONS
        .iter()
        .filter(move |(name, calls)| *name != call && calls.contains(&call))
        .map(|(name, _)| *name)
}

/// A definition for one of the events that it names.
fn of_event(machine: &Machine, definition: &Definition, event: CallEvent) -> Result<Definition> {
    let arguments = Arguments {
        machine,
        event,
        all: syscalls::arguments(machine.isa, event.call),
    };
    let mut one = definition.clone();
    let is_all = |arg: &FetchArg| arg.source == Source::Variable("$params".to_owned());
    let mut args = Vec::new();
    // Arguments of the definition by their numbers: what they are now.
    let mut numbers = Vec::new();
    for arg in &definition.args {
        numbers.push(args.len());
        if !is_all(arg) {
            args.push(arguments.fetched(arg)?);
            continue;
        }
        let own = definition.args.iter().map(|arg| &*arg.name);
        let own: BTreeSet<&str> = own.collect();
        let names = arguments.shown().filter(|name| !own.contains(name));
        for name in names {
            args.push(arguments.fetched(&FetchArg {
                name: name.to_owned(),
                source: Source::Variable(name.to_owned()),
                ty: None,
            })?);
        }
    }
    if args.len() > hodo_probe_syntax::MAX_ARGS {
        bail!(
            "a probe has at most {} arguments",
            hodo_probe_syntax::MAX_ARGS
        );
    }
    one.args = args;
    if let Some(condition) = &mut one.condition {
        renumber(condition, &numbers);
    }
    for action in &mut one.actions {
        if let Wanted::Hist(histogram) = action {
            let keys = histogram.keys.iter_mut();
            keys.for_each(|key| renumber(&mut key.value, &numbers));
            let values = histogram.values.iter_mut();
            values.for_each(|value| *value = numbers[*value]);
        }
    }
    if !one.named {
        one.name = event.name();
        one.named = true;
        if definition.group == format!("probe_{SYSCALLS}") {
            GROUP.clone_into(&mut one.group);
        }
    }
    let name = || format!("{SYSCALLS}:{}", event.name());
    possible(&one, machine).with_context(name)?;
    if let Some(condition) = &one.condition {
        let fetched = fetches(&one, machine, &|_| Some(0)).with_context(name)?;
        let known = conditions::Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: super::rdpid(machine),
        };
        known.test(condition).with_context(name)?;
    }
    Ok(one)
}

/// Arguments of a definition have new numbers.
fn renumber(expr: &mut Expr, numbers: &[usize]) {
    match expr {
        Expr::Arg(number) => *number = numbers[*number],
        Expr::Unary(_, operand) => renumber(operand, numbers),
        Expr::Binary(_, left, right) => {
            renumber(left, numbers);
            renumber(right, numbers);
        }
        _ => {}
    }
}

/// The arguments of an event.
struct Arguments<'m> {
    machine: &'m Machine,
    event: CallEvent,
    all: Vec<Argument>,
}

impl Arguments<'_> {
    /// The names of what is shown if nothing is named.
    fn shown(&self) -> impl Iterator<Item = &'static str> {
        let result = self.event.exit.then_some(RESULT);
        let all = self.all.iter().map(|argument| argument.name);
        result.into_iter().chain(all.filter(|_| !self.event.exit))
    }

    /// An argument of a definition, with a register in place of the call's argument.
    fn fetched(&self, arg: &FetchArg) -> Result<FetchArg> {
        let (source, ty) = match &arg.source {
            Source::Variable(name) => self.variable(name, arg.ty)?,
            source => (self.source(source)?, arg.ty),
        };
        Ok(FetchArg {
            name: arg.name.clone(),
            source,
            ty,
        })
    }

    /// The value of a call's argument, or what it points to: texts and arrays are in memory.
    fn variable(&self, name: &str, ty: Option<Type>) -> Result<(Source, Option<Type>)> {
        if name == NUMBER {
            let number = Source::Immediate(self.event.number.cast_signed());
            return Ok((number, ty.or(Some(Type::Scalar(Scalar::U(64))))));
        }
        let (register, own) = self.register(name)?;
        let ty = ty.unwrap_or(own);
        let source = match ty {
            Type::Scalar(Scalar::String) | Type::Array(..) => Source::Memory {
                offset: 0,
                address: Box::new(register),
            },
            _ => register,
        };
        Ok((source, Some(ty)))
    }

    /// A source with registers in place of arguments.
    fn source(&self, source: &Source) -> Result<Source> {
        Ok(match source {
            Source::Variable(name) => self.register(name)?.0,
            Source::Argument(number) => {
                let index = usize::from(*number) - 1;
                let Some(argument) = self.all.get(index) else {
                    bail!(
                        "{}: there is no $arg{number}; {}",
                        self.name(),
                        self.known()
                    );
                };
                self.register(argument.name)?.0
            }
            Source::Memory { offset, address } => Source::Memory {
                offset: *offset,
                address: Box::new(self.source(address)?),
            },
            Source::FileOffset(_) => {
                bail!("@+OFFSET is a place in a file, and a system call belongs to none")
            }
            source => source.clone(),
        })
    }

    /// The register of an argument or the result, and its type.
    fn register(&self, name: &str) -> Result<(Source, Type)> {
        let machine = self.machine;
        let register = |name: &str| {
            let register = Register::named_in(machine.names, name);
            register.map(Source::Register).context("no such register")
        };
        if self.event.exit && name == RESULT {
            return Ok((register(machine.call_result)?, Type::Scalar(Scalar::S(64))));
        }
        let Some(index) = self.all.iter().position(|argument| argument.name == name) else {
            bail!(
                "{}: there is no argument {name}; {}",
                self.name(),
                self.known()
            );
        };
        let from = machine.call_arguments[index];
        if self.event.exit && from == machine.call_result {
            bail!(
                "{}: {name} is no longer known when the call returns, because the result is in its register; use it in {}{}",
                self.name(),
                BEGINNINGS[0],
                self.event.call.name
            );
        }
        Ok((register(from)?, type_of(self.all[index])))
    }

    fn name(&self) -> String {
        format!("{SYSCALLS}:{}", self.event.name())
    }

    /// What there is.
    fn known(&self) -> String {
        let result = self.event.exit.then_some(RESULT);
        let machine = self.machine;
        let kept = |index: usize| {
            !self.event.exit || machine.call_arguments.get(index) != Some(&machine.call_result)
        };
        let all = self.all.iter().enumerate();
        let all = all.filter(|(index, _)| kept(*index));
        let names = result
            .into_iter()
            .chain(all.map(|(_, argument)| argument.name));
        let names: Vec<_> = names.collect();
        match names[..] {
            [] => "it has none".to_owned(),
            _ => format!("there is {}", names.join(", ")),
        }
    }
}
