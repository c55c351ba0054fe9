//! Where the probes of a file are, and how each of these places is changed.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use hodo_plan::PlanOptions;
use hodo_plan::model::{Plan, ProbeSite, Wanted};
use hodo_probe_syntax::{Definition, Location, Offset, ProbeKind, Symbol};

use hodo_symbols::Usdt;

use super::conditions::Arguments;
use super::events::shown;
use super::named::functions;
use super::observed_regs::looked_at;
use super::places::{in_linkage_tables, is_file, lines, points, usdt};
use super::returns::take_refused;
use super::values::fetches;
use super::variables::{has_variables, resolved};
use super::wanted::{Found, Places, ProbePoint};
use super::{Probes, overlap, resolvers};
use hodo_module::HOOKED;
use hodo_module::cache;
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
    /// Return probes that cannot be, and why: they are not among the places.
    pub no_returns: Vec<(u64, ProbePoint, String)>,
    /// Definitions with the reasons why they name no place of this file.
    pub failed: Vec<(usize, String)>,
    /// Link-time addresses of the counters by which USDT probes know that they are wanted.
    pub semaphores: BTreeSet<u64>,
    /// What there is to say of them before a recording.
    pub remarks: Vec<String>,
}

/// Bytes at the beginning of a hooked function that may be changed.
pub(super) const HOOK_LENGTH: u64 = 32;

