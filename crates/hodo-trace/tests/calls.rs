//! Calls made from random records, and from the records of random programs whose calls are known.

use hodo_trace::format::WINDOW_SIZE;
use hodo_trace::{CallStep, Calls, Entered, Frame, Left, Record, RecordKind, TailCalls, Traits};

/// A small random number generator, so that every run tries the same.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

const FUNCTIONS: u64 = 12;

fn calls(frames: Vec<Frame>) -> Calls {
    // The last functions have no exits.
    let traits = |id| match id > FUNCTIONS - 3 {
        true => Traits::ENTRY_ONLY,
        false => Traits::PLAIN,
    };
    Calls::new((0..=FUNCTIONS).map(traits).collect(), frames).with_tail_calls(TailCalls::Flat)
}

/// Feeds records, and checks that the steps agree with the frames and with each other. Returns the steps.
fn feed(calls: &mut Calls, records: &[Record]) -> Vec<CallStep> {
    let mut steps = Vec::new();
    let mut stack: Vec<Frame> = calls.frames().to_vec();
    let mut time = 0;
    for &record in records {
        calls.feed(record, |step| {
            assert!(step.time() >= time, "time ran back");
            time = step.time();
            match step {
                CallStep::Enter {
                    depth, id, time, ..
                } => {
                    assert_eq!(depth, stack.len());
                    stack.push(Frame::called(id, 0, time));
                }
                CallStep::Leave { depth, frame, .. } => {
                    let open = stack.pop().expect("what is left was entered");
                    assert_eq!((depth, frame.id), (stack.len(), open.id));
                    assert_eq!(frame.start, open.start);
                }
                CallStep::Instant { depth, .. } => assert_eq!(depth, stack.len()),
                CallStep::Lost { .. } => {}
            }
            steps.push(step);
        });
        let ids = |frames: &[Frame]| frames.iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(calls.frames()), ids(&stack));
    }
    steps
}

/// A record at an address on the stack, which only some records contain.
fn record(time: u64, (kind, id): (RecordKind, u32), stack: u64, known: bool) -> Record {
    Record {
        time,
        id,
        sp: (stack >> 4 & 1023) as u16,
        kind,
        stack: if known { stack } else { 0 },
    }
}

#[test]
fn random_records_make_well_formed_calls() {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for _ in 0..2000 {
        let mut time = 0;
        let mut entries = 0;
        let records: Vec<Record> = (0..random.below(200))
            .map(|_| {
                time += random.below(3);
                let kind = match random.below(9) {
                    0..4 => RecordKind::Entry,
                    4..7 => RecordKind::Exit,
                    7 => RecordKind::Tail,
                    _ => RecordKind::Lost(random.below(100)),
                };
                entries += usize::from(kind == RecordKind::Entry || kind == RecordKind::Tail);
                Record {
                    time,
                    // This includes ids that no function has.
                    id: random.below(FUNCTIONS + 5) as u32,
                    sp: random.below(6) as u16,
                    kind,
                    stack: [0, 4096 + 16 * random.below(9)][random.below(2) as usize],
                }
            })
            .collect();
        let mut calls = calls(Vec::new());
        let steps = feed(&mut calls, &records);
        assert!(calls.frames().len() <= entries);
        let left = steps
            .iter()
            .filter(|step| matches!(step, CallStep::Leave { .. }))
            .count();
        let entered = steps
            .iter()
            .filter(|step| matches!(step, CallStep::Enter { .. }))
            .count();
        assert_eq!(entered, left + calls.frames().len());
    }
}

/// A program that runs at random, its records, and its real calls.
struct Program {
    random: Random,
    time: u64,
    records: Vec<Record>,
    expected: Vec<String>,
}

impl Program {
    fn record(&mut self, kind: RecordKind, id: u32, sp: u16) {
        self.time += 1;
        self.records.push(Record {
            time: self.time,
            id,
            sp: sp & 1023,
            kind,
            stack: 0,
        });
    }

    fn expect(&mut self, depth: usize, what: &str, id: u32) {
        self.expected
            .push(format!("{} {depth} {what} {id}", self.time));
    }

