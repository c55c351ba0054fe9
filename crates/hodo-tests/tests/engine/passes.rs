//! Passes that insert code: programs do what they do alone, and what is inserted does what it says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hodo_dbi::{
    Access, Block, Bytes, Client, Code, Compare, Compute, Events, Exit, Inserting, Observe, Pass,
    Scratch, TooMany, Word, Words,
};
use hodo_tests::target::Target;
use hodo_tests::{Ended, Kind, Outcome, Run, build, example, has_tool, needs};

#[path = "../../../hodo-dbi/examples/instruction_count.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod instruction_count;
#[path = "../../../hodo-dbi/examples/scramble.rs"]
#[allow(dead_code, reason = "its main function is not called")]
mod scramble;

/// Runs a program alone and with registers that are overwritten all the time.
fn scrambled(test: &str, seed: u32, program: impl Into<OsString>, arguments: &[&str]) {
    let program = program.into();
    let mut alone = Run::new(&format!("passes-{test}-{seed}-alone"), &program)
        .args(arguments)
        .alone();
    let mut scrambled = Run::new(
        &format!("passes-{test}-{seed}"),
        example("hodo-dbi", "scramble"),
    )
    .args([OsString::from(seed.to_string()), program])
    .args(arguments)
    .alone();
    // The last line is that of the example.
    let sums = take_last_line(&mut scrambled);
    assert!(sums.contains(" wrong: 0 }"), "{sums}: {scrambled:?}");
    assert!(!sums.contains(" checks: 0,"), "{sums}: {scrambled:?}");
    if let Ended::Signal(signal) = alone.ended {
        alone.ended = Ended::Code(128 + signal);
    }
    assert_eq!(alone, scrambled, "alone and scrambled differ");
}

macro_rules! programs {
    ($($name:ident $source:literal $kind:ident $($argument:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                let program = build($source, Kind::$kind, &[]);
                for seed in 1..4 {
                    scrambled(stringify!($name), seed, &program, &[$($argument),*]);
                }
            }
        )*
    };
}

programs! {
    registers_at_faults "held_at_faults.c" Pie;
    registers_at_signals "held_registers.c" Pie "100";
    random_code_step_by_step "random_steps.c" Pie "5" "4" "1" "1";
    signals "signals.c" Static;
    signals_of_all_kinds "odd_signals.c" Pie;
    blocked_faults "blocked_faults.c" Pie;
    threads "threads.c" Pie;
    code_that_changes "rewritten.c" Pie;
    coroutines "coroutines.c" StaticPie;
    exceptions "exceptions.cc" Pie;
    children "children.c" Fixed;
    cancelled_threads "cancel.c" Pie;
    values_of_all_classes "values.c" Pie;
    lanes_at_faults "gathers.c" Pie "20" "faults";
    elements_at_faults "masked_moves.c" Pie "8" "faults";
    rounds_at_faults "repeated.c" Pie "200" "faults";
    rounds_that_are_stepped "stepped_rounds.c" Pie;
}

/// The last line that a program writes to its standard error output, which is taken off.
fn take_last_line(run: &mut Outcome) -> String {
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    let start = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
    run.stderr.truncate(start);
    text[start..].trim_end().to_owned()
}

/// Gathers and scatters that are expanded do what they do alone, also as far as a handler sees it that looks at a fault
/// in the middle of them, and each access of a lane is seen once.
#[test]
fn gathers_and_scatters_lane_by_lane() {
    let program = build("gathers.c", Kind::Pie, &["-O1"]);
    for (faults, timer) in [("", None), ("faults", None), ("faults", Some("timer"))] {
        let test = format!("expanded-{faults}-{}", timer.is_some());
        let arguments: Vec<&str> = ["300", faults].into_iter().chain(timer).collect();
        let mut alone = Run::new(&format!("{test}-alone"), &program)
            .args(&arguments)
            .alone();
        let mut expanded = Run::new(&test, example("hodo-dbi", "expand"))
            .args([&program])
            .args(&arguments)
            .alone();
        let seen = take_last_line(&mut expanded);
        take_last_line(&mut expanded);
        take_last_line(&mut expanded);
        if faults.is_empty() {
            let expected = take_last_line(&mut expanded);
            assert_eq!(seen, expected);
            take_last_line(&mut alone);
        }
        assert_eq!(alone, expanded, "alone and expanded differ");
    }
}

