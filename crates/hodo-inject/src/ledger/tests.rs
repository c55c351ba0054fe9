use hodo_patch::{Copied, Patches, Stub};
use hodo_ptrace::TargetAddr;

use super::*;
use hodo_abi::Span;

/// This process's own memory, with room for a ledger.
fn own() -> (Memory, Ledger, Found, Vec<u8>) {
    let memory = Memory::open(std::process::id().cast_signed()).expect("one's own memory");
    let room = vec![0; 1 << 16];
    let at = room.as_ptr().addr() as u64;
    let size = room.len() as u64;
    memory.write(TargetAddr(at), &header(size)).expect("room");
    let ledger = Ledger {
        at,
        size,
        ..Ledger::default()
    };
    let header = header(size);
    (memory, ledger, Found { at, header }, room)
}

/// The ledger as another hodo finds it.
fn read(memory: &Memory, mut found: Found) -> Result<Vec<Entry>> {
    memory.read(TargetAddr(found.at), &mut found.header)?;
    Ok(found.read(memory)?.1)
}

fn patches() -> Patches {
    let copied = |original, copy, call| Copied {
        original,
        before: copy - 8,
        copy,
        call,
        leads: call,
    };
    Patches {
        traps: vec![(0x5000, 0x9000).into(), (0x4000, 0x9100).into()],
        faults: vec![(u64::MAX, 0).into()],
        sites: vec![(0x7fff_ffff_f000, 0x1000).into()],
        ways: vec![Span::from(1..2), Span::from(3..4)],
        leaving: vec![Span::from(5..6)],
        semaphores: vec![0x6000, 0x6002],
        copies: [copied(0x5001, 0x9010, false), copied(0x5003, 0x9018, true)]
            .into_iter()
            .collect(),
        hooks: vec![(0x5000, vec![0xE9, 1, 2, 3, 4]), (0x5100, Vec::new())],
        ..Patches::default()
    }
}

fn stub(start: u64) -> Stub {
    Stub {
        start,
        body: start + 40,
        slow: start + 60,
        original: 0x5000,
        entry: start + 4,
    }
}

fn note(ledger: &mut Ledger, memory: &Memory) {
    let state = State {
        events: Span::at(1 << 45, 1 << 38).into(),
        keys: vec![3],
        ..State::default()
    };
    ledger.note_state(memory, state.clone()).expect("memory");
    // This was written last.
    ledger.note_state(memory, state).expect("memory");
    let originals = [(0x5000, &[0x55, 0x48][..]), (0x4000, &[0xC3])];
    let stubs = [stub(0x9000), stub(0x9100)];
    let patched = Patched::new(
        (0x4000..0x8000, 0x4000),
        originals.into_iter(),
        &patches(),
        [&stubs, &[]],
    );
    for entry in [
        Entry::Patched(patched),
        Entry::Original(7, Bytes(vec![1, 2])),
        Entry::Reverted(vec![8]),
        Entry::Lowered,
        Entry::Unmapped(9),
    ] {
        ledger.note(memory, &entry).expect("memory");
    }
}

fn written(what: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_extend(what, Vec::new()).expect("it can be written")
}

/// Another hodo of the same version can read them, too.
#[test]
fn ranges_and_pages_are_written_as_two_numbers() {
    let (start, len) = (0x7f12_3400_0000u64, 0x20_0000u64);
    let span = Span::at(start, len);
    assert_eq!(written(&Region::from(span)), written(&(start, len)));
    assert_eq!(Span::from(Region::from(span)), span);
    let page = Page { start, used: len };
    assert_eq!(written(&page), written(&(start, len)));
    assert_eq!(written(&span.range()), written(&(start, start + len)));
}

#[test]
fn what_was_written_down_is_read() {
    let (memory, mut ledger, found, _room) = own();
    note(&mut ledger, &memory);
    let entries = read(&memory, found).expect("a good ledger");
    let [state, patched, original, reverted, lowered, unmapped] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert!(
        matches!(state, Entry::State(state) if state.events == Span::at(1 << 45, 1 << 38).into())
    );
    let Entry::Patched(patched) = patched else {
        panic!("{patched:?}");
    };
    assert_eq!(patched.range, 0x4000..0x8000);
    let originals: Vec<_> = patched.originals().collect();
    assert_eq!(
        originals,
        [(0x5000, vec![0x55, 0x48]), (0x4000, vec![0xC3])]
    );
    assert_eq!(patched.stubs(), [vec![stub(0x9000), stub(0x9100)], vec![]]);
    assert_eq!(patched.patches(), patches());
    assert!(matches!(original, Entry::Original(7, bytes) if bytes.0 == [1, 2]));
    assert!(matches!(reverted, Entry::Reverted(stay) if *stay == [8]));
    assert!(matches!(lowered, Entry::Lowered));
    assert!(matches!(unmapped, Entry::Unmapped(9)));
}

