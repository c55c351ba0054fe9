//! The tests.

use std::collections::BTreeMap;

use super::model::{self, Model};
use super::{
    BASE, BLOCK, CHUNK, COUNTER, Run, TABLE, TABLE_SIZE, adds, block, count, event, hit, state,
};
use crate::common::Random;
use crate::machine::{self, HOME, Machine, State};
use crate::{detours, isa};
use hodo_codegen::detour::{
    Action, Arithmetic, Atom, Bits, Call, Comparison, Counter, Deed, Fetch, HEAD, Histogram, Key,
    Part, Source, Test, Text, When,
};

/// Rounds of each test.
const ROUNDS: usize = 200;

#[test]
fn hits_are_counted_and_nothing_else_changes() {
    let mut machine = Machine::new();
    let mut random = Random(1);
    for round in 0..ROUNDS {
        let action = match round % 3 {
            0 => count(),
            1 => Action::Count(Counter::Shared { base: 88, at: 40 }),
            _ => block(
                None,
                Vec::new(),
                vec![Deed::Count(Counter::Thread(COUNTER))],
            ),
        };
        let at = match round % 3 {
            1 => BASE + 40,
            _ => BLOCK.wrapping_add_signed(COUNTER.into()),
        };
        let before = state(&mut random);
        let run = Run::new(&mut machine, &[hit(4, &action, &mut random)], &before);
        let mut expected = before.clone();
        adds(&mut expected);
        model::add(&mut expected, at, 1);
        run.check(&expected);
    }
}

#[test]
fn system_calls_are_told_apart_by_their_numbers() {
    const ENOSYS: i64 = -38;
    // `getuid`, `geteuid`, and one that there is not.
    let numbers = [174, 175, 9999];
    let shared = |at| Action::Count(Counter::Shared { base: 88, at });
    let mut machine = Machine::new();
    let mut random = Random(9);
    for round in 0..ROUNDS {
        let calls = numbers.iter().zip(0..).map(|(&number, index)| {
            let mut actions = |at: i32| match random.below(3) {
                0 => Vec::new(),
                _ => vec![shared(at + 16 * index), shared(at + 16 * index)],
            };
            Call {
                number,
                enter: actions(0),
                exit: actions(8),
            }
        });
        let calls: Vec<Call> = calls.collect();
        let action = Action::Calls(calls.clone());
        let mut before = state(&mut random);
        let chosen = round % 4;
        let number = numbers.get(chosen).copied().unwrap_or(9998);
        before.x[isa::NUMBER] = number.into();
        let run = Run::call(&mut machine, &[hit(0, &action, &mut random)], &before);
        let mut expected = before.clone();
        *isa::pc(&mut expected) = HOME + 4;
        // SAFETY: it has no effect.
        let user = unsafe { libc::getuid() };
        expected.x[isa::RESULT] = match chosen {
            0 | 1 => user.into(),
            _ => ENOSYS.cast_unsigned(),
        };
        if let Some(call) = calls.get(chosen) {
            for (actions, at) in [(&call.enter, 0), (&call.exit, 8)] {
                model::add(
                    &mut expected,
                    BASE + 16 * chosen as u64 + at,
                    actions.len() as u64,
                );
            }
        }
        run.check(&expected);
    }
}

#[test]
fn conditions_are_what_they_are_in_c() {
    let mut machine = Machine::new();
    let mut random = Random(2);
    let mut yes = 0;
    for _ in 0..4 * ROUNDS {
        let before = state(&mut random);
        let values = model::values(&mut random, false);
        let condition = model::condition(&mut random, &values, 4);
        let deeds = vec![Deed::Count(Counter::Thread(COUNTER))];
        let action = block(Some(condition.clone()), values.clone(), deeds);
        let run = Run::new(&mut machine, &[hit(0, &action, &mut random)], &before);
        let holds = Model::new(&before, &values).number(&condition);
        let holds = holds.is_some_and(|number| number != 0);
        yes += usize::from(holds);
        let mut expected = before.clone();
        let counter = BLOCK.wrapping_add_signed(COUNTER.into());
        model::add(&mut expected, counter, holds.into());
        adds(&mut expected);
        run.check(&expected);
    }
    assert!((ROUNDS / 2..ROUNDS * 7 / 2).contains(&yes), "{yes}");
}