/// Gathers and scatters whose addresses have no base register.
#[test]
fn gathers_without_a_base() {
    let program = build("low_gathers.c", Kind::Fixed, &["-O1"]);
    let alone = Run::new("low-gathers-alone", &program).alone();
    let mut expanded = Run::new("low-gathers", example("hodo-dbi", "expand"))
        .args([&program])
        .alone();
    let all = take_last_line(&mut expanded);
    take_last_line(&mut expanded);
    take_last_line(&mut expanded);
    assert_eq!(alone, expanded, "alone and expanded differ");
    let count = String::from_utf8_lossy(&alone.stdout).lines().count();
    assert!(
        all.starts_with(&format!("{count} gathers and scatters, ")),
        "{all}"
    );
    scrambled("low-gathers", 1, program, &[]);
}

/// The same of masked loads and stores, which change nothing if they fault.
#[test]
fn masked_loads_and_stores_element_by_element() {
    let program = build("masked_moves.c", Kind::Pie, &["-O1", "-w"]);
    // Else, the C library has such instructions, too.
    let library = "glibc.cpu.hwcaps=-AVX512VL";
    for (faults, timer) in [("", None), ("faults", None), ("faults", Some("timer"))] {
        let test = format!("masked-{faults}-{}", timer.is_some());
        let arguments: Vec<&str> = ["80", faults].into_iter().chain(timer).collect();
        let mut alone = Run::new(&format!("{test}-alone"), &program)
            .args(&arguments)
            .env("GLIBC_TUNABLES", library)
            .alone();
        let mut expanded = Run::new(&test, example("hodo-dbi", "expand"))
            .args([&program])
            .args(&arguments)
            .env("GLIBC_TUNABLES", library)
            .alone();
        take_last_line(&mut expanded);
        let seen = take_last_line(&mut expanded);
        take_last_line(&mut expanded);
        if faults.is_empty() {
            let expected = take_last_line(&mut expanded);
            assert_eq!(seen, expected);
            take_last_line(&mut alone);
        }
        assert_eq!(alone, expanded, "alone and expanded differ");
        let text = String::from_utf8_lossy(&alone.stdout);
        assert!(text.contains("wrong 0, partial 0"), "{text}");
    }
}

