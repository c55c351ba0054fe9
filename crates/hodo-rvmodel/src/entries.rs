//! The ways to make a function's entry patchable, as code: solutions 1, 2 and 3 of the slides, forms A, B and C of
//! Hodoscope, what Linux does today, and what the proposals allow. All of them are run, and what they cost is counted.

use anyhow::{Context as _, Result, ensure};
use hodo_codegen::riscv64::patch;
use hodo_isa::Via;
use hodo_isa::riscv64::asm::ops::Insns as _;
use hodo_isa::riscv64::asm::{Code, Reach};
use hodo_isa::riscv64::encode::{AUIPC, C_NOP, JALR, STORE, i, s, u};
use hodo_isa::riscv64::regs::{NAMES, RA, SP, T0, T1, ZERO};

use crate::encode::{EBREAK, c_jall};
use crate::front::Counts;
use crate::hart::Hart;
use crate::memory::{Memory, Unmapped};
use crate::params::Proposals;

/// `s1`: the slides' x9.
const X9: u8 = 9;
/// Two functions that look alike, and the code that calls them in turn.
const FUNCTIONS: [u64; 2] = [0x1_0400, 0x1_0800];
const CALLER: u64 = 0x2_0000;
/// Hooks are farther away than `jal` reaches.
const HOOKS: u64 = 0x4000_0000;
const STACK: u64 = 0x7000_0000;
const SITE: usize = 64;
/// Rounds until everything is predicted that can be.
const WARM: usize = 16;

/// A way to make an entry patchable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Solution {
    /// Slide 17: `ra` is stored below the stack pointer.
    One,
    /// Slide 19, vote A: the stack pointer is lowered.
    OneVoted,
    /// Slide 18, and vote B of slide 19: `ra` goes into x9.
    Two,
    /// Slide 44: `c.jall` without a link, x9 says where.
    Three,
    /// Linux today: linked through `t0`.
    Linux,
    /// `c.jall` linked through `t0`.
    Short,
    /// Hodoscope's form A: no register is free.
    A,
    /// Form B: a temporary is free.
    B,
    /// Form C: the stub is farther away than 2 GiB.
    C,
}

impl Solution {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::One,
        Self::OneVoted,
        Self::Two,
        Self::Three,
        Self::Linux,
        Self::Short,
        Self::A,
        Self::B,
        Self::C,
    ];

    /// Its name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "1 (slide 17)",
            Self::OneVoted => "1, as voted (slide 19, A)",
            Self::Two => "2 (slides 18 and 19, B)",
            Self::Three => "3 (slide 44), no link",
            Self::Linux => "Linux (`t0`)",
            Self::Short => "`c.jall t0`",
            Self::A => "form A",
            Self::B => "form B",
            Self::C => "form C",
        }
    }

    /// Bytes of nops that the compiler leaves.
    const fn pad(self) -> usize {
        match self {
            Self::Linux | Self::B => 8,
            Self::Short => 6,
            Self::C => 24,
            _ => 16,
        }
    }

    /// Whether each function needs code of its own besides the site.
    const fn has_stub(self) -> bool {
        matches!(self, Self::A | Self::B | Self::C)
    }

    /// How far it reaches.
    #[must_use]
    pub const fn reach(self) -> &'static str {
        match self {
            Self::C => "anywhere",
            _ => "2 GiB",
        }
    }

    /// How the code that is called knows the function.
    #[must_use]
    pub const fn knows(self) -> &'static str {
        match self {
            Self::One | Self::OneVoted | Self::Two => "`ra`",
            Self::Three => "x9",
            Self::Linux | Self::Short => "`t0`",
            Self::A | Self::B | Self::C => "own stub",
        }
    }

    /// Where the hook of a function is, and for [`Self::C`] out of reach of a pair.
    fn hook(self, function: u64) -> u64 {
        match self {
            Self::C => function + (1 << 40),
            Self::A | Self::B => HOOKS + function,
            _ => HOOKS,
        }
    }

    /// The bytes at the site, as the slides or our emitter write them.
    fn site(self, at: u64) -> Result<Vec<u8>> {
        let to = self.hook(at);
        let mut bytes = Vec::new();
        let mut code = Code::new(&mut bytes, at);
        match self {
            Self::One => {
                code.word(s(STORE, 3, RA, SP, -8));
                pair(&mut code, RA, to)?;
                code.ld(RA, -8, SP);
            }
            Self::OneVoted => {
                code.keep_at(&[0x1141, 0xE406]);
                pair(&mut code, RA, to)?;
                code.keep_at(&[0x60A2, 0x0141]);
            }
            Self::Two => {
                code.half(C_NOP);
                // c.mv s1, ra
                code.half(0x8486);
                pair(&mut code, RA, to)?;
            }
            Self::Three => {
                code.half(C_NOP);
                code.word(u(AUIPC, X9, 0));
                jall(&mut code, ZERO, to)?;
            }
            Self::Linux => pair(&mut code, T0, to)?,
            Self::Short => jall(&mut code, T0, to)?,
            Self::A => return patch::jump(at, to, Via::Kept(T1)).context("it is within 2 GiB"),
            Self::B => return patch::jump(at, to, Via::Free(T1)).context("it is within 2 GiB"),
            Self::C => {
                let literal = (at + 10).next_multiple_of(8);
                let jump = patch::by_literal(at, literal, Via::Free(T1));
                bytes.extend(jump.context("the literal is near")?);
                bytes.resize((literal - at) as usize, 0);
                bytes.extend(to.to_le_bytes());
            }
        }
        Ok(bytes)
    }

    /// What is at the end of the pad: form A restores its register there.
    fn site_end(self) -> Vec<u8> {
        match self {
            Self::A => patch::take_back(Via::Kept(T1)),
            _ => Vec::new(),
        }
    }

    /// The code that the site calls: one nop in place of the tracer's work, and the way back.
    fn hook_code(self, function: u64) -> Result<Vec<u8>> {
        let at = self.hook(function);
        let end = function + self.pad() as u64;
        let mut bytes = Vec::new();
        if self == Self::A {
            bytes.extend(patch::take_back(Via::Kept(T1)));
        }
        let mut code = Code::new(&mut bytes, at);
        code.half(C_NOP);
        match self {
            Self::One | Self::OneVoted => code.c_jr(RA),
            Self::Two => {
                // c.mv t0, ra; c.mv ra, s1
                code.keep_at(&[0x8286, 0x80A6]);
                code.c_jr(T0);
            }
            // auipc and c.jall are 10 bytes.
            Self::Three => code.word(i(JALR, 0, ZERO, X9, 10)),
            Self::Linux | Self::Short => code.c_jr(T0),
            Self::A => {
                let here = code.here();
                let back = patch::jump(here, end - Via::TAKE, Via::Kept(T1));
                code.raw(&back.context("it is within 2 GiB")?);
            }
            Self::B => {
                let here = code.here();
                code.raw(&patch::jump(here, end, Via::Free(T1)).context("it is within 2 GiB")?);
            }
            Self::C => {
                let here = code.here();
                let literal = (here + 10).next_multiple_of(8);
                let back = patch::by_literal(here, literal, Via::Free(T1));
                code.raw(&back.context("the literal is near")?);
                code.align(8);
                code.raw(&end.to_le_bytes());
            }
        }
        Ok(bytes)
    }
}