    /// Calls a function. `Some(n)`: it was left by a jump to the frame of depth `n`, which continues.
    fn call(&mut self, depth: usize, sp: u16) -> Option<usize> {
        let mut id = 1 + self.random.below(FUNCTIONS) as u32;
        self.record(RecordKind::Entry, id, sp);
        if u64::from(id) > FUNCTIONS - 3 {
            self.expect(depth, "only", id);
            return None;
        }
        self.expect(depth, "enter", id);
        let called = id;
        loop {
            while depth < 12 && self.random.below(5) < 2 {
                let size = 1 + self.random.below(20) as u16;
                if let Some(to) = self.call(depth + 1, sp.wrapping_sub(size)) {
                    if to < depth {
                        return Some(to);
                    }
                    // The jump lands here. No record shows this before this function returns.
                    break;
                }
            }
            if self.random.below(6) > 0 {
                break;
            }
            let next = 1 + self.random.below(FUNCTIONS - 3) as u32;
            // Frames that were jumped over are still open. Then a tail call is not recognised.
            if self.open_above(depth) > 0 {
                break;
            }
            self.record(RecordKind::Tail, next, sp);
            self.expect(depth, "leave Tail", id);
            self.expect(depth, "enter", next);
            id = next;
        }
        if depth > 1 && self.random.below(12) == 0 {
            return Some(self.random.below(depth as u64 - 1) as usize);
        }
        self.record(RecordKind::Exit, called, sp);
        self.close_above(depth);
        self.expect(depth, "leave Returned", id);
        None
    }

    /// Returns the functions open above `depth` according to the records, outermost first.
    fn open(&self) -> Vec<(usize, u32)> {
        let mut open: Vec<(usize, u32)> = Vec::new();
        for line in &self.expected {
            let mut words = line.split(' ').skip(1);
            let depth: usize = words.next().and_then(|w| w.parse().ok()).expect("a depth");
            let what = words.next().expect("a word");
            let id: u32 = words.last().and_then(|w| w.parse().ok()).expect("an id");
            match what {
                "enter" => open.push((depth, id)),
                "leave" => {
                    open.pop();
                }
                _ => {}
            }
        }
        open
    }

    fn open_above(&self, depth: usize) -> usize {
        self.open().iter().filter(|open| open.0 > depth).count()
    }

    fn close_above(&mut self, depth: usize) {
        for (at, id) in self.open().into_iter().rev() {
            if at > depth {
                self.expect(at, "leave Unwound", id);
            }
        }
    }
}

#[test]
fn random_programs_are_understood() {
    let mut seen = [0; 3];
    for seed in 1..300u64 {
        let mut program = Program {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            time: 0,
            records: Vec::new(),
            expected: Vec::new(),
        };
        for _ in 0..10 {
            program.call(0, 900);
        }
        let mut calls = calls(Vec::new());
        let steps: Vec<String> = feed(&mut calls, &program.records)
            .iter()
            .map(|step| match *step {
                CallStep::Enter {
                    depth, id, time, ..
                } => format!("{time} {depth} enter {id}"),
                CallStep::Instant { depth, id, time } => format!("{time} {depth} only {id}"),
                CallStep::Leave {
                    depth,
                    frame,
                    time,
                    left,
                } => format!("{time} {depth} leave {left:?} {}", frame.id),
                CallStep::Lost { .. } => unreachable!("nothing was lost"),
            })
            .collect();
        assert_eq!(steps, program.expected, "seed {seed}");
        assert!(calls.frames().is_empty());
        for (seen, what) in seen.iter_mut().zip(["Tail", "Unwound", "Returned"]) {
            *seen += steps.iter().filter(|step| step.contains(what)).count();
        }
    }
    assert!(seen.iter().all(|&n| n > 300), "{seen:?}");
}

#[test]
fn a_forked_process_continues_in_its_parents_frames() {
    let frame = Frame::called(1, 9, 5);
    let mut calls = calls(vec![frame.inherited(40)]);
    let exit = Record {
        time: 50,
        id: 1,
        sp: 9,
        kind: RecordKind::Exit,
        stack: 0,
    };
    let steps = feed(&mut calls, &[exit]);
    let [CallStep::Leave { frame, left, .. }] = steps[..] else {
        panic!("{steps:?}");
    };
    assert!(frame.inherited);
    assert_eq!((frame.start, left), (40, Left::Returned));
}