#[test]
fn events_have_the_values() {
    let mut machine = Machine::new();
    let mut random = Random(3);
    for round in 0..2 * ROUNDS {
        let before = state(&mut random);
        let values = model::values(&mut random, true);
        let event = event(values.clone(), round % 2 == 0);
        let gate = (round % 4 == 2).then_some(3);
        let action = match round % 3 {
            0 => Action::Record(event.clone()),
            _ => {
                let deeds = vec![Deed::Record(event.clone(), gate, round % 3 == 1)];
                let condition = (round % 3 == 1).then(|| {
                    let value = Test::Value(0, Bits::ALL);
                    let zero = Box::new(Test::Number(0));
                    let one = Test::Compare(Comparison::Equal, false, Box::new(value), zero);
                    Test::Or(Box::new(one), Box::new(Test::Number(1)))
                });
                block(condition, values.clone(), deeds)
            }
        };
        let mut before = before;
        model::set(&mut before, BASE, 0x0100_0000 * (round as u64 / 4 % 2));
        let run = Run::new(&mut machine, &[hit(0, &action, &mut random)], &before);
        let mut expected = before.clone();
        adds(&mut expected);
        let closed = gate.is_some() && round % 3 != 0 && round / 4 % 2 == 0;
        // The condition cannot be told if its value cannot be read.
        let unread = round % 3 == 1
            && Model::new(&before, &values)
                .number(&Test::Value(0, Bits::ALL))
                .is_none();
        if !closed && !unread {
            let words = Model::new(&before, &values).event(&event);
            for (word, at) in words.iter().zip((CHUNK..).step_by(8)) {
                model::set(&mut expected, at, *word);
            }
            if event.timed {
                let time = run.word(CHUNK) as u32;
                assert_ne!(time, 0);
                model::add(&mut expected, CHUNK, time.into());
            }
            model::add(&mut expected, BLOCK, 8 * words.len() as u64);
        }
        run.check(&expected);
    }
}

#[test]
fn texts_are_compared_and_fitted() {
    let mut machine = Machine::new();
    let mut random = Random(4);
    let mut yes = 0;
    for round in 0..4 * ROUNDS {
        let mut before = state(&mut random);
        let text = model::text(&mut random);
        model::put(&mut before, detours::DATA, &text);
        let other = match random.below(2) {
            0 => text.clone(),
            _ => model::text(&mut random),
        };
        model::put(&mut before, detours::DATA + 512, &other);
        model::put(&mut before, BLOCK + 224, &other[..other.len().min(15)]);
        let values = vec![
            Fetch::Text(Source::Number(detours::DATA), 0),
            Fetch::Text(Source::Number(detours::DATA + 512 - 7), 7),
        ];
        let condition = match round % 5 {
            0 => Test::Same(Text::Value(0), Text::Value(1)),
            1 => Test::Same(Text::Fixed(other.clone()), Text::Value(0)),
            2 => Test::Same(Text::Value(0), Text::Thread(224)),
            _ => Test::Fits(
                Text::Value(0),
                Atom::pattern(&model::pattern(&mut random, &text)),
            ),
        };
        let condition = match random.below(2) {
            0 => condition,
            _ => Test::Not(Box::new(condition)),
        };
        let deeds = vec![Deed::Count(Counter::Thread(COUNTER))];
        let action = block(Some(condition.clone()), values.clone(), deeds);
        let run = Run::new(&mut machine, &[hit(4, &action, &mut random)], &before);
        let holds = Model::new(&before, &values).number(&condition) == Some(1);
        yes += usize::from(holds);
        let mut expected = before.clone();
        let counter = BLOCK.wrapping_add_signed(COUNTER.into());
        model::add(&mut expected, counter, holds.into());
        adds(&mut expected);
        run.check(&expected);
    }
    assert!((ROUNDS..ROUNDS * 3).contains(&yes), "{yes}");
}

