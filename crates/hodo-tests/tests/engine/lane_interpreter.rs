//! The reference interpreter of gathers and scatters, and of masked loads and stores, on random cases: form, width,
//! scale, displacement, with and without a base, active lanes, overlapping addresses, and a fault at each lane, in
//! pages that cannot be accessed for different reasons. First it is compared with the processor. Then what hodo records
//! of the same cases, and what programs do while lanes are expanded, is compared with the interpreter.

mod cases;
mod expected;
mod forms;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cases::Cases;
use expected::{Expected, Stop, expected};
use forms::Form;
use hodo_tests::interpreter::{Access, Kind};
use hodo_tests::{Ended, Kind as Link, Outcome, Run, build, example, hodo, needs, scratch, skip};

/// Whether the processor has the vectors of AVX-512.
fn is_wide() -> bool {
    let is_there = std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512vl")
        && std::is_x86_feature_detected!("avx512bw");
    if !is_there {
        skip("the processor has no AVX-512: only the forms of AVX2 are executed");
    }
    is_there
}

fn has_vectors() -> bool {
    std::is_x86_feature_detected!("avx2")
}

const NO_VECTORS: &str = "the processor has no AVX2";

fn program() -> PathBuf {
    build("random_lanes.c", Link::Pie, &[])
}

/// Else, the C library has masked moves, too.
const LIBRARY: &str = "glibc.cpu.hwcaps=-AVX512VL";

/// Writes the file of the cases, in a directory of this name.
fn file_of(cases: &Cases, name: &str) -> PathBuf {
    let path = scratch(name).join("cases");
    let file = File::create(&path).expect("a file");
    cases
        .write(BufWriter::new(file))
        .expect("it can be written");
    path
}

/// Runs a program, with these arguments and the file of the cases.
fn run(cases: &Cases, name: &str, arguments: &[&str], program: &Path) -> Outcome {
    let file = file_of(cases, &format!("{name}-cases"));
    let ran = Run::new(name, program).args(arguments);
    let ran = ran
        .args([file.as_os_str()])
        .env("GLIBC_TUNABLES", LIBRARY)
        .alone();
    assert_eq!(ran.ended, Ended::Code(0), "{ran:?}");
    let directory = file.parent().expect("its directory");
    fs::remove_dir_all(directory).expect("it can be removed");
    ran
}

/// The accesses and stops of all cases, by the interpreter.
fn interpret(cases: &Cases) -> Vec<Expected> {
    let all = cases.all.iter().enumerate();
    all.map(|(number, case)| expected(number, case, &cases.memory))
        .collect()
}

/// What differs between two stops of a case.
fn difference(cases: &Cases, got: &Stop, expected: &Stop) -> String {
    let case = &cases.all[expected.number as usize];
    let mut text = format!(
        "case {}: {} with {} bytes, {:02x?}\n",
        expected.number,
        case.form.name,
        case.form.data_len(),
        case.bytes
    );
    for (what, stop) in [("got", got), ("expected", expected)] {
        let Stop {
            signal,
            code,
            address,
            pc,
            flags,
            ..
        } = stop;
        text += &format!(
            "  {what}: signal {signal}, code {code}, address {address:#x}, pc {pc:#x}, flags {flags:#x}\n"
        );
    }
    let words = |stop: &Stop| -> Vec<u64> {
        let words = stop.state.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect()
    };
    let mut lines = 0;
    for (at, (got, expected)) in words(got).into_iter().zip(words(expected)).enumerate() {
        let name = match at {
            0..16 => format!("general {at}"),
            16..24 => format!("mask {}", at - 16),
            _ => format!("vector {}, word {}", (at - 24) / 8, (at - 24) % 8),
        };
        if got != expected && lines < 12 {
            lines += 1;
            text += &format!("  {name}: {got:016x}, expected {expected:016x}\n");
        }
    }
    let differs = got.memory.iter().zip(&expected.memory);
    let differs = differs.filter(|(got, expected)| got != expected).count();
    text + &format!("  {differs} bytes of memory differ")
}

