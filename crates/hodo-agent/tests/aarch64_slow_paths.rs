//! Calls the slow paths as stubs on AArch64 do, with all registers and the flags in use. `scripts/cross.sh` runs this
//! under an emulator.
#![cfg(target_arch = "aarch64")]

#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;
#[path = "aarch64/stub.rs"]
mod stub;

use std::cell::RefCell;
use std::ptr;

use hodo_trace::format::{
    BUCKET_SIZE, CHUNK_HEADER_SIZE, CHUNK_MAGIC, CHUNK_SIZE, CONTROL_SIZE, RECORD_SIZE,
    SHADOW_DISTANCE, WINDOW_SIZE, chunk_header, file_header, record, tcb,
};
use skipped::skip;
use stub::{Call, LINK, World, unmap};

/// The words that stubs compare with S, and how much each is lower.
const WINDOWS: [(u64, u64); 3] = [
    (tcb::WINDOW, 0),
    (tcb::LOWERED_WINDOWS, 16),
    (tcb::LOWERED_WINDOWS + 8, 32),
];

/// What a window begins at a multiple of.
const UNIT: u64 = 1 << record::WINDOW_SHIFT;

const fn special(id: u32) -> u32 {
    record::SPECIAL << record::KIND_SHIFT | id
}

/// The upper half of a record without its stack bits.
fn what(word: u64) -> u32 {
    (word >> 32) as u32 & ((1 << record::SP_SHIFT) - 1)
}

/// The start of the window that a record of one names.
fn window(word: u64) -> u64 {
    let upper = word >> (32 + record::SP_SHIFT);
    (upper << 32 | word & 0xFFFF_FFFF) << record::WINDOW_SHIFT
}

/// The stack bits of a record at a frame.
fn bits(s: u64) -> u64 {
    (s >> 4 & ((1 << record::SP_BITS) - 1)) << (32 + record::SP_SHIFT)
}

#[test]
fn a_new_chunk_has_a_header_and_a_first_place() {
    let mut world = World::new(2);
    // The task is the upper half of the epoch's word.
    world.put(tcb::EPOCH, 5 | 7 << 32);
    world.put(tcb::SEQ, 9 | 1 << 32);
    for (word, _) in WINDOWS {
        world.put(word, 0x1234);
    }
    let place = world.call(&Call::of(world.agent.chunk)).result;
    let chunk = world.base + CONTROL_SIZE;
    assert_eq!(place, chunk + CHUNK_HEADER_SIZE);
    assert_eq!(world.get(tcb::CURSOR), place + RECORD_SIZE);
    assert_eq!(world.get(tcb::LIMIT), chunk + CHUNK_SIZE - 8 * RECORD_SIZE);
    assert_eq!(world.get(tcb::SEQ), 10 | 1 << 32);
    for (word, _) in WINDOWS {
        assert_eq!(world.get(word), 0);
    }
    let header = |at: u64| (world.word(chunk + at / 8 * 8) >> (at % 8 * 8)) as u32;
    assert_eq!(header(chunk_header::MAGIC), CHUNK_MAGIC);
    assert_eq!(header(chunk_header::SEQ), 9);
    assert_eq!(header(chunk_header::TASK), 7);
    assert_eq!(header(chunk_header::EPOCH), 5);
}

#[test]
fn without_chunks_records_go_round_in_the_bucket() {
    let mut world = World::new(1);
    let bucket = world.base + CONTROL_SIZE - (64 << 10);
    world.put(tcb::BUCKET, bucket);
    let call = Call::of(world.agent.chunk);
    assert_ne!(world.call(&call).result, bucket);
    for round in 0..3 {
        assert_eq!(world.call(&call).result, bucket);
        assert_eq!(world.get(tcb::CURSOR), bucket + RECORD_SIZE);
        assert_eq!(world.get(tcb::LIMIT), bucket + BUCKET_SIZE);
        assert_eq!(world.get(tcb::LOST), round * BUCKET_SIZE / RECORD_SIZE);
    }
    // Nor without a recorder.
    let mut world = World::new(4);
    world.put(tcb::BUCKET, bucket);
    let owner = u64::from(file_header::OWNER_DIED) | 1234;
    world.set(world.base + file_header::OWNER, owner);
    assert_eq!(world.call(&Call::of(world.agent.chunk)).result, bucket);
    assert_eq!(world.word(world.base + file_header::NEXT_CHUNK), 0);
}