/// The keys of a histogram, one of six kinds, and the number of its entries.
fn keys(kind: u32) -> (Vec<Key>, u32) {
    let number = || Test::Value(0, Bits::ALL);
    // Of some numbers a division by zero.
    let divided = || {
        let (number, three) = (Box::new(number()), Box::new(Test::Number(3)));
        let by = Test::Combine(Arithmetic::And, false, number.clone(), three);
        Test::Combine(Arithmetic::Divide, false, number, Box::new(by))
    };
    match kind {
        0 => (vec![Key::Number(number(), Part::Each)], 12),
        1 => (vec![Key::Number(number(), Part::Log2)], 12),
        2 => (vec![Key::Number(number(), Part::Linear(10, true))], 12),
        3 => (vec![Key::Number(number(), Part::Linear(10, false))], 12),
        4 => (vec![Key::Text(Text::Value(1))], 2),
        _ => {
            let keys = [number(), divided()].map(|number| Key::Number(number, Part::Each));
            (keys.into(), 12)
        }
    }
}

/// The key, and the number that is added: nothing if one of them cannot be computed.
fn entry(now: &State, values: &[Fetch], keys: &[Key]) -> Option<(Vec<u64>, u64)> {
    let model = Model::new(now, values);
    let part = |key: &Key| match key {
        Key::Number(test, part) => Some(vec![model::part(model.number(test)?, *part)]),
        _ => Some(model.text_words(1)),
    };
    let key: Option<Vec<_>> = keys.iter().map(part).collect();
    Some((key?.concat(), model.number(&Test::Value(2, Bits::ALL))?))
}

/// Chooses what the histogram's values read.
fn choose_values(now: &mut State, random: &mut Random) {
    now.x[12] = match random.below(3) {
        0 => random.next(),
        1 => random.below(4).wrapping_neg(),
        _ => random.below(40),
    };
    now.x[13] = detours::DATA + 16 * random.below(3);
    for index in 0..3u8 {
        let text = [b'a' + index, 0];
        model::put(now, detours::DATA + 16 * u64::from(index), &text);
    }
    now.x[14] = match random.below(8) {
        0 => 8,
        _ => detours::DATA + 256,
    };
    model::set(now, detours::DATA + 256, random.below(100));
}

#[test]
fn histograms_count_by_their_keys() {
    let mut machine = Machine::new();
    let mut random = Random(5);
    let a2 = || Fetch::Word(Source::Register(12));
    let a3 = Fetch::Text(Source::Register(13), 0);
    for round in 0..48u32 {
        let values = vec![a2(), a3.clone(), Fetch::Load(Source::Register(14), 0, 8)];
        let (keys, size) = keys(round % 6);
        let histogram = Histogram {
            table: (TABLE - BASE) as i64,
            size,
            keys: keys.clone(),
            sums: vec![Test::Value(2, Bits::ALL)],
        };
        let words = histogram.words();
        let slots = Histogram::slots(histogram.size);
        assert!(histogram.bytes() <= TABLE_SIZE);
        let deeds = vec![Deed::Histogram(histogram.clone())];
        let action = block(None, values.clone(), deeds);
        let mut now = state(&mut random);
        let mut seen: BTreeMap<Vec<u64>, (u64, u64)> = BTreeMap::new();
        let (mut full, mut unread) = (0, 0);
        for _ in 0..60 {
            choose_values(&mut now, &mut random);
            let run = Run::new(&mut machine, &[hit(0, &action, &mut random)], &now);
            let has_room = seen.len() < histogram.size as usize;
            match entry(&now, &values, &keys) {
                None => unread += 1,
                Some((key, _)) if !has_room && !seen.contains_key(&key) => full += 1,
                Some((key, sum)) => {
                    let entry = seen.entry(key).or_default();
                    *entry = (entry.0 + 1, entry.1 + sum);
                }
            }
            let memory = run.memory();
            now.memory.copy_from_slice(memory);
        }
        let word = |at: u64| model::get(&now, TABLE + at);
        assert_eq!(
            (word(0), word(8), word(16)),
            (seen.len() as u64, full, unread)
        );
        let mut found = BTreeMap::new();
        for slot in 0..slots {
            let at = HEAD + slot * words.slot();
            if word(at) != 0 {
                let key = (0..words.keys as u64).map(|key| word(at + 24 + 8 * key));
                found.insert(key.collect::<Vec<_>>(), (word(at + 8), word(at + 16)));
            }
        }
        assert_eq!(found, seen, "round {round}");
    }
}

