//! Clients that only count hear the same executions of a recording as those that look at each.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Decode, Events, Listener, Message, Observe, Target};
use hodo_mem::heap;
use hodo_tests::{Kind, build};

/// How often the first instructions of blocks were executed: by thread, block, and their number.
#[derive(Debug, Default)]
struct Executions {
    times: BTreeMap<(u32, u32, usize), u64>,
    /// Accesses of special blocks.
    special: u64,
    accesses: u64,
    /// It receives numbers.
    counts: bool,
    wants_events: bool,
}

impl Executions {
    fn add(&mut self, thread: u32, block: &Block, upto: usize, times: u64) {
        // Parts of what a special block does come with this number, too.
        if upto > 0 {
            *self.times.entry((thread, block.id, upto)).or_default() += times;
        }
    }
}

impl Client for Executions {
    fn events(&self) -> Events {
        match self.wants_events {
            true => heap::events().system_calls(),
            false => Events::default(),
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.accesses += accesses.len() as u64;
        if block.is_special() {
            self.special += accesses.len() as u64;
        }
        if !self.counts {
            self.add(thread, block, upto, 1);
        }
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.accesses += block.plain_accesses(upto).count() as u64 * times;
        self.add(thread, block, upto, times);
    }
}

/// Clients of one run.
struct All([Decode<Executions>; 3]);

impl Listener for All {
    fn hear(&mut self, message: &Message) -> anyhow::Result<()> {
        self.0.iter_mut().try_for_each(|one| one.hear(message))
    }

    fn events(&self) -> Events {
        heap::events().system_calls()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.0.iter_mut().try_for_each(Decode::end)
    }
}

/// Runs a program. Returns how many of the numbers are of parts of blocks, and of threads.
fn compare(program: &Path, arguments: &[&str]) -> (usize, usize) {
    let arguments = arguments.iter().map(OsString::from);
    let command: Vec<OsString> = [program.into()].into_iter().chain(arguments).collect();
    let client = |counts, wants_events| Executions {
        counts,
        wants_events,
        ..Executions::default()
    };
    let all = All([
        Decode::new(client(false, false)),
        Decode::new(client(false, true)),
        Decode::counting(client(true, false)),
    ]);
    let target = Target::program(program, &command);
    let listened = hodo_dbi::listen(&target, Observe::Accesses, all);
    let [told, with_events, counted] = listened.expect("it runs").1.0.map(Decode::into_client);
    assert!(!told.times.is_empty());
    for other in [&with_events, &counted] {
        let differs = told
            .times
            .iter()
            .find(|&(key, times)| other.times.get(key) != Some(times));
        assert_eq!(differs, None, "{}", program.display());
        assert_eq!(told.times.len(), other.times.len());
        assert_eq!(
            (told.accesses, told.special),
            (other.accesses, other.special)
        );
    }
    let mut wholes: BTreeMap<u32, usize> = BTreeMap::new();
    for &(_, block, upto) in told.times.keys() {
        let most = wholes.entry(block).or_default();
        *most = upto.max(*most);
    }
    let parts = told
        .times
        .keys()
        .filter(|(_, block, upto)| *upto < wholes[block]);
    let threads = told.times.keys().map(|(thread, ..)| thread).max();
    (parts.count(), 1 + *threads.expect("a thread") as usize)
}

#[test]
fn counted_executions_are_those_that_are_told() {
    // Faults and signals; repeated instructions and masks.
    compare(&build("accesses.c", Kind::Static, &[]), &[]);
    compare(&build("masks.c", Kind::Static, &[]), &[]);
    // Threads that are ended anywhere.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("counting");
    let file = file.to_str().expect("text");
    let program = build("ended_thread.c", Kind::Static, &["-pthread"]);
    let (_, threads) = compare(&program, &[file]);
    assert!(threads > 1);
    // Enough for blocks that go on after branches, which leave them.
    let work =
        "for ((i = 0; i < 3000; i++)); do ((s += i % 7)); done; echo $s; (true); true | true";
    let (parts, processes) = compare(&PathBuf::from("/bin/bash"), &["-c", work]);
    assert!(
        parts > 20 && processes > 2,
        "{parts} parts, {processes} processes"
    );
}