/// A frame that really exists: its function, the time of its entry, the stack pointer at its entry and at its calls.
#[derive(Debug, Clone, Copy)]
struct Alive {
    id: u32,
    start: u64,
    stack: u64,
    bottom: u64,
    /// Whether it is a handler on a stack above those of the frames that it interrupts.
    above: bool,
}

/// The function that leaves frames, as `longjmp` does.
const LEAVER: u32 = 1;
/// A frame of this many bytes has room for a handler's stack.
const ROOM: u64 = 40 << 10;

/// Returns where the next function is entered. It is on the stack of the last one, or it is a handler on a stack below
/// or above it, or inside a frame.
fn entered(random: &mut Random, alive: &[Alive], switches: bool) -> (u64, bool) {
    let Some(last) = alive.last() else {
        return (0x7000_0000_0000, false);
    };
    if !switches || random.below(10) > 0 {
        return (last.bottom, false);
    }
    let other = last.start << 24;
    let outer = alive[random.below(alive.len() as u64) as usize];
    let inside = outer.stack - ROOM / 2;
    let has_room = outer.stack - outer.bottom >= ROOM && alive.iter().all(|f| f.stack != inside);
    match random.below(3) {
        0 => (0x5000_0000_0000 - other, false),
        1 if has_room => (inside, true),
        _ => (0x7100_0000_0000 + other, true),
    }
}

/// Runs a program that calls, returns, leaves frames, and has handlers on other stacks. Returns how many frames were
/// closed as left.
fn leaving(random: &mut Random, how: Traits, all_known: bool, switches: bool) -> usize {
    let traits = |id| match id {
        LEAVER => how,
        _ => Traits::PLAIN,
    };
    let mut calls = Calls::new((0..9).map(traits).collect(), Vec::new());
    let mut alive: Vec<Alive> = Vec::new();
    let mut closed = 0;
    let mut jumped = false;
    // Exits have only bits of the stack pointer. With large frames, the wrong frame is sometimes closed.
    let exact = all_known && !switches;
    for time in 1..300 {
        let mut feed = |kind, id, stack: u64, known: bool| {
            calls.feed(record(time, (kind, id), stack, known), |step| match step {
                CallStep::Leave { left, .. } => {
                    closed += usize::from(left == Left::Unwound);
                    assert!(switches || left != Left::Switched);
                }
                CallStep::Enter { entered, .. } => assert_eq!(entered, Entered::Called),
                _ => {}
            });
        };
        if random.below(5) < 2
            && let Some(frame) = alive.pop()
        {
            feed(RecordKind::Exit, frame.id, frame.stack, false);
            continue;
        }
        let (stack, above) = entered(random, &alive, switches && !jumped);
        // A handler is never the function that jumps.
        let id = (1 + random.below(8) as u32).max(1 + u32::from(above));
        let known = all_known || random.below(8) > 0;
        feed(RecordKind::Entry, id, stack, known);
        let handled = above || alive.iter().any(|frame| frame.above);
        let large = !exact && !handled && random.below(2) == 0;
        let size = 16 * (1 + random.below(if large { 4000 } else { 4 }));
        alive.push(Alive {
            id,
            start: time,
            stack,
            bottom: stack - size,
            above,
        });
        // Without a telling name, a jump to the caller looks like a call from the caller's frame.
        let named = how != Traits::PLAIN;
        jumped = id == LEAVER && (named || alive.len() > 2);
        let seen = calls.frames();
        let mut left = seen.iter();
        for frame in &alive {
            assert!(
                left.any(|seen| (seen.id, seen.start) == (frame.id, frame.start)),
                "{frame:?} is alive:\n{alive:?}\n{seen:?}"
            );
        }
        if exact {
            assert_eq!(seen.len(), alive.len(), "{alive:?}\n{seen:?}");
        }
        if jumped {
            // A jump from a stack above to a deeper frame looks like a call, so there are none.
            alive.truncate(alive.len() - if named { 1 } else { 2 });
            let least = alive.iter().rposition(|frame| frame.above).unwrap_or(0);
            let keep = 1 + random.below(alive.len().max(1) as u64) as usize;
            alive.truncate(keep.max(least + 1));
        }
    }
    closed
}

