//! Where the probes of a file are, and how each of these places is changed.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use anyhow::{Result, anyhow};
use hodo_abi::Span;
use hodo_plan::PlanOptions;
use hodo_plan::model::{Plan, ProbeSite, RefusedProbe, Wanted};
use hodo_probe_syntax::{Definition, Location, Offset, ProbeKind, Symbol};

use hodo_symbols::Usdt;

use super::callers::Callers;
use super::conditions::Arguments;
use super::events::shown;
use super::named::{Named as Function, functions};
use super::near::near;
use super::observed_regs::looked_at;
use super::places::{in_linkage_tables, lines, points, usdt};
use super::returns::take_refused;
use super::syscalls::{is_asked, is_call, places as system_calls};
use super::values::fetches;
use super::variables::{has_variables, resolved};
use super::wanted::{Found, Places, ProbePoint};
use super::{Probes, after, arch, call_numbers, overlap, resolvers};
use hodo_module::HOOKED;
use hodo_module::cache::Planning;
use hodo_module::{Chosen, Image};

/// The probes of a file.
pub(super) struct Planned {
    /// What the definitions name, by link-time address.
    pub places: Places,
    /// Regions with the instructions that can have probes. There can be more of these than places.
    pub sites: Vec<ProbeSite>,
    /// Why other places cannot have a probe.
    pub refused: BTreeMap<u64, String>,
    /// The traced functions that begin with one of the regions, by address.
    pub functions: HashMap<u64, Chosen>,
    /// Return probes, and probes after instructions, that cannot be, and why: they are not among the places.
    pub no_returns: Vec<(u64, ProbePoint, String)>,
    /// Definitions with the reasons why they name no place of this file.
    pub failed: Vec<(usize, String)>,
    /// Link-time addresses of the counters by which USDT probes know that they are wanted.
    pub semaphores: BTreeSet<u64>,
    /// What there is to say of them before a recording.
    pub remarks: Vec<String>,
    /// What a user must know who asked for them.
    pub warnings: Vec<String>,
    /// What a user must know who asked for system calls that cannot be seen.
    pub unseen: Option<Unseen>,
}

/// A definition names a function that a file does not have.
fn no_function(name: &str, functions: &[Function]) -> anyhow::Error {
    let names = functions.iter().map(|function| function.name.as_str());
    let near = near(name, names).join(", ");
    match near.is_empty() {
        true => anyhow!("it names no function of the file"),
        false => anyhow!("it names no function of the file; did you mean {near}?"),
    }
}

/// System calls that cannot be seen.
pub(super) struct Unseen {
    /// What to say of them.
    pub text: String,
    /// The user must know: it is more than the few functions that hodo always changes, or the call was named.
    pub is_remarkable: bool,
}

/// Why functions that are hooked have no probes.
const IS_OURS: &str = "hodo itself changes this function";

/// What the definitions name in a file.
#[derive(Default)]
struct Located {
    places: Places,
    /// Places after which there is nothing, and why.
    no_after: Vec<(u64, ProbePoint, String)>,
    failed: Vec<(usize, String)>,
    semaphores: BTreeSet<u64>,
    remarks: Vec<String>,
    warnings: Vec<String>,
}

/// What one definition names in a file, with the notes of USDT probes by link-time address.
struct Named {
    points: Vec<Found>,
    notes: BTreeMap<u64, Usdt>,
    semaphores: Vec<u64>,
}

/// How the code at the places is changed: parts of [`Planned`].
struct Regions {
    sites: Vec<ProbeSite>,
    refused: BTreeMap<u64, String>,
    functions: HashMap<u64, Chosen>,
    /// Bytes that look like an instruction that calls the kernel, but are not one, or must stay.
    no_calls: HashSet<u64>,
}

fn hook(function: &Span) -> Range<u64> {
    Span::at(function.start, overlap::HOOK_LENGTH).range()
}

impl Probes {
    /// The type that the function at an address returns, if the definition replaces what it returns, and cannot.
    fn returned_elsewhere(
        &self,
        definition: &Definition,
        image: &Image,
        addr: u64,
    ) -> Option<String> {
        let replaces = |action: &hodo_probe_syntax::Action| {
            matches!(action, hodo_probe_syntax::Action::Return(_))
        };
        if !definition.actions.iter().any(replaces) {
            return None;
        }
        // Without debugging information, nobody knows.
        image.debug().ok()?.returned_elsewhere(addr)
    }

