//! Stubs that are assembled from what was kept equal those that would be built.

use std::ops::Range;
use std::path::{Path, PathBuf};

use hodo_abi::Isa;
use hodo_codegen::native::patch::MOVABLE;
use hodo_patch::{Image, Island, Patches, Recording, Sites, Traced, TracedCall, Used};
use hodo_plan::PlanOptions;
use hodo_plan::model::Plan;
use object::{Object, ObjectSegment};

const SIZE: u64 = 32 << 20;

/// Where stubs are made: the island, the module, and its first id.
const HERE: (u64, u64, u32) = (0x5555_4000_0000, 0x5555_4000_0000 + 2 * SIZE, 40);

/// A file and its plan.
struct Material {
    bytes: Vec<u8>,
    plan: Plan,
}

impl Material {
    fn new(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a file");
        let plan = hodo_plan::plan(path, &bytes, &PlanOptions::default()).expect("a plan");
        Self { bytes, plan }
    }

    /// Adds it to an island: from what was kept, or so that this is kept.
    fn add(&self, island: &mut Island, bias: u64, first: u32, how: How<'_>) -> (Patches, Vec<u8>) {
        let file = object::File::parse(&*self.bytes).expect("an ELF file");
        let code = |range: Range<u64>| {
            let segment = file.segments().find(|segment| {
                range.start >= segment.address() && range.end <= segment.address() + segment.size()
            })?;
            (segment.data_range(range.start, range.end - range.start)).ok()?
        };
        let image = Image { bias, code: &code };
        let good = |function: &&hodo_plan::model::PlannedFunction| function.outcome.is_ok();
        let functions: Vec<_> = (self.plan.functions.iter().filter(good).zip(first + 3..))
            .map(|(function, id)| Traced {
                function,
                id,
                filter: false,
            })
            .collect();
        let libcalls: Vec<_> = (self.plan.libcalls.iter().zip(first..))
            .map(|(site, id)| TracedCall {
                site,
                id,
                filter: false,
            })
            .collect();
        let sites = Sites {
            functions: &functions,
            libcalls: &libcalls,
            nops: &self.plan.nops,
            regions: &[],
        };
        // Memory can be mapped anywhere.
        let mut places = |range: Range<u64>| Some(range.start);
        let places = &mut places;
        let mut patches = Patches::default();
        let mut kept = Vec::new();
        match how {
            How::Built(recording) => {
                island.add_module(sites, image, recording, places, &mut patches);
            }
            How::Kept(recording) => {
                let made =
                    island.add_and_keep(sites, image, recording, first, places, &mut patches);
                kept = made.expect("it can be kept");
            }
            How::Of(kept) => {
                assert!(island.add_kept(kept, image, first, places, &mut patches));
            }
            How::Perhaps(kept) => {
                let before = island.used();
                let done = island.add_kept(kept, image, first, places, &mut patches);
                assert!(done || (island.used() == before && patches == Patches::default()));
            }
        }
        (patches, kept)
    }
}

enum How<'a> {
    Built(Recording),
    Kept(Recording),
    Of(&'a [u8]),
    /// It may be nonsense.
    Perhaps(&'a [u8]),
}

/// Everything that an island contains.
fn content(island: &Island) -> Vec<(u64, Vec<u8>)> {
    let added = island.added(Used::default());
    added.map(|(at, bytes)| (at, bytes.into_owned())).to_vec()
}

fn recordings() -> [Recording; 4] {
    let timed = Recording {
        timed: true,
        ..Recording::default()
    };
    [
        timed,
        Recording::default(),
        Recording {
            check_frames: true,
            ..timed
        },
        Recording {
            filtered: true,
            depth: Some(5),
            shortest: Some(1000),
            switch: Some(300),
            ..timed
        },
    ]
}

/// This program, and libraries and programs that most machines have.
fn files() -> Vec<PathBuf> {
    let own = std::env::current_exe().expect("its path");
    let roots = ["/", "/usr/aarch64-linux-gnu/", "/usr/riscv64-linux-gnu/"];
    let others = [
        "lib/x86_64-linux-gnu/libc.so.6",
        "lib/x86_64-linux-gnu/libm.so.6",
        "lib64/ld-linux-x86-64.so.2",
        "lib/libc.so.6",
        "lib/libm.so.6",
        "bin/bash",
        "usr/bin/perl",
    ];
    let others = roots
        .into_iter()
        .flat_map(|root| others.map(|path| Path::new(root).join(path)));
    let is_native = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        let machine = bytes.get(18..).and_then(|rest| rest.first_chunk()).copied();
        machine.is_some_and(|machine| u16::from_le_bytes(machine) == Isa::NATIVE.elf_machine())
    };
    [own].into_iter().chain(others).filter(is_native).collect()
}

