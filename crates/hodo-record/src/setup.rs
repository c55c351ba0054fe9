//! Sets up a recording before anything runs or is stopped. This is the same whether hodo starts the program or attaches
//! to it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use hodo_module::image::canonical;
use hodo_module::mapped::{Root, program_path, real_path};
use hodo_module::{Module, linked};
use hodo_probe_compile::Probes;
use hodo_ptrace::maps;
use hodo_ptrace::processes::no_process;

use crate::arch;
use crate::check::{self, Library};
use crate::modules::Modules;
use crate::options::RecordOptions;
use crate::select::Selection;
use crate::session::Session;
use crate::trace_dir::TraceDir;

/// The program that is recorded.
#[derive(Debug)]
pub struct Program {
    /// The process that runs it, if it runs.
    pid: Option<i32>,
    /// Its name in messages and in the trace.
    name: PathBuf,
    /// The path from which to read it.
    real: PathBuf,
    /// Its path according to the kernel.
    path: PathBuf,
}

impl Program {
    /// A file that hodo will execute.
    pub fn file(file: &Path) -> Self {
        Self {
            pid: None,
            name: file.to_owned(),
            real: file.to_owned(),
            path: canonical(file),
        }
    }

    /// The program of a process.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of_process(pid: i32) -> Result<Self> {
        let real = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = program_path(pid).with_context(|| no_process(pid))?;
        Ok(Self {
            pid: Some(pid),
            name: path.clone(),
            real,
            path,
        })
    }

    /// Returns what to say if the processor checks where its functions return to.
    fn guards_returns(&self) -> Option<&'static str> {
        self.pid
            .map_or_else(arch::will_guard_returns, arch::guards_returns)
    }

    /// The file that a definition means, if it is a file of the process: where to read it, and its path.
    ///
    /// # Errors
    /// If it is mapped, but can no longer be read.
    fn file_of(&self, definition: usize, probes: &Probes) -> Result<Option<(PathBuf, PathBuf)>> {
        let Some(pid) = self.pid else {
            return Ok(None);
        };
        let maps = maps::read(pid)?;
        let mut code = maps.iter().filter(|m| m.executable && m.inode != 0);
        if let Some(mapping) = code.find(|mapping| probes.means(definition, &mapping.path)) {
            return Ok(Some((real_path(pid, mapping)?, mapping.path.clone())));
        }
        // It may be loaded later.
        let inside = Root::of(pid).and_then(|root| {
            let path = root.resolved(Path::new(probes.path(definition)))?;
            Some((root.real(&path), path))
        });
        Ok(inside)
    }

    /// Its libraries: those that are mapped, or that the dynamic linker would load.
    fn libraries(&self, module: &Module) -> Vec<Library> {
        match self.pid {
            Some(pid) => mapped_files(pid),
            None => linked::libraries(&module.image.bytes, &self.name)
                .into_iter()
                .map(|path| Library {
                    real: path.clone(),
                    path,
                })
                .collect(),
        }
    }
}

/// A recording that has not begun yet.
pub struct Setup {
    /// The trace.
    pub session: Session,
    /// The known files, and the probes.
    pub modules: Modules,
    /// What is traced.
    pub selection: Selection,
}

impl Setup {
    /// Makes the trace in its directory, and places probes in everything that is known now.
    ///
    /// # Errors
    /// If the trace cannot be made, a definition or a pattern is wrong, or a probe has no place in the file that it
    /// names.
    pub fn new(options: &RecordOptions, place: TraceDir, programs: &[Program]) -> Result<Self> {
        let mut probes = probes(options)?;
        for root in programs.iter().filter_map(|p| p.pid.and_then(Root::of)) {
            probes.see_from(root);
        }
        let program = programs.first().context("there is no program")?;
        // Where an action switches recording on, everything is prepared for that.
        let waits = options.off && probes.trace_on();
        let selection = Selection::new(&RecordOptions {
            off: options.off && !waits,
            ..options.clone()
        })?;
        let mut session = Session::create(options, &program.name, place)?;
        if probes.count() {
            session.make_counters()?;
        }
        if probes.histogram_bytes() > 0 {
            session.make_histograms(probes.histogram_bytes())?;
        }
        if let Some(switch) = probes.trace_switch().filter(|_| waits) {
            session.events.switch_off(switch.into());
        }
        let mut setup = Self {
            session,
            modules: Modules::new(probes),
            selection,
        };
        if let Some(why) = programs.iter().find_map(Program::guards_returns) {
            setup.modules.only_entries = true;
            if !setup.selection.is_empty() {
                warn_user!("hodo: {why}");
            }
        }
        let mut known = Vec::new();
        for program in programs {
            match (setup.get(&program.real, &program.path, true), program.pid) {
                (Ok(module), _) => known.push((program, module)),
                // A script has no functions of its own. Files that cannot be read are reported when they are executed.
                (Err(_), None) => {}
                (Err(error), Some(_)) => return Err(error),
            }
        }
        setup.tell_useless(&known);
        let is_known = !known.is_empty();
        for program in programs {
            setup.place_probes(options, program, is_known)?;
        }
        Ok(setup)
    }