    /// A definition with registers and memory in place of its variables, whose types fit its histograms.
    fn resolved(
        &self,
        (index, definition): (usize, &Definition),
        image: &Image,
        addr: u64,
        note: Option<&Usdt>,
    ) -> Result<Definition> {
        let resolved = resolved(definition, image, addr, note)?;
        let machine = arch::of_image(image);
        let fetched = fetches(&resolved, machine, &|_| Some(0))?;
        let arguments = Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: crate::rdpid(machine),
        };
        self.histograms.look(index, &resolved, &arguments)?;
        Ok(resolved)
    }

    /// Finds the places of a file's probes, and plans them. `plan` is that of the file's functions, if it is known.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn planned(
        &self,
        planning: &Planning<'_>,
        plan: Option<(&Plan, &[Chosen])>,
    ) -> Result<Planned> {
        let mut located = self.located(planning.image)?;
        let mut no_returns = refused_returns(&mut located.places, planning, plan)?;
        let Regions {
            sites,
            refused,
            functions,
            no_calls,
        } = self.regions(&located.places, planning, plan)?;
        let unseen = self.unseen_calls(&located.places, (&refused, &no_calls), planning.image)?;
        located.places.take_out(|addr, point| {
            let out = self.kernel_calls.has(point.definition)
                && (no_calls.contains(&addr) || refused.contains_key(&addr));
            out.then(String::new)
        });
        no_returns.append(&mut located.no_after);
        no_returns.extend(self.take_entered(&mut located.places, &sites));
        Ok(Planned {
            places: located.places,
            sites,
            refused,
            functions,
            no_returns,
            failed: located.failed,
            semaphores: located.semaphores,
            remarks: located.remarks,
            warnings: located.warnings,
            unseen,
        })
    }

    /// The places in a file that the definitions name.
    fn located(&self, image: &Image) -> Result<Located> {
        let functions = functions(image)?;
        let mut located = Located::default();
        let callers = OnceCell::new();
        for (index, definition) in self.definitions.iter().enumerate() {
            if !self.is_in(definition, &image.path) {
                continue;
            }
            let Named {
                points,
                notes,
                semaphores,
            } = match self.named_by(definition, image, &functions, &callers)? {
                Ok(named) => named,
                Err(error) => {
                    located.failed.push((index, error.to_string()));
                    continue;
                }
            };
            located.semaphores.extend(semaphores);
            if let Some(resolver) = resolvers::named(definition, &functions) {
                let resolver = resolver.addr..resolver.end;
                let warning = self.on_resolver(index, resolver, &points, image);
                located.warnings.push(warning);
            }
            if is_whole_file(definition) {
                located.remarks.extend(self.left_out(index, image));
            }
            for found in points {
                match definition.after {
                    true => self.add_points_after(index, &found, image, &mut located),
                    false => self.add_points(index, found, &notes, image, &mut located),
                }
            }
        }
        self.add_points_of_calls(image, &functions, &mut located);
        located.places.sort();
        Ok(located)
    }

    /// Adds the instructions that call the kernel, if calls are events. What is done there is the same at all of them,
    /// so each is there once.
    fn add_points_of_calls(&self, image: &Image, functions: &[Function], located: &mut Located) {
        let Some(definition) = self.kernel_calls.first() else {
            return;
        };
        for addr in system_calls(image) {
            let function = functions.iter().find(|function| function.holds(addr));
            let point = located.places.add(ProbePoint {
                shown: [].into(),
                definition,
                symbol: function.map_or("", |function| &function.name).into(),
                start: function.map_or(addr, |function| function.addr),
                returns: false,
                resolved: None,
            });
            located.places.put(addr, point);
        }
    }

    /// The places that one definition names, or why it names none.
    fn named_by(
        &self,
        definition: &Definition,
        image: &Image,
        functions: &[Function],
        callers: &OnceCell<Callers>,
    ) -> Result<Result<Named>> {
        let (mut notes, mut semaphores) = (BTreeMap::new(), Vec::new());
        let points = match &definition.place {
            Location::Usdt { provider, name } => usdt(image, (provider, name), functions, callers)
                .map(|points| {
                    let point = |(addr, symbol, offset, note): (u64, String, u64, Usdt)| {
                        semaphores.extend(note.semaphore);
                        notes.insert(addr, note);
                        Found::one(addr, &symbol, offset)
                    };
                    points.into_iter().map(point).collect()
                }),
            Location::Line { file, line } => lines(image, file, *line, functions),
            Location::Symbol {
                symbol: Symbol::Name(name),
                ..
            } => match points(definition, image, functions)? {
                points if points.is_empty() => Err(no_function(name, functions)),
                points => Ok(points),
            },
            _ => Ok(points(definition, image, functions)?),
        };
        Ok(points.map(|points| Named {
            points,
            notes,
            semaphores,
        }))
    }

    /// Adds the places of one function that a definition names, except those that cannot have its probe.
    fn add_points(
        &self,
        index: usize,
        found: Found,
        notes: &BTreeMap<u64, Usdt>,
        image: &Image,
        located: &mut Located,
    ) {
        let definition = &self.definitions[index];
        let has_variables = has_variables(definition);
        let mut common = None;
        for &addr in &found.addrs {
            if let Some(reason) = self.unfit(definition, &found, addr, image) {
                located.failed.push((index, reason));
                continue;
            }
            let note = notes.get(&addr);
            let resolved = match has_variables || note.is_some() {
                false => None,
                true => match self.resolved((index, definition), image, addr, note) {
                    Ok(resolved) => Some(resolved),
                    Err(error) => {
                        let place = super::at(&found.symbol, addr.wrapping_sub(found.start));
                        located.failed.push((index, format!("{place}: {error:#}")));
                        continue;
                    }
                },
            };
            let tracepoint = note.and_then(|note| note.tracepoint.as_ref());
            let shown = match (&resolved, tracepoint) {
                (Some(resolved), Some(tracepoint)) => shown(definition, resolved, tracepoint),
                _ => Vec::new(),
            };
            let point = match common {
                Some(point) => point,
                None => {
                    let own = resolved.is_some();
                    let point = located.places.add(ProbePoint {
                        shown: shown.into(),
                        definition: index,
                        symbol: Rc::clone(&found.symbol),
                        start: found.start,
                        returns: definition.kind == ProbeKind::Return,
                        resolved: resolved.map(Rc::new),
                    });
                    // Variables are elsewhere at each place.
                    common = Some(point).filter(|_| !own);
                    point
                }
            };
            located.places.put(addr, point);
        }
    }

    /// Adds the places after the instructions that a definition with `post` names: the next ones. They count from
    /// further on, so that their offsets are those of the instructions that are named.
    fn add_points_after(&self, index: usize, found: &Found, image: &Image, located: &mut Located) {
        for &addr in &found.addrs {
            match after::next(image, addr) {
                Ok(next) => {
                    let found = Found {
                        symbol: Rc::clone(&found.symbol),
                        start: found.start.wrapping_add(next - addr),
                        addrs: vec![next],
                    };
                    self.add_points(index, found, &BTreeMap::new(), image, located);
                }
                Err(reason) => {
                    let point = ProbePoint {
                        shown: [].into(),
                        definition: index,
                        symbol: Rc::clone(&found.symbol),
                        start: found.start,
                        returns: false,
                        resolved: None,
                    };
                    located.no_after.push((addr, point, reason.to_owned()));
                }
            }
        }
    }

    /// Why an address in a function cannot have the probe of a definition that names it, whatever its instruction is.
    fn unfit(
        &self,
        definition: &Definition,
        found: &Found,
        addr: u64,
        image: &Image,
    ) -> Option<String> {
        let symbol = &found.symbol;
        let by_offset = matches!(definition.place, Location::FileOffset(_));
        let inside = addr != found.start || symbol.starts_with('<');
        if by_offset && inside && definition.needs_function() {
            return Some(format!(
                "{addr:#x} is not the first instruction of a function, where arguments are known and it can be left"
            ));
        }
        let ty = self.returned_elsewhere(definition, image, addr)?;
        Some(format!(
            "{symbol} returns a value of the type {ty}: return:NUMBER sets only the register for integers and pointers"
        ))
    }

    /// Takes out the places after an instruction that may be reached without it.
    fn take_entered(
        &self,
        places: &mut Places,
        sites: &[ProbeSite],
    ) -> Vec<(u64, ProbePoint, String)> {
        if !self.definitions.iter().any(|definition| definition.after) {
            return Vec::new();
        }
        let probes = sites.iter().flat_map(|site| &site.probes);
        let entered: HashSet<u64> = probes
            .filter(|probe| probe.entered)
            .map(|probe| probe.addr)
            .collect();
        places.take_out(|addr, point| {
            let after = self.definitions[point.definition].after;
            (after && entered.contains(&addr)).then(|| after::ENTERED.to_owned())
        })
    }

    /// Plans regions around places. `plan` is that of the file's functions, if it is known.
    fn regions(
        &self,
        places: &Places,
        planning: &Planning<'_>,
        plan: Option<(&Plan, &[Chosen])>,
    ) -> Result<Regions> {
        let image = planning.image;
        // Where every instruction has a probe, larger regions can be moved. All of them are needed then: one may use
        // bytes of another.
        let mut definitions = self.definitions.iter();
        let every = definitions
            .any(|definition| self.is_in(definition, &image.path) && is_whole_file(definition));
        let wanted = match every {
            true => Vec::new(),
            false => places.addresses(),
        };
        let which = match every {
            true => Wanted::Every,
            false => Wanted::At(&wanted),
        };
        let machine = arch::of_image(image);
        let looked = places.points().map(|point| match &point.resolved {
            Some(resolved) => looked_at(resolved, machine),
            None if self.kernel_calls.has(point.definition) => u32::MAX,
            None => looked_at(&self.definitions[point.definition], machine),
        });
        let options = PlanOptions {
            keep: looked.fold(0, |all, of| all | of),
            breakpoints: self.breakpoints,
            ..PlanOptions::default()
        };
        let hooked = image.symbols(&HOOKED);
        let calls = !self.kernel_calls.is_empty();
        // What deals with limits is hooked only if limits are raised; else the system calls there are seen. Functions
        // that ask first still make their own calls.
        let hooks = hooked.iter().zip(HOOKED);
        let hooks =
            hooks.filter(|(_, name)| !(calls && (name.ends_with("rlimit") || is_asked(name))));
        let hooks: Vec<_> = hooks.filter_map(|(at, _)| at.as_ref()).map(hook).collect();
        let clashing = RefCell::new(BTreeMap::new());
        let planned = |which: Wanted<'_>| {
            let mut plan = planning.plan_probes(which, &options)?;
            let mut left_out = BTreeMap::new();
            let out = (&mut plan.sites, &mut left_out);
            overlap::keep_off(arch::reader(image), &hooks, IS_OURS, out);
            clashing.replace(left_out);
            Ok(plan)
        };
        let (plan, functions, left_out) = match plan {
            Some((functions, chosen)) if !chosen.is_empty() => {
                overlap::plan((functions, chosen), which, planned)?
            }
            _ => (planned(which)?, HashMap::new(), BTreeMap::new()),
        };
        let no_calls = self.no_calls(&plan.refused, places, image);
        let refused = plan.refused.into_iter();
        let refused = refused.filter(|refusal| !no_calls.contains(&refusal.addr));
        let reasons = refused.map(|refusal| {
            // Some reasons name the instruction themselves.
            let reason = match refusal.reason.contains(&refusal.insn) {
                true => refusal.reason,
                false => format!("{} ({})", refusal.reason, refusal.insn),
            };
            (refusal.addr, reason)
        });
        let mut refused: BTreeMap<u64, String> = reasons.collect();
        refused.extend(left_out);
        refused.extend(clashing.into_inner());
        Ok(Regions {
            sites: plan.sites,
            refused,
            functions,
            no_calls,
        })
    }

    /// What to say of instructions that call the kernel and can have no probe, if they may make calls that are events.
    fn unseen_calls(
        &self,
        places: &Places,
        (refused, no_calls): (&BTreeMap<u64, String>, &HashSet<u64>),
        image: &Image,
    ) -> Result<Option<Unseen>> {
        let is_call = |(addr, point): &(u64, &ProbePoint)| {
            self.kernel_calls.has(point.definition) && !no_calls.contains(addr)
        };
        let calls: Vec<u64> = places.all().filter(is_call).map(|(addr, _)| addr).collect();
        let mut unseen: Vec<_> = (calls.iter())
            .filter_map(|addr| refused.get_key_value(addr))
            .collect();
        if unseen.is_empty() {
            return Ok(None);
        }
        let numbers = call_numbers::found(image, places)?;
        unseen.retain(|(addr, _)| {
            let number = numbers.get(addr);
            number.is_none_or(|number| self.kernel_calls.has_number(*number))
        });
        let Some((addr, reason)) = unseen.first() else {
            return Ok(None);
        };
        let is_named = |addr: &u64| {
            let number = numbers.get(addr);
            number.is_some_and(|number| self.kernel_calls.names_number(*number))
        };
        let text = format!(
            "{}: {} of {} instructions that call the kernel cannot have a probe: events of system calls that are made there \
             are not seen (the first, at {addr:#x}: {reason})",
            image.path.display(),
            unseen.len(),
            calls.len()
        );
        let is_remarkable = |(addr, reason): &(&u64, &String)| *reason != IS_OURS || is_named(addr);
        Ok(Some(Unseen {
            text,
            is_remarkable: unseen.iter().any(is_remarkable),
        }))
    }

    /// The refused places that are no system calls, or that no definition means otherwise.
    fn no_calls(&self, refused: &[RefusedProbe], places: &Places, image: &Image) -> HashSet<u64> {
        if self.kernel_calls.is_empty() {
            return HashSet::new();
        }
        let mut near = 0;
        let mut is_call_only = |addr: u64| {
            let mut points = places.at(addr, &mut near);
            points.all(|point| self.kernel_calls.has(point.definition))
        };
        let refused = refused.iter();
        refused
            .filter(|refused| !is_call(refused, image) && is_call_only(refused.addr))
            .map(|refused| refused.addr)
            .collect()
    }

    /// How much of a file has no probe by a definition that names every instruction.
    fn left_out(&self, index: usize, image: &Image) -> Option<String> {
        let count = in_linkage_tables(image);
        (count > 0).then(|| {
            format!(
                "the probe '{}' is on none of the {count} instructions of the linkage tables (.plt) of {}",
                self.texts[index],
                image.path.display()
            )
        })
    }

    /// What there is to say of the probe of a definition that names a function which chooses an implementation while
    /// the program is loaded.
    fn on_resolver(
        &self,
        index: usize,
        resolver: Range<u64>,
        points: &[Found],
        image: &Image,
    ) -> String {
        let text = &self.texts[index];
        let path = image.path.display();
        let addrs = || points.iter().flat_map(|found| &found.addrs);
        if points.is_empty() || addrs().any(|addr| resolver.contains(addr)) {
            return format!(
                "the probe '{text}' is on what chooses an implementation while the program is loaded (an IFUNC of {path}), not on \
                 the implementation; probe that by its own name, or by its offset in the file"
            );
        }
        let (is, them) = match addrs().count() {
            1 => ("the implementation", "it"),
            _ => ("each of the implementations", "one of them"),
        };
        format!(
            "the probe '{text}' is on {is} that {path} has for this function (an IFUNC): calls that reach {them} by another \
             name are hits, too; an implementation in another file, as in the vdso, has no probe"
        )
    }
}

/// The return probes that cannot be are taken from `places`. `plan` is that of the file's functions, if it is known.
fn refused_returns(
    places: &mut Places,
    planning: &Planning<'_>,
    plan: Option<(&Plan, &[Chosen])>,
) -> Result<Vec<(u64, ProbePoint, String)>> {
    if !places.points().any(|point| point.returns) {
        return Ok(Vec::new());
    }
    Ok(match plan {
        Some((plan, _)) => take_refused(places, plan),
        None => take_refused(places, &planning.plan(&PlanOptions::default())?),
    })
}

/// Whether a definition names every instruction of a file.
fn is_whole_file(definition: &Definition) -> bool {
    definition.place
        == Location::Symbol {
            symbol: Symbol::Pattern("*".to_owned()),
            offset: Offset::EveryInstruction,
        }
}
