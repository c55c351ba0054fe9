//! Libraries as compilers build them, planned and executed: with and without linker relaxation, with and without room
//! for tracers, near the island and far from it.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hodo_plan::model::{Plan, PlanOptions, PlannedFunction, SitePlan, Tactic};

use crate::skipped::skip;
use crate::world::{World, timed};

/// What one call of everything records. A function that is jumped to leaves the frame of the function that jumps.
const RECORDS: &str = "+all +nothing -nothing +empty -empty +leaf -leaf +getter -getter +tail >leaf -tail \
    +through >leaf -through +through >tail >leaf -through +float -float +loop -loop +switch -switch +many -many -all";

/// Builds a library; `None` if there is no such compiler.
fn compile(name: &str, compiler: &[&str], flags: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stubs/shapes.c");
    let file = |ending: &str| directory.join(format!("{name}-{}.{ending}", std::process::id()));
    let (object, library) = (file("o"), file("so"));
    let run = |program: &str, arguments: &mut dyn FnMut(&mut Command)| {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        arguments(&mut command);
        match command.output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{flags:?}: {text}");
                true
            }
            Err(error) => {
                skip(&format!("with {program}: {error}"));
                false
            }
        }
    };
    let compiled = run(compiler[0], &mut |command| {
        command.args(&compiler[1..]).args(["-O2", "-fPIC", "-c"]);
        command.args(flags).arg(&here).arg("-o").arg(&object);
    });
    let linked = compiled
        && run("riscv64-linux-gnu-gcc", &mut |command| {
            // Calls inside it are direct.
            command.args(["-shared", "-Wl,-Bsymbolic"]).arg(&object);
            command.arg("-o").arg(&library);
        });
    linked.then_some(library)
}

/// A library, its plan, and its address in memory.
struct Library {
    file: Vec<u8>,
    plan: Plan,
    bias: u64,
    all: extern "C-unwind" fn(i32) -> i64,
}

impl Library {
    fn open(path: &Path) -> Self {
        let file = std::fs::read(path).expect("a library");
        let plan = hodo_plan::plan(path, &file, &PlanOptions::default()).expect("a plan");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: when it is loaded, only the compiler's own code runs.
        let all = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "{name:?}");
            libc::dlsym(library, c"shape_all".as_ptr())
        };
        assert!(!all.is_null());
        let there = plan.functions.iter().find(|f| f.name == "shape_all");
        Self {
            bias: all.addr() as u64 - there.expect("the function").addr,
            // SAFETY: it is this function.
            all: unsafe {
                std::mem::transmute::<*mut libc::c_void, extern "C-unwind" fn(i32) -> i64>(all)
            },
            file,
            plan,
        }
    }

    /// Those of its functions that are called, by their names without the common prefix.
    fn ours(&self) -> impl Iterator<Item = (&str, &PlannedFunction)> {
        let all = self.plan.functions.iter();
        all.filter_map(|function| Some((function.name.strip_prefix("shape_")?, function)))
    }

    fn sites(&self) -> impl Iterator<Item = (&str, &SitePlan)> {
        self.ours().map(|(name, function)| match &function.outcome {
            Ok(site) => (name, site),
            Err(reason) => panic!("{name}: {reason}"),
        })
    }

    /// Calls everything while it is recorded, and again afterwards.
    fn run(&self, mut world: World, case: &str) {
        world.enter(1);
        let expected = (self.all)(3);
        world.trace_planned((&self.plan, &self.file), self.bias, self.ours(), &[]);
        assert_eq!((self.all)(3), expected, "{case}");
        assert_eq!(world.text(1), RECORDS, "{case}");
        world.restore();
        assert_eq!((self.all)(3), expected, "{case}");
        assert_eq!(world.text(1), RECORDS, "{case}");
    }
}

/// Runs a library that is built this way, near the island and far from it. `nops`: bytes of room for tracers.
fn check(compiler: &[&str], flags: &[&str], nops: u64) {
    let name = format!("{}{}", compiler[0], flags.concat());
    let Some(path) = compile(&name, compiler, flags) else {
        return;
    };
    let library = Library::open(&path);
    for (function, site) in library.sites() {
        let is_site = site.tactic == Tactic::Site;
        assert_eq!(is_site, nops > 0, "{name}: {function}");
        if nops >= 8 {
            // The nops are enough, because a temporary is free.
            let end = site.displaced.end;
            assert_eq!((site.patch_len, end), (8, site.patch + 8), "{function}");
        }
        if nops >= 24 {
            let far = site.far.as_ref().expect("room");
            assert!(far.literal.is_some(), "{name}: {function}: {far:x?}");
        }
    }
    let here = library.bias;
    library.run(World::near_to(timed(), 2, here), &name);
    library.run(
        World::far_from(timed(), 2, here, 1 << 32),
        &format!("{name}, far"),
    );
}

const GCC: &[&str] = &["riscv64-linux-gnu-gcc"];
const CLANG: &[&str] = &["clang", "--target=riscv64-linux-gnu", "-march=rv64gc"];

#[test]
fn relaxed_and_unrelaxed_code_is_traced() {
    for flags in [&[][..], &["-mno-relax"]] {
        check(GCC, flags, 0);
        check(CLANG, flags, 0);
    }
}

#[test]
fn the_room_that_compilers_leave_is_used() {
    for (count, nops) in [("2", 4), ("4", 8), ("8", 16), ("12", 24)] {
        let room = format!("-fpatchable-function-entry={count}");
        check(GCC, &[&room], nops);
        check(GCC, &[&room, "-mno-relax"], nops);
        check(CLANG, &[&room], nops);
        check(CLANG, &[&room, "-mno-relax"], nops);
    }
    // Some of the room is before the function.
    check(GCC, &["-fpatchable-function-entry=12,8"], 8);
    check(CLANG, &["-fpatchable-function-entry=12,8"], 8);
}

#[test]
fn code_without_short_instructions_is_traced() {
    check(GCC, &["-march=rv64g", "-mabi=lp64d"], 0);
    let room = "-fpatchable-function-entry=2";
    check(GCC, &["-march=rv64g", "-mabi=lp64d", room], 8);
}

#[test]
fn functions_that_let_helpers_save_registers_are_traced() {
    check(GCC, &["-Os", "-msave-restore"], 0);
    check(CLANG, &["-Os", "-msave-restore"], 0);
    let room = "-fpatchable-function-entry=4";
    check(GCC, &["-Os", "-msave-restore", room], 8);
}
