//! Generated programs, from all compilers and with all options that change how functions begin and call. Patched, they
//! compute what they compute alone, and the recorded calls are those that they have counted themselves. The same holds
//! with a probe on each of their instructions.
//!
//! `HODO_GENERATED=FROM..TO` runs these instead of the default few.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use hodo_plan::PlanOptions;
use hodo_plan::model::{Mode, Plan, PlannedFunction, Wanted};
use hodo_trace::format::tcb;
use hodo_trace::{CallStep, Left};

use crate::isa::{self, CALLS_REACH, COMPILER, FAR, PROBES_FAR};
use crate::skipped::skip;
use crate::world::{World, timed};
use crate::writer::{Random, program};

/// Functions per program.
const FUNCTIONS: u64 = 40;
/// How many calls these functions may make.
const FUEL: i64 = 20;

/// A compiler with its options.
fn options(random: &mut Random) -> Vec<&'static str> {
    let clang = random.one_in(3);
    let mut options = vec![match clang {
        true => "clang",
        false => COMPILER,
    }];
    if clang {
        options.push(isa::TARGET);
    }
    isa::variant(random, clang, &mut options);
    options.push(random.pick(&["-O0", "-O1", "-O2", "-O2", "-O3", "-Os", "-Os"]));
    options.push(random.pick(&[
        "-fno-common",
        "-fno-common",
        "-fpatchable-function-entry=2",
        "-fpatchable-function-entry=4",
        "-fpatchable-function-entry=8,4",
        "-fpatchable-function-entry=12",
        "-fpatchable-function-entry=24",
    ]));
    let common = [
        "-fno-omit-frame-pointer",
        "-fstack-protector-all",
        "-fno-optimize-sibling-calls",
        "-ffunction-sections",
        "-fno-asynchronous-unwind-tables",
        "-fvisibility=hidden",
    ];
    options.extend(common.into_iter().filter(|_| random.one_in(4)));
    if !clang {
        let own = [
            isa::NO_PLT,
            isa::NO_PLT,
            "-fno-ipa-ra",
            "-fno-jump-tables",
            "-fno-shrink-wrap",
        ];
        options.extend(own.into_iter().filter(|_| random.one_in(4)));
    }
    if options.iter().all(|option| !option.contains("patchable")) && random.one_in(4) {
        options.push("-pg");
    }
    options
}

/// Builds the library; `None` if there is no such compiler.
fn compile(name: &str, options: &[&str], text: &str) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |ending: &str| directory.join(format!("{name}-{}.{ending}", std::process::id()));
    let (source, object, library) = (file("c"), file("o"), file("so"));
    std::fs::write(&source, text).expect("a source");
    let run = |command: &mut Command| match command.stdin(Stdio::null()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{options:?}: {source:?}: {text}");
            true
        }
        Err(error) => {
            skip(&format!("with {}: {error}", options[0]));
            false
        }
    };
    let mut compiler = Command::new(options[0]);
    compiler
        .args(&options[1..])
        .args(["-w", "-fPIC", "-fwrapv", "-c"]);
    let mut linker = Command::new(COMPILER);
    linker.args(["-shared", "-Wl,-Bsymbolic"]).arg(&object);
    let made =
        run(compiler.arg(&source).arg("-o").arg(&object)) && run(linker.arg("-o").arg(&library));
    made.then_some(library)
}

/// A program that was generated from a number, and is loaded.
struct Program {
    /// A description of the case, for messages.
    case: String,
    /// Whether its functions count their calls.
    counted: bool,
    path: PathBuf,
    file: Vec<u8>,
    plan: Plan,
    bias: u64,
    library: *mut c_void,
    all: extern "C-unwind" fn(i64, i64) -> i64,
    counts: *mut Counts,
}

/// The calls of its functions.
type Counts = [i64; FUNCTIONS as usize];