#[test]
fn switches_names_and_returns() {
    let mut machine = Machine::new();
    let mut random = Random(6);
    for round in 0..ROUNDS as u64 {
        let mut before = state(&mut random);
        let text = model::text(&mut random);
        model::put(&mut before, detours::DATA, &text);
        model::set(&mut before, BASE, random.below(2) << 16);
        let on = random.below(2) == 1;
        let off = round % 5 == 0;
        let action = Action::Block(Box::new(hodo_codegen::detour::Block {
            switch: off.then_some(17),
            ..match block(
                None,
                Vec::new(),
                vec![
                    Deed::Switch(2, on),
                    Deed::Name(Source::Number(detours::DATA), 224),
                    Deed::Return(0x1_2345_6789),
                ],
            ) {
                Action::Block(block) => *block,
                _ => panic!("a block"),
            }
        }));
        before.x[isa::LINK] = machine::HOME + 0x1000;
        let run = Run::new(&mut machine, &[hit(0, &action, &mut random)], &before);
        let mut expected = before.clone();
        if off {
            adds(&mut expected);
        } else {
            model::set(&mut expected, BASE, u64::from(on) << 16);
            let mut name = text[..text.len().min(15)].to_vec();
            name.resize(16, 0);
            model::put_exactly(&mut expected, BLOCK + 224, &name);
            expected.x[isa::RESULT] = 0x1_2345_6789;
            *isa::pc(&mut expected) = before.x[isa::LINK];
        }
        run.check(&expected);
    }
}

#[test]
fn functions_return_to_probes() {
    let mut machine = Machine::new();
    let mut random = Random(7);
    for round in 0..ROUNDS {
        let before = detours::with_shadow(state(&mut random), round % 7 != 0);
        let returned = event(
            vec![
                Fetch::Word(Source::Register(isa::RESULT as u8)),
                Fetch::Word(Source::Register(isa::STACK as u8)),
                Fetch::Word(Source::Caller(detours::DISTANCE)),
            ],
            false,
        );
        let returned = Action::Record(returned);
        let missed = Action::Count(Counter::Thread(COUNTER + 8));
        let hits = count();
        let mut probes = vec![hit(0, &hits, &mut random)];
        let free = probes[0].free;
        for (when, action) in [(When::Return, &returned), (When::Missed, &missed)] {
            let mut probe = hit(0, action, &mut random);
            probe.when = when;
            probe.free = free;
            probes.push(probe);
        }
        let run = Run::function(&mut machine, &probes, &before);
        let mut expected = before.clone();
        adds(&mut expected);
        *isa::pc(&mut expected) = before.x[isa::LINK];
        let counter = BLOCK.wrapping_add_signed(COUNTER.into());
        model::add(&mut expected, counter, 1);
        if round % 7 == 0 {
            model::add(&mut expected, counter + 8, 1);
        } else {
            let stack = before.x[isa::STACK];
            let values = [expected.x[isa::RESULT], stack, before.x[isa::LINK]];
            let head = detours::head(values.len(), 0, 0);
            for (word, at) in head.iter().chain(&values).zip((CHUNK..).step_by(8)) {
                model::set(&mut expected, at, *word);
            }
            model::add(&mut expected, BLOCK, 8 * (head.len() + values.len()) as u64);
            model::set(
                &mut expected,
                stack - detours::DISTANCE,
                before.x[isa::LINK],
            );
        }
        run.check(&expected);
    }
}