/// The same of repeated string instructions, which are broken off between their rounds.
#[test]
fn repeated_instructions_round_by_round() {
    let program = build("repeated.c", Kind::Pie, &["-O1"]);
    let numbers = |text: &str| -> Vec<u64> {
        let words = text.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let mut counted = Vec::new();
    for arguments in [
        &["0000"][..],
        &["3000"],
        &["3000", "faults"],
        &["3000", "faults", "timer"],
    ] {
        let test = format!("repeated-{}", arguments.join("-"));
        let alone = Run::new(&format!("{test}-alone"), &program)
            .args(arguments)
            .alone();
        let mut expanded = Run::new(&test, example("hodo-dbi", "expand"))
            .args([&program])
            .args(arguments)
            .alone();
        take_last_line(&mut expanded);
        take_last_line(&mut expanded);
        let seen = take_last_line(&mut expanded);
        assert_eq!(alone, expanded, "alone and expanded differ");
        let text = String::from_utf8_lossy(&alone.stdout).into_owned();
        assert!(text.starts_with("wrong 000000 "), "{text}");
        counted.push((numbers(&seen), numbers(&text)));
    }
    // The C library has some, too: as many in both runs.
    let (nothing, (all, text)) = (&counted[0].0, &counted[1]);
    assert_eq!(all[0] - nothing[0], 3000);
    assert_eq!(all[1] - nothing[1], text[2], "{counted:?}");
    assert!(counted[2].1[1] > 100, "{counted:?}");
}

/// Runs an ordinary program.
fn ordinary(test: &str, command: &[&str]) {
    needs!(has_tool(command[0]), "it is not installed");
    scrambled(test, 7, command[0], &command[1..]);
}

#[test]
fn a_shell() {
    let script = "for i in $(seq 9); do echo $i; done | sort -rn | md5sum; (exit 3); echo $?; \
                  trap 'echo caught' USR1; kill -USR1 $$; ls / | wc -l; kill -TERM $$";
    ordinary("bash", &["bash", "-c", script]);
}

#[test]
fn perl() {
    let script = "my %h; $h{$_ % 7} .= chr(65 + $_ % 26) for 1..5000; \
                  print join(',', map { \"$_=\" . length $h{$_} } sort keys %h), \"\\n\"; \
                  print scalar(reverse(sprintf('%.10g', sqrt(2)))), \"\\n\"";
    ordinary("perl", &["perl", "-e", script]);
}

#[test]
fn python() {
    let script = "import json, hashlib, threading\n\
                  out = []\n\
                  ts = [threading.Thread(target=lambda n=n: out.append(sum(range(n)))) for n in range(9)]\n\
                  [t.start() for t in ts]; [t.join() for t in ts]\n\
                  print(sorted(out), hashlib.sha256(json.dumps(list(range(999))).encode()).hexdigest())\n\
                  print(1.5 ** 0.5, float('1e300') * 10)";
    ordinary("python", &["/usr/bin/python3", "-c", script]);
}

#[test]
fn a_database() {
    let query = "with recursive t(i) as (select 1 union all select i + 1 from t where i < 3000) \
                 select count(*), sum(i), max(i * i), avg(i / 3.0) from t";
    ordinary("sqlite", &["sqlite3", ":memory:", query]);
}

#[test]
fn a_compiler() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/called.c");
    let source = source.to_str().expect("text");
    ordinary("gcc", &["gcc", "-O1", "-S", "-o", "-", source]);
}

#[test]
fn a_script_that_is_compiled_while_it_runs() {
    let script = "const m = new Map(); for (let i = 0; i < 3e4; i++) m.set(i, {a: i}); \
                  let s = 0; for (const v of m.values()) s += v.a; console.log(s, m.size)";
    ordinary("node", &["node", "-e", script]);
}

/// Before that, instructions are only counted.
#[test]
fn from_the_middle_on() {
    let program = build("held_registers.c", Kind::Pie, &[]);
    let command = [program.clone().into_os_string(), "100".into()];
    for from in [1000, 300_000, 2_000_000] {
        let target = hodo_dbi::Target::Program {
            path: &program,
            command: &command,
            period: Some(hodo_dbi::Period {
                from: Some(hodo_dbi::Amount::Instructions(from)),
                length: None,
                every: None,
            }),
            marked: false,
            follows: true,
        };
        // The engine blocks signals in its thread, which a program inherits.
        let scrambled = std::thread::scope(|scope| {
            let scrambled = scope.spawn(|| scramble::scramble(&target, 3));
            scrambled.join().expect("no panic")
        });
        let (ran, sums) = scrambled.expect("it can be observed");
        assert_eq!(
            (ran.end, sums.wrong),
            (Some(Exit::Code(0)), 0),
            "from {from}"
        );
        assert!(sums.checks > 0, "from {from}");
    }
}