fn hook(&(addr, _): &(u64, u64)) -> Range<u64> {
    addr..addr + HOOK_LENGTH
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
        let fetched = fetches(&resolved, &|_| Some(0))?;
        let arguments = Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: self.rdpid,
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
        image: &Image,
        plan: Option<(&Plan, &[Chosen])>,
    ) -> Result<Planned> {
        let functions = functions(image)?;
        let mut places = Places::default();
        let mut failed = Vec::new();
        let mut semaphores = BTreeSet::new();
        let mut remarks = Vec::new();
        let callers = OnceCell::new();
        for (index, definition) in self.definitions.iter().enumerate() {
            if !is_file(definition, &image.path) {
                continue;
            }
            let mut notes: BTreeMap<u64, Usdt> = BTreeMap::new();
            let points = match &definition.place {
                Location::Usdt { provider, name } => {
                    match usdt(image, (provider, name), &functions, &callers) {
                        Ok(points) => (points.into_iter())
                            .map(|(addr, symbol, offset, note)| {
                                semaphores.extend(note.semaphore);
                                notes.insert(addr, note);
                                Found::one(addr, &symbol, offset)
                            })
                            .collect(),
                        Err(error) => {
                            failed.push((index, error.to_string()));
                            continue;
                        }
                    }
                }
                Location::Line { file, line } => match lines(image, file, *line, &functions) {
                    Ok(points) => points,
                    Err(error) => {
                        failed.push((index, error.to_string()));
                        continue;
                    }
                },
                _ => points(definition, image, &functions)?,
            };
            if let Some(resolver) = resolvers::named(definition, &functions) {
                self.say_where(index, resolver.addr..resolver.end, &points, image);
            }
            if is_whole_file(definition) {
                remarks.extend(self.left_out(index, image));
            }
            let variables = has_variables(definition);
            for Found {
                symbol,
                start,
                addrs,
            } in points
            {
                let mut common = None;
                for addr in addrs {
                    let offset = addr.wrapping_sub(start);
                    let by_offset = matches!(definition.place, Location::FileOffset(_));
                    let inside = offset != 0 || symbol.starts_with('<');
                    if by_offset && inside && definition.needs_function() {
                        let error = format!(
                            "{addr:#x} is not the first instruction of a function, where arguments are known and it can be left"
                        );
                        failed.push((index, error));
                        continue;
                    }
                    if let Some(ty) = self.returned_elsewhere(definition, image, addr) {
                        let error = format!(
                            "{symbol} returns a value of the type {ty}: return:NUMBER sets only the register for integers and pointers"
                        );
                        failed.push((index, error));
                        continue;
                    }
                    let note = notes.get(&addr);
                    let resolved = match variables || note.is_some() {
                        false => None,
                        true => match self.resolved((index, definition), image, addr, note) {
                            Ok(resolved) => Some(resolved),
                            Err(error) => {
                                let place = super::at(&symbol, offset);
                                failed.push((index, format!("{place}: {error:#}")));
                                continue;
                            }
                        },
                    };
                    let tracepoint = note.and_then(|note| note.tracepoint.as_ref());
                    let shown = match (&resolved, tracepoint) {
                        (Some(resolved), Some(tracepoint)) => {
                            shown(definition, resolved, tracepoint)
                        }
                        _ => Vec::new(),
                    };
                    let point = match common {
                        Some(point) => point,
                        None => {
                            let own = resolved.is_some();
                            let point = places.add(ProbePoint {
                                shown: shown.into(),
                                definition: index,
                                symbol: Rc::clone(&symbol),
                                start,
                                returns: self.definitions[index].kind == ProbeKind::Return,
                                resolved: resolved.map(Rc::new),
                            });
                            // Variables are elsewhere at each place.
                            common = Some(point).filter(|_| !own);
                            point
                        }
                    };
                    places.put(addr, point);
                }
            }
        }
        places.sort();
        let returns = places.points().any(|point| point.returns);
        let no_returns = match plan {
            _ if !returns => Vec::new(),
            Some((plan, _)) => take_refused(&mut places, plan),
            None => {
                let plan = cache::plan(image, &PlanOptions::default())?;
                take_refused(&mut places, &plan)
            }
        };
        // Where every instruction has a probe, larger regions can be moved. All of them are needed then: one may use
        // bytes of another.
        let mut definitions = self.definitions.iter();
        let every = definitions
            .any(|definition| is_file(definition, &image.path) && is_whole_file(definition));
        let wanted = match every {
            true => Vec::new(),
            false => places.addresses(),
        };
        let which = match every {
            true => Wanted::Every,
            false => Wanted::At(&wanted),
        };
        let looked = places.points().map(|point| match &point.resolved {
            Some(resolved) => looked_at(resolved),
            None => looked_at(&self.definitions[point.definition]),
        });
        let options = PlanOptions {
            keep: looked.fold(0, |all, of| all | of),
            ..PlanOptions::default()
        };
        let hooked = image.symbols(&HOOKED);
        let hooks: Vec<_> = hooked.iter().flatten().map(hook).collect();
        let clashing = RefCell::new(BTreeMap::new());
        let planned = |which: Wanted<'_>| {
            let mut plan = cache::plan_probes(image, which, &options)?;
            let mut left_out = BTreeMap::new();
            let reason = "hodo itself changes this function";
            overlap::keep_off(&hooks, reason, &mut plan.sites, &mut left_out);
            clashing.replace(left_out);
            Ok(plan)
        };
        let (plan, functions, left_out) = match plan {
            Some((functions, chosen)) if !chosen.is_empty() => {
                overlap::plan((functions, chosen), which, planned)?
            }
            _ => (planned(which)?, HashMap::new(), BTreeMap::new()),
        };
        let mut refused = BTreeMap::new();
        for refusal in plan.refused {
            // Some reasons tell of the instruction themselves.
            let reason = match refusal.reason.contains(&refusal.insn) {
                true => refusal.reason,
                false => format!("{} ({})", refusal.reason, refusal.insn),
            };
            refused.insert(refusal.addr, reason);
        }
        refused.extend(left_out);
        refused.extend(clashing.into_inner());
        Ok(Planned {
            places,
            sites: plan.sites,
            refused,
            functions,
            no_returns,
            failed,
            semaphores,
            remarks,
        })
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

    /// Says where the probe of a definition is that names a function which is chosen while the program is loaded.
    fn say_where(&self, index: usize, resolver: Range<u64>, points: &[Found], image: &Image) {
        let text = &self.texts[index];
        let path = image.path.display();
        let addrs = || points.iter().flat_map(|found| &found.addrs);
        if addrs().all(|addr| !resolver.contains(addr)) && !points.is_empty() {
            let (is, them) = match addrs().count() {
                1 => ("the implementation", "it"),
                _ => ("each of the implementations", "one of them"),
            };
            hodo_ptrace::warn_user!(
                "hodo: the probe '{text}' is on {is} that {path} has for this function (an IFUNC): calls that reach {them} by another \
                 name are hits, too; an implementation in another file, as in the vdso, has no probe"
            );
            return;
        }
        hodo_ptrace::warn_user!(
            "hodo: the probe '{text}' is on what chooses an implementation while the program is loaded (an IFUNC of {path}), not on \
             the implementation; probe that by its own name, or by its offset in the file"
        );
    }
}

/// Whether a definition names every instruction of a file.
fn is_whole_file(definition: &Definition) -> bool {
    definition.place
        == Location::Symbol {
            symbol: Symbol::Pattern("*".to_owned()),
            offset: Offset::EveryInstruction,
        }
}