/// Checks what the program has written.
fn check(cases: &Cases, all: &[Expected], mut output: &[u8]) {
    let mut differences = Vec::new();
    for expected in all.iter().flat_map(|expected| &expected.stops) {
        let got = Stop::read(&mut output, expected.memory.len());
        let got = got.expect("the program has stopped as often");
        if got != *expected {
            differences.push(difference(cases, &got, expected));
        }
        if (got.number, got.signal) != (expected.number, expected.signal) {
            break;
        }
    }
    let some = differences.iter().take(8).cloned().collect::<Vec<_>>();
    assert!(
        some.is_empty(),
        "{} stops differ from the interpreter's:\n{}",
        differences.len(),
        some.join("\n")
    );
    assert!(
        output.is_empty(),
        "it has stopped {} bytes later",
        output.len()
    );
}

/// Fails if there is a lane of a form at which no case faults.
fn has_faults_everywhere(forms: &[Form], rounds: &[(Cases, Vec<Expected>)]) {
    let name = |form: &Form| (form.name, form.is_evex, form.data_len(), form.index_len());
    let mut seen = BTreeSet::new();
    for (cases, all) in rounds {
        for (case, expected) in cases.all.iter().zip(all) {
            let lanes = expected.faults.iter().map(|access| access.lane);
            seen.extend(lanes.map(|lane| (name(&case.form), lane)));
        }
    }
    for form in forms {
        for lane in 0..form.lanes() {
            assert!(seen.contains(&(name(form), lane)), "{form:?}, lane {lane}");
        }
    }
}

/// Compares the interpreter with the processor on some rounds of cases of these forms.
fn is_like_processor(name: &str, forms: &[Form], rounds: u64) {
    let mut done = Vec::new();
    for seed in 0..rounds {
        let cases = cases::random(seed, forms, is_wide());
        let all = interpret(&cases);
        let name = format!("interpreter-{name}-{seed}");
        let ran = run(&cases, &name, &[], &program());
        check(&cases, &all, &ran.stdout);
        done.push((cases, all));
    }
    has_faults_everywhere(forms, &done);
}

#[test]
fn the_reference_interpreter_gathers_and_scatters_like_the_processor() {
    needs!(has_vectors(), NO_VECTORS);
    is_like_processor("lanes", &forms::gathers(is_wide()), 4);
}

#[test]
fn the_reference_interpreter_moves_with_masks_like_the_processor() {
    needs!(has_vectors(), NO_VECTORS);
    is_like_processor("moves", &forms::masked_moves(is_wide()), 2);
}

/// Address of the instruction, and what it accesses.
type Row = (u64, Kind, u64, u32);

/// What hodo records of cases. Neighbors of a masked move are one access.
fn rows_of(cases: &Cases, all: &[Expected]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (case, expected) in cases.all.iter().zip(all) {
        let start = rows.len();
        for &Access {
            kind,
            address,
            size,
            ..
        } in &expected.accesses
        {
            match rows[start..].last_mut() {
                Some(last)
                    if case.form.index_size.is_none() && last.2 + u64::from(last.3) == address =>
                {
                    last.3 += size;
                }
                _ => rows.push((case.pc, kind, address, size)),
            }
        }
    }
    rows
}

