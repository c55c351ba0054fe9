//! Compiles probes: from definitions and the files that they name to regions of code that are moved, what is done at
//! each instruction there, and what the trace says of it. It changes no process, and says what it finds to a [`Log`].
//!
//! [`Probes::module`] goes over a file in these passes:
//! 1. *places*: which instructions a definition names (`places`, `usdt`, `events`);
//! 2. *values*: where what it shows is to be fetched there (`variables`, `values`);
//! 3. *placement*: regions around the instructions that can be moved, beside traced functions (`placement`, `overlap`);
//! 4. *actions*: what the code of each probe does (`actions`, `conditions`, `counted`, `histograms`).
#![forbid(unsafe_code)]

mod actions;
mod after;
mod arch;
mod armed;
mod call_numbers;
mod callers;
mod conditions;
mod counted;
mod dry_run;
mod events;
mod histograms;
mod kernel_calls;
mod list_events;
mod list_functions;
mod named;
mod names;
mod near;
mod observed_regs;
mod overlap;
mod placement;
mod places;
mod resolvers;
mod returns;
mod switches;
mod syscalls;
mod usdt;
mod values;
mod variables;
mod wanted;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use hodo_codegen::native::detour::{Action, When};
use hodo_patch::{Probe, SyscallEvents};
use hodo_plan::model::{Mode, Plan, ProbeSite, ProbedInsn, SitePlan};
use hodo_probe_syntax::{Definition, Location, Offset, ProbeKind, Scalar, Symbol, Type};
use hodo_symbols::{Style, demangle};
use hodo_trace::format::record;
use serde_json::{Value, json};

use arch::Machine;
use armed::Armed;
pub use armed::{ArmedPlace, List};
use conditions::Arguments;
use counted::{Counted, Counts, Line, Run, counter};
pub use dry_run::found;
pub use dry_run::{Changed, DryRun, Examined, ExaminedPlace, dry_run};
use events::Events;
use histograms::Histograms;
use hodo_module::cache::Planning;
use hodo_module::image::canonical;
use hodo_module::mapped::Root;
use hodo_module::{Chosen, Image, Probed};
pub use kernel_calls::{CallEvent, functions_of};
use kernel_calls::{KernelCalls, expanded, is_of_calls};
pub use list_events::{ListedEvent, list_call_events, list_events, list_events_of};
pub use list_functions::{Listed, list, list_usdt};
pub use near::near;
pub use places::is_file;
use switches::Switches;
pub use syscalls::SyscallOptions;
use values::possible;
use wanted::{Places, ProbePoint};

/// Where a compilation reports what it has found: the log of a recording, and the user.
pub trait Log {
    /// Takes one line, an object.
    ///
    /// # Errors
    /// If it cannot be written.
    fn line(&mut self, line: &Value) -> Result<()>;

    /// Takes a sentence that the user must see at once, such as that a probe is not where its definition seems to say.
    fn warn(&mut self, text: &str);
}

/// Where the events of probes are numbered and described.
struct Output<'o> {
    /// The next function id.
    next_id: &'o mut u32,
    /// By id: the address of the place, and the event's name.
    hits: &'o mut Vec<(u64, String)>,
    log: &'o mut dyn Log,
}

impl Output<'_> {
    /// Takes the next id for an event at an address.
    ///
    /// # Errors
    /// If there are no more.
    fn event(&mut self, addr: u64, name: &str) -> Result<u32> {
        let id = *self.next_id;
        if id > record::MAX_FUNCTION_ID {
            bail!(
                "there are more than {} probes that print",
                record::MAX_FUNCTION_ID
            );
        }
        *self.next_id += 1;
        self.hits.push((addr, name.to_owned()));
        Ok(id)
    }
}

/// The instructions of a region that have probes, as far as they are compiled.
#[derive(Default)]
struct Compiling {
    run: Run,
    /// See [`wanted::Places::at`].
    near: usize,
}