#[test]
fn every_register_may_have_each_part() {
    let mut world = World::new(400);
    let mut expected = world.base + CONTROL_SIZE + CHUNK_HEADER_SIZE;
    for block in 0..=17 {
        for result in (0..=17).filter(|&result| result != block) {
            let call = Call {
                block,
                result,
                lowered: result as u64,
                ..Call::of(world.agent.chunk)
            };
            assert_eq!(world.call(&call).result, expected, "{block} {result}");
            expected += CHUNK_SIZE;
        }
    }
}

#[test]
fn another_upper_half_of_the_time_is_recorded() {
    for time in (0..=17).chain([LINK]) {
        let mut world = World::new(1);
        let block = if time == 3 { 4 } else { 3 };
        let result = (5..).find(|result| *result != time).expect("one");
        let mut call = Call {
            block,
            time,
            result,
            ..Call::of(world.agent.epoch)
        };
        call.registers[time] = 0x12_3456_789A;
        world.call_for_nothing(&call);
        assert_eq!(
            world.records(),
            [u64::from(special(record::SPECIAL_EPOCH)) << 32 | 0x12]
        );
        assert_eq!(world.get(tcb::EPOCH) as u32, 0x12);
        assert_eq!(world.get(tcb::EPOCH_END), 0x13 << 32);
    }
}

#[test]
fn return_addresses_in_islands_are_recognized() {
    let tail = 5 | record::TAIL << record::KIND_SHIFT;
    for (timed, epoch) in [(false, 0), (true, u64::MAX), (true, 0)] {
        let mut world = World::new(1);
        world.put(tcb::EPOCH_END, epoch);
        for (word, value) in [
            (tcb::ISLAND0_LO, 0x10_0000),
            (tcb::ISLAND0_LEN, 0x1000),
            (tcb::ISLAND1_LO, 0x30_0000),
            (tcb::ISLAND1_LEN, 0x2000),
        ] {
            world.put(word, value);
        }
        let mut call = Call {
            words: vec![tail],
            timed,
            lowered: 3,
            ..Call::of(world.agent.tail)
        };
        let mut frames = Vec::new();
        for (back, inside) in [
            (0x0F_FFFC, false),
            (0x10_0000, true),
            (0x10_0FFC, true),
            (0x10_1000, false),
            (0x2F_FFFC, false),
            (0x30_1FFC, true),
            (0x30_2000, false),
        ] {
            call.registers[LINK] = back;
            let end = world.call(&call);
            assert_eq!(end.result, u64::from(inside), "{back:#x}");
            if inside {
                frames.push(end.s);
            }
        }
        let records = world.records();
        let epochs = usize::from(timed && epoch == 0);
        assert_eq!(records.len(), 3 + epochs);
        if epochs == 1 {
            assert_eq!(what(records[0]), special(record::SPECIAL_EPOCH));
        }
        for (found, s) in records[epochs..].iter().zip(frames) {
            assert_eq!(found >> 32 << 32, u64::from(tail) << 32 | bits(s));
            assert_eq!(*found as u32 != 0, timed);
        }
    }
}

/// The upper half of a record of an entry.
const ENTRY: u32 = 6;

/// A call for a shadow.
fn shadow(world: &World) -> Call {
    Call {
        words: vec![ENTRY],
        lowered: 2,
        ..Call::of(world.agent.shadow)
    }
}

#[track_caller]
fn assert_window(world: &World, lo: u64, s: u64) {
    let at = world.get(tcb::WINDOW);
    assert!(at >= lo && (at..at + WINDOW_SIZE).contains(&s), "{at:#x}");
    for (word, lower) in WINDOWS {
        assert_eq!(world.get(word), at - lower);
    }
    let records = world.records();
    let last = records.last().expect("a record");
    assert_eq!(what(*last), special(record::SPECIAL_WINDOW));
    assert_eq!(window(*last), at & !(UNIT - 1));
}

