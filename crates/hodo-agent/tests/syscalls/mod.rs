//! Makes system calls with the code for recording them before and after, and looks at the events.

use std::ffi::CString;
use std::ptr;
use std::sync::Mutex;

use hodo_abi::Isa;
use hodo_trace::format::{CHUNK_HEADER_SIZE, CHUNK_SIZE, CONTROL_SIZE, file_header, record, tcb};
use hodo_trace::syscalls::{HEADER, Limits, by_number, number, piece, table};

use crate::machine::{self, NUMBER, REGISTERS, hodo_test_call};

const CHUNKS: u64 = 4;

static FAULTS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// As hodo does it for the programs that it records.
extern "C" fn on_fault(_: libc::c_int, _: *const libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's frame. The faulting code holds no lock.
    let pc = machine::pc(unsafe { &mut *context });
    let faults = FAULTS.lock().expect("the list of faults");
    match faults.iter().find(|fault| fault.0 == *pc) {
        Some(fault) => *pc = fault.1,
        None => std::process::abort(),
    }
}

fn map(size: u64, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of its own.
    let at = unsafe { libc::mmap(ptr::null_mut(), size as usize, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.addr() as u64
}

/// An event: which one, and the words after the first of its payload.
#[derive(Debug)]
struct Event {
    exit: bool,
    words: Vec<u64>,
}

/// A piece of memory: the argument, its flags, its bytes.
type Piece = (u64, u8, Vec<u8>);

struct Recorder {
    base: u64,
    block: u64,
    enter: usize,
    exit: usize,
    seen: usize,
}

impl Recorder {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let (runtime, agent) = (hodo_agent::runtime(), hodo_agent::syscalls());
        let code = map(
            1 << 20,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        );
        let start = code + 0x8000;
        let info = |id: u64| id | u64::from(record::ENTRY << record::KIND_SHIFT);
        let [payload, buffer, string] = limits.words();
        let header = [
            code + runtime.epoch as u64,
            code + runtime.chunk as u64,
            info(7) | info(8) << 32,
            1,
            payload,
            buffer,
            string,
        ];
        assert_eq!(size_of_val(&header) as u64, HEADER);
        let words: Vec<u64> = header
            .into_iter()
            .chain(table(&|_| true, false, false))
            .collect();
        let base = map(
            CONTROL_SIZE + CHUNKS * CHUNK_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        let block = base + tcb::FIRST * tcb::SIZE;
        let set = |at: u64, value: u64| {
            // SAFETY: within the file that would be mapped there.
            unsafe { (at as *mut u64).write(value) }
        };
        set(base + file_header::MAX_CHUNKS, CHUNKS);
        set(base + file_header::ROOM_CHUNKS, CHUNKS);
        set(block + tcb::MAX_CHUNKS, CHUNKS);
        set(block + tcb::BASE, base);
        // SAFETY: there is room for all of it.
        unsafe {
            let at = code as *mut u8;
            ptr::copy_nonoverlapping(runtime.code.as_ptr(), at, runtime.code.len());
            let at = start as *mut u8;
            ptr::copy_nonoverlapping(agent.code.as_ptr(), at, agent.code.len());
            let at = at.add(agent.code.len()).cast::<u64>();
            ptr::copy_nonoverlapping(words.as_ptr(), at, words.len());
            machine::set_block(block, code, 1 << 20);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
        }
        let faults = agent.faults.iter();
        let faults = faults.map(|&[load, next]| (start + u64::from(load), start + u64::from(next)));
        FAULTS.lock().expect("the list of faults").extend(faults);
        Self {
            base,
            block,
            enter: start as usize + agent.enter,
            exit: start as usize + agent.exit,
            seen: 0,
        }
    }

    /// Makes a system call. Nothing but the result may change.
    fn call(&mut self, name: &str, arguments: &[u64]) -> (u64, Vec<Event>) {
        let mut registers: [u64; REGISTERS] = std::array::from_fn(|index| {
            machine::value(index, 0x1111_2222_3333_4444 + index as u64)
        });
        registers[..arguments.len()].copy_from_slice(arguments);
        registers[NUMBER] = number(Isa::NATIVE, name).expect(name);
        let before = registers;
        // SAFETY: system calls that do no harm, or fail.
        unsafe { hodo_test_call(registers.as_mut_ptr(), self.enter, self.exit) };
        assert_eq!(registers[1..], before[1..], "{name}");
        let events = self.events();
        let new = events.into_iter().skip(self.seen).collect::<Vec<_>>();
        self.seen += new.len();
        assert_eq!(new.len(), 2, "{name}");
        assert!(!new[0].exit && new[1].exit, "{name}");
        assert_eq!(new[0].words[0], before[NUMBER]);
        assert_eq!(new[1].words[0], registers[0]);
        (registers[0], new)
    }

    fn word(&self, at: u64) -> u64 {
        // SAFETY: within the file that would be mapped there.
        unsafe { (at as *const u64).read() }
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for chunk in 0..self.word(self.base + file_header::NEXT_CHUNK) {
            let start = self.base + CONTROL_SIZE + chunk * CHUNK_SIZE;
            let mut at = start + CHUNK_HEADER_SIZE;
            while at < start + CHUNK_SIZE {
                let info = self.word(at) >> 32;
                at += 8;
                if info != 7 && info != 8 {
                    continue;
                }
                let payload = self.word(at);
                let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
                assert_eq!(payload >> 32, u64::from(special));
                let count = payload & 0xFFFF_FFFF;
                // It has no number of a processor.
                assert_eq!(self.word(at + 8), 0xFFFF_FFFF_0000_0000);
                let words = (1..count)
                    .map(|word| self.word(at + 8 + 8 * word))
                    .collect();
                events.push(Event {
                    exit: info == 8,
                    words,
                });
                at += 8 * (count + 1);
            }
        }
        events
    }
}

/// The pieces of an event after this many words.
fn pieces(event: &Event, skip: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = &event.words[skip..];
    while let [head, after @ ..] = rest {
        let len = (head & 0xFFFF) as usize;
        let words = len.div_ceil(8);
        let bytes = after[..words].iter().flat_map(|word| word.to_le_bytes());
        pieces.push((
            head >> 16 & 0xFF,
            (head >> 24) as u8,
            bytes.take(len).collect(),
        ));
        rest = &after[words..];
    }
    pieces
}

fn address(text: &CString) -> u64 {
    text.as_ptr().addr() as u64
}

#[test]
fn system_calls_have_their_events() {
    let mut recorder = Recorder::new();
    let at_cwd = libc::AT_FDCWD as u64;
    let path = CString::new("/dev/zero").expect("a path");
    let (fd, events) = recorder.call("openat", &[at_cwd, address(&path), libc::O_RDWR as u64]);
    assert!(fd < 1000);
    let arguments = by_number(Isa::NATIVE, 56).and_then(|call| call.args());
    let arguments = arguments.expect("openat").count();
    assert_eq!(
        events[0].words[1..4],
        [at_cwd, address(&path), libc::O_RDWR as u64]
    );
    let found = pieces(&events[0], 1 + arguments);
    assert_eq!(found, [(1, piece::ENDS, b"/dev/zero".to_vec())]);
    assert!(pieces(&events[1], 1).is_empty());

    let text = b"a text of 23 characters";
    let (written, events) = recorder.call("write", &[fd, text.as_ptr().addr() as u64, 23]);
    assert_eq!(written, 23);
    assert_eq!(pieces(&events[0], 4), [(1, 0, text.to_vec())]);

    // The result tells how much there is; the first argument is one of the program's again.
    let buffer = [1u8; 11];
    let at = buffer.as_ptr().addr() as u64;
    let (read, events) = recorder.call("read", &[fd, at, 11]);
    assert_eq!(read, 11);
    assert_eq!(events[0].words[1..], [fd, at, 11]);
    assert_eq!(pieces(&events[1], 1), [(1, 0, vec![0; 11])]);

    let parts = [
        text[..5].as_ptr().addr() as u64,
        5,
        text[7..].as_ptr().addr() as u64,
        9,
    ];
    let (written, events) = recorder.call("writev", &[fd, parts.as_ptr().addr() as u64, 2]);
    assert_eq!(written, 14);
    let found = pieces(&events[0], 4);
    let list: Vec<u8> = parts.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(
        found,
        [
            (1, 0, list),
            (1, 0, text[..5].to_vec()),
            (1, 0, text[7..16].to_vec())
        ]
    );

    let nothing = CString::new("/nowhere/at/all").expect("a path");
    let list = [address(&path), address(&nothing), 0];
    let at = list.as_ptr().addr() as u64;
    let (result, events) = recorder.call("execve", &[address(&nothing), at, at]);
    assert_eq!(result.cast_signed(), -i64::from(libc::ENOENT));
    let found = pieces(&events[0], 4);
    let ends = |argument, text: &CString| (argument, piece::ENDS, text.as_bytes().to_vec());
    assert_eq!(
        found[..3],
        [ends(0, &nothing), ends(1, &path), ends(1, &nothing)]
    );
    assert!(
        found.iter().any(|found| found.1 == piece::MORE),
        "{found:?}"
    );
}

#[test]
fn as_much_as_wanted_is_recorded() {
    let mut recorder = Recorder::with(Limits::of(4096));
    let path = CString::new("/dev/null").expect("a path");
    let (fd, _) = recorder.call("openat", &[libc::AT_FDCWD as u64, address(&path), 1]);
    let text: Vec<u8> = (0..5000u32).map(|at| (at % 251) as u8).collect();
    let at = text.as_ptr().addr() as u64;
    // Several chunks.
    for len in [
        17, 240, 241, 4000, 4096, 4097, 4000, 4000, 4000, 4000, 4000, 4000, 4000, 4000,
    ] {
        let (_, events) = recorder.call("write", &[fd, at, len]);
        let kept = text[..len.min(4096) as usize].to_vec();
        assert_eq!(pieces(&events[0], 4), [(1, 0, kept)]);
    }
    let parts = [at, 3000, at + 3000, 2000];
    let (_, events) = recorder.call("writev", &[fd, parts.as_ptr().addr() as u64, 2]);
    let found = pieces(&events[0], 4);
    assert_eq!(
        found[1..],
        [(1, 0, text[..3000].to_vec()), (1, 0, text[3000..].to_vec())]
    );
    let long = CString::new(vec![b'x'; 1000]).expect("a text");
    let list = [address(&long), address(&path), 0];
    let list = list.as_ptr().addr() as u64;
    let (_, events) = recorder.call("execve", &[address(&long), list, list]);
    let found = pieces(&events[0], 4);
    assert_eq!(found[1], (1, piece::ENDS, long.as_bytes().to_vec()));
}

#[test]
fn what_cannot_be_read_is_told() {
    let mut recorder = Recorder::new();
    let page = map(4096, libc::PROT_NONE);
    let bad = page + 24;
    let (result, events) = recorder.call("openat", &[libc::AT_FDCWD as u64, bad, 0]);
    assert_eq!(result.cast_signed(), -i64::from(libc::EFAULT));
    let arguments = events[0].words.len();
    assert_eq!(
        pieces(&events[0], arguments - 1),
        [(1, piece::FAULT, vec![])]
    );
    for (name, arguments) in [
        ("write", [1, bad, 20]),
        ("writev", [1, bad, 2]),
        ("execve", [bad; 3]),
    ] {
        let (result, _) = recorder.call(name, &arguments);
        assert_eq!(result.cast_signed(), -i64::from(libc::EFAULT), "{name}");
    }
    // Many chunks, and then none any more: what is recorded then goes round in the bucket.
    for _ in 0..2000 {
        let mut registers = [0u64; REGISTERS];
        registers[NUMBER] = number(Isa::NATIVE, "getppid").expect("getppid");
        // SAFETY: a system call that does no harm.
        unsafe { hodo_test_call(registers.as_mut_ptr(), recorder.enter, recorder.exit) };
    }
    assert!(recorder.events().len() > 4000);
    assert_eq!(recorder.word(recorder.block + tcb::LOST), 0);
}