#[test]
fn a_process_that_runs() {
    let target = Target::start(&build("attached_handlers.c", Kind::Pie, &[]));
    let (maps, threads) = (target.maps(), target.threads());
    let mut checks = 0;
    for seed in 1..8 {
        let process = hodo_dbi::Target::Process {
            pid: target.pid(),
            length: Some(hodo_dbi::Amount::Time(Duration::from_millis(30 * seed))),
            every: None,
            marked: false,
            follows: true,
        };
        let (_, sums) = scramble::scramble(&process, seed).expect("it can be observed");
        assert_eq!(sums.wrong, 0);
        // On a busy machine, the process may hardly run for so short a time.
        checks += sums.checks;
        target.is_untouched(&maps, threads);
    }
    assert!(checks > 0);
    target.ends("wrong: 0\n");
}

/// hodo comes and goes while lanes are accessed. `observe` returns whether the process was still there, and looks at
/// what was observed, each time `pause` milliseconds longer.
fn come_and_go(pause: u64, observe: impl Fn(&hodo_dbi::Target<'_>, u64) -> bool) {
    let program = build("gathers.c", Kind::Pie, &["-O1"]);
    let command = format!("{} 1000 faults", program.display());
    let shell = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped());
        shell.spawn().expect("a shell")
    };
    let alone = shell(&command).wait_with_output().expect("its output");
    assert!(alone.status.success());
    // The process is not a child of this one, which does not wait for it.
    let mut there = shell(&format!("{command} & echo $!; wait"));
    let mut lines = BufReader::new(there.stdout.take().expect("a pipe"));
    let mut pid = String::new();
    lines.read_line(&mut pid).expect("a line");
    let pid = pid.trim().parse().expect("a number");
    let output = std::thread::spawn(move || {
        let mut output = Vec::new();
        lines.read_to_end(&mut output).map(|_| output)
    });
    let mut times = 0;
    while times < 8 && Path::new(&format!("/proc/{pid}")).exists() {
        let process = hodo_dbi::Target::Process {
            pid,
            length: Some(hodo_dbi::Amount::Time(Duration::from_millis(pause * times))),
            every: None,
            marked: false,
            follows: true,
        };
        if observe(&process, times) {
            times += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    there.wait().expect("its status");
    let output = output.join().expect("no panic").expect("its output");
    assert!(times > 2, "{times}");
    assert_eq!(
        String::from_utf8_lossy(&output),
        String::from_utf8_lossy(&alone.stdout),
        "after {times} times"
    );
}

#[test]
fn lanes_of_a_process_that_runs() {
    come_and_go(5, |process, seed| match scramble::scramble(process, seed) {
        Ok((_, sums)) => {
            assert_eq!(sums.wrong, 0);
            true
        }
        Err(_) => false,
    });
}

/// Counts instructions that were expanded.
struct Lanes(u64);

impl Client for Lanes {
    fn events(&self) -> Events {
        Events::default().expanded()
    }

    fn executed(&mut self, _: u32, block: &Arc<Block>, _: usize, _: &[Access]) {
        self.0 += u64::from(block.is_expanded());
    }
}

#[test]
fn recorded_lanes_of_a_process_that_runs() {
    let lanes = AtomicU64::new(0);
    come_and_go(40, |process, _| {
        match hodo_dbi::observe(process, Observe::Accesses, Lanes(0)) {
            Ok((_, client)) => {
                lanes.fetch_add(client.0, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    });
    // On a slow machine, there are not many.
    assert!(lanes.into_inner() > 0);
}

fn program() -> PathBuf {
    build("called.c", Kind::Static, &["-g", "-O1"])
}

/// A static program where nothing is random, and what starts it that way. What it does before `main` depends on the
/// size of its environment: it has none.
fn steady() -> [OsString; 5] {
    let program = program().into_os_string();
    [
        "setarch".into(),
        "-R".into(),
        "env".into(),
        "-i".into(),
        program,
    ]
}

fn is_of_program(pc: u64) -> bool {
    (0x40_0000..0x80_0000).contains(&pc)
}

/// Counts the instructions of the program.
#[derive(Default)]
struct Count(Option<Word>);

impl Pass for Count {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.0 = Some(words.word());
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if let Some(word) = self.0.filter(|_| is_of_program(at.instruction().pc())) {
            at.before().count(word, 1);
        }
    }
}

/// The same in the way of `hodo mem stat`.
#[derive(Default)]
struct Counted(u64);

impl Client for Counted {
    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        if is_of_program(block.insns[0].pc) {
            self.0 += upto as u64 * times;
        }
    }
}

#[test]
fn instructions_are_counted() {
    needs!(has_tool("setarch"), "it is not installed");
    let command = steady();
    let setarch = hodo_dbi::find_program(&command[0]).expect("it is installed");
    let target = hodo_dbi::Target::program(&setarch, &command);
    let (_, counted) =
        hodo_dbi::observe(&target, Observe::Counts, Counted::default()).expect("it can be run");
    let passes: Vec<Box<dyn Pass>> = vec![Box::<Count>::default()];
    let (_, sums) = hodo_dbi::instrument(&target, passes, Sums::default()).expect("it can be run");
    assert_eq!(sums.0[&0], counted.0);
    // The example counts those of `setarch`, too.
    let all = instruction_count::count(&command).expect("it can be run");
    assert!(all > counted.0 + 10_000, "{all} > {}", counted.0);
}

/// Inserts more than fits into one translation.
#[derive(Default)]
struct Much(Option<Word>);

impl Pass for Much {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.0 = Some(words.word());
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if is_of_program(at.instruction().pc()) {
            for word in self.0.iter().cycle().take(400) {
                at.before().count(*word, 1);
            }
        }
    }
}

#[test]
fn much_code_is_inserted() {
    needs!(has_tool("setarch"), "it is not installed");
    let command = steady();
    let setarch = hodo_dbi::find_program(&command[0]).expect("it is installed");
    let target = hodo_dbi::Target::program(&setarch, &command);
    let sum = |pass: Box<dyn Pass>| {
        let (ran, sums) =
            hodo_dbi::instrument(&target, vec![pass], Sums::default()).expect("it can be run");
        assert_eq!(ran.end, Some(Exit::Code(0)));
        sums.0[&0]
    };
    let instructions = sum(Box::<Count>::default());
    assert_eq!(sum(Box::<Much>::default()), 400 * instructions);
}

/// Instructions of the program at fixed addresses and where they access memory.
type Accessed = Vec<(u64, u64)>;

/// Records the address of each operand.
struct Addresses(Arc<Mutex<Vec<u64>>>);

impl Addresses {
    fn record(&self, at: &mut Inserting<'_>, operand: usize, times: usize) -> Result<(), TooMany> {
        let pc = at.instruction().pc();
        let address = at.before().reserve()?;
        if at.address(address, operand) {
            let mut sites = self.0.lock().expect("nobody has panicked");
            for _ in 0..times {
                at.before().record(sites.len() as u32, address)?;
            }
            sites.push(pc);
        }
        at.before().release(address);
        Ok(())
    }
}

impl Pass for Addresses {
    fn insert(&mut self, at: &mut Inserting<'_>) {
        if !is_of_program(at.instruction().pc()) {
            return;
        }
        let operands = at.instruction().operands().to_vec();
        for (number, operand) in operands.iter().enumerate() {
            let recorded = self.record(at, number, operand.kinds.len());
            recorded.expect("there are enough registers");
        }
    }
}

struct Recorded {
    sites: Arc<Mutex<Vec<u64>>>,
    accesses: Accessed,
}

impl Client for Recorded {
    fn recorded(&mut self, _: u32, number: u32, value: u64) {
        let pc = self.sites.lock().expect("nobody has panicked")[number as usize];
        self.accesses.push((pc, value));
    }
}

/// Hears of accesses in the way of `hodo mem`.
#[derive(Default)]
struct Heard(Accessed);

impl Client for Heard {
    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let pc = |access: &Access| block.insns[usize::from(access.insn)].pc;
        if upto > 0 && is_of_program(block.insns[0].pc) {
            let accesses = accesses.iter().map(|access| (pc(access), access.address));
            self.0.extend(accesses);
        }
    }
}

