//! How many instructions of a RISC-V file can be executed elsewhere than in their place, or be simulated, and where
//! registers are free: `cargo run --release -p hodo-isa --example riscv64_coverage FILE…`.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

#[path = "../tests/riscv64/free.rs"]
mod free;

use free::{Convention, dead_registers, live_registers};
use hodo_isa::riscv64::asm::Reach;
use hodo_isa::riscv64::decode::Insn;
use hodo_isa::riscv64::relocate::{Link, Options, RelocateError, relocated_len};
use hodo_isa::riscv64::simulate::Simulation;
use hodo_isa::riscv64::steps::{FIXED, Immovable, Step, steps};
use object::{Object, ObjectSection, SectionFlags, elf};

/// How far a search for a free register goes that looks from one instruction only.
const MOST: usize = 100;

#[derive(Default)]
struct Counts {
    all: usize,
    same: usize,
    /// Other instructions do it, without a register.
    rewritten: usize,
    /// They need a register: one is free, whatever calls do; only by the calling convention; none is.
    with_register: usize,
    by_convention: usize,
    without_register: usize,
    simulated: usize,
    neither: usize,
    /// Why they are not moved.
    refused: BTreeMap<String, usize>,
    /// Where a register is free, seen from the instruction and in the whole section, whatever calls do and by the
    /// convention.
    free: [usize; 3],
}

impl Counts {
    fn add(&mut self, code: &[u8], step: &Step, free: [u32; 3]) {
        let (addr, len) = (step.addr, usize::from(step.len));
        self.all += 1;
        for (count, free) in self.free.iter_mut().zip(free) {
            *count += usize::from(free & !FIXED != 0);
        }
        // Between `lr` and `sc` not even a breakpoint may be.
        let reserved = step.immovable == Some(Immovable::Reserved);
        let simulated = !reserved && Simulation::new(code, addr).is_some();
        self.simulated += usize::from(simulated);
        let mut refuse = |why: String| {
            *self.refused.entry(why).or_default() += 1;
            self.neither += usize::from(!simulated);
        };
        if let Some(why) = step.immovable {
            refuse(why.to_string());
            return;
        }
        let moves = |dead: u32| {
            let options = Options {
                reach: Reach::Pair,
                pads: &|_| None,
                dead: &|_| dead,
                link: Link::Original,
                system_calls: false,
                sequences: false,
            };
            relocated_len(&code[..len], addr, &options)
        };
        let same = Insn::new(code, addr).flow() == step.flow;
        match [0, free[1], free[2]].map(moves) {
            [Ok(moved), ..] if moved == len && same => self.same += 1,
            [Ok(_), ..] => self.rewritten += 1,
            [_, Ok(_), _] => self.with_register += 1,
            [.., Ok(_)] => self.by_convention += 1,
            [.., Err(RelocateError::NoRegister { .. })] => self.without_register += 1,
            [.., Err(error)] => refuse(error.to_string()),
        }
    }

    fn print(&self) {
        let line = |what: &str, count: usize| {
            let share = 100.0 * count as f64 / self.all.max(1) as f64;
            println!("{count:10} {share:7.3} %  {what}");
        };
        line("instructions", self.all);
        line("moved as they are, or left out", self.same);
        line("moved as other instructions", self.rewritten);
        line("moved 2 GiB away with a free register", self.with_register);
        line(
            "the same, free by the calling convention",
            self.by_convention,
        );
        line(
            "moved only 1 MiB away: no register is free",
            self.without_register,
        );
        for (why, count) in &self.refused {
            line(why, *count);
        }
        line("simulated", self.simulated);
        line("neither moved nor simulated", self.neither);
        line("moved or simulated", self.all - self.neither);
        line("a register is free, seen from there", self.free[0]);
        line("a register is free", self.free[1]);
        line("a register is free by the calling convention", self.free[2]);
    }
}

fn coverage(path: &str) -> Result<Counts, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(&*bytes)?;
    if file.architecture() != object::Architecture::Riscv64 {
        return Err("it is not for RISC-V with 64 bits".into());
    }
    let mut counts = Counts::default();
    for section in file.sections() {
        let executable = matches!(section.flags(), SectionFlags::Elf { sh_flags }
            if sh_flags & u64::from(elf::SHF_EXECINSTR) != 0);
        if !executable {
            continue;
        }
        let (code, base) = (section.data()?, section.address());
        let steps = steps(code, base);
        let live = [Convention::Unknown, Convention::Standard]
            .map(|convention| live_registers(&steps, convention));
        for (index, step) in steps.iter().enumerate() {
            let near = dead_registers(code, base, step.addr, MOST, Convention::Unknown);
            let free = [near, !live[0][index], !live[1][index]];
            counts.add(&code[(step.addr - base) as usize..], step, free);
        }
    }
    Ok(counts)
}

fn main() -> ExitCode {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        eprintln!("usage: riscv64_coverage FILE…");
        return ExitCode::from(2);
    }
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        println!("{path}");
        match coverage(&path) {
            Ok(counts) => counts.print(),
            Err(error) => {
                eprintln!("{path}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