/// All probes of a recording.
#[derive(Debug, Default)]
pub struct Probes {
    definitions: Vec<Definition>,
    /// By definition: how it was written.
    texts: Vec<String>,
    /// By definition: the number of the text that it was made of. One text may make several.
    origins: Vec<usize>,
    /// By definition: how many instructions have its probe.
    placed: Vec<u64>,
    /// By definition: why an instruction does not.
    refused: Vec<Option<String>>,
    /// By definition: whether the file that it names was loaded.
    met: Vec<bool>,
    /// What is counted.
    pub counts: Counts,
    switches: Switches,
    histograms: Histograms,
    timed: bool,
    /// Functions are traced, too.
    calls: bool,
    /// System calls are recorded, and nothing else.
    syscalls: Option<syscalls::Syscalls>,
    /// System calls that are events.
    kernel_calls: KernelCalls,
    /// The definitions that follow names of threads.
    names: Range<usize>,
    /// Events that are found by patterns.
    events: Events,
    /// Probes are breakpoints only.
    breakpoints: bool,
    armed: Armed,
    /// The root directories of processes that see other files than we do.
    roots: Vec<Root>,
}

/// Whether the machine has the instruction `rdpid`. It is asked when a probe first needs it: the kernel takes its time
/// over the answer.
fn has_rdpid() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        std::fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|text| text.split_whitespace().any(|word| word == "rdpid"))
    })
}

/// Whether it has `rdpid`, if the machine has an instruction for the number of the processor at all.
fn rdpid(machine: &Machine) -> Option<bool> {
    machine.tells_cpu.then(has_rdpid)
}

impl Probes {
    /// # Errors
    /// If a definition asks for something that cannot be done yet.
    pub fn new(texts: &[String], timed: bool) -> Result<Self> {
        Self::for_machine(arch::NATIVE, texts, timed)
    }

    /// Probes for files of an instruction set. If it is another than this processor's, the probes can only be
    /// examined.
    fn for_machine(machine: &Machine, texts: &[String], timed: bool) -> Result<Self> {
        let mut definitions = Vec::new();
        let (mut all_texts, mut origins) = (Vec::new(), Vec::new());
        let mut kernel_calls = KernelCalls::default();
        for (origin, text) in texts.iter().enumerate() {
            let definition = hodo_probe_syntax::parse_for(machine.names, text)
                .map_err(|error| anyhow::anyhow!("{error}"))?;
            let context = || format!("the probe {text:?}");
            if is_of_calls(&definition) {
                for (event, definition) in expanded(machine, &definition).with_context(context)? {
                    kernel_calls.add(definitions.len(), &definition, event);
                    definitions.push(definition);
                    all_texts.push(text.clone());
                    origins.push(origin);
                }
                continue;
            }
            possible(&definition, machine).with_context(context)?;
            definitions.push(definition);
            all_texts.push(text.clone());
            origins.push(origin);
        }
        let texts = all_texts;
        let mut histograms = Histograms::default();
        for (index, definition) in definitions.iter().enumerate() {
            let context = || format!("the probe {:?}", texts[index]);
            // What variables are is known only at their places.
            if variables::has_variables(definition) {
                (histograms.add(index, definition, None)).with_context(context)?;
                continue;
            }
            let fetched =
                values::fetches(definition, machine, &|_| Some(0)).with_context(context)?;
            let arguments = Arguments {
                known: &fetched.known,
                types: &fetched.types,
                rdpid: rdpid(machine),
            };
            histograms
                .add(index, definition, Some(&arguments))
                .with_context(context)?;
        }
        Ok(Self {
            switches: Switches::new(&definitions)?,
            histograms,
            placed: vec![0; definitions.len()],
            refused: vec![None; definitions.len()],
            met: vec![false; definitions.len()],
            texts,
            origins,
            definitions,
            counts: Counts::default(),
            timed,
            calls: false,
            syscalls: None,
            kernel_calls,
            names: 0..0,
            events: Events::default(),
            breakpoints: false,
            armed: Armed::default(),
            roots: Vec::new(),
        })
    }