#[test]
fn addresses_are_those_of_accesses() {
    needs!(has_tool("setarch"), "it is not installed");
    let command = steady();
    let setarch = hodo_dbi::find_program(&command[0]).expect("it is installed");
    let target = hodo_dbi::Target::program(&setarch, &command);
    let sites = Arc::default();
    let passes: Vec<Box<dyn Pass>> = vec![Box::new(Addresses(Arc::clone(&sites)))];
    let client = Recorded {
        sites,
        accesses: Vec::new(),
    };
    let (_, recorded) = hodo_dbi::instrument(&target, passes, client).expect("it can be run");
    let (_, heard) =
        hodo_dbi::observe(&target, Observe::Accesses, Heard::default()).expect("it can be run");
    // Repeated instructions have many accesses, or none.
    let mut counts: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    for (number, accesses) in [&recorded.accesses, &heard.0].into_iter().enumerate() {
        for (pc, _) in accesses {
            counts.entry(*pc).or_default()[number] += 1;
        }
    }
    let is_compared = |access: &&(u64, u64)| {
        let [recorded, heard] = counts[&access.0];
        recorded == heard
    };
    let compared = |accesses: &Accessed| -> Accessed {
        accesses.iter().filter(is_compared).copied().collect()
    };
    let [recorded, heard] = [compared(&recorded.accesses), compared(&heard.0)];
    assert!(recorded.len() > 2_000, "{}", recorded.len());
    let differing = recorded.iter().zip(&heard).find(|(a, b)| a != b);
    assert_eq!(differing, None, "of {}", recorded.len());
    let left_out = counts.values().filter(|[a, b]| a != b).count();
    assert!(left_out < 5, "{left_out} of {} instructions", counts.len());
}

