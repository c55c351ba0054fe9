//! Prints hashes of what is emitted for programs, to compare two versions of hodo: a change that moves code about
//! leaves them as they are.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::hash::Hasher;

use twox_hash::XxHash64;

use super::super::{X86_64, kept};
use super::samples::{Inserts, Random, Replaces};
use crate::expanding::Expanding;
use crate::passes::{Pass, Passes};
use crate::process::EVERYWHERE;
use crate::profile::Profile;
use crate::protected::Notice;
use crate::recent::{LineSets, Recent};
use crate::translate::{Insertion, Request, Translation, first_bytes, translate};

/// How code is translated: what is inserted, by which passes, and whether it is executed often.
type Mode = (
    &'static str,
    Option<Insertion>,
    fn() -> Vec<Box<dyn Pass>>,
    bool,
);

const fn insertion(counts: bool, records: bool) -> Option<Insertion> {
    Some(Insertion {
        counts,
        records,
        recent: None,
    })
}

fn none() -> Vec<Box<dyn Pass>> {
    Vec::new()
}

fn expanding() -> Vec<Box<dyn Pass>> {
    vec![Box::new(Expanding)]
}

fn scrambled() -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(Replaces(Random::new(7))),
        Box::new(Inserts::new(8)),
    ]
}

fn modes() -> Vec<Mode> {
    let sets = LineSets::new(64, 64).expect("a cache");
    let recent = Recent {
        fetches: sets,
        data: sets,
    };
    let lines = Insertion {
        counts: true,
        records: false,
        recent: Some(recent),
    };
    vec![
        ("nothing", None, none, false),
        ("counts", insertion(true, false), none, false),
        ("records", insertion(false, true), none, false),
        ("both, often", insertion(true, true), none, true),
        ("lines", Some(lines), none, false),
        ("lanes", insertion(true, true), expanding, false),
        ("passes", None, scrambled, false),
    ]
}

/// The parts of an ELF file that can be executed: where each begins in memory, and its bytes.
fn code(file: &[u8]) -> Vec<(u64, &[u8])> {
    let word = |at: usize| {
        let bytes = file[at..].first_chunk();
        u64::from_le_bytes(*bytes.expect("a header")) as usize
    };
    let half = |at: usize| usize::from(file[at]) | usize::from(file[at + 1]) << 8;
    let heads = (0..half(56)).map(|number| word(32) + number * half(54));
    let heads = heads.filter(|&at| word(at) & 0xFFFF_FFFF == 1 && word(at) >> 32 & 1 == 1);
    let parts = heads.map(|at| (word(at + 16) as u64, &file[word(at + 8)..][..word(at + 32)]));
    parts.collect()
}

/// Adds all that a translation has to a hash.
fn add(translation: &Translation, passes: Option<&RefCell<Passes>>, hash: &mut XxHash64) {
    hash.write(&translation.bytes);
    let mut text = String::new();
    for point in &translation.points {
        let (at, original, stage) = (point.at, point.original, point.state.stage);
        let _ = write!(text, "{at:x} {original:x} {stage:?}");
        if let Some(saved) = point.state.inside {
            let [rcx, r11, rax] =
                [kept::RCX, kept::R11, kept::RAX].map(|bit| saved.kept & bit != 0);
            let flags = saved.flags;
            let _ = write!(text, " {rcx} {r11} {rax} {flags} {:?}", saved.scratch);
            let (own, known, inserted) = (saved.is_own, saved.is_known, saved.in_fragment);
            let _ = write!(text, " {own} {known} {inserted}");
            let map = passes.map(|passes| passes.borrow().map(saved.map).to_vec());
            let _ = write!(text, " {map:?}");
        }
        text.push('\n');
    }
    for exit in &translation.exits {
        let (trap, cell, target) = (exit.trap, exit.cell, exit.target);
        let _ = write!(text, "{trap:x} {cell:x} {target:x} {}", exit.linked);
    }
    let (calls, misses) = (&translation.calls, &translation.misses);
    let (instructions, returns) = (&translation.instructions, &translation.returns);
    let _ = write!(
        text,
        "{instructions:x?} {returns:x?} {calls:x?} {misses:x?}"
    );
    for (at, block) in &translation.blocks {
        let block = block
            .as_ref()
            .map(|block| (block.id, block.insns.len(), block.record_size()));
        let _ = write!(text, "{at:x} {block:?}");
    }
    let _ = write!(text, "{:x?} {:?}", translation.records, translation.fixups);
    let _ = write!(text, "{:x?}", translation.entries);
    hash.write(text.as_bytes());
}

/// The hash of all that is emitted for a part of a file in a mode, and how many bytes that are.
fn emitted(part: (u64, &[u8]), mode: &Mode) -> (u64, usize) {
    /// From one start of a translation to the next one. Not all are where an instruction begins.
    const STEP: usize = 1237;
    let &(_, insertion, passes, often) = mode;
    let mut hash = XxHash64::default();
    let mut size = 0;
    let mut count = 0;
    for offset in (0..part.1.len()).step_by(STEP) {
        let start = part.0 + offset as u64;
        let passes = passes();
        let passes = (!passes.is_empty()).then(|| RefCell::new(Passes::new(passes)));
        let starts = [start, start + 64];
        let profile: Profile = [(start, 9), (start + 64, 10)].into_iter().collect();
        let translation = translate::<X86_64>(Request {
            starts: &starts,
            profile: often.then_some(&profile),
            most: 100,
            within: EVERYWHERE,
            base: 0x7F00_0000_0000 + start,
            table: 0x1_0000,
            read: &mut |pc| first_bytes(part.1, part.0, pc),
            known: &|_| None,
            soft: &|_| false,
            notice: &|_| Notice::Undecided,
            on_stack: false,
            mark: &|_| 0,
            insertion,
            keeps_flags: false,
            passes: passes.as_ref(),
            file: &|_| None,
            watch: None,
            numbers: &mut |_| {
                count += 1;
                (count, count & 0xFF)
            },
            line_number: &mut |line| line as u32,
        });
        size += translation.bytes.len();
        add(&translation, passes.as_ref(), &mut hash);
    }
    (hash.finish(), size)
}

#[test]
#[ignore = "prints hashes of what is emitted for the files that HODO_EMITTED names"]
fn hashes_of_what_is_emitted() {
    let files = std::env::var("HODO_EMITTED").expect("HODO_EMITTED names files");
    for name in files.split_whitespace() {
        let file = fs::read(name).expect("a file");
        for part in code(&file) {
            for mode in modes() {
                let (hash, size) = emitted(part, &mode);
                println!("{hash:016x} {size} {name} {}", mode.0);
            }
        }
    }
}