    /// Adds a definition whose text was added already.
    fn add(&mut self, definition: Definition) {
        self.definitions.push(definition);
        self.placed.push(0);
        self.refused.push(None);
        self.met.push(false);
    }

    /// System calls are recorded, and nothing else.
    pub fn record_syscalls(&mut self, options: &SyscallOptions) {
        self.syscalls = Some(syscalls::Syscalls::new(options));
    }

    /// Probes are breakpoints only, even where there is room for a jump.
    pub fn without_jumps(&mut self) {
        self.breakpoints = true;
    }

    /// Functions are traced beside the probes, too.
    pub fn beside_calls(&mut self) {
        self.calls = true;
    }

    /// Returns whether a return address on the stack may lead into an island, with the real one in the shadow.
    fn stacks_lead_to_islands(&self) -> bool {
        self.calls || self.definitions.iter().any(|d| d.kind == ProbeKind::Return)
    }

    /// Offset in the events file of the byte of `traceon` and `traceoff`, if some action writes it.
    pub fn trace_switch(&self) -> Option<u32> {
        self.switches.trace()
    }

    /// Returns whether some action switches recording on.
    pub fn trace_on(&self) -> bool {
        let switches = |d: &Definition| d.actions.contains(&hodo_probe_syntax::Action::TraceOn);
        self.definitions.iter().any(switches)
    }

    /// Returns whether system calls are recorded.
    pub fn records_syscalls(&self) -> bool {
        self.syscalls.is_some()
    }

    /// How system calls are recorded, once there is a module.
    pub fn syscall_events(&self) -> Option<Rc<SyscallEvents>> {
        self.syscalls.as_ref()?.events()
    }

    /// Returns whether they make events.
    pub fn make_events(&self) -> bool {
        self.records_syscalls() || !self.definitions.is_empty()
    }

    /// Returns whether one of them counts.
    pub fn count(&self) -> bool {
        let counts = |d: &Definition| d.actions.contains(&hodo_probe_syntax::Action::Count);
        self.definitions
            .iter()
            .any(|d| counts(d) || d.kind == ProbeKind::Return)
    }

    /// Returns whether a reader needs to know what is mapped where.
    pub fn want_maps(&self) -> bool {
        let symbol = |arg: &hodo_probe_syntax::FetchArg| {
            matches!(
                arg.ty,
                Some(Type::Scalar(Scalar::Symbol) | Type::Array(Scalar::Symbol, _))
            )
        };
        self.definitions.iter().any(|definition| {
            definition
                .actions
                .contains(&hodo_probe_syntax::Action::StackTrace)
                || definition.args.iter().any(symbol)
        })
    }

    /// Returns whether one of them records stacks.
    pub fn trace_stacks(&self) -> bool {
        let traces = |d: &Definition| d.actions.contains(&hodo_probe_syntax::Action::StackTrace);
        self.definitions.iter().any(traces)
    }

    /// Bytes of the tables of histograms.
    pub fn histogram_bytes(&self) -> u64 {
        self.histograms.size()
    }