impl Program {
    /// `None` if there is no such compiler.
    fn new(seed: u64) -> Option<Self> {
        let mut random = Random(seed);
        let options = options(&mut random);
        let counted = random.one_in(2);
        // Only GNU's compiler supports nested functions.
        let text = program(&mut random, FUNCTIONS, counted, options[0] != "clang");
        let path = compile(&format!("generated-{seed}"), &options, &text)?;
        let file = std::fs::read(&path).expect("a library");
        let plan = hodo_plan::plan(&path, &file, &PlanOptions::default()).expect("a plan");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: when it is loaded, only the compiler's own code runs.
        let (library, all, counts) = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "{name:?}");
            let symbol = |name: &CStr| libc::dlsym(library, name.as_ptr());
            (library, symbol(c"gen_all"), symbol(c"gen_counts").cast())
        };
        let there = plan.functions.iter().find(|f| f.name == "gen_all");
        Some(Self {
            case: format!("{seed}: {options:?}"),
            counted,
            bias: all.addr() as u64 - there.expect("the function").addr,
            // SAFETY: it is this function.
            all: unsafe {
                std::mem::transmute::<*mut c_void, extern "C-unwind" fn(i64, i64) -> i64>(all)
            },
            path,
            file,
            plan,
            library,
            counts,
        })
    }

    /// What it computes.
    fn run(&self) -> [i64; 3] {
        [3, 1 << 33, -7].map(|input| (self.all)(input, FUEL))
    }

    /// What it has counted since the last time.
    fn counts(&self) -> Counts {
        // SAFETY: it is the library's own array, which nobody else uses at this time.
        unsafe { self.counts.replace([0; FUNCTIONS as usize]) }
    }

    fn world(&self, far: u64) -> World {
        let here = self.all as usize as u64;
        match far {
            0 => World::near_to(timed(), 60, here),
            _ => World::far_from(timed(), 60, here, far),
        }
    }

    /// Records all its calls, through an island near it or this far from it.
    fn trace(&self, far: u64) {
        let case = &self.case;
        let expected = self.run();
        let mut world = self.world(far);
        let block = world.enter(1);
        let is_ours = |name: &str| name.starts_with("gen_") || name.starts_with("inner");
        let functions = self.plan.functions.iter();
        let functions = functions.filter(|f| is_ours(&f.name) && f.outcome.is_ok());
        let functions: Vec<_> = functions.map(|f| (&*f.name, f)).collect();
        // Library calls need an island within reach.
        let reaches = far <= CALLS_REACH;
        let calls: Vec<_> = self.plan.libcalls.iter().filter(|_| reaches).collect();
        let planned = (&self.plan, &*self.file);
        world.trace_planned(planned, self.bias, functions.iter().copied(), &calls);
        self.counts();
        let found = self.run();
        let counts = self.counts();
        world.restore();
        assert_eq!(found, expected, "{case}: far {far:#x}");
        assert_eq!(self.run(), expected, "{case}: afterwards");
        assert_eq!(world.get(block + tcb::BAD_FRAMES), 0, "{case}");
        let trace = world.read(&format!("generated-{}", std::process::id()), 1);
        let mut entries = HashMap::new();
        let (mut all, mut exits) = (0, 0);
        let mut open = trace.calls(Vec::new());
        for found in trace.records(&trace.tasks[0]) {
            open.feed(found, |step| match step {
                CallStep::Enter { id, .. } | CallStep::Instant { id, .. } => {
                    // Compilers append something to the names of functions that they have specialized.
                    let name = &trace.function(id).expect("a name").name;
                    let name = name.split('.').next().unwrap_or(name);
                    *entries.entry(name.to_owned()).or_insert(0) += 1;
                    all += 1;
                }
                CallStep::Leave {
                    left: Left::Returned | Left::Tail,
                    ..
                } => exits += 1,
                other => panic!("{case}: {other:?}"),
            });
        }
        println!(
            "{case}: far {far:#x}: {} functions, {all} calls, {} breakpoints",
            functions.len(),
            world.patches.traps.len()
        );
        let counted = (0..).zip(counts).filter(|_| self.counted);
        for (index, count) in counted {
            let name = format!("gen_{index}");
            if let Some((_, function)) = functions.iter().find(|(other, _)| *other == name) {
                let seen = entries.get(&name).copied().unwrap_or(0);
                assert_eq!(seen, count, "{case}: far {far:#x}: {function:x?}");
            }
        }
        let returns = |f: &PlannedFunction| f.outcome.as_ref().is_ok_and(|s| s.mode == Mode::Call);
        if functions.iter().all(|(_, function)| returns(function)) {
            assert_eq!(exits, all, "{case}: far {far:#x}");
        }
    }

    /// Counts all its instructions, in an island near it or this far from it.
    fn probe(&self, far: u64) {
        let case = &self.case;
        let expected = self.run();
        let plan = hodo_plan::plan_probes(&self.path, &self.file, Wanted::Every, 1);
        let plan = plan.expect("a plan");
        let probes: Vec<_> = plan.sites.iter().flat_map(|site| &site.probes).collect();
        let counters: Vec<_> = probes.iter().map(|_| AtomicU64::new(0)).collect();
        let mut world = self.world(far);
        let block = world.enter(1);
        // A word of the control block that nobody uses if the depth is not limited.
        let counters_at = counters.as_ptr().expose_provenance() as u64;
        world.put(block + tcb::FRAMES, counters_at);
        let reaches = far <= CALLS_REACH;
        let calls: Vec<_> = self.plan.libcalls.iter().filter(|_| reaches).collect();
        let base = u32::try_from(tcb::FRAMES).expect("a small number");
        world.probe_planned((&plan, &self.file), self.bias, base, &calls);
        let found = self.run();
        world.restore();
        assert_eq!(found, expected, "{case}: with probes, far {far:#x}");
        let counts: Vec<_> = counters.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let hits: u64 = counts.iter().sum();
        let traps = world.patches.traps.len();
        println!(
            "{case}: far {far:#x}: {} probes, {hits} hits, {traps} breakpoints",
            probes.len()
        );
        assert_ne!(hits, 0, "{case}");
        for (pair, hits) in probes.windows(2).zip(counts.windows(2)) {
            let same = !pair[1].joined || hits[0] == hits[1];
            assert!(same, "{case}: {pair:x?}: {hits:?}");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nothing of it is used any more.
        unsafe { libc::dlclose(self.library) };
        if !std::thread::panicking() {
            for ending in ["c", "o", "so"] {
                let _ = std::fs::remove_file(self.path.with_extension(ending));
            }
        }
    }
}

/// The numbers to run.
fn seeds() -> Range<u64> {
    let wanted = std::env::var("HODO_GENERATED");
    let wanted = wanted
        .as_ref()
        .ok()
        .and_then(|range| range.split_once(".."));
    wanted.map_or(0..6, |(from, to)| {
        let number = |text: &str| text.parse().expect("a number");
        number(from)..number(to)
    })
}

#[test]
fn generated_programs_do_the_same_and_all_their_calls_are_seen() {
    for program in seeds().filter_map(Program::new) {
        for far in [0].iter().chain(FAR) {
            program.trace(*far);
        }
        for far in [0].iter().chain(PROBES_FAR) {
            program.probe(*far);
        }
    }
}
