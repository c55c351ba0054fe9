//! Regions of four instructions, whose costs need no file.

use anyhow::{Result, anyhow, ensure};
use hodo_isa::Via;
use hodo_isa::riscv64::encode::{AUIPC, JALR, LOAD, OP_IMM, OP_IMM_32, b, i, j, u};
use hodo_isa::riscv64::regs::{KEPT, RA, ZERO};
use hodo_plan::model::{Extra, ProbeSite, ProbedInsn, Spare, Tactic};

use crate::coverage::Cost;
use crate::params::Proposals;
use crate::probes::region::Region;
use crate::probes::run;
use crate::probes::{Mechanism, Refused, Way};

const AT: u64 = 0x1_0000;
/// `t0` to `t6`.
const TEMPORARIES: u32 = 0xF000_00E0;

/// A region, and one of its instructions.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its name in the table.
    pub name: &'static str,
    /// The region.
    pub site: ProbeSite,
    /// Its code.
    pub code: Vec<u8>,
    /// The address of the instruction.
    pub probe: u64,
}

impl Sample {
    /// The instruction with this number has a probe; these registers are free everywhere.
    fn new(name: &'static str, words: [u32; 4], number: u64, free: u32) -> Self {
        let code: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let via = match free {
            0 => Via::Kept(KEPT),
            _ => Via::Free(KEPT),
        };
        let probes = (0..4).map(|index| ProbedInsn {
            addr: AT + 4 * index,
            free,
            flags_dead: false,
            joined: false,
            entered: false,
        });
        let dead = (0..4).map(|index| (AT + 4 * index, free));
        let site = ProbeSite {
            tactic: Tactic::Jump,
            patch: AT,
            patch_len: if free == 0 { 12 } else { 8 },
            displaced: AT..AT + 16,
            extra: Extra::None,
            via,
            spare: Spare {
                dead: if free == 0 {
                    Vec::new()
                } else {
                    dead.collect()
                },
                back: via,
                pads: Vec::new(),
            },
            probes: probes.collect(),
        };
        Self {
            name,
            site,
            code,
            probe: AT + 4 * number,
        }
    }

    /// What a hit costs in a way, or why that is not possible.
    ///
    /// # Errors
    /// If the probe changes what the region does.
    pub fn hit(&self, mechanism: Mechanism) -> Result<Result<Cost, Refused>> {
        let region = Region::new(&self.site, &self.code);
        let setup = match run::build(&region, self.probe, mechanism) {
            Ok(setup) => setup,
            Err(why) => return Ok(Err(why)),
        };
        let failed = |why| anyhow!("{} does not run: {why:?}", self.name);
        let (seed, plain) = run::reaching(&region, self.probe).map_err(failed)?;
        let probed = run::passes(&region, self.probe, Some(&setup), seed).map_err(failed)?;
        let changes = run::changes(&plain, &probed, &setup);
        ensure!(
            changes.is_empty(),
            "{}, {}: {}",
            self.name,
            mechanism.name(),
            changes.join(", ")
        );
        let mut cost = Cost::default();
        cost.add(&setup, &plain, &probed);
        Ok(Ok(cost))
    }
}

const A0: u8 = 10;
const A1: u8 = 11;

/// `addi s2, s2, 1`
const OTHER: u32 = i(OP_IMM, 0, 18, 18, 1);
/// `addiw a0, a0, 1`
const PLAIN: u32 = i(OP_IMM_32, 0, A0, A0, 1);

/// Instructions of several kinds.
#[must_use]
pub fn kinds() -> Vec<Sample> {
    let first = |name, word| Sample::new(name, [word, OTHER, OTHER, OTHER], 0, TEMPORARIES);
    vec![
        first("`addiw`", PLAIN),
        first("`ld`", i(LOAD, 3, A0, A1, 8)),
        first("`auipc`", u(AUIPC, A0, 0x1_2000)),
        first("`bne`, not taken", b(1, ZERO, ZERO, 0x400)),
        first("`beq`, taken", b(0, ZERO, ZERO, 0x400)),
        first("`beq` into the region", b(0, ZERO, ZERO, 12)),
        Sample::new(
            "`jal ra`",
            [OTHER, OTHER, OTHER, j(RA, 0x4000)],
            3,
            TEMPORARIES,
        ),
        // jalr zero, 0(ra)
        Sample::new(
            "`ret`",
            [OTHER, OTHER, OTHER, i(JALR, 0, ZERO, RA, 0)],
            3,
            TEMPORARIES,
        ),
    ]
}

/// One instruction, with and without free registers.
#[must_use]
pub fn registers() -> Vec<Sample> {
    let words = [PLAIN, OTHER, OTHER, OTHER];
    [("temporaries", TEMPORARIES), ("none", 0)]
        .map(|(name, free)| Sample::new(name, words, 0, free))
        .into()
}

/// Takes an interrupt before every instruction of every sample's detour in shadow mode. Returns how many there were,
/// and after how many the region went on correctly.
///
/// # Errors
/// If a probe cannot be built.
pub fn interrupts(proposals: Proposals) -> Result<(u64, u64)> {
    let (mut taken, mut right) = (0, 0);
    for sample in kinds() {
        let region = Region::new(&sample.site, &sample.code);
        let failed = |why| anyhow!("{} does not run: {why:?}", sample.name);
        let (seed, mut plain) = run::reaching(&region, sample.probe).map_err(failed)?;
        // A pass, not several.
        plain.hits = 1;
        let setup = run::build(&region, sample.probe, Mechanism::Shadow(Way::Pair))?;
        for number in 0.. {
            match run::interrupted(&region, &setup, seed, (proposals, number)) {
                Ok(None) => break,
                Ok(Some(probed)) => {
                    right += u64::from(run::changes(&plain, &probed, &setup).is_empty());
                }
                Err(_) => {}
            }
            taken += 1;
            ensure!(taken < 1000, "{} does not end", sample.name);
        }
    }
    Ok((taken, right))
}