#[test]
fn a_stack_whose_shadow_is_known_has_a_window() {
    let mut world = World::new(1);
    let mut call = shadow(&world);
    let s = world.s(&call);
    let lo = s - (1 << 20);
    world.put(tcb::SHADOW_LO, lo);
    world.put(tcb::SHADOW_LEN, 2 << 20);
    assert_eq!(world.call(&call).result, 0);
    // A chunk was needed in between, after which the window counts for nothing.
    assert_eq!(world.records().len(), 2);
    assert_window(&world, lo, s);
    // Without a record, the window stays.
    for (word, _) in WINDOWS {
        world.put(word, 0x1234);
    }
    call.words = vec![0];
    assert_eq!(world.call(&call).result, 0);
    assert_eq!(world.records().len(), 2);
    assert_eq!(world.get(tcb::WINDOW), 0x1234);
    // Only the window.
    let call = Call::of(world.agent.window);
    let s = world.s(&call);
    world.call_for_nothing(&call);
    assert_window(&world, lo, s);
    // At the ends of the range.
    for (lo, len) in [
        (s & !(UNIT - 1), 1 << 20),
        (s + 16 - (1 << 20), 1 << 20),
        (s - 4096, WINDOW_SIZE),
    ] {
        world.put(tcb::SHADOW_LO, lo);
        world.put(tcb::SHADOW_LEN, len);
        world.call_for_nothing(&call);
        let at = world.get(tcb::WINDOW);
        assert!(
            at >= lo & !(UNIT - 1) && at + WINDOW_SIZE <= lo + len,
            "{at:#x}"
        );
        assert_eq!(window(*world.records().last().expect("one")), at);
    }
}

#[test]
fn ranges_that_the_controller_has_mapped_are_found() {
    for (start, len) in [
        (tcb::REGION0_LO, tcb::REGION0_LEN),
        (tcb::REGION1_LO, tcb::REGION1_LEN),
    ] {
        let mut world = World::new(1);
        let call = shadow(&world);
        let s = world.s(&call);
        world.put(start, s - (1 << 20));
        world.put(len, 4 << 20);
        assert_eq!(world.call(&call).result, 0);
        assert_eq!(world.get(tcb::SHADOW_LO), s - (1 << 20));
        assert_eq!(world.get(tcb::SHADOW_LEN), 4 << 20);
        assert_eq!(world.get(tcb::SHADOW_BUSY), 0);
        assert_window(&world, s - (1 << 20), s);
    }
}

#[test]
fn the_shadow_of_another_stack_is_mapped() {
    const PIECE: u64 = 1 << 20;
    let mut world = World::new(1);
    let call = shadow(&world);
    let s = world.s(&call);
    let piece = (s - SHADOW_DISTANCE) & !(PIECE - 1);
    assert_eq!(world.call(&call).result, 0);
    assert_eq!(world.get(tcb::SHADOW_LO), piece + SHADOW_DISTANCE);
    assert_eq!(world.get(tcb::SHADOW_LEN), PIECE);
    // It is there.
    world.set(s - SHADOW_DISTANCE, 1);
    // Another thread finds it mapped. So it knows it, and joins it to what is next to it.
    world.find_mapped();
    for (lo, len) in [
        (piece + PIECE, PIECE),
        (piece - PIECE, PIECE),
        (piece - 9 * PIECE, PIECE),
    ] {
        world.put(tcb::SHADOW_LO, lo + SHADOW_DISTANCE);
        world.put(tcb::SHADOW_LEN, len);
        assert_eq!(world.call(&call).result, 0);
        let next_to = lo.abs_diff(piece) == PIECE;
        let start = if next_to { lo.min(piece) } else { piece };
        assert_eq!(world.get(tcb::SHADOW_LO), start + SHADOW_DISTANCE);
        let expected = if next_to { 2 * PIECE } else { PIECE };
        assert_eq!(world.get(tcb::SHADOW_LEN), expected);
    }
    unmap(piece, PIECE);
    assert_eq!(world.get(tcb::UNSHADOWED), 0);
}

#[test]
fn pieces_that_are_mapped_are_listed() {
    const PIECE: u64 = 1 << 20;
    let mut world = World::new(1);
    let call = shadow(&world);
    let piece = (world.s(&call) - SHADOW_DISTANCE) & !(PIECE - 1);
    // The first range, whose shadow has the list after it, is elsewhere.
    let list = stub::map(4096, libc::PROT_READ | libc::PROT_WRITE);
    world.put(tcb::REGION0_LO, list + SHADOW_DISTANCE - 4096);
    world.put(tcb::REGION0_LEN, 4096);
    let last = list + 4096 - 8;
    assert_eq!(world.call(&call).result, 0);
    assert_eq!(world.word(last), piece);
    // It is found there, without a system call.
    world.put(tcb::SHADOW_LEN, 0);
    world.put(tcb::FLAGS, tcb::NO_CALLS);
    assert_eq!(world.call(&call).result, 0);
    assert_eq!(world.word(last - 8), 0);
    assert_eq!(world.get(tcb::SHADOW_LEN), PIECE);
    // Memory of the program is there: no shadow.
    world.find_mapped();
    world.put(tcb::SHADOW_LEN, 0);
    world.put(tcb::FLAGS, 0);
    world.set(last, 0);
    assert_eq!(world.call(&call).result, 1);
    assert_eq!(world.word(last), 0);
    // Another thread maps it at this moment, and never says so.
    world.set(last - 8, piece + 1);
    assert_eq!(world.call(&call).result, 1);
    assert_eq!(world.word(last), 0);
    assert_eq!(world.get(tcb::UNSHADOWED), 2);
    unmap(piece, PIECE);
}

