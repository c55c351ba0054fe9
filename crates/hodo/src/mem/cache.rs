//! `hodo mem cache`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_dbi::Observe;
use hodo_mem::blame::{Blame, Wanted};
use hodo_mem::cache::Simulator;
use hodo_mem::counted::Missing;
use hodo_mem::machine;
use hodo_mem::model::{Caches, Extent, Geometry, Inclusion, Prefetch};
use hodo_mem::replacement::Policy;
use hodo_mem::report::cache::{self as report, How, Sums};
use hodo_mem::report::flame::folded;

use super::{observed, output};
use crate::args::{
    CacheArgs, InclusionArg, Like, MemFormat, PrefetchArg, ReplacementArg, SecondArg, SourceArgs,
    TlbArgs,
};
use crate::output::Named;

/// Simulates caches.
pub fn cache(args: &CacheArgs) -> Result<ExitCode> {
    let caches = wanted(args)?;
    if args.cores > 1 && (args.memory || args.flame_graph.is_some()) {
        bail!(
            "--cores cannot be used with --memory or --flame-graph: the order of what threads do is put together after \
             allocations and calls are known"
        );
    }
    let mut simulator = Simulator::new(caches)?;
    // A timeline and what `blame` finds need all that is executed.
    let is_whole = args.html.is_some() || args.memory || args.flame_graph.is_some();
    let observe = least(&mut simulator, &args.common.source, is_whole);
    if args.html.is_some() {
        simulator.keep_lines();
    }
    let mut out = output(args.common.output.as_ref(), &args.common.source)?;
    let how = How {
        names: ["I1", "D1", "L2", "LL"],
        caches,
        top: args.top,
        instructions: args.instructions,
        memory: args.memory.then_some(args.callers),
    };
    let blame = Wanted {
        calls: args.flame_graph.is_some(),
        memory: args.memory,
    };
    // If they cannot be written, the program need not run for that.
    let grind = args
        .cachegrind
        .as_deref()
        .map(OutFile::create)
        .transpose()?;
    let page = args.html.as_deref().map(OutFile::create).transpose()?;
    let graph = args
        .flame_graph
        .as_deref()
        .map(OutFile::create)
        .transpose()?;
    let format = args.common.format;
    let command = args.common.source.command.clone();
    let title = title(&args.common.source);
    observed(
        &args.common.source,
        observe,
        Blame::new(simulator, blame),
        move |blame, missing| {
            let simulator = blame.simulator();
            let sums = Sums::of(simulator);
            let reported = report(&how, format, (&blame, missing), &sums, &mut out);
            // What can be written is written.
            let grind = grind.map_or(Ok(()), |file| {
                file.write(|out| sums.cachegrind(out, &caches, &command))
            });
            let page = page.map_or(Ok(()), |file| {
                file.write(|out| sums.page(title.clone(), &how, simulator).write(out))
            });
            let graph = graph.map_or(Ok(()), |file| {
                let path = file.0.clone();
                let lines = (folded(&blame), "no access of data missed the first cache");
                file.write(|out| flame_graph(out, &path, (title, "misses"), lines))
            });
            reported.and(grind).and(page).and(graph)
        },
    )
}

/// What the simulator has to receive: if nothing else is wanted, nothing that changes no cache.
fn least(simulator: &mut Simulator, source: &SourceArgs, is_whole: bool) -> Observe {
    if is_whole || source.directory.is_some() {
        return Observe::Accesses;
    }
    simulator.by_lines().unwrap_or(Observe::Accesses)
}

