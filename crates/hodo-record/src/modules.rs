//! Files that are mapped into targets: read once, planned once, numbered once.

use crate::reach;
use crate::select::Selection;
use crate::session::Session;
use anyhow::{Context, Result};
use hodo_isa::native::calls::FINDS_LEAVING_JUMPS;
use hodo_module::HOOKED;
use hodo_module::cache::Planning;
use hodo_module::image::Version;
use hodo_module::{Chosen, Image, Module, Number, Probed};
use hodo_plan::model::{EntryOnlyReason, Mode, Plan};
use hodo_probe_compile::Probes;
use hodo_trace::format::record;
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// All files seen in this recording.
#[derive(Debug)]
pub struct Modules {
    known: HashMap<Version, Rc<Module>>,
    next_id: u32,
    /// Whether only entries of functions are recorded, because the processor checks where they return to. It is set
    /// before the first file is seen.
    pub only_entries: bool,
    /// The probes of the recording.
    pub probes: Probes,
}

impl Modules {
    /// None yet.
    pub fn new(probes: Probes) -> Self {
        Self {
            known: HashMap::new(),
            next_id: 1,
            only_entries: false,
            probes,
        }
    }

    /// The name of the function with this id.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.known.values().find_map(|module| {
            let functions = module.functions.iter().find(|f| f.id == id);
            let function = functions.map(|f| module.plan.functions[f.index].name.as_str());
            let libcall = module.libcalls.iter().find(|call| call.id == id);
            function.or_else(|| libcall.map(|call| module.plan.libcalls[call.index].name.as_str()))
        })
    }

    /// The module of a file, planned if it is new.
    pub fn get(
        &mut self,
        real: &Path,
        path: &Path,
        selection: &Selection,
        main: bool,
        session: &mut Session,
    ) -> Result<Rc<Module>> {
        let key = Version::of(real).with_context(|| format!("reading {}", path.display()))?;
        if let Some(module) = self.known.get(&key) {
            return Ok(Rc::clone(module));
        }
        let image = Image::open(real, path.to_owned())?;
        // Where only system calls are recorded, now and later, libraries' functions need neither plans nor ids. What a
        // program's functions are called decides how it is recorded.
        let has_functions = main || !(self.probes.records_syscalls() && selection.is_empty());
        let options = hodo_plan::PlanOptions {
            functions: has_functions,
            libcalls: has_functions,
            keep: self.probes.looked_at(&image),
            ..hodo_plan::PlanOptions::default()
        };
        let planning = Planning::new(&image);
        let mut plan = planning.plan(&options)?;
        if self.only_entries {
            plan.leave_returns(EntryOnlyReason::IsChecked);
        }
        let numbered = self.number(&planning, &plan, selection, main, session)?;
        let Numbered {
            functions,
            libcalls,
            probed,
            number,
        } = numbered;
        let module = Module {
            image: Rc::new(image),
            plan: Rc::new(plan),
            functions,
            libcalls,
            probed,
            number,
        };
        let module = Rc::new(module);
        self.known.insert(key, Rc::clone(&module));
        Ok(module)
    }

    /// Chooses what is traced in a file, and gives ids to it.
    fn number(
        &mut self,
        planning: &Planning<'_>,
        plan: &Plan,
        selection: &Selection,
        main: bool,
        session: &mut Session,
    ) -> Result<Numbered> {
        let image = planning.image;
        let id = u32::try_from(self.known.len()).context("too many modules")?;
        let first = self.next_id;
        let Choice {
            functions,
            libcalls,
            mut symbols,
            next,
        } = Choice::new(image, plan, first, selection, main);
        self.next_id = next;
        for remark in &plan.remarks {
            let text = format!("{}: {remark}", image.path.display());
            session.log(&json!({"remark": {"pid": 0, "text": text}}))?;
        }
        let mut hits = Vec::new();
        let probed = match self.probes.concern(image) {
            true => self.probes.module(
                planning,
                (plan, &functions),
                &mut self.next_id,
                &mut hits,
                session,
            )?,
            false => Probed::default(),
        };
        let hits = hits
            .iter()
            .map(|(addr, name)| (*addr, 0, 'B', name.as_str()));
        symbols.extend(hits);
        let kinds = symbols.iter().map(|symbol| symbol.2).collect();
        let count = symbols.len();
        let file = session.symbols(id, symbols.into_iter())?;
        session.log(&json!({"module": {
            "id": id, "path": image.path.to_string_lossy(), "build_id": plan.build_id,
            "symbols": image.symbol_file().map(|path| path.to_string_lossy().into_owned()), "first_id": first, "count": count, "file": file,
        }}))?;
        Ok(Numbered {
            functions,
            libcalls,
            probed,
            number: Number {
                id,
                first,
                main,
                kinds,
            },
        })
    }

    /// How many functions and calls are traced in all files.
    pub fn traced(&self) -> usize {
        let traced = |module: &Rc<Module>| module.functions.len() + module.libcalls.len();
        self.known.values().map(traced).sum()
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Module>> {
        self.known.values()
    }

    /// Chooses again what is traced in the known files. The recording must have no probes.
    ///
    /// # Errors
    /// If a file of symbols cannot be written.
    pub fn choose_again(&mut self, selection: &Selection, session: &mut Session) -> Result<()> {
        for module in self.known.values_mut() {
            let mut number = module.number.clone();
            let Choice {
                functions,
                libcalls,
                mut symbols,
                ..
            } = Choice::new(
                &module.image,
                &module.plan,
                number.first,
                selection,
                number.main,
            );
            // Functions that were traced before stay in the trace.
            for (symbol, kind) in symbols.iter_mut().zip(&number.kinds) {
                if symbol.2 == '-' {
                    symbol.2 = *kind;
                }
            }
            let kinds: Vec<char> = symbols.iter().map(|symbol| symbol.2).collect();
            if kinds != number.kinds {
                session.symbols(number.id, symbols.into_iter())?;
                number.kinds = kinds;
            }
            *module = Rc::new(Module {
                image: Rc::clone(&module.image),
                plan: Rc::clone(&module.plan),
                functions,
                libcalls,
                probed: Probed::default(),
                number,
            });
        }
        Ok(())
    }
}