#[test]
fn without_a_shadow_the_entry_is_recorded_with_its_stack() {
    for (words, flags, handed_on) in [
        (vec![ENTRY], tcb::NO_CALLS, false),
        (vec![0], tcb::NO_CALLS, false),
        (vec![ENTRY], 0, true),
    ] {
        let mut world = World::new(1);
        world.put(tcb::FLAGS, flags);
        let call = Call {
            words: words.clone(),
            ..shadow(&world)
        };
        let s = world.s(&call);
        if handed_on {
            world.put(tcb::HANDED_ON, s);
            world.put(tcb::HANDED_ON + 8, call.registers[LINK]);
        }
        assert_eq!(world.call(&call).result, 1);
        assert_eq!(world.get(tcb::UNSHADOWED), u64::from(!handed_on));
        assert_eq!(world.get(tcb::HANDED_ON), 0);
        let records = world.records();
        if words[0] == 0 {
            assert!(records.is_empty());
            continue;
        }
        assert_eq!(records.len(), 2);
        assert_eq!(what(records[0]), special(record::SPECIAL_STACK));
        assert_eq!(window(records[0]), s & !(UNIT - 1));
        assert_eq!(records[1], u64::from(ENTRY) << 32 | bits(s));
        assert_eq!(world.get(tcb::WINDOW), 0);
    }
    // Handed on to another frame, or with another return address.
    for (frame, back) in [(16, 0), (0, 4)] {
        let mut world = World::new(1);
        world.put(tcb::FLAGS, tcb::NO_CALLS);
        let call = shadow(&world);
        world.put(tcb::HANDED_ON, world.s(&call) + frame);
        world.put(tcb::HANDED_ON + 8, call.registers[LINK] + back);
        assert_eq!(world.call(&call).result, 1);
        assert_eq!(world.get(tcb::UNSHADOWED), 1);
    }
}

#[test]
fn a_frame_that_has_moved_is_found_again() {
    for (distance, found) in [(-64i64, true), (48, true), (8, true), (8192, false)] {
        let mut world = World::new(1);
        let mut call = Call {
            words: vec![77],
            ..Call::of(world.agent.frame)
        };
        call.registers[call.result] = 0x5555;
        let s = world.s(&call);
        // The piece of memory stands for the shadow.
        let shadow = stub::map(32 << 10, libc::PROT_READ | libc::PROT_WRITE);
        let to_shadow = (shadow + (16 << 10)).wrapping_sub(s);
        world.put(tcb::TO_SHADOW, to_shadow);
        let at = s.wrapping_add_signed(distance);
        world.set(at.wrapping_add(to_shadow), 0x1234_5678 | 1 << 63);
        let end = world.call(&call);
        assert_eq!(end.result, if found { 0x1234_5678 } else { 0x5555 });
        assert_eq!(world.get(tcb::BAD_FRAMES), 1);
        assert_eq!(world.get(tcb::BAD_ID), 77);
        assert_eq!(world.get(tcb::BAD_ENTRY), if found { at } else { 0 });
        assert_eq!(world.get(tcb::BAD_EXIT), s);
        assert_eq!(world.word(at.wrapping_add(to_shadow)) == 0, found);
    }
}