#[test]
fn frames_that_are_left_are_closed_and_no_others() {
    let mut random = Random(0x0123_4567_89AB_CDEF);
    let mut closed = 0;
    for round in 0..500 {
        closed += leaving(&mut random, Traits::UNWINDS, round % 3 > 0, round % 3 == 2);
    }
    assert!(closed > 2_500, "{closed}");
}

/// Feeds entries (positive) and exits of functions at these addresses, and returns what was done, in short.
fn brief(functions: &[(i32, u64)]) -> Vec<String> {
    let mut calls = Calls::new([Traits::PLAIN; 9].into(), Vec::new());
    let records: Vec<Record> = (1..)
        .zip(functions)
        .map(|(time, &(id, stack))| {
            let kind = match id > 0 {
                true => RecordKind::Entry,
                false => RecordKind::Exit,
            };
            record(time, (kind, id.unsigned_abs()), stack, id > 0)
        })
        .collect();
    let steps = feed(&mut calls, &records);
    let steps = steps.iter().map(|step| match *step {
        CallStep::Enter {
            depth,
            id,
            entered: Entered::Called,
            ..
        } => format!("{depth}>{id}"),
        CallStep::Enter {
            depth, id, entered, ..
        } => format!("{depth}>{id}{entered:?}"),
        CallStep::Leave {
            depth,
            frame,
            left: Left::Returned,
            ..
        } => format!("{depth}<{}", frame.id),
        CallStep::Leave {
            depth, frame, left, ..
        } => format!("{depth}<{}{left:?}", frame.id),
        _ => unreachable!("neither other records nor functions without exits"),
    });
    steps.collect()
}

/// The stack of a thread, and one far away.
const MAIN: u64 = 0x7000_0000_0000;
const OTHER: u64 = 0x5000_0000_0000;

#[test]
fn large_frames_that_are_left_are_no_other_stacks() {
    // 1 calls 2, which has a frame of 4 MiB and calls 3. A jump that is not recorded leads back to 1, again and again.
    let inner = MAIN - 64 - (4 << 20);
    let once = [
        (2, MAIN - 64),
        (3, inner),
        (4, inner - 64),
        (-4, inner - 64),
    ];
    let mut functions = vec![(1, MAIN)];
    for _ in 0..3 {
        functions.extend(once);
        // From another place, the frames are a little lower.
        functions.extend(once.map(|(id, stack)| (id, stack - 32)));
        functions.extend([(5, MAIN - 32), (-5, MAIN - 32)]);
    }
    functions.push((-1, MAIN));
    let steps = brief(&functions);
    let switched = steps
        .iter()
        .filter(|step| step.contains("Switched") || step.contains("Resumed"));
    assert_eq!(switched.count(), 0, "{steps:?}");
    assert_eq!(steps.last().map(String::as_str), Some("0<1"));
}

#[test]
fn a_handler_that_jumps_away_is_no_coroutine() {
    // 2 is interrupted. The handler 6 calls 7, and a jump that is not recorded leads to 1. It calls 2 again.
    let once = [
        (2, MAIN - 64),
        (6, OTHER),
        (7, OTHER - 64),
        (5, MAIN - 64),
        (-5, MAIN - 64),
    ];
    let mut functions = vec![(1, MAIN)];
    for _ in 0..3 {
        functions.extend(once);
    }
    // The handler returns, and so does what it interrupted.
    functions.extend([
        (2, MAIN - 64),
        (6, OTHER),
        (-6, OTHER),
        (-2, MAIN - 64),
        (-1, MAIN),
    ]);
    let steps = brief(&functions);
    assert!(
        !steps.iter().any(|step| step.contains("Resumed")),
        "{steps:?}"
    );
    assert_eq!(
        steps[steps.len() - 5..],
        ["1>2", "2>6", "2<6", "1<2", "0<1"]
    );
}

