//! An island that is extended later equals one to which everything was added at once, and keeps no copy of its earlier
//! content.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use hodo_patch::{Image, Island, Patches, Recording, Sites, Traced, Used};
use hodo_plan::PlanOptions;
use hodo_plan::model::PlannedFunction;
use object::{Object, ObjectSegment};

const BASE: u64 = 0x5555_4000_0000;
const SIZE: u64 = 64 << 20;
/// How many functions are added at a time.
const SHARE: usize = 400;

/// What has been written, by address.
fn write(memory: &mut BTreeMap<u64, u8>, island: &Island, since: Used) {
    for (at, bytes) in island.added(since) {
        memory.extend((at..).zip(bytes.iter().copied()));
    }
}

#[test]
fn a_resumed_island_equals_one_built_at_once() {
    let path = Path::new("/proc/self/exe");
    let bytes = std::fs::read(path).expect("this test");
    let plan = hodo_plan::plan(path, &bytes, &PlanOptions::default()).expect("a plan");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let code = |range: Range<u64>| {
        let segment = file.segments().find(|segment| {
            range.start >= segment.address() && range.end <= segment.address() + segment.size()
        })?;
        segment
            .data_range(range.start, range.end - range.start)
            .ok()?
    };
    let image = Image {
        bias: BASE + 2 * SIZE,
        code: &code,
    };
    let good: Vec<&PlannedFunction> = (plan.functions.iter())
        .filter(|function| function.outcome.is_ok())
        .take(3 * SHARE)
        .collect();
    assert_eq!(good.len(), 3 * SHARE);
    let add = |island: &mut Island, functions: &[&PlannedFunction]| {
        let functions: Vec<_> = functions
            .iter()
            .map(|function| Traced {
                function,
                id: 7,
                filter: false,
            })
            .collect();
        let sites = Sites {
            functions: &functions,
            libcalls: &[],
            nops: &[],
            regions: &[],
        };
        let mut patches = Patches::default();
        let recording = Recording {
            timed: true,
            ..Recording::default()
        };
        island.add_module(sites, image, recording, &mut |_| None, &mut patches);
        patches
    };
    let mut once = Island::new(BASE, SIZE, 0);
    let (mut at_once, mut expected) = (BTreeMap::new(), Vec::new());
    for share in good.chunks(SHARE) {
        expected.push(add(&mut once, share));
    }
    write(&mut at_once, &once, Used::default());
    let mut island = Island::new(BASE, SIZE, 0);
    let mut later = BTreeMap::new();
    let mut used = Used::default();
    for (share, expected) in good.chunks(SHARE).zip(expected) {
        assert_eq!(add(&mut island, share), expected);
        write(&mut later, &island, used);
        used = island.used();
        let held = island.code.len();
        island = Island::resume(BASE, SIZE, used);
        assert!(island.code.is_empty(), "{held} bytes are not held again");
    }
    assert_eq!(later, at_once);
    assert_eq!(used, once.used());
}