/// What is observed, for people.
pub fn title(source: &SourceArgs) -> String {
    match (&source.directory, source.part.pid) {
        (Some(directory), _) => format!("recording {}", directory.display()),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => {
            let words = source.command.iter().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

/// A file besides the result.
pub struct OutFile(PathBuf, Named<File>);

impl OutFile {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path.to_owned(), Named::new(path.display(), file)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(
        self,
        write: impl FnOnce(&mut BufWriter<Named<File>>) -> Result<()>,
    ) -> Result<()> {
        let mut out = BufWriter::new(self.1);
        write(&mut out)?;
        Ok(out.flush()?)
    }
}

/// Simulates the caches of address translations: each entry is a line as large as a page.
pub fn tlb(args: &TlbArgs) -> Result<ExitCode> {
    let geometry = |(entries, ways): (u32, u32)| Geometry {
        size: u64::from(entries) * u64::from(args.page),
        ways,
        line: args.page,
    };
    let caches = Caches {
        instructions: geometry(args.itlb),
        data: geometry(args.dtlb),
        second: None,
        last: geometry(args.stlb),
        policy: Policy::Lru,
        extent: Extent::default(),
    };
    let mut simulator = Simulator::new(caches)?;
    let observe = least(&mut simulator, &args.common.source, false);
    let common = &args.common;
    let mut out = output(common.output.as_ref(), &common.source)?;
    let how = How {
        names: ["ITLB", "DTLB", "", "STLB"],
        caches,
        top: args.top,
        instructions: false,
        memory: None,
    };
    let format = common.format;
    observed(
        &common.source,
        observe,
        Blame::new(simulator, Wanted::default()),
        move |blame, missing| {
            let sums = Sums::of(blame.simulator());
            report(&how, format, (&blame, missing), &sums, &mut out)
        },
    )
}

/// The caches that are wanted.
fn wanted(args: &CacheArgs) -> Result<Caches> {
    let like = match args.like {
        Like::Host => machine::host()?,
        Like::Zen3 => machine::zen3(),
        Like::Skylake => machine::skylake(),
    };
    let second = match args.l2 {
        None => None,
        Some(SecondArg::Cache(geometry)) => Some(geometry),
        Some(SecondArg::Like) => Some(like.second.context(
            "the processor has no level between the first and the last one; use --l2 SIZE,WAYS,LINE",
        )?),
    };
    Ok(Caches {
        instructions: args.i1.unwrap_or(like.instructions),
        data: args.d1.unwrap_or(like.data),
        second,
        last: args.ll.unwrap_or(like.last),
        policy: match args.replacement {
            ReplacementArg::Lru => Policy::Lru,
            ReplacementArg::Fifo => Policy::Fifo,
            ReplacementArg::Random => Policy::Random,
            ReplacementArg::TreePlru => Policy::TreePlru,
        },
        extent: Extent {
            inclusion: match args.inclusion {
                InclusionArg::Any => Inclusion::Any,
                InclusionArg::Inclusive => Inclusion::Inclusive,
                InclusionArg::Exclusive => Inclusion::Exclusive,
            },
            prefetch: match args.prefetch {
                PrefetchArg::None => Prefetch::None,
                PrefetchArg::NextLine => Prefetch::NextLine,
                PrefetchArg::Stride => Prefetch::Stride,
            },
            write_backs: args.write_backs,
            causes: args.causes,
            cores: args.cores,
        },
    })
}

fn report(
    how: &How,
    format: MemFormat,
    (blame, missing): (&Blame, Missing),
    sums: &Sums,
    out: &mut dyn Write,
) -> Result<()> {
    match format {
        MemFormat::Json => writeln!(out, "{}", missing.note(report::json(how, blame, sums)))?,
        MemFormat::Text => report::text(how, blame, sums, out)?,
    }
    Ok(out.flush()?)
}

/// Writes a flame graph: as SVG, or folded stacks if the name of the file says so. If there are none, an error says
/// that there is `nothing`.
pub fn flame_graph(
    out: &mut dyn Write,
    path: &Path,
    (title, unit): (String, &str),
    (lines, nothing): (Vec<String>, &str),
) -> Result<()> {
    if path.extension().is_some_and(|end| end == "folded") {
        for line in lines {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    if lines.is_empty() {
        bail!("{nothing}");
    }
    hodo_view::flame_graph(&lines, title, unit, out)
}