/// Computes in all ways, and compares with what is computed here.
#[derive(Default)]
struct Calculations {
    /// How often they were executed.
    all: Option<Word>,
    /// How often each had the expected result.
    right: BTreeMap<&'static str, Word>,
}

const NUMBERS: [u64; 7] = [
    0,
    1,
    7,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX,
    0x1234_5678_9ABC_DEF0,
];

impl Calculations {
    fn is(
        &self,
        name: &str,
        code: &mut Code<'_>,
        scratch: Scratch,
        expected: u64,
    ) -> Result<(), TooMany> {
        let other = code.reserve()?;
        code.set(other, expected);
        let word = self.right[name];
        code.when(Compare::Equal, scratch, other, |code| {
            code.count(word, 1);
            Ok(())
        })?;
        code.release(other);
        Ok(())
    }

    /// With two numbers.
    fn with(&self, code: &mut Code<'_>, first: u64, second: u64) -> Result<(), TooMany> {
        let (one, other) = (code.reserve()?, code.reserve()?);
        let number = second as i32;
        let extended = i64::from(number).cast_unsigned();
        let computed = [
            (
                Compute::Add,
                first.wrapping_add(second),
                first.wrapping_add(extended),
            ),
            (
                Compute::Subtract,
                first.wrapping_sub(second),
                first.wrapping_sub(extended),
            ),
            (Compute::And, first & second, first & extended),
            (Compute::Or, first | second, first | extended),
            (Compute::Xor, first ^ second, first ^ extended),
        ];
        for (compute, of_both, with_number) in computed {
            code.set(one, first);
            code.set(other, second);
            code.compute(compute, one, other);
            self.is("computed", code, one, of_both)?;
            self.is("kept", code, other, second)?;
            code.set(one, first);
            code.compute(compute, one, number);
            self.is("computed", code, one, with_number)?;
        }
        let bits = (second % 64) as u8;
        code.set(one, first);
        code.shift_left(one, bits);
        self.is("shifted", code, one, first << bits)?;
        code.set(one, first);
        code.shift_right(one, bits);
        self.is("shifted", code, one, first >> bits)?;
        let signed = (first.cast_signed(), second.cast_signed());
        let compared = [
            (Compare::Equal, first == second),
            (Compare::Different, first != second),
            (Compare::Below, first < second),
            (Compare::NotBelow, first >= second),
            (Compare::Less, signed.0 < signed.1),
            (Compare::NotLess, signed.0 >= signed.1),
        ];
        for (compare, expected) in compared {
            code.set(one, first);
            let right = code.reserve()?;
            code.set(right, second);
            code.set(other, 0);
            code.when(compare, one, right, |code| {
                code.set(other, 1);
                Ok(())
            })?;
            code.release(right);
            self.is("compared", code, other, expected.into())?;
        }
        code.release(one);
        code.release(other);
        Ok(())
    }