#[test]
fn coroutines_on_near_stacks_are_found_by_their_exits() {
    // 1 resumes a coroutine by 2. It calls 4 in 3, which yields. When 4 returns, it must have been resumed.
    let near = MAIN - (64 << 10);
    let resume = [(2, MAIN - 64)];
    let yields = [(4, near - 64), (-2, MAIN - 64)];
    let again = [(-4, near - 64), (5, near - 64), (-5, near - 64)];
    let functions = [
        &[(1, MAIN)],
        &resume[..],
        &[(3, near)],
        &yields,
        &resume,
        &again,
        &yields,
    ];
    let steps = brief(&functions.concat());
    assert_eq!(
        steps,
        [
            "0>1",
            "1>2",
            "2>3",
            "3>4",
            // They may have been left for good.
            "3<4Unwound",
            "2<3Unwound",
            "1<2",
            "1>2",
            "1<2Switched",
            "0<1Switched",
            "0>3Resumed",
            "1>4Resumed",
            "1<4",
            "1>5",
            "1<5",
            "1>4",
            "1<4Switched",
            "0<3Switched",
            "0>1Resumed",
            "1>2Resumed",
            "1<2",
        ]
    );
}

#[test]
fn coroutines_with_buffers_are_found_by_their_calls() {
    // 1 and the coroutine 3 switch to each other themselves, and call other functions below their buffers.
    let (main, coroutine) = ((6, MAIN - (10 << 10)), (5, OTHER - (8 << 10)));
    let (main, coroutine) = ([main, (-6, main.1)], [coroutine, (-5, coroutine.1)]);
    let begin = [(1, MAIN), (3, OTHER)];
    let functions = [
        &begin[..],
        &coroutine,
        &main,
        &coroutine,
        &main,
        &[(-1, MAIN)],
    ];
    let steps = brief(&functions.concat());
    let first = ["0>1", "1>3", "2>5", "2<5", "1<3Switched", "1>6", "1<6"];
    let again = ["0<1Switched", "0>3Resumed", "1>5", "1<5", "0<3Switched"];
    let back = ["0>1Resumed", "1>6", "1<6", "0<1"];
    assert_eq!(steps, [&first[..], &again, &back].concat());
}

/// The function that switches stacks.
const SWITCH: u32 = 12;

/// Runs coroutines that call, return, and switch to one another. After each entry, and after each exit that fits one
/// stack only, the open frames must be those of the stack in use. `distance`: from stack to stack. Returns how often a
/// stack was used again.
fn switching(random: &mut Random, distance: u64) -> usize {
    let traits = |id| match id {
        SWITCH => Traits::SWITCHES.and(Traits::ENTRY_ONLY),
        _ => Traits::PLAIN,
    };
    let mut calls = Calls::new((0..=SWITCH).map(traits).collect(), Vec::new());
    // By stack: its frames and their addresses, and where the next function is entered.
    let top = |stack: usize| 0x7000_0000_0000 - distance * stack as u64;
    let mut stacks: Vec<(Vec<(u32, u64)>, u64)> = (0..5).map(|at| (Vec::new(), top(at))).collect();
    let (mut now, mut resumed) = (0, 0);
    for time in 1..500 {
        let mut feed = |kind, id, stack: u64| {
            let known = kind == RecordKind::Entry;
            calls.feed(record(time, (kind, id), stack, known), |step| {
                let again = matches!(
                    step,
                    CallStep::Enter {
                        depth: 0,
                        entered: Entered::Resumed,
                        ..
                    }
                );
                resumed += usize::from(again);
            });
        };
        let mut may_wait = false;
        let (frames, next) = &mut stacks[now];
        match random.below(6) {
            // Coroutines that are left have frames.
            0 | 1 if !frames.is_empty() => {
                feed(RecordKind::Entry, SWITCH, *next);
                // It may call functions before it switches.
                for _ in 0..random.below(3) {
                    feed(RecordKind::Entry, SWITCH - 1, *next);
                    feed(RecordKind::Exit, SWITCH - 1, *next);
                }
                now = (now + 1 + random.below(4) as usize) % 5;
                continue;
            }
            2 | 3 if frames.len() > 1 => {
                let (id, stack) = frames.pop().expect("there are two");
                *next = stack;
                feed(RecordKind::Exit, id, stack);
                may_wait = distance.is_multiple_of(WINDOW_SIZE);
            }
            _ if frames.len() < 20 => {
                let id = 1 + random.below(8) as u32;
                frames.push((id, *next));
                feed(RecordKind::Entry, id, *next);
                *next -= 16 * (1 + random.below(20));
            }
            _ => continue,
        }
        if may_wait {
            continue;
        }
        let seen: Vec<_> = calls.frames().iter().map(|f| (f.id, f.stack)).collect();
        assert_eq!(seen, stacks[now].0, "time {time}, stack {now}");
    }
    resumed
}