/// A file's module in this recording.
struct Numbered {
    functions: Vec<Chosen>,
    libcalls: Vec<Chosen>,
    probed: Probed,
    number: Number,
}

/// What is traced in a file.
struct Choice<'p> {
    functions: Vec<Chosen>,
    libcalls: Vec<Chosen>,
    /// Address, size, kind and name of everything with an id, in the order of ids.
    symbols: Vec<(u64, u64, char, &'p str)>,
    /// The id after the last.
    next: u32,
}

impl<'p> Choice<'p> {
    /// The ids do not depend on what is chosen.
    fn new(image: &Image, plan: &'p Plan, first: u32, selection: &Selection, main: bool) -> Self {
        let mut next = first;
        let mut symbols = Vec::new();
        let mut functions = Vec::new();
        let mut libcalls = Vec::new();
        let left_out = left_out(image, plan, selection);
        let hooked = image.symbols(&HOOKED);
        // Where this is hooked at its beginning, the hook and its site would need the same bytes.
        let action = match FINDS_LEAVING_JUMPS {
            true => [None],
            false => image.symbols(&["sigaction"]),
        };
        // A probe there is more important than its hook.
        let direct = image.symbols(&["syscall"]);
        let is_hooked = |at: u64| {
            let mut hooked = hooked.iter().chain(&action).chain(&direct).flatten();
            hooked.any(|function| function.start == at)
        };
        for (index, function) in plan.functions.iter().enumerate() {
            let number = next;
            let name = function.name.as_str();
            let wanted = selection.function(&image.path, main, name, function.size)
                && !is_hooked(function.addr)
                && !left_out[index];
            let kind = match &function.outcome {
                _ if number > record::MAX_FUNCTION_ID => '-',
                Ok(site) if wanted && (site.mode == Mode::Call || selection.entries()) => {
                    functions.push(Chosen {
                        index,
                        id: number,
                        filter: selection.filter(&image.path, name, false),
                    });
                    if site.mode == Mode::Call { 'T' } else { 'E' }
                }
                _ => '-',
            };
            symbols.push((function.addr, function.size, kind, name));
            next = next.saturating_add(1);
        }
        // All sites that call one library function have one id.
        let mut by_name: HashMap<&str, (u32, usize)> = HashMap::new();
        for (index, libcall) in plan.libcalls.iter().enumerate() {
            let name = libcall.name.as_str();
            if !selection.lists_libcall(main, name) {
                continue;
            }
            let (number, symbol) = *by_name.entry(name).or_insert_with(|| {
                symbols.push((libcall.patch, 0, '-', name));
                next = next.saturating_add(1);
                (next - 1, symbols.len() - 1)
            });
            if !selection.libcall(main, name)
                || selection.notrace(&image.path, name, true)
                || (libcall.mode != Mode::Call && !selection.entries())
            {
                continue;
            }
            if symbols[symbol].2 == '-' {
                let kind = if libcall.mode == Mode::Call { 'P' } else { 'p' };
                symbols[symbol] = (libcall.patch, 0, kind, name);
            }
            if number <= record::MAX_FUNCTION_ID {
                libcalls.push(Chosen {
                    index,
                    id: number,
                    filter: selection.filter(&image.path, name, true),
                });
            }
        }
        Self {
            functions,
            libcalls,
            symbols,
            next,
        }
    }
}

/// The functions none of whose calls can pass the filters. The filters for all others are applied when they are called,
/// or by readers.
fn left_out(image: &Image, plan: &Plan, selection: &Selection) -> Vec<bool> {
    let names = || plan.functions.iter().map(|f| f.name.as_str()).enumerate();
    let mut out = vec![false; plan.functions.len()];
    if selection.is_filtered() && !selection.is_nested() {
        let roots: Vec<_> = names()
            .filter(|(_, name)| selection.filter(&image.path, name, false))
            .map(|(index, _)| index)
            .collect();
        if let Some(reached) = reach::reachable(image, plan, &roots) {
            out = reached.into_iter().map(|reached| !reached).collect();
        }
    }
    for (index, name) in names() {
        // A function that calls others must be recorded, because the calls are left out with it.
        if selection.notrace(&image.path, name, false) && reach::is_leaf(image, plan, index) {
            out[index] = true;
        }
    }
    out
}