    /// `hists.json`: what is in the histograms, whose words `memory` tells by place and length in bytes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn describe_histograms(
        &self,
        memory: &dyn Fn(u64, u64) -> Result<Vec<u64>>,
    ) -> Result<Value> {
        self.histograms
            .describe(&self.definitions, &self.texts, memory)
    }

    /// The files that definitions name by their paths, and the program where they name it, with the numbers of the
    /// definitions. Where libraries are is not known yet.
    pub fn files(&self, program: &Path) -> Vec<(usize, PathBuf)> {
        let file = |definition: &Definition| match definition.path.contains('/') {
            _ if self.is_in(definition, program) => Some(program.to_owned()),
            true => Some(canonical(Path::new(&definition.path))),
            false => None,
        };
        let files = self.definitions.iter().map(file).enumerate();
        files
            .filter(|(index, _)| !self.events.has_made(*index))
            .filter_map(|(index, file)| Some((index, file?)))
            .collect()
    }

    /// Whether a definition is a pattern, which may match nothing of a file.
    pub fn is_pattern(&self, definition: usize) -> bool {
        let place = &self.definitions[definition].place;
        matches!(
            place,
            Location::Symbol {
                symbol: Symbol::Pattern(_),
                ..
            }
        )
    }

    /// How many instructions have the probe of a definition.
    pub fn placed(&self, definition: usize) -> u64 {
        self.placed[definition]
    }

    /// What names no place, of definitions that were given one by one: patterns of events may match nothing.
    pub fn unplaced_definitions(&self) -> Vec<String> {
        let none = |&index: &usize| {
            let own = !self.follows_names(index) && !self.events.has_made(index);
            own && self.placed[index] == 0
        };
        let indices = (0..self.texts.len()).filter(none);
        indices.map(|index| self.why_unplaced(index)).collect()
    }

    fn why_unplaced(&self, index: usize) -> String {
        match self.refused[index] {
            Some(_) => self.why(index),
            None => {
                let text = &self.texts[index];
                let path = &self.definitions[index].path;
                match self.met[index] {
                    true => {
                        format!("the probe '{text}' was never placed: {path} has no such place")
                    }
                    false if is_of_calls(&self.definitions[index]) => {
                        format!("the probe '{text}' was never placed")
                    }
                    false => {
                        format!("the probe '{text}' was never placed: no file {path} was loaded")
                    }
                }
            }
        }
    }

    /// What to say of definitions that found no place, at the end of a recording.
    pub fn unplaced(&self) -> Vec<String> {
        let none = |index: &usize| self.placed[*index] == 0 && !self.follows_names(*index);
        let indices = (0..self.texts.len()).filter(none);
        let texts = indices.map(|index| self.why_unplaced(index));
        let unmatched = self.unmatched();
        texts
            .chain(unmatched.map(|text| format!("--event '{text}' matched no event")))
            .collect()
    }

    /// Why a definition has no place in its file.
    pub fn why(&self, definition: usize) -> String {
        let text = &self.texts[definition];
        if self.events.has_made(definition)
            && let Some(reason) = &self.refused[definition]
        {
            let path = &self.definitions[definition].path;
            return format!("the event {text} of {path} cannot be recorded: {reason}");
        }
        match &self.refused[definition] {
            Some(reason) => format!("the probe '{text}' cannot be: {reason}"),
            None => format!("the probe '{text}' names no function of the file"),
        }
    }

    /// Why a definition that names this file has no place in it.
    pub fn unplaced_in(&self, path: &Path) -> Option<String> {
        let mut all = self.definitions.iter().enumerate();
        let none = all.find(|(index, d)| {
            let own = !self.events.has_made(*index) && !self.follows_names(*index);
            own && self.placed[*index] == 0 && self.is_in(d, path)
        });
        none.map(|(index, _)| self.why(index))
    }

    /// The lines of `counts.json`: all places that are counted, by the values of the counters.
    pub fn describe<'c>(&'c self, counters: &'c [u64]) -> impl Iterator<Item = Line<'c>> + 'c {
        let mut all = self.counts.hits(counters).peekable();
        std::iter::from_fn(move || {
            let (counted, mut places) = all.next()?;
            let definition = &self.definitions[counted.definition];
            let offset = |addr: u64| addr.wrapping_sub(counted.start);
            let several = places.len() > 1;
            let mut one = Line {
                addr: counted.start,
                by_offset: several && is_named_by_place(definition),
                group: &definition.group,
                hits: None,
                name: String::new(),
                nmissed: None,
                offset: None,
                path: &counted.path,
                places: Vec::new(),
                symbol: &counted.symbol,
            };
            if several {
                one.name = name_of(definition, &counted.symbol, 0);
                one.places = places.map(|(addr, hits)| (offset(addr), hits)).collect();
                return Some(one);
            }
            let (addr, hits) = places.next()?;
            one.name = name_of(definition, &counted.symbol, offset(addr));
            (one.addr, one.offset) = (addr, Some(offset(addr)));
            match counted.missed {
                true => one.nmissed = Some(hits),
                false => one.hits = Some(hits),
            }
            // The hits of a return probe, if it counts them, come right before what it has missed.
            let same = |next: &Counted| {
                let key = |c: &Counted| (c.definition, c.start, Rc::clone(&c.path));
                next.missed && !counted.missed && key(next) == key(counted)
            };
            if let Some((_, mut missed)) = all.next_if(|(next, _)| same(next)) {
                one.nmissed = missed.next().map(|(_, missed)| missed);
            }
            Some(one)
        })
    }

    /// Returns whether a probe belongs to the file of this path.
    pub fn name(&self, path: &Path) -> bool {
        let named = |definition| self.is_in(definition, path);
        self.syscalls.is_some()
            || !self.kernel_calls.is_empty()
            || self.definitions.iter().any(named)
    }

    /// Processes with this root directory are observed: definitions may name files as they do.
    pub fn see_from(&mut self, root: Root) {
        if !self.roots.contains(&root) {
            self.roots.push(root);
        }
    }

    /// Returns whether a definition means the file that the kernel shows us under this path.
    fn is_in(&self, definition: &Definition, path: &Path) -> bool {
        let wanted = Path::new(&definition.path);
        let calls = |root: &Root| root.calls(path, wanted);
        is_file(definition, path) || definition.path.contains('/') && self.roots.iter().any(calls)
    }

    /// Returns how the definition with this number was written.
    pub fn text(&self, definition: usize) -> &str {
        &self.texts[definition]
    }

    /// Returns the file that the definition with this number names.
    pub fn path(&self, definition: usize) -> &str {
        &self.definitions[definition].path
    }

    /// Returns whether the definition with this number means the file of this path.
    pub fn means(&self, definition: usize, path: &Path) -> bool {
        self.is_in(&self.definitions[definition], path)
    }

    /// Returns whether a probe or an event belongs to this file.
    pub fn concern(&self, image: &Image) -> bool {
        self.name(&image.path) || self.has_events(image)
    }

    /// Finds the places of a module's probes, plans them, and logs them. `next_id` is the next function id.
    ///
    /// # Errors
    /// If the file cannot be read, or the trace not be written.
    pub fn module(
        &mut self,
        planning: &Planning<'_>,
        (functions_plan, chosen): (&Plan, &[Chosen]),
        next_id: &mut u32,
        hits: &mut Vec<(u64, String)>,
        log: &mut dyn Log,
    ) -> Result<Probed> {
        let mut output = Output { next_id, hits, log };
        if self.syscalls.is_some() {
            return self.syscalls(planning, &mut output);
        }
        let image = planning.image;
        self.add_events(image);
        for definition in 0..self.definitions.len() {
            self.met[definition] |= self.means(definition, &image.path);
        }
        let planned = self.planned(planning, Some((functions_plan, chosen)))?;
        for warning in &planned.warnings {
            output.log.warn(warning);
        }
        for (definition, reason) in planned.failed {
            let text = format!("{}: no probe: {reason}", image.path.display());
            output
                .log
                .line(&json!({"remark": {"pid": 0, "text": text}}))?;
            self.refused[definition] = Some(reason);
        }
        let mut probed = Probed {
            functions: planned.functions,
            semaphores: planned.semaphores.into_iter().collect(),
            ..Probed::default()
        };
        if let Some(unseen) = &planned.unseen {
            match unseen.is_remarkable {
                true => output.log.warn(&unseen.text),
                false => output
                    .log
                    .line(&json!({"remark": {"pid": 0, "text": unseen.text}}))?,
            }
        }
        let numbers = match self.kernel_calls.numbers() > MANY {
            true => call_numbers::found(image, &planned.places)?,
            false => HashMap::new(),
        };
        let mut places = planned.places;
        let refused_places: HashSet<u64> = planned.refused.keys().copied().collect();
        let mut compiling = Compiling::default();
        let mut sites = planned.sites;
        let without_limits = match self.kernel_calls.is_empty() {
            true => Vec::new(),
            false => syscalls::take_clashing(image, &mut sites, true).0,
        };
        let always = sites.len();
        for (index, site) in sites.iter().chain(&without_limits).enumerate() {
            let mut probes = self.region(site, &places, image, &mut compiling, &mut output)?;
            self.add_calls((site, &places), &numbers, image, (&mut probes, &mut output))?;
            let list = match index < always {
                true => &mut probed.sites,
                false => &mut probed.without_limits,
            };
            list.push((site_plan(site), probes));
        }
        let refused = planned.refused.into_iter().flat_map(|(addr, reason)| {
            let points: Vec<ProbePoint> = places.at(addr, &mut compiling.near).cloned().collect();
            points
                .into_iter()
                .map(move |point| (addr, point, reason.clone()))
        });
        let refused = planned.no_returns.into_iter().chain(refused);
        self.refuse(refused, image, output.log)?;
        places.take_out(|addr, _| refused_places.contains(&addr).then(String::new));
        self.armed.add(&image.path, places);
        Ok(probed)
    }

    /// The probes of one region.
    fn region(
        &mut self,
        site: &ProbeSite,
        places: &Places,
        image: &Image,
        compiling: &mut Compiling,
        output: &mut Output<'_>,
    ) -> Result<Vec<Probe>> {
        let mut probes = Vec::new();
        for insn in &site.probes {
            if !insn.joined {
                compiling.run.end();
            }
            for point in places.at(insn.addr, &mut compiling.near) {
                if self.kernel_calls.has(point.definition) {
                    continue;
                }
                if point.returns || !self.only_counts(point.definition) {
                    probes.extend(self.probes_at(insn, point, image, output)?);
                } else if let Some(action) =
                    self.count_hits((point, insn.addr), &mut compiling.run, image)
                {
                    probes.push(Probe {
                        addr: insn.addr,
                        flags_dead: insn.flags_dead,
                        free: insn.free,
                        when: When::Hit,
                        action,
                    });
                }
            }
        }
        Ok(probes)
    }

    /// Adds what is done around system calls in a region: the last of what is done at an instruction.
    fn add_calls(
        &mut self,
        (site, places): (&ProbeSite, &Places),
        numbers: &HashMap<u64, u64>,
        image: &Image,
        (probes, output): (&mut Vec<Probe>, &mut Output<'_>),
    ) -> Result<()> {
        if self.kernel_calls.is_empty() {
            return Ok(());
        }
        let mut near = 0;
        for insn in &site.probes {
            let mut points = places.at(insn.addr, &mut near);
            if !points.any(|point| self.kernel_calls.has(point.definition)) {
                continue;
            }
            let number = numbers.get(&insn.addr).copied();
            let Some(action) = self.calls_at(number, (insn.addr, image), output)? else {
                continue;
            };
            probes.push(Probe {
                addr: insn.addr,
                flags_dead: insn.flags_dead,
                free: insn.free,
                when: When::Hit,
                action,
            });
        }
        Ok(())
    }

    /// What one definition does at an instruction, or when the function that begins there returns.
    fn probes_at(
        &mut self,
        insn: &ProbedInsn,
        point: &ProbePoint,
        image: &Image,
        output: &mut Output<'_>,
    ) -> Result<Vec<Probe>> {
        let actions = self.actions(point, insn.addr, image, output)?;
        // Who asks for the flags wants them as they are.
        let asked = self.definitions[point.definition].reads_flags();
        let flags_dead = insn.flags_dead && !asked;
        let dead_after = insn.flags_dead || !arch::NATIVE.knows_kept_flags;
        let probe = |action, when| Probe {
            addr: insn.addr,
            flags_dead: match when {
                When::Hit => flags_dead,
                When::Return | When::Missed => dead_after,
            },
            // What is free at a return is not known.
            free: if when == When::Return { 0 } else { insn.free },
            when,
            action,
        };
        let when = match point.returns {
            true => When::Return,
            false => When::Hit,
        };
        let actions = actions.into_iter().map(|action| probe(action, when));
        let mut probes: Vec<Probe> = actions.collect();
        if point.returns {
            let missed = counter(self.missed(point, insn.addr, image));
            probes.push(probe(Action::Count(missed), When::Missed));
        }
        Ok(probes)
    }

    /// Whether a definition counts each of its hits and does nothing else.
    fn only_counts(&self, index: usize) -> bool {
        let definition = &self.definitions[index];
        definition.actions == [hodo_probe_syntax::Action::Count]
            && definition.condition.is_none()
            && self.switches.of(index).is_none()
    }

    /// Counts the hits of a place: by what is returned, or together with another place of the run.
    fn count_hits(
        &mut self,
        (point, addr): (&ProbePoint, u64),
        run: &mut Run,
        image: &Image,
    ) -> Option<Action> {
        self.placed[point.definition] += 1;
        if let Some(leader) = run.leader(point.definition) {
            self.counts.join(point, addr, &image.path, leader);
            return None;
        }
        let number = self.counts.add(point, addr, &image.path, false);
        run.lead(point.definition, number, addr);
        Some(Action::Count(counter(number)))
    }

    /// Reports the places that cannot have a probe: each that was named, and some that a pattern fits.
    fn refuse(
        &mut self,
        refused: impl Iterator<Item = (u64, ProbePoint, String)>,
        image: &Image,
        log: &mut dyn Log,
    ) -> Result<()> {
        let path = image.path.display();
        let mut by_pattern = 0;
        for (addr, point, reason) in refused {
            if is_many(&self.definitions[point.definition]) {
                by_pattern += 1;
                if by_pattern > SHOWN {
                    continue;
                }
            }
            let place = at(&point.symbol, point.offset(addr));
            let text = format!("{path}: no probe at {place}: {reason}");
            log.line(&json!({"remark": {"pid": 0, "text": text}}))?;
            self.refused[point.definition] = Some(format!("{place}: {reason}"));
        }
        if by_pattern > SHOWN {
            let text = format!(
                "{path}: no probe at {} more places; `hodo plan --every-instruction` tells why",
                by_pattern - SHOWN
            );
            log.line(&json!({"remark": {"pid": 0, "text": text}}))?;
        }
        Ok(())
    }
}