#[test]
fn frames_belong_to_the_stack_in_use() {
    let mut random = Random(0x0123_4567_89AB_CDEF);
    let mut resumed = 0;
    for _ in 0..200 {
        // All stacks have the same bits.
        resumed += switching(&mut random, 64 << 10);
        // The bits differ.
        resumed += switching(&mut random, (64 << 10) + 3200);
    }
    assert!(resumed > 10_000, "{resumed}");
}

/// Runs coroutines that call, return, and switch to one another without a record. After each entry, the open frames
/// must be those of the stack in use. Before them may only be those of stacks from which it was begun. `distance`: from
/// stack to stack. Returns how often a stack was used again, and how often frames were taken for unwound.
fn switching_unseen(random: &mut Random, distance: u64) -> (usize, usize) {
    let mut calls = Calls::new([Traits::PLAIN; 9].into(), Vec::new());
    let top = |stack: usize| 0x7000_0000_0000 - distance * stack as u64;
    let mut stacks: Vec<(Vec<(u32, u64)>, u64)> = (0..5).map(|at| (Vec::new(), top(at))).collect();
    // The stacks that are shown as one: each was begun from the one before.
    let mut shown = vec![0];
    let (mut resumed, mut unwound) = (0, 0);
    // A switch shows by the next entry. An exit after that may look like one after the next switch.
    let mut is_seen = false;
    for time in 1..500 {
        let now = *shown.last().expect("a stack in use");
        let (frames, next) = &mut stacks[now];
        // At first, it goes to another stack, and back, and there again: that is what shows it.
        let what = match time {
            2 | 4 | 6 => 0,
            1 | 3 | 5 | 7 => 5,
            _ => random.below(6),
        };
        let (kind, id, stack) = match what {
            0 | 1 if is_seen => {
                is_seen = false;
                let to = match time {
                    2 | 4 | 6 => 1 - now,
                    _ => (now + 1 + random.below(4) as usize) % 5,
                };
                if let Some(at) = shown.iter().position(|&stack| stack == to) {
                    shown.truncate(at + 1);
                } else if stacks[to].0.is_empty() {
                    shown.push(to);
                } else {
                    shown = vec![to];
                }
                continue;
            }
            2 | 3 if frames.len() > 1 => {
                let (id, stack) = frames.pop().expect("there are two");
                *next = stack;
                (RecordKind::Exit, id, stack)
            }
            _ if frames.len() < 20 => {
                let (id, stack) = (1 + random.below(8) as u32, *next);
                frames.push((id, stack));
                *next -= 16 * (1 + random.below(20));
                (RecordKind::Entry, id, stack)
            }
            _ => continue,
        };
        let known = kind == RecordKind::Entry;
        is_seen = known;
        calls.feed(record(time, (kind, id), stack, known), |step| match step {
            CallStep::Enter {
                depth: 0,
                entered: Entered::Resumed,
                ..
            } => resumed += 1,
            CallStep::Leave {
                left: Left::Unwound,
                ..
            } => unwound += 1,
            _ => {}
        });
        if known {
            let seen: Vec<_> = calls.frames().iter().map(|f| (f.id, f.stack)).collect();
            let expected = shown.iter().flat_map(|&stack| stacks[stack].0.clone());
            assert_eq!(seen, expected.collect::<Vec<_>>(), "time {time}, {shown:?}");
        }
    }
    (resumed, unwound)
}

#[test]
fn frames_belong_to_the_stack_in_use_without_a_record_of_the_switch() {
    let mut random = Random(0x0123_4567_89AB_CDEF);
    let (mut resumed, mut unwound) = (0, 0);
    for _ in 0..200 {
        for distance in [16 << 20, (16 << 20) + 3200] {
            let seen = switching_unseen(&mut random, distance);
            resumed += seen.0;
            unwound += seen.1;
        }
    }
    assert!(resumed > 10_000, "{resumed}");
    assert_eq!(unwound, 0);
}

#[test]
fn frames_are_closed_when_others_take_their_place() {
    let mut random = Random(0x0123_4567_89AB_CDEF);
    let mut closed = 0;
    for _ in 0..300 {
        closed += leaving(&mut random, Traits::PLAIN, true, false);
    }
    assert!(closed > 1_500, "{closed}");
}