#[test]
fn what_a_forked_process_does_not_have_is_not_counted() {
    let (memory, mut ledger, found, _room) = own();
    let patched = |start: u64, stubs: &[Stub]| {
        let none = std::iter::empty::<(u64, &[u8])>();
        let range = (start..start + 0x1000, start);
        Entry::Patched(Patched::new(range, none, &patches(), [stubs, &[]]))
    };
    let first = [stub(0x9000), stub(0x9100)];
    assert_eq!(ledger.count_stubs([2, 0]), [0, 0]);
    (ledger.note(&memory, &patched(0x4000, &first))).expect("memory");
    let forked = ledger.length.get();
    // The maker continues to write, and learns of the child only later.
    assert_eq!(ledger.count_stubs([3, 0]), [2, 0]);
    (ledger.note(&memory, &patched(0x5000, &[stub(0x9200)]))).expect("memory");
    (ledger.note(&memory, &Entry::Lowered)).expect("memory");
    memory
        .write(TargetAddr(ledger.at + LENGTH_AT), &forked.to_le_bytes())
        .expect("memory");
    ledger.is_forked(&memory).expect("memory");
    assert_eq!(ledger.count_stubs([4, 0]), [2, 0]);
    let rest = [stub(0x9200), stub(0x9300)];
    (ledger.note(&memory, &patched(0x6000, &rest))).expect("memory");
    let entries = read(&memory, found).expect("a good ledger");
    let starts = entries.iter().map(|entry| match entry {
        Entry::Patched(patched) => patched.range.start,
        other => panic!("{other:?}"),
    });
    assert_eq!(starts.collect::<Vec<_>>(), [0x4000, 0x6000]);
}

#[test]
fn a_damaged_ledger_is_not_used() {
    let (memory, mut ledger, found, _room) = own();
    note(&mut ledger, &memory);
    let end = HEADER as u64 + ledger.length.get();
    let (at, unused) = (found.at, LENGTH_AT..HEADER as u64);
    let mut header = found.header;
    for byte in (0..end).filter(|byte| !unused.contains(byte)) {
        let mut now = [0];
        memory
            .read(TargetAddr(at + byte), &mut now)
            .expect("memory");
        for bit in [0, 3, 7] {
            memory
                .write(TargetAddr(at + byte), &[now[0] ^ 1 << bit])
                .expect("memory");
            memory.read(TargetAddr(at), &mut header).expect("memory");
            let error = read(&memory, Found { at, header }).expect_err("damage");
            // Without the mark, it is not found.
            assert!(
                byte < 16 || format!("{error:#}").contains(DAMAGED),
                "{error:#}"
            );
        }
        memory.write(TargetAddr(at + byte), &now).expect("memory");
    }
    // Truncated entries, and a length that is too large.
    for length in (1..end - HEADER as u64).chain([1 << 16, u64::MAX]) {
        memory
            .write(TargetAddr(at + LENGTH_AT), &length.to_le_bytes())
            .expect("memory");
        let whole = read(&memory, Found { at, header });
        assert!(whole.is_err() || whole.is_ok_and(|entries| entries.len() < 6));
    }
}

#[test]
fn a_ledger_of_another_format_is_named() {
    let (memory, mut ledger, mut found, _room) = own();
    note(&mut ledger, &memory);
    memory
        .read(TargetAddr(found.at), &mut found.header)
        .expect("memory");
    found.header[16] += 1;
    found.header[40..45].copy_from_slice(b"other");
    let sum = XxHash3_64::oneshot(&found.header[..SUM_AT]);
    found.header[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    let error = found.read(&memory).expect_err("another format");
    let error = format!("{error:#}");
    assert!(
        error.contains("with other0.1") && error.contains(&build()),
        "{error}"
    );
}

#[test]
fn what_has_no_room_makes_it_useless() {
    let (memory, mut ledger, found, _room) = own();
    ledger.size = HEADER as u64 + 100;
    memory
        .write(TargetAddr(ledger.at), &header(ledger.size))
        .expect("room");
    ledger
        .note(&memory, &Entry::Original(1, Bytes(vec![0; 10])))
        .expect("memory");
    ledger
        .note(&memory, &Entry::Original(1, Bytes(vec![0; 80])))
        .expect("memory");
    let error = read(&memory, found).expect_err("some are missing");
    assert!(format!("{error:#}").contains("no room"), "{error:#}");
}