#[test]
fn short_calls_are_taken_back() {
    let tail = (ENTRY + 1) | record::TAIL << record::KIND_SHIFT;
    for (after, duration, short) in [
        (vec![], 10, true),
        (vec![], 11, false),
        (vec![tail, tail + 5], 10, true),
        (vec![ENTRY + 1], 10, false),
        (vec![tail; 70], 10, false),
    ] {
        let mut world = World::new(1);
        let mut call = Call {
            words: vec![11, ENTRY],
            ..Call::of(world.agent.tails)
        };
        let s = world.s(&call);
        let first = world.base + CONTROL_SIZE + CHUNK_HEADER_SIZE;
        let record = |what: u32, time: u64| u64::from(what) << 32 | bits(s) | time;
        let mut at = first;
        for (index, what) in [ENTRY].iter().chain(&after).enumerate() {
            world.set(at, record(*what, 1000 + index as u64));
            at += RECORD_SIZE;
        }
        world.put(tcb::CURSOR, at);
        call.registers[call.time] = 7 << 32 | (1000 + duration);
        assert_eq!(world.call(&call).result, u64::from(short));
        let end = if short { first } else { at };
        assert_eq!(world.get(tcb::CURSOR), end);
        assert_eq!(world.word(first) == 0, short);
    }
}

#[test]
fn vectors_predicates_and_what_first_faults_leave_are_kept() {
    let Some(len) = stub::vector_len() else {
        skip("this processor has no SVE");
        return;
    };
    const PIECE: u64 = 1 << 20;
    for forgets in [false, true] {
        let mut world = World::new(1);
        world.put(tcb::FLAGS, tcb::VECTORS);
        if forgets {
            world.forget_vectors_at_calls();
        }
        let vectors = stub::vectors(len);
        let call = Call {
            vectors: Some(vectors.clone()),
            ..shadow(&world)
        };
        let piece = (world.s(&call) - SHADOW_DISTANCE) & !(PIECE - 1);
        for round in 0..2 {
            let end = world.call(&call);
            assert_eq!(end.result, 0);
            assert!(end.vectors == vectors, "{forgets} {round}");
            assert_eq!(world.get(tcb::SHADOW_LEN), PIECE);
            world.put(tcb::SHADOW_LEN, 0);
            unmap(piece, PIECE);
        }
        // The test finds what is not kept.
        if forgets {
            world.put(tcb::FLAGS, 0);
            world.forget_vectors_at_calls();
            assert!(world.call(&call).vectors != vectors);
            unmap(piece, PIECE);
        }
    }
}

#[test]
fn no_system_call_is_made_in_streaming_mode() {
    if !stub::streams() {
        skip("this processor has no streaming mode");
        return;
    }
    for (streaming, expected) in [(true, 1), (false, 0)] {
        let mut world = World::new(1);
        world.put(tcb::FLAGS, tcb::STREAMS | tcb::VECTORS);
        let call = Call {
            streaming,
            ..shadow(&world)
        };
        assert_eq!(world.call(&call).result, expected);
        assert_eq!(world.get(tcb::UNSHADOWED), expected);
        if !streaming {
            unmap(
                world.get(tcb::SHADOW_LO) - SHADOW_DISTANCE,
                world.get(tcb::SHADOW_LEN),
            );
        }
    }
}

#[test]
fn threads_come_home_from_the_place_for_system_calls() {
    let agent = hodo_agent::runtime();
    let code = hodo_agent::call_and_home();
    assert!(agent.code[agent.syscall..].starts_with(code));
    // svc; mov x8, #139; svc
    let words: Vec<u8> = [0xD400_0001u32, 0xD280_1168, 0xD400_0001]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    assert_eq!(code, words);
}

/// Breakpoints in the agent's code, and what a signal handler does there.
struct Interruption {
    interrupted: *mut World,
    /// The instructions that are replaced, if they are to be.
    before: Vec<u32>,
    /// What makes a call; `None`: nothing does.
    world: Option<World>,
    /// It begins a chunk first.
    begins: bool,
    met: Vec<usize>,
}

thread_local! {
    static INTERRUPTION: RefCell<Option<Interruption>> = const { RefCell::new(None) };
}

/// Takes a breakpoint away, and calls the agent for another window.
extern "C" fn interrupts(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    INTERRUPTION.with_borrow_mut(|interruption| {
        let interruption = interruption.as_mut().expect("a breakpoint");
        // SAFETY: the kernel's frame; the interrupted test does nothing else with its stub in between.
        let (pc, interrupted) =
            unsafe { ((*context).uc_mcontext.pc, &mut *interruption.interrupted) };
        let at = interrupted.offset(pc);
        interruption.met.push(at);
        interrupted.replace(at, interruption.before[at / 4]);
        if let Some(world) = &mut interruption.world {
            if interruption.begins {
                world.put(tcb::CURSOR, world.get(tcb::LIMIT));
            }
            world.call_for_nothing(&Call::of(world.agent.window));
        }
    });
}

