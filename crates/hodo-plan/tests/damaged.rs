//! Damaged files: whatever a file contains, planning it ends without a panic.

use std::path::Path;
use std::time::{Duration, Instant};

use hodo_plan::model::Wanted;
use hodo_plan::{PlanOptions, plan, plan_probes};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Small files, so that many can be tried.
fn seeds() -> Vec<Vec<u8>> {
    let files = [
        "/bin/true",
        "/usr/bin/sqlite3",
        "/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "/lib/x86_64-linux-gnu/libdl.so.2",
    ];
    let seeds: Vec<_> = files.iter().filter_map(|f| std::fs::read(f).ok()).collect();
    assert!(!seeds.is_empty(), "none of {files:?}");
    seeds
}

/// Damages a file where that matters most: in the headers, and in the content of one section.
fn damage(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let places = {
        let word = |at: usize| usize::from_le_bytes(seed[at..at + 8].try_into().expect("a word"));
        let count = usize::from(u16::from_le_bytes([seed[60], seed[61]]));
        let section = word(40) + 64 * random.below(count.max(1));
        let content = word(section + 24)..word(section + 24) + word(section + 32);
        [
            0..64,
            64..64 + 56 * 12,
            word(40)..word(40) + 64 * count,
            content.start.min(seed.len())..content.end.min(seed.len()),
        ]
    };
    match random.below(8) {
        0 => bytes.truncate(random.below(seed.len())),
        1 => {
            // A stretch of other content.
            let len = random.below(256);
            let from = random.below(seed.len() - len);
            let to = random.below(seed.len() - len);
            bytes.copy_within(from..from + len, to);
        }
        _ => {}
    }
    for _ in 0..1 + random.below(16) {
        if bytes.is_empty() {
            break;
        }
        let range = match random.below(5) {
            0 => 0..bytes.len(),
            part => places[part - 1].clone(),
        };
        let at = range.start + random.below(range.len().max(1));
        let edge = [0, 1, 0x7F, 0x80, 0xFF, random.next() as u8];
        if let Some(byte) = bytes.get_mut(at) {
            *byte = edge[random.below(edge.len())];
        }
    }
    bytes
}

#[test]
fn damaged_files_never_panic() {
    let options = PlanOptions {
        threads: 1,
        ..PlanOptions::default()
    };
    let seeds = seeds();
    let start = Instant::now();
    let (mut planned, mut rejected) = (0, 0);
    for round in 0..u64::MAX {
        if start.elapsed() > Duration::from_secs(15) || planned + rejected == 4000 {
            break;
        }
        let mut random = Random(round);
        let bytes = damage(&seeds[random.below(seeds.len())], &mut random);
        let began = Instant::now();
        match plan(Path::new("damaged"), &bytes, &options) {
            Ok(_) => {
                planned += 1;
                let probes = plan_probes(Path::new("damaged"), &bytes, Wanted::Every, 1);
                let mut end = 0;
                for site in probes.expect("a plan of probes").sites {
                    assert!(site.patch >= end, "round {round}: {site:x?}");
                    end = site.displaced.end;
                }
            }
            Err(_) => rejected += 1,
        }
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(10),
            "round {round} took {took:?}"
        );
    }
    println!("{planned} planned, {rejected} rejected");
    assert!(
        planned > 10 && rejected > 10,
        "{planned} planned, {rejected} rejected"
    );
}