#[test]
fn the_runtime_is_asked_for_time_and_room() {
    let mut machine = Machine::new();
    let mut random = Random(8);
    for round in 0..ROUNDS as u64 {
        let mut before = state(&mut random);
        let (late, full) = (round % 2 == 0, round % 3 == 0);
        if late {
            let at = BLOCK + u64::from(detours::EPOCH_END);
            model::set(&mut before, at, 0);
        }
        if full {
            model::set(&mut before, BLOCK, detours::CHUNK_END - 8);
        }
        let values = vec![Fetch::Word(Source::Here); 3];
        let event = event(values.clone(), true);
        let action = Action::Record(event.clone());
        let run = Run::new(&mut machine, &[hit(0, &action, &mut random)], &before);
        assert_eq!(run.called, [usize::from(late), usize::from(full), 0]);
        // A place for a record comes first in a new chunk.
        let start = CHUNK + if full { 8 } else { 0 };
        let mut expected = before.clone();
        adds(&mut expected);
        let words = Model::new(&before, &values).event(&event);
        for (word, at) in words.iter().zip((start..).step_by(8)) {
            model::set(&mut expected, at, *word);
        }
        model::add(&mut expected, start, (run.word(start) as u32).into());
        model::set(&mut expected, BLOCK, start + 8 * words.len() as u64);
        model::set(
            &mut expected,
            BLOCK + u64::from(detours::EPOCH_END),
            u64::MAX,
        );
        run.check(&expected);
    }
}

/// Two functions, of which the first one ends in a jump to the second: return probes on both.
#[test]
fn functions_that_are_jumped_to_return_where_they_should() {
    use hodo_codegen::detour::Place;

    const FIRST: u64 = machine::HOME;
    const SECOND: u64 = machine::HOME + 0x100;
    const DETOURS: [u64; 2] = [machine::AWAY, machine::AWAY + 0x1000];
    let first = [isa::ADD_FIRST, isa::JUMP_FC].concat();
    let second = [isa::ADD_SECOND, isa::RET].concat();
    let mut machine = Machine::new();
    let mut random = Random(9);
    for round in 0..ROUNDS as u64 {
        let counter = |number: i32| Action::Count(Counter::Thread(COUNTER + 8 * number));
        let actions: Vec<_> = (0..4).map(counter).collect();
        let before = detours::with_shadow(state(&mut random), true);
        let mut made = Vec::new();
        for (index, (code, at)) in [(&first, FIRST), (&second, SECOND)].into_iter().enumerate() {
            let mut probes = Vec::new();
            for (when, action) in [(When::Return, 0), (When::Missed, 1)] {
                let mut probe = hit(0, &actions[2 * index + action], &mut random);
                probe.when = when;
                probe.free = 0;
                probes.push(probe);
            }
            let place = Place {
                back: isa::BACK,
                dead: &|_| isa::DEAD,
                ..Place::new(code, at, at + 8)
            };
            let (bytes, detour) = detours::detour(&place, DETOURS[index], &probes);
            machine.place(DETOURS[index], &bytes);
            made.push(detour);
        }
        let jump = isa::jump(SECOND, DETOURS[1]);
        machine.place(SECOND, &jump);
        // A full list, at times: four entries.
        let mut before = before;
        let full = round % 4 == 1;
        if full {
            model::add(&mut before, BLOCK + 240, 64);
        }
        let mut run = Run::follow(&mut machine, DETOURS[0], &before, &[&made[0], &made[1]]);
        run.allow(isa::DEAD);
        // Functions need not preserve them.
        run.allow_flags();
        let mut expected = before.clone();
        expected.x[isa::RESULT] = expected.x[isa::RESULT].wrapping_add(1);
        expected.x[isa::SECOND] = expected.x[isa::SECOND].wrapping_add(1);
        *isa::pc(&mut expected) = before.x[isa::LINK];
        let at = BLOCK.wrapping_add_signed(COUNTER.into());
        model::add(&mut expected, at, 1);
        model::add(&mut expected, at + if full { 24 } else { 16 }, 1);
        model::set(
            &mut expected,
            before.x[isa::STACK] - detours::DISTANCE,
            before.x[isa::LINK],
        );
        if !full {
            // What was kept for the second one: where the first one's detour goes on, and a stack pointer that is 0
            // again.
            let kept = run.word(BLOCK + 0x188);
            assert!(
                (DETOURS[0]..DETOURS[0] + 0x1000).contains(&kept),
                "{kept:#x}"
            );
            model::set(&mut expected, BLOCK + 0x188, kept);
        }
        run.check(&expected);
        for at in DETOURS {
            machine.clear(at, 0x1000);
        }
        machine.clear(SECOND, 8);
    }
}