/// Instructions of 16 bits.
trait Halves {
    fn keep_at(&mut self, halves: &[u16]);
}

impl Halves for Code<'_> {
    fn keep_at(&mut self, halves: &[u16]) {
        halves.iter().for_each(|&half| self.half(half));
    }
}

/// `auipc register; jalr register, register`
fn pair(code: &mut Code<'_>, register: u8, to: u64) -> Result<()> {
    let far = code.jump_and_link(to, Reach::Pair, register, register);
    far.ok().context("the hook is within 2 GiB")
}

/// `c.jall`, with a relative literal.
fn jall(code: &mut Code<'_>, link: u8, to: u64) -> Result<()> {
    let distance = to.wrapping_sub(code.here()) as i64;
    let literal = i32::try_from(distance).context("the hook is within 2 GiB")?;
    code.half(c_jall(Proposals::default().cjall, link));
    code.raw(&literal.to_le_bytes());
    Ok(())
}

/// How an entry is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Without nops.
    Plain,
    /// With nops.
    Off(Solution),
    /// With the patch.
    On(Solution),
}

/// What a solution costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of nops.
    pub pad: usize,
    /// Bytes that the patch writes.
    pub written: usize,
    /// Bytes of code per function elsewhere.
    pub stub: usize,
    /// Executed instructions, bytes, and so on of the nops.
    pub off: Counts,
    /// And of the patch with the way to the hook and back, without the hook's work.
    pub on: Counts,
    /// General registers whose value is another one afterwards.
    pub lost: Vec<&'static str>,
}

