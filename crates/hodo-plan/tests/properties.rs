//! What must hold for every plan, checked on this machine's programs with an independent reading of their code.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hodo_patch::{Image, Island, Patches, Recording, Sites, Traced, TracedCall};
use hodo_plan::model::{Extra, Plan, Tactic};
use hodo_plan::{PlanOptions, plan};
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};
use object::{Object, ObjectSection, RelocationFlags, SectionKind};

/// Programs with and without symbols, from several compilers, at fixed and at movable addresses.
fn programs() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [
        "/bin/bash",
        "/usr/bin/sqlite3",
        "/usr/bin/gdb",
        "/usr/bin/python3",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]
    .map(PathBuf::from)
    .into();
    files.retain(|file| file.exists());
    assert!(files.len() >= 3, "too few programs: {files:?}");
    files.push(std::env::current_exe().expect("this program"));
    files
}

struct Program {
    bytes: Vec<u8>,
    plan: Plan,
    /// Executable sections: address and content.
    text: BTreeMap<u64, Vec<u8>>,
}

impl Program {
    fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a readable file");
        let plan = plan(path, &bytes, &PlanOptions::default()).expect("a plan");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let text = file
            .sections()
            .filter(|s| s.kind() == SectionKind::Text)
            .map(|s| (s.address(), s.data().expect("a section's content").to_vec()))
            .collect();
        Self { bytes, plan, text }
    }

    fn code(&self, range: Range<u64>) -> Option<&[u8]> {
        let (start, text) = self.text.range(..=range.start).next_back()?;
        text.get((range.start - start) as usize..(range.end - start) as usize)
    }

    /// Places that something branches to, and from where (0 if unknown), read from the start of each function.
    fn targets(&self) -> Vec<(u64, u64)> {
        let mut targets = Vec::new();
        for (&start, text) in &self.text {
            let end = start + text.len() as u64;
            let functions = self.plan.functions.iter().map(|f| f.addr);
            let mut starts: Vec<u64> = functions.filter(|a| (start..end).contains(a)).collect();
            starts.push(end);
            starts.insert(0, start);
            for pair in starts.windows(2) {
                let code = &text[(pair[0] - start) as usize..(pair[1] - start) as usize];
                let decoder = Decoder::with_ip(64, code, pair[0], DecoderOptions::NONE);
                for instruction in decoder {
                    if instruction.op0_kind() == OpKind::NearBranch64 {
                        let source = match instruction.flow_control() {
                            FlowControl::Call | FlowControl::IndirectCall => 0,
                            _ => instruction.ip(),
                        };
                        targets.push((instruction.near_branch64(), source));
                    } else if instruction.code() == iced_x86::Code::Lea_r64_m
                        && instruction.is_ip_rel_memory_operand()
                    {
                        targets.push((instruction.ip_rel_memory_address(), 0));
                    }
                }
            }
        }
        let file = object::File::parse(&*self.bytes).expect("an ELF file");
        for (_, relocation) in file.dynamic_relocations().into_iter().flatten() {
            if let RelocationFlags::Elf { r_type: 8 } = relocation.flags() {
                targets.push((relocation.addend().cast_unsigned(), 0));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }
}

/// The bytes that the sites of a plan change.
fn changed(plan: &Plan) -> Vec<(Range<u64>, Range<u64>)> {
    let mut changed = Vec::new();
    for site in plan
        .functions
        .iter()
        .filter_map(|f| f.outcome.as_ref().ok())
    {
        let patch = site.patch..site.patch + u64::from(site.patch_len);
        changed.push((patch, site.displaced.clone()));
        if let Extra::HopSlot(slot) = site.extra {
            changed.push((slot..slot + 5, 0..0));
        }
    }
    changed.sort_by_key(|(range, _)| range.start);
    changed
}

#[test]
fn no_patch_crosses_a_branch_target() {
    for path in programs() {
        let program = Program::open(&path);
        let targets = program.targets();
        let mut checked = 0;
        for (patch, displaced) in changed(&program.plan) {
            let from = targets.partition_point(|t| t.0 <= patch.start);
            let to = targets.partition_point(|t| t.0 < patch.end);
            for (target, source) in &targets[from..to] {
                // The branching instruction has been moved, too.
                assert!(
                    displaced.contains(source),
                    "{}: {source:#x} branches to {target:#x}, into a patch at {patch:x?}",
                    path.display()
                );
            }
            checked += 1;
        }
        println!(
            "{}: {checked} patches, {} targets",
            path.display(),
            targets.len()
        );
        assert!(checked > 0 && targets.len() > 100, "{}", path.display());
    }
}

#[test]
fn sites_do_not_overlap_and_lie_in_their_functions() {
    for path in programs() {
        let program = Program::open(&path);
        let plan = &program.plan;
        for pair in changed(plan).windows(2) {
            assert!(
                pair[0].0.end <= pair[1].0.start,
                "{}: {pair:x?}",
                path.display()
            );
        }
        let mut addresses = Vec::new();
        for function in &plan.functions {
            addresses.push(function.addr);
            let Ok(site) = &function.outcome else {
                continue;
            };
            let what = format!("{}: {} {site:x?}", path.display(), function.name);
            assert!(
                site.patch == function.addr || site.patch == function.addr + 4,
                "{what}"
            );
            assert_eq!(site.displaced.start, site.patch, "{what}");
            assert!(site.displaced.end > site.patch, "{what}");
            if function.size > 0 {
                assert!(
                    site.displaced.end <= function.addr + function.size,
                    "{what}"
                );
            }
            let len = match site.tactic {
                Tactic::Trap => 1..=1,
                Tactic::Hop => 2..=2,
                Tactic::Pun => 1..=4,
                Tactic::Jump | Tactic::Block => 5..=5,
                Tactic::Site => 2..=5,
            };
            assert!(len.contains(&site.patch_len), "{what}");
            match site.extra {
                Extra::HopSlot(slot) => {
                    let distance = slot as i64 - (site.patch as i64 + 2);
                    assert!(i8::try_from(distance).is_ok(), "{what}");
                }
                Extra::Pun { free } => assert_eq!(free + 1, site.patch_len, "{what}"),
                Extra::None | Extra::Near | Extra::HopDonor { .. } => {}
            }
            let code = program.code(site.displaced.clone()).expect("code");
            let mut decoder = Decoder::with_ip(64, code, site.patch, DecoderOptions::NONE);
            while decoder.can_decode() {
                assert!(!decoder.decode().is_invalid(), "{what}");
            }
        }
        assert!(addresses.is_sorted_by(|a, b| a < b), "{}", path.display());
    }
}

#[test]
fn patches_do_not_overlap_and_are_undone_by_the_original_bytes() {
    const BIAS: u64 = 0x5555_0000_0000;
    for path in programs() {
        let program = Program::open(&path);
        let plan = &program.plan;
        let traced: Vec<_> = (1..)
            .zip(&plan.functions)
            .map(|(id, function)| Traced {
                function,
                id,
                filter: false,
            })
            .collect();
        let calls: Vec<_> = (1 << 18..)
            .zip(&plan.libcalls)
            .map(|(id, site)| TracedCall {
                site,
                id,
                filter: false,
            })
            .collect();
        let code = |range: Range<u64>| program.code(range);
        let image = Image {
            bias: BIAS,
            code: &code,
        };
        let mut island = Island::new(BIAS - (64 << 20), 48 << 20, 0);
        let mut patches = Patches::default();
        let mut page = BIAS + (1 << 40);
        let mut places = |range: Range<u64>| {
            page += 4096;
            Some(range.start)
        };
        let sites = Sites {
            functions: &traced,
            libcalls: &calls,
            nops: &plan.nops,
            regions: &[],
        };
        island.add_module(
            sites,
            image,
            Recording::default(),
            &mut places,
            &mut patches,
        );
        assert!(
            patches.failed.is_empty(),
            "{}: {:x?}",
            path.display(),
            patches.failed
        );
        let mut memory: HashMap<u64, u8> = HashMap::new();
        let mut originals: HashMap<u64, u8> = HashMap::new();
        for (at, bytes) in &patches.writes {
            for (at, byte) in (*at..).zip(bytes) {
                assert!(
                    memory.insert(at, *byte).is_none(),
                    "{}: {at:#x} is written twice",
                    path.display()
                );
                let place = at.wrapping_sub(BIAS);
                if let Some([original]) = program.code(place..place + 1) {
                    originals.insert(at, *original);
                }
            }
        }
        assert!(
            memory.len() >= plan.functions.len() * 2,
            "{}",
            path.display()
        );
        memory.extend(&originals);
        for (at, byte) in memory {
            let place = at.wrapping_sub(BIAS);
            if let Some(code) = program.code(place..place + 1) {
                assert_eq!(code, [byte], "{}: {at:#x}", path.display());
            }
        }
    }
}

#[test]
fn coverage() {
    for path in programs() {
        let program = Program::open(&path);
        let functions = &program.plan.functions;
        let sites: Vec<_> = functions
            .iter()
            .filter_map(|f| f.outcome.as_ref().ok())
            .collect();
        let traced = sites.len() as f64 / functions.len() as f64;
        let traps = sites.iter().filter(|s| s.tactic == Tactic::Trap).count();
        assert!(traced >= 0.995, "{}: {traced}", path.display());
        // In a small file, one function is more than that.
        let most = (functions.len() / 1000).max(1);
        assert!(traps <= most, "{}: {traps}", path.display());
        for function in functions {
            if let Err(reason) = &function.outcome {
                assert!(reason.as_str().len() > 10, "{}: {reason:?}", function.name);
            }
        }
    }
}