    /// With what is on the stack.
    fn with_memory(&self, code: &mut Code<'_>) -> Result<(), TooMany> {
        const RSP: u8 = 4;
        let (stack, whole, part) = (code.reserve()?, code.reserve()?, code.reserve()?);
        code.register(stack, RSP);
        code.load(whole, Bytes::Eight, stack, 0);
        for (bytes, bits) in [
            (Bytes::One, 8),
            (Bytes::Two, 16),
            (Bytes::Four, 32),
            (Bytes::Eight, 64),
        ] {
            code.load(part, bytes, stack, 0);
            // Nothing changes.
            code.store(bytes, stack, 0, part);
            let expected = code.reserve()?;
            code.copy(expected, whole);
            code.shift_left(expected, 64 - bits);
            code.shift_right(expected, 64 - bits);
            let word = self.right["loaded"];
            code.when(Compare::Equal, part, expected, |code| {
                code.count(word, 1);
                Ok(())
            })?;
            code.release(expected);
        }
        code.load(part, Bytes::Eight, stack, 0);
        let word = self.right["loaded"];
        code.when(Compare::Equal, part, whole, |code| {
            code.count(word, 1);
            Ok(())
        })?;
        for scratch in [stack, whole, part] {
            code.release(scratch);
        }
        Ok(())
    }
}

impl Pass for Calculations {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.all = Some(words.word());
        for name in ["computed", "kept", "shifted", "compared", "loaded"] {
            self.right.insert(name, words.word());
        }
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        let Some(all) = self.all.filter(|_| at.is_first()) else {
            return;
        };
        let pc = at.instruction().pc();
        let mut code = at.before();
        code.count(all, 1);
        let first = NUMBERS[(pc % 7) as usize];
        for second in NUMBERS {
            self.with(&mut code, first, second)
                .expect("there are enough");
        }
        self.with_memory(&mut code).expect("there are enough");
    }
}

#[derive(Default)]
struct Sums(BTreeMap<u32, u64>);

impl Client for Sums {
    fn word(&mut self, _: u32, word: u32, change: u64) {
        let sum = self.0.entry(word).or_default();
        *sum = sum.wrapping_add(change);
    }
}

#[test]
fn code_computes_what_it_says() {
    let command = [OsString::from("/bin/true")];
    let target = hodo_dbi::Target::program(Path::new("/bin/true"), &command);
    let passes: Vec<Box<dyn Pass>> = vec![Box::<Calculations>::default()];
    let (ran, sums) =
        hodo_dbi::instrument(&target, passes, Sums::default()).expect("it can be run");
    assert_eq!(ran.end, Some(Exit::Code(0)));
    let all = sums.0[&0];
    assert!(all > 1000, "{all}");
    let expected = [all, 70 * all, 35 * all, 14 * all, 42 * all, 5 * all];
    let sums: Vec<u64> = sums.0.into_values().collect();
    assert_eq!(sums, expected);
}