fn run(entry: Entry) -> Result<(Counts, Hart)> {
    let mut memory = Memory::new(Unmapped::Faults);
    memory.map(STACK - 0x1000, 0x2000);
    for function in FUNCTIONS {
        let mut bytes = Vec::new();
        if let Entry::Off(solution) | Entry::On(solution) = entry {
            bytes = C_NOP.to_le_bytes().repeat(solution.pad() / 2);
        }
        if let Entry::On(solution) = entry {
            let site = solution.site(function)?;
            ensure!(
                site.len() <= bytes.len(),
                "{solution:?} is longer than its pad"
            );
            bytes[..site.len()].copy_from_slice(&site);
            let end = solution.site_end();
            let at = bytes.len() - end.len();
            bytes[at..].copy_from_slice(&end);
            memory.put(solution.hook(function), &solution.hook_code(function)?);
        }
        ensure!(bytes.len() <= SITE, "a pad is too long");
        // addi a0, a0, 1; ret
        bytes.extend([0x13, 0x05, 0x15, 0x00, 0x82, 0x80]);
        memory.put(function, &bytes);
    }
    let mut bytes = Vec::new();
    let mut code = Code::new(&mut bytes, CALLER);
    for function in FUNCTIONS {
        pair(&mut code, RA, function)?;
    }
    code.word(EBREAK);
    memory.put(CALLER, &bytes);
    let mut hart = Hart::new(memory, Proposals::default());
    let mut round = Counts::default();
    for _ in 0..WARM {
        for (number, x) in (0u64..).zip(&mut hart.x).skip(1) {
            *x = 0x1111 * number;
        }
        hart.x[usize::from(SP)] = STACK;
        hart.pc = CALLER;
        let before = hart.front.counts;
        hart.run(1000, |hart| hart.pc == CALLER + 16);
        ensure!(hart.pc == CALLER + 16, "{entry:?} ends at {:#x}", hart.pc);
        ensure!(
            hart.x[10] == 0x1111 * 10 + 2,
            "{entry:?} does not run both functions"
        );
        round = hart.front.counts - before;
    }
    Ok((round, hart))
}

/// Half of what two calls cost more than others.
fn each(more: Counts, less: Counts) -> Counts {
    let half = |more: u64, less: u64| more.saturating_sub(less).div_ceil(2);
    Counts {
        instructions: half(more.instructions, less.instructions),
        bytes: half(more.bytes, less.bytes),
        fetches: half(more.fetches, less.fetches),
        mispredictions: half(more.mispredictions, less.mispredictions),
        traps: half(more.traps, less.traps),
        accesses: half(more.accesses, less.accesses),
        exposed: half(more.exposed, less.exposed),
        waits: half(more.waits, less.waits),
    }
}

/// Runs a solution.
///
/// # Errors
/// If a function does not do what it does without it.
pub fn cost(solution: Solution) -> Result<Cost> {
    let (plain, reference) = run(Entry::Plain)?;
    let (off, _) = run(Entry::Off(solution))?;
    let (on, hart) = run(Entry::On(solution))?;
    let lost = (0..32).filter(|&number| hart.x[number] != reference.x[number]);
    let mut on = each(on, plain);
    // The nop in place of the hook's work.
    on.instructions -= 1;
    on.bytes -= 2;
    let site = solution.site(FUNCTIONS[0])?;
    // A nop before the patch stays.
    let kept = if site.starts_with(&C_NOP.to_le_bytes()) {
        2
    } else {
        0
    };
    Ok(Cost {
        pad: solution.pad(),
        written: site.len() - kept + solution.site_end().len(),
        stub: match solution.has_stub() {
            true => solution.hook_code(FUNCTIONS[0])?.len() - 2,
            false => 0,
        },
        off: each(off, plain),
        on,
        lost: lost.map(|number| NAMES[number]).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slides_bytes_are_what_they_print() {
        let one = Solution::OneVoted.site(0x1_0400).expect("in reach");
        assert_eq!(
            (&one[..4], &one[12..]),
            (&[0x41, 0x11, 0x06, 0xE4][..], &[0xA2, 0x60, 0x41, 0x01][..])
        );
        assert_eq!(Solution::One.site(0x1_0400).expect("in reach").len(), 16);
        assert_eq!(Solution::Three.site(0x1_0400).expect("in reach").len(), 12);
    }

    #[test]
    fn x9_is_lost_where_the_abi_keeps_it() {
        for solution in [Solution::Two, Solution::Three] {
            assert!(
                cost(solution).expect("it runs").lost.contains(&"s1"),
                "{solution:?}"
            );
        }
        for solution in [Solution::One, Solution::OneVoted, Solution::A] {
            assert!(
                cost(solution).expect("it runs").lost.is_empty(),
                "{solution:?}"
            );
        }
    }

    #[test]
    fn a_linked_c_jall_loses_the_way_back_to_the_caller() {
        // Solution 3 with the link register that `JAL` has without an operand.
        let mut site = Solution::Three.site(FUNCTIONS[0]).expect("in reach");
        site[6..8].copy_from_slice(&c_jall(Proposals::default().cjall, RA).to_le_bytes());
        let mut memory = Memory::new(Unmapped::Faults);
        site.resize(16, 0);
        site[12..].copy_from_slice(&[1, 0, 1, 0]);
        site.extend([0x82, 0x80]);
        memory.put(FUNCTIONS[0], &site);
        memory.put(
            HOOKS,
            &Solution::Three.hook_code(FUNCTIONS[0]).expect("in reach"),
        );
        let mut hart = Hart::new(memory, Proposals::default());
        (hart.pc, hart.x[1]) = (FUNCTIONS[0], CALLER);
        assert!(!hart.run(1000, |hart| hart.pc == CALLER));
    }
}