/// `brk #0`
const BREAKPOINT: u32 = 0xD420_0000;

/// Makes one of the calls with breakpoints at some instructions of the agent. Returns those that were met.
/// `begins`: the
/// handler makes a call, and begins a chunk or does not.
fn interrupted(index: usize, places: &[usize], begins: Option<bool>) -> Vec<usize> {
    let mut world = World::new(8);
    let call = &calls(&world)[index];
    prepare(&mut world, call);
    let code = world.agent.code.chunks_exact(4);
    let before = code.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    INTERRUPTION.set(Some(Interruption {
        interrupted: &raw mut world,
        before: before.collect(),
        world: begins.map(|_| world.beside()),
        begins: begins == Some(true),
        met: Vec::new(),
    }));
    for &at in places {
        world.replace(at, BREAKPOINT);
    }
    // Nothing but the result changes.
    world.call(call);
    assert_known_is_recorded(&world);
    INTERRUPTION.take().expect("it").met
}

/// The calls that are interrupted.
fn calls(world: &World) -> Vec<Call> {
    let agent = &world.agent;
    let mut tails = Call {
        words: vec![11, ENTRY],
        ..Call::of(agent.tails)
    };
    tails.registers[tails.time] = 1;
    let mut epoch = Call::of(agent.epoch);
    epoch.registers[epoch.time] = 1 << 40;
    let tail = Call {
        words: vec![record::TAIL << record::KIND_SHIFT | 5],
        timed: true,
        ..Call::of(agent.tail)
    };
    let handed_on = Call {
        lowered: 5,
        ..shadow(world)
    };
    vec![
        Call::of(agent.window),
        shadow(world),
        Call::of(agent.chunk),
        handed_on,
        tail,
        epoch,
        tails,
    ]
}

/// What a call needs to take its longest path.
fn prepare(world: &mut World, call: &Call) {
    world.call(&Call::of(world.agent.chunk));
    let s = world.s(call);
    for (word, value) in [
        // All stacks are in it.
        (tcb::SHADOW_LO, 0x10_0000),
        (tcb::SHADOW_LEN, 1 << 48),
        (tcb::ISLAND0_LO, call.registers[LINK]),
        (tcb::ISLAND0_LEN, 16),
        (tcb::HANDED_ON, if call.lowered == 5 { s } else { 0 }),
        (tcb::HANDED_ON + 8, call.registers[LINK]),
        (tcb::EPOCH_END, if call.timed { 0 } else { u64::MAX }),
    ] {
        world.put(word, value);
    }
    for (word, _) in WINDOWS {
        world.put(word, 0);
    }
}

/// A window is known only where the last one that is recorded is the same.
#[track_caller]
fn assert_known_is_recorded(world: &World) {
    let at = world.get(tcb::WINDOW);
    let records = world.records();
    let windows = [record::SPECIAL_WINDOW].map(special);
    let last = records
        .iter()
        .rfind(|found| windows.contains(&what(**found)));
    for (word, lower) in WINDOWS {
        let value = world.get(word);
        assert!(value == 0 || value == at - lower, "{value:#x} {at:#x}");
        if value != 0 {
            assert_eq!(window(*last.expect("a window")), at & !(UNIT - 1));
        }
    }
    let known = [
        special(record::SPECIAL_WINDOW),
        special(record::SPECIAL_STACK),
        special(record::SPECIAL_EPOCH),
        ENTRY,
        record::TAIL << record::KIND_SHIFT | 5,
    ];
    let other = records.iter().find(|found| !known.contains(&what(**found)));
    assert_eq!(other, None);
}

#[test]
fn signal_handlers_may_come_between_any_two_instructions() {
    // SAFETY: the handler does what a handler of the program might do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupts as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let done = libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut());
        assert_eq!(done, 0);
    }
    let all: Vec<usize> = (0..hodo_agent::runtime().code.len()).step_by(4).collect();
    let mut met = 0;
    for index in 0..7 {
        for at in interrupted(index, &all, None) {
            for begins in [false, true] {
                assert_eq!(interrupted(index, &[at], Some(begins)), [at]);
            }
            met += 1;
        }
    }
    assert!(met > 400, "{met}");
}