/// Where stubs that were made for [`HERE`] can be, too: the island, modules in it one after the other, the first id.
fn elsewhere() -> Vec<(u64, Vec<u64>, u32)> {
    let (base, bias, first) = HERE;
    match MOVABLE {
        true => vec![
            (
                0x7F12_3456_7000,
                vec![
                    0x7F12_3456_7000 - 5 * SIZE,
                    0x7F12_3456_7000 - 5 * SIZE + 0x21_0000,
                ],
                77,
            ),
            (
                0x1000_0000,
                vec![0x1000_0000 + 7 * SIZE, 0x1000_0000 + 7 * SIZE + 0x21_0000],
                1,
            ),
            (0x40_0000 + SIZE, vec![0, 0x21_0000], 2000),
        ],
        false => [
            0x1000,
            0x2A55_1234_5000,
            0u64.wrapping_sub(base - 0x40_0000),
        ]
        .map(|more| {
            (
                base.wrapping_add(more),
                vec![bias.wrapping_add(more)],
                first,
            )
        })
        .to_vec(),
    }
}

#[test]
fn assembled_stubs_equal_built_stubs() {
    let mut tried = 0;
    for path in &files() {
        let material = Material::new(path);
        // An emulator takes long.
        let step = if MOVABLE { 1 } else { 3 };
        for recording in recordings().into_iter().step_by(step) {
            let (base, bias, first) = HERE;
            let mut island = Island::new(base, SIZE, 0);
            let (one, kept) = material.add(&mut island, bias, first, How::Kept(recording));
            let mut alone = Island::new(base, SIZE, 0);
            let (expected, _) = material.add(&mut alone, bias, first, How::Built(recording));
            assert!(one == expected, "{}: keeping changes it", path.display());
            assert_eq!(island.stubs, alone.stubs);
            // The same elsewhere, and twice in one island: what precedes it does not matter.
            for (base, biases, first) in elsewhere() {
                let (mut made, mut built) =
                    (Island::new(base, SIZE, 0), Island::new(base, SIZE, 0));
                for bias in biases {
                    let what = format!("{} {recording:?} at {bias:x}", path.display());
                    let (one, _) = material.add(&mut made, bias, first, How::Of(&kept));
                    let (other, _) = material.add(&mut built, bias, first, How::Built(recording));
                    assert!(one == other, "{what}: patches");
                    assert!(made.stubs == built.stubs, "{what}: stubs");
                    assert!(content(&made) == content(&built), "{what}: the island");
                    assert_eq!(made.used(), built.used());
                }
            }
            tried += 1;
        }
    }
    assert!(tried >= 4);
}

#[test]
fn damaged_input_is_refused_or_terminates() {
    let mut material = Material::new(&files()[0]);
    material.plan.functions.truncate(200);
    let (base, bias, first) = HERE;
    let mut island = Island::new(base, SIZE, 0);
    let (_, kept) = material.add(&mut island, bias, first, How::Kept(recordings()[0]));
    let rounds = if MOVABLE { 2000 } else { 200 };
    for len in (0..kept.len()).step_by(kept.len() / rounds) {
        material.add(
            &mut Island::new(base, SIZE, 0),
            bias,
            first,
            How::Perhaps(&kept[..len]),
        );
    }
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for _ in 0..rounds {
        let mut bytes = kept.clone();
        for _ in 0..=random() % 4 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        material.add(
            &mut Island::new(base, SIZE, 0),
            bias,
            first,
            How::Perhaps(&bytes),
        );
    }
    // It is not placed where it cannot reach the module.
    let far = bias + (1 << 33);
    let mut island = Island::new(base, SIZE, 0);
    let before = island.used();
    material.add(&mut island, far, first, How::Perhaps(&kept));
    assert_eq!(island.used(), before);
}