/// If something is done for more calls than this, it is found out which of them an instruction can make.
const MANY: usize = 4;

/// The maximum number of refused places of a pattern that are reported one by one.
const SHOWN: usize = 3;

fn at(symbol: &str, offset: u64) -> String {
    match offset {
        0 => symbol.to_owned(),
        offset => format!("{symbol}+{offset:#x}"),
    }
}

/// Returns whether it names many places.
fn is_many(definition: &Definition) -> bool {
    match &definition.place {
        Location::Symbol { symbol, offset } => {
            matches!(symbol, Symbol::Pattern(_)) || *offset == Offset::EveryInstruction
        }
        _ => false,
    }
}

/// Returns whether each of its places is named after the function and the distance from its beginning.
fn is_named_by_place(definition: &Definition) -> bool {
    !definition.named && is_many(definition)
}

/// What the events of a definition at one place are called. Patterns name many places.
fn name_of(definition: &Definition, symbol: &str, offset: u64) -> String {
    if !is_named_by_place(definition) {
        return definition.name.clone();
    }
    let letters = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name = demangle(symbol, Style::Simple);
    // What has no name is called `<ADDRESS>`.
    let name = match name.strip_prefix('<') {
        Some(addr) => format!("sub_{}", addr.trim_end_matches('>')),
        None => name.chars().map(letters).collect(),
    };
    match offset {
        0 => name,
        offset => format!("{name}_{offset:x}"),
    }
}

fn site_plan(site: &ProbeSite) -> SitePlan {
    SitePlan {
        tactic: site.tactic,
        mode: Mode::Call,
        patch: site.patch,
        patch_len: site.patch_len,
        displaced: site.displaced.clone(),
        extra: site.extra.clone(),
        via: site.via,
        spare: site.spare.clone(),
        signing: hodo_isa::Signing::None,
        free: 0,
        free_after: 0,
        far: None,
    }
}