/// The accesses of these instructions in a recording, by `hodo mem view`.
fn view(directory: &str, instructions: &BTreeSet<u64>) -> Vec<Row> {
    let mut child = Command::new(hodo())
        .args(["mem", "view", "--format", "csv", "-d", directory])
        .stdout(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
    let mut rows = Vec::new();
    for line in lines.skip(1) {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(',').collect();
        let [_, _, pc, kind, address, size] = words[..] else {
            panic!("{line}");
        };
        let pc = number(pc).expect("an address");
        if instructions.contains(&pc) {
            let kind = match kind {
                "load" => Kind::Load,
                _ => Kind::Store,
            };
            let address = number(address).expect("an address");
            rows.push((pc, kind, address, size.parse().expect("bytes")));
        }
    }
    assert!(child.wait().expect("its end").success());
    rows
}

/// Compares what hodo records with the interpreter.
fn is_recorded(name: &str, forms: &[Form]) {
    let cases = cases::random(100, forms, is_wide());
    let all = interpret(&cases);
    let name = format!("interpreter-recorded-{name}");
    let recording = scratch(&format!("{name}-recording")).join("recording");
    let recording = recording.to_str().expect("text");
    let program = program();
    let program = program.to_str().expect("text");
    let ran = run(
        &cases,
        &name,
        &["mem", "record", "-d", recording, "--", program],
        hodo(),
    );
    check(&cases, &all, &ran.stdout);
    let instructions = cases.all.iter().map(|case| case.pc).collect();
    let rows = view(recording, &instructions);
    fs::remove_dir_all(recording).expect("it can be removed");
    let expected = rows_of(&cases, &all);
    for (number, (row, expected)) in rows.iter().zip(&expected).enumerate() {
        let text = || {
            let about = |at: &Row| {
                let case = cases.all.iter().find(|case| case.pc == at.0);
                case.map(|case| (case.form.name, case.form.data_len(), case.bytes.clone()))
            };
            format!("access {number}: {row:x?} of {:x?}", about(expected))
        };
        assert_eq!(row, expected, "{}", text());
    }
    assert_eq!(rows.len(), expected.len());
    assert!(rows.len() > 1000, "{}", rows.len());
}

#[test]
fn recorded_accesses_of_gathers_and_scatters_are_the_interpreters() {
    needs!(has_vectors(), NO_VECTORS);
    is_recorded("lanes", &forms::gathers(is_wide()));
}

#[test]
fn recorded_accesses_of_masked_moves_are_the_interpreters() {
    needs!(has_vectors(), NO_VECTORS);
    is_recorded("moves", &forms::masked_moves(is_wide()));
}

/// Runs cases lane by lane. Returns what the example has counted.
fn expanded(cases: &Cases, all: &[Expected], name: &str) -> String {
    let program = program();
    let program = program.to_str().expect("text");
    let ran = run(cases, name, &[program], &example("hodo-dbi", "expand"));
    check(cases, all, &ran.stdout);
    String::from_utf8(ran.stderr).expect("text")
}

#[test]
fn expanded_gathers_and_scatters_do_what_the_interpreter_does() {
    needs!(has_vectors(), NO_VECTORS);
    let cases = cases::random(200, &forms::gathers(is_wide()), is_wide());
    let all = interpret(&cases);
    let counted = expanded(&cases, &all, "interpreter-expanded-lanes");
    let (mut starts, mut count, mut sum) = (0, 0, 0u64);
    for (case, expected) in cases.all.iter().zip(&all) {
        // With short addresses, they stay as they are.
        if !case.is_narrow {
            starts += expected.starts;
            // Code in front of a lane is executed before the lane faults.
            for access in expected.accesses.iter().chain(&expected.faults) {
                count += 1;
                sum = sum.wrapping_add(access.address);
            }
        }
    }
    let line =
        format!("{starts} gathers and scatters, {count} accesses, sum of addresses {sum:#x}");
    assert_eq!(counted.lines().last(), Some(line.as_str()), "{counted}");
}

#[test]
fn expanded_masked_moves_do_what_the_interpreter_does() {
    needs!(has_vectors(), NO_VECTORS);
    let cases = cases::random(300, &forms::masked_moves(is_wide()), is_wide());
    let all = interpret(&cases);
    let counted = expanded(&cases, &all, "interpreter-expanded-moves");
    let usual = cases
        .all
        .iter()
        .zip(&all)
        .filter(|(case, _)| !case.is_narrow);
    let starts: u64 = usual.map(|(_, expected)| expected.starts).sum();
    assert!(
        counted.contains(&format!("{starts} masked loads and stores, ")),
        "{counted}"
    );
}