/// Calls of a function with a counting probe, in a loop and in the handler of a signal that comes all the time.
mod counted {
    use crate::isa;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    /// The function.
    pub static CODE: AtomicUsize = AtomicUsize::new(0);
    static HANDLED: AtomicU64 = AtomicU64::new(0);

    fn call() -> u64 {
        // SAFETY: code that adds one to its argument and returns; the probe keeps all but what this gives away.
        unsafe { isa::call(CODE.load(Ordering::Relaxed), 41) }
    }

    extern "C" fn handler(_: libc::c_int) {
        if call() == 42 {
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the signal again after each time of this length in microseconds; 0: no longer.
    fn every(micros: i64) {
        let time = libc::timeval {
            tv_sec: 0,
            tv_usec: micros,
        };
        let timer = libc::itimerval {
            it_interval: time,
            it_value: time,
        };
        // SAFETY: a timer of the process.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    }

    /// Makes the calls in a process with one thread, whose control block this is. Returns its exit status: 1 if too
    /// few signals came, 2 if the counter differs from the calls.
    ///
    /// # Safety
    ///
    /// The code, its control block and its counter are there.
    pub unsafe fn calls(block: u64, counter: *mut u64) -> i32 {
        // SAFETY: libc does not use the word below the thread pointer; the handler only calls the code.
        unsafe {
            isa::set_block(block);
            counter.write(0);
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler as *const () as usize;
            libc::sigaction(libc::SIGALRM, &new, std::ptr::null_mut());
        }
        every(50);
        let mut calls = 0u64;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            for _ in 0..1000 {
                calls += u64::from(call() == 42);
            }
        }
        every(0);
        let handled = HANDLED.load(Ordering::Relaxed);
        // SAFETY: as above.
        let count = unsafe { counter.read_volatile() };
        let exact = count == calls + handled && calls.is_multiple_of(1000);
        match (exact, handled) {
            (true, 11..) => 0,
            (true, _) => 1,
            (false, _) => 2,
        }
    }
}

#[test]
fn hits_of_signal_handlers_are_counted_too() {
    use hodo_codegen::detour::Place;

    // One thread runs code at a time; the memory of the tests is there.
    let mut machine = Machine::new();
    let action = count();
    let mut random = Random(10);
    let mut probe = hit(0, &action, &mut random);
    probe.free = 0;
    let code = [isa::ADD_FIRST, isa::RET].concat();
    let place = Place {
        back: isa::BACK,
        ..Place::new(&code, machine::HOME, machine::HOME + 8)
    };
    let (bytes, _) = detours::detour(&place, machine::AWAY, &[probe]);
    machine.place(machine::AWAY, &bytes);
    counted::CODE.store(machine::AWAY as usize, std::sync::atomic::Ordering::Relaxed);
    let counter = BLOCK.wrapping_add_signed(COUNTER.into()) as *mut u64;
    // SAFETY: memory of the tests. The child has one thread, and calls nothing but code of the tests and the kernel.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(counted::calls(BLOCK, counter));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "1: few signals; 2: another count"
    );
    machine.clear(machine::AWAY, bytes.len());
}