    fn get(&mut self, real: &Path, path: &Path, main: bool) -> Result<Rc<Module>> {
        (self.modules).get(real, path, &self.selection, main, &mut self.session)
    }

    /// Reports the patterns that match nothing in any of the programs.
    fn tell_useless(&self, programs: &[(&Program, Rc<Module>)]) {
        let mut names: Vec<String> = Vec::new();
        let (mut functions, mut events) = (Vec::new(), Vec::new());
        for (number, (program, module)) in programs.iter().enumerate() {
            let name = program.name.display().to_string();
            if names.contains(&name) {
                continue;
            }
            names.push(name);
            let libraries = || std::iter::once_with(|| program.libraries(module)).flatten();
            let here = check::useless(&self.selection, module, libraries());
            let no_events = check::useless_events(&self.modules.probes, module, libraries());
            if number == 0 {
                (functions, events) = (here, no_events);
                continue;
            }
            functions.retain(|pattern| here.contains(pattern));
            events.retain(|pattern| no_events.contains(pattern));
        }
        let of = match &names[..] {
            [name] => format!("{name} or its libraries"),
            names => format!("{} or their libraries", names.join(", ")),
        };
        for pattern in functions {
            warn_user!("hodo: {pattern} matches no function of {of}");
        }
        for pattern in events {
            warn_user!(
                "hodo: {pattern} matches no event of {of}; libraries that are loaded later are searched, too"
            );
        }
    }

    /// Places probes in the files that definitions name by path. `is_known`: the program is among the modules.
    fn place_probes(
        &mut self,
        options: &RecordOptions,
        program: &Program,
        is_known: bool,
    ) -> Result<()> {
        for (definition, file) in self.modules.probes.files(&program.path) {
            if !is_known || file != program.path {
                match program.file_of(definition, &self.modules.probes)? {
                    Some((real, path)) => self.get(&real, &path, false)?,
                    // The program may make it, or move to another root directory.
                    None if !file.exists() => {
                        let (file, text) = (file.display(), self.modules.probes.text(definition));
                        warn_user!("hodo: there is no {file} yet: the probe '{text}' waits for it");
                        continue;
                    }
                    None => self.get(&file, &file, false)?,
                };
            }
            let probes = &self.modules.probes;
            if probes.placed(definition) > 0 {
                continue;
            }
            let why = format!("{}: {}", file.display(), probes.why(definition));
            if options.probes.len() < 2 || !probes.is_pattern(definition) {
                bail!(why);
            }
            // It may be a library that contains only data. The other probes may still be placed.
            warn_user!("hodo: {why}");
        }
        Ok(())
    }
}

/// The probes that the options define.
fn probes(options: &RecordOptions) -> Result<Probes> {
    let mut probes = Probes::new(&options.probes, !options.no_time)?;
    probes.follow_names();
    if options.no_optimize {
        probes.without_jumps();
    }
    if options.calls {
        probes.beside_calls();
    }
    if let Some(syscalls) = &options.syscalls {
        probes.record_syscalls(syscalls);
    }
    probes.find_events(&options.events)?;
    probes.only_threads(&options.threads);
    Ok(probes)
}

/// The files whose code is mapped.
fn mapped_files(pid: i32) -> Vec<Library> {
    let maps = maps::read(pid).unwrap_or_default();
    let code = maps.into_iter().filter(|m| m.executable && m.inode != 0);
    code.filter_map(|mapping| {
        Some(Library {
            real: real_path(pid, &mapping).ok()?,
            path: mapping.path,
        })
    })
    .collect()
}
