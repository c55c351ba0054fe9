//! The accesses that a client hears of are those that a program makes when it is executed step by step.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hodo_dbi::{
    Access, Block, Choice, Client, Decode, Event, Events, Kind, Listener, Message, Observe, Target,
};
use hodo_mem::packing::{Packer, Unpacker};
use hodo_mem::trace::{self, Writer};
use hodo_ptrace::{Memory, Regs, Report, TargetAddr, launch, seize};
use hodo_tests::{Kind as Link, build};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory,
};

/// Address of the instruction, and what it accesses.
type Row = (u64, Kind, u64, u32);

/// What a program does, without the code of the libraries and the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream {
    /// Addresses of instructions.
    insns: Vec<u64>,
    accesses: Vec<Row>,
}

fn is_own(pc: u64) -> bool {
    (0x40_0000..0x100_0000).contains(&pc)
}

impl Client for Stream {
    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let done = block.insns[..upto].iter().map(|insn| insn.pc);
        self.insns.extend(done.filter(|&pc| is_own(pc)));
        for access in accesses {
            let number = usize::from(access.insn);
            let pc = block.insns[number].pc;
            if is_own(pc) && !is_masked(&decoded(block.bytes(number), pc)) {
                self.accesses
                    .push((pc, access.kind, access.address, access.size));
            }
        }
    }
}

/// The command that runs a program whose addresses are always the same.
fn command(program: &Path) -> (PathBuf, [OsString; 3]) {
    let setarch = launch::find_program("setarch".as_ref()).expect("setarch is there");
    (setarch, ["setarch".into(), "-R".into(), program.into()])
}

fn engine(program: &Path) -> Stream {
    let (setarch, command) = command(program);
    let observed = hodo_dbi::observe(
        &Target::program(&setarch, &command),
        Observe::Accesses,
        Stream::default(),
    );
    observed.expect("the program can be observed").1
}

/// Executes a program step by step.
fn oracle(program: &Path) -> Stream {
    let (setarch, command) = command(program);
    let child = launch::fork(&setarch, &command, false).expect("a child");
    let pid = child.pid;
    seize(
        pid,
        libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL,
    )
    .expect("it can be traced");
    child.go().expect("it goes on");
    let next = || Report::of(pid, true).expect("a report").expect("a report");
    let mut executed = 0;
    let mut thread = loop {
        let report = next();
        let thread = report.stopped().expect("it is stopped");
        executed += u32::from(report.event() == libc::PTRACE_EVENT_EXEC);
        if executed == 2 {
            break thread;
        }
        thread.cont(0).expect("it goes on");
    };
    thread.leave_exec().expect("it is in the program");
    let memory = thread.memory().expect("its memory");
    let mut stream = Stream::default();
    let mut factory = InstructionInfoFactory::new();
    let mut signal = 0;
    loop {
        let before = thread.regs().expect("registers");
        let insn = instruction(&memory, before.pc());
        match signal {
            0 => thread.step(0, 0).map(drop).expect("a step"),
            signal => thread.enter_handler(signal).expect("a handler"),
        }
        let enters = signal != 0;
        let report = next();
        let Some(stopped) = report.stopped() else {
            // It has ended, in a system call.
            stream.insns.extend(insn.map(|insn| insn.ip()));
            return stream;
        };
        thread = stopped;
        signal = match report.signal() {
            libc::SIGTRAP => 0,
            other => other,
        };
        // If a signal has come, the instruction has faulted.
        if !enters && signal == 0 {
            let after = thread.regs().expect("registers");
            let insn = insn.expect("an instruction");
            if is_own(insn.ip()) {
                step(&mut stream, &mut factory, &insn, &before, &after);
            }
        }
    }
}

fn decoded(bytes: &[u8], pc: u64) -> Instruction {
    Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode()
}

/// Which elements it accesses depends on a mask: another test is about these.
fn is_masked(insn: &Instruction) -> bool {
    insn.op_mask() != Register::None || insn.is_vsib()
}

fn instruction(memory: &Memory, pc: u64) -> Option<Instruction> {
    let mut bytes = [0; 15];
    let read = memory.read_some(TargetAddr(pc), &mut bytes);
    let insn = decoded(&bytes[..read], pc);
    (!insn.is_invalid()).then_some(insn)
}

fn step(
    stream: &mut Stream,
    factory: &mut InstructionInfoFactory,
    insn: &Instruction,
    before: &Regs,
    after: &Regs,
) {
    const RCX: usize = 1;
    let repeats =
        (insn.has_rep_prefix() || insn.has_repne_prefix()) && insn.is_string_instruction();
    // Each repetition is a step. The instruction counts when it ends.
    if !repeats || after.pc() != insn.ip() {
        stream.insns.push(insn.ip());
    }
    if repeats && before.all()[RCX] == 0 || is_masked(insn) {
        return;
    }
    for wanted in [Kind::Load, Kind::Store] {
        for used in factory.info(insn).used_memory() {
            let does = match used.access() {
                OpAccess::Read | OpAccess::CondRead => wanted == Kind::Load,
                OpAccess::Write | OpAccess::CondWrite => wanted == Kind::Store,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
                _ => false,
            };
            if does {
                let (address, size) = place(insn, used, before);
                stream.accesses.push((insn.ip(), wanted, address, size));
            }
        }
    }
}

/// The address and size of an access.
fn place(insn: &Instruction, used: &UsedMemory, regs: &Regs) -> (u64, u32) {
    let value = |register: Register| match register {
        Register::FS => regs.thread_base(),
        Register::AL => regs.all()[0] & 0xFF,
        register if register.is_gpr32() => regs.all()[register.number()] & 0xFFFF_FFFF,
        register if register.is_gpr64() => regs.all()[register.number()],
        _ => 0,
    };
    let address = used.virtual_address(0, |register, _, _| Some(value(register)));
    let mut address = address.expect("an address");
    let size = match used.memory_size().size() {
        // Of repeated instructions, only the instruction says it.
        0 => insn.memory_size().size(),
        size => size,
    };
    let size = size as u32;
    let is_bit = format!("{:?}", insn.mnemonic()).starts_with("Bt");
    if is_bit && insn.op_count() == 2 && insn.op1_kind() == iced_x86::OpKind::Register {
        let number = value(insn.op1_register());
        let (number, bits) = match insn.op1_register().is_gpr32() {
            true => (i64::from(number as u32 as i32), 32),
            false => (number as i64, 64),
        };
        address = address.wrapping_add_signed(number.div_euclid(bits) * bits / 8);
    }
    (address, size)
}

fn is_same(source: &str, options: &[&str]) -> Stream {
    let program = build(source, Link::Static, options);
    // The engine blocks signals, which a program inherits.
    let oracle = oracle(&program);
    let engine = engine(&program);
    let first = engine
        .insns
        .iter()
        .zip(&oracle.insns)
        .position(|(a, b)| a != b);
    if let Some(first) = first {
        let from = first.saturating_sub(3);
        let near = |stream: &Stream| {
            stream.insns[from..]
                .iter()
                .take(8)
                .copied()
                .collect::<Vec<u64>>()
        };
        panic!(
            "instruction {first} differs: {:x?}, step by step {:x?}",
            near(&engine),
            near(&oracle)
        );
    }
    assert_eq!(engine.insns.len(), oracle.insns.len());
    let mut pairs = engine.accesses.iter().zip(&oracle.accesses);
    if let Some((engine, oracle)) = pairs.find(|(a, b)| a != b) {
        panic!("accesses differ: {engine:x?}, step by step {oracle:x?}");
    }
    assert_eq!(engine.accesses.len(), oracle.accesses.len());
    assert!(engine.accesses.len() > 1000);
    engine
}

#[test]
fn all_ways_to_access_memory() {
    is_same("accesses.c", &[]);
}

/// Observes parts of the code, of 24 bytes each, by chance.
#[derive(Debug, Default)]
struct Parts {
    stream: Stream,
    seed: u64,
    /// The engine chooses them.
    by_engine: bool,
}

impl Parts {
    const SIZE: u64 = 24;

    fn has(seed: u64, offset: u64) -> bool {
        let number = (offset / Self::SIZE + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        number >> 40 & 1 == 0
    }
}

impl Client for Parts {
    fn events(&self) -> Events {
        if !self.by_engine {
            return Events::default();
        }
        let seed = self.seed;
        Events::default().only_of(move |place| match place {
            Some((_, offset)) => Choice {
                observed: Self::has(seed, offset),
                until: (offset / Self::SIZE + 1) * Self::SIZE,
            },
            None => Choice {
                observed: false,
                until: 0,
            },
        })
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let Some((_, first)) = block.file else {
            assert!(!self.by_engine);
            return;
        };
        let has = |insn: usize| {
            let offset = first + (block.insns[insn].pc - block.insns[0].pc);
            Self::has(self.seed, offset)
        };
        if self.by_engine {
            assert!((0..block.insns.len()).all(has));
            return self.stream.executed(thread, block, upto, accesses);
        }
        let done = (0..upto).filter(|&insn| has(insn));
        let pcs = done.map(|insn| block.insns[insn].pc);
        self.stream.insns.extend(pcs.filter(|&pc| is_own(pc)));
        let of_parts = accesses.iter().filter(|one| has(usize::from(one.insn)));
        let of_parts: Vec<Access> = of_parts.copied().collect();
        self.stream.executed(thread, block, 0, &of_parts);
    }
}

#[test]
fn parts_of_the_code() {
    for (source, seed) in [
        ("accesses.c", 1),
        ("accesses.c", 2),
        ("jumps.c", 3),
        ("hot.c", 4),
        ("hot.c", 5),
        ("masks.c", 6),
    ] {
        let program = build(source, Link::Static, &[]);
        let (setarch, command) = command(&program);
        let [all, some] = [false, true].map(|by_engine| {
            let parts = Parts {
                seed,
                by_engine,
                ..Parts::default()
            };
            let target = Target::program(&setarch, &command);
            let observed = hodo_dbi::observe(&target, Observe::Accesses, parts);
            observed.expect("the program can be observed").1.stream
        });
        assert!(some.insns.len() > 1000, "{source}");
        assert!(all == some, "{source} with {seed}");
    }
}

#[test]
fn jumps_out_of_functions() {
    is_same("jumps.c", &[]);
}

#[test]
fn loops_that_are_translated_again() {
    let stream = is_same("hot.c", &[]);
    // Enough to fill a buffer several times.
    assert!(stream.accesses.len() > 100_000, "{}", stream.accesses.len());
}

/// What a thread has executed: instructions with the sums of their accesses, and numbers of those that were lost.
#[derive(Default)]
struct Losing {
    done: Vec<Result<(u64, u64), u64>>,
    /// Of a repeated instruction that goes on.
    open: u64,
    lossy: bool,
    has_slept: bool,
}

impl Client for Losing {
    fn events(&self) -> Events {
        match self.lossy {
            true => Events::default().lossy(),
            false => Events::default(),
        }
    }

    fn event(&mut self, _: u32, event: &Event<'_>) {
        match *event {
            Event::Lost { instructions } => {
                self.done.push(Err(instructions));
                self.open = 0;
            }
            // It was setarch, of which the addresses differ.
            Event::Executed => self.done.clear(),
            _ => {}
        }
    }

    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        // The program makes far more in the meantime than is kept, also on a slow machine.
        if self.lossy && self.done.len() > 200_000 && !self.has_slept {
            self.has_slept = true;
            std::thread::sleep(Duration::from_secs(8));
        }
        let mut accesses = accesses.iter().peekable();
        for number in 0..upto.max(1) {
            let own = |access: &&Access| usize::from(access.insn) == number;
            while let Some(access) = accesses.next_if(own) {
                let word = access.address ^ u64::from(access.size) << 56;
                self.open = self.open.wrapping_mul(31).wrapping_add(word);
            }
            if number < upto {
                let sum = std::mem::take(&mut self.open);
                self.done.push(Ok((block.insns[number].pc, sum)));
            }
        }
    }
}

/// What is heard after a loss is right, and it is known how much is missing.
#[test]
fn losses_are_counted() {
    let program = build("hot.c", Link::Static, &[]);
    let (setarch, command) = command(&program);
    let command = [&command[..], &["400".into()]].concat();
    let [all, some] = [false, true].map(|lossy| {
        let client = Losing {
            lossy,
            ..Losing::default()
        };
        let target = Target::program(&setarch, &command);
        // The engine blocks signals in its thread, which a program inherits.
        let observed = std::thread::scope(|scope| {
            let run = || hodo_dbi::observe(&target, Observe::Accesses, client);
            scope.spawn(run).join().expect("no panic")
        });
        observed.expect("the program can be observed").1.done
    });
    let lost = some.iter().filter(|part| part.is_err()).count();
    assert!(lost > 0, "nothing was lost of {} instructions", all.len());
    let mut rest = &all[..];
    let mut heard = 0;
    for (index, part) in some.iter().enumerate() {
        match part {
            Err(instructions) => rest = &rest[*instructions as usize..],
            part => {
                assert_eq!(Some(part), rest.first(), "{index} of {}", some.len());
                rest = &rest[1..];
                heard += 1;
            }
        }
    }
    assert!(rest.is_empty(), "{} instructions more", rest.len());
    assert!(heard > 100_000, "{heard} instructions were heard of");
}

/// Keeps blocks, and the records of threads.
#[derive(Default)]
struct Keeps {
    blocks: Vec<Arc<Block>>,
    records: Vec<Vec<u8>>,
}

impl Listener for Keeps {
    fn hear(&mut self, message: &Message) -> anyhow::Result<()> {
        match message {
            Message::Block(block) => self.blocks.push(Arc::clone(block)),
            Message::Records { bytes, .. } => self.records.push(bytes.clone()),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

fn kept(path: &str, words: &[&str]) -> Keeps {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let target = Target::program(path.as_ref(), &words);
    // The engine blocks signals in its thread, which a program inherits.
    let run = || hodo_dbi::listen(&target, Observe::Accesses, Keeps::default());
    let listened = std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
    listened.expect("the program can be observed").1
}

fn packers(blocks: &[Arc<Block>]) -> (Packer, Unpacker) {
    let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
    for block in blocks {
        packer.add(block);
        unpacker.add(block);
    }
    (packer, unpacker)
}

#[test]
fn packed_records_are_the_same_afterwards() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; (exit 3); done";
    let masks = build("masks.c", Link::Static, &[]);
    for kept in [
        kept("/bin/sh", &["sh", "-c", script]),
        kept(masks.to_str().expect("text"), &["masks"]),
    ] {
        let (mut packer, mut unpacker) = packers(&kept.blocks);
        let packed: Vec<Vec<u8>> = kept.records.iter().map(|one| packer.pack(one)).collect();
        let len = |all: &[Vec<u8>]| all.iter().map(Vec::len).sum::<usize>();
        let (before, after) = (len(&kept.records), len(&packed));
        assert!(after > 0 && after * 2 < before, "{after} of {before} bytes");
        // In another order: no chunk needs another one.
        for (packed, records) in packed.iter().zip(&kept.records).rev() {
            assert!(unpacker.unpack(packed).expect("it can be unpacked") == *records);
        }
        // What is cut stays as it is.
        let cut = &kept.records[0][..kept.records[0].len() - 1];
        let packed = packer.pack(cut);
        assert!(unpacker.unpack(&packed).expect("plain bytes") == cut);
    }
}

#[test]
fn damaged_packed_records_are_refused() {
    /// Bytes that are changed, one after the other.
    const MANY: usize = 20_000;
    let kept = kept("/bin/true", &["true"]);
    let (mut packer, mut unpacker) = packers(&kept.blocks);
    let packed = packer.pack(&kept.records[0]);
    for len in 0..packed.len().min(MANY) {
        assert!(unpacker.unpack(&packed[..len]).is_err(), "{len} bytes");
    }
    for at in 0..packed.len().min(MANY) {
        let mut changed = packed.clone();
        changed[at] ^= 0x55;
        // No panic, whatever it is.
        let _ = unpacker.unpack(&changed);
    }
    let (_, mut others) = packers(&[]);
    assert!(others.unpack(&packed).is_err());
}

/// Where records stand alone, reading can begin.
#[test]
fn reading_begins_in_the_middle() {
    let program = build("hot.c", Link::Static, &[]);
    let kept = kept(program.to_str().expect("text"), &["hot", "40"]);
    let read_from = |first: usize| {
        let mut decode = Decode::new(Losing::default());
        let blocks = kept.blocks.iter().cloned().map(Message::Block);
        let records = kept.records[first..].iter().cloned();
        let records = records.map(|bytes| Message::Records { thread: 0, bytes });
        for message in blocks.chain(records) {
            decode.hear(&message).expect("it can be read");
        }
        decode.end().expect("it can be read");
        decode.into_client().done
    };
    let all = read_from(0);
    let alone = (1..kept.records.len()).filter(|&at| hodo_dbi::stands_alone(&kept.records[at]));
    let alone: Vec<usize> = alone.collect();
    assert!(alone.len() > 3, "{} of {}", alone.len(), kept.records.len());
    for at in alone {
        let rest = read_from(at);
        assert!(!rest.is_empty() && all.ends_with(&rest), "from {at} on");
    }
}

/// All accesses.
#[derive(Default)]
struct All(Vec<Row>);

impl Client for All {
    fn executed(&mut self, _: u32, block: &Arc<Block>, _: usize, accesses: &[Access]) {
        self.0.extend(accesses.iter().map(|access| {
            let pc = block.insns[usize::from(access.insn)].pc;
            (pc, access.kind, access.address, access.size)
        }));
    }
}

#[test]
fn elements_that_a_mask_selects() {
    let program = build("masks.c", Link::Static, &[]);
    let alone = Command::new(&program).output().expect("it can be run");
    let text = String::from_utf8(alone.stdout).expect("text");
    let expected: Vec<Row> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| u64::from_str_radix(word, 16).expect("a number");
            let kind = if words[1] == "0" {
                Kind::Load
            } else {
                Kind::Store
            };
            (
                number(words[0]),
                kind,
                number(words[2]),
                words[3].parse().expect("a size"),
            )
        })
        .collect();
    let command = [OsString::from(&program)];
    let observed = hodo_dbi::observe(
        &Target::program(&program, &command),
        Observe::Accesses,
        All::default(),
    );
    let mut all = observed.expect("the program can be observed").1.0;
    all.retain(|(pc, ..)| expected.iter().any(|(own, ..)| own == pc));
    if expected.is_empty() {
        eprintln!("skipped: the processor has no vectors with masks");
    }
    let (mut all, mut expected) = (all, expected);
    // The program says it in the order of its own text.
    all.sort_by_key(|&(pc, ..)| pc);
    expected.sort_by_key(|&(pc, ..)| pc);
    for (got, expected) in all.iter().zip(&expected) {
        assert_eq!(got, expected, "not as the program says it");
    }
    assert_eq!(all.len(), expected.len());
}

/// Records a program, and returns the file.
fn recorded(program: &Path, name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&place).expect("a directory");
    let file = place.join("accesses");
    let writer = Writer::create(&file).expect("a file");
    let (setarch, command) = command(program);
    hodo_dbi::listen(
        &Target::program(&setarch, &command),
        Observe::Accesses,
        writer,
    )
    .expect("it can be recorded");
    file
}

fn read(bytes: &[u8]) -> (Vec<Row>, Option<String>) {
    let mut decode = Decode::new(All::default());
    let damage = trace::read_from(bytes, &mut decode).expect("it is a trace");
    (decode.into_client().0, damage)
}

#[test]
fn threads_that_others_end() {
    let program = build("ended_thread.c", Link::Static, &["-pthread"]);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("counted");
    let command = [OsString::from(&program), OsString::from(&file)];
    for _ in 0..5 {
        let observed = hodo_dbi::observe(
            &Target::program(&program, &command),
            Observe::Accesses,
            All::default(),
        );
        let all = observed.expect("the program can be observed").1.0;
        let stores = all
            .iter()
            .filter(|row| (row.1, row.2) == (Kind::Store, 0x5000_0000));
        let bytes = std::fs::read(&file).expect("the count");
        let counted = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert_eq!(stores.count() as u64, counted);
        assert!(counted > 1000);
    }
}

/// Hears what two hear.
struct Both<A, B>(A, B);

impl<A: Listener, B: Listener> Listener for Both<A, B> {
    fn hear(&mut self, message: &Message) -> anyhow::Result<()> {
        self.0.hear(message)?;
        self.1.hear(message)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.0.end()?;
        self.1.end()
    }
}

#[test]
fn recordings_have_what_clients_are_told() {
    let program = build("accesses.c", Link::Static, &[]);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("told");
    let writer = Writer::create(&file).expect("a file");
    let both = Both(writer, Decode::new(Stream::default()));
    let (setarch, command) = command(&program);
    let listened = hodo_dbi::listen(
        &Target::program(&setarch, &command),
        Observe::Accesses,
        both,
    );
    let told = listened.expect("it can be recorded").1.1.into_client();
    let mut read = Decode::new(Stream::default());
    let damage = trace::read(&file, &mut read).expect("it can be read");
    assert_eq!(damage, None);
    assert!(read.into_client() == told, "the recording differs");
    assert!(told.accesses.len() > 1000);
}

#[test]
fn damaged_recordings_are_read_up_to_the_damage() {
    let program = build("masks.c", Link::Static, &[]);
    let bytes = std::fs::read(recorded(&program, "damaged")).expect("it can be read");
    let (whole, damage) = read(&bytes);
    assert_eq!(damage, None);
    let is_start = |some: &[Row]| whole.starts_with(some);
    for step in 0..40 {
        let end = 16 + (bytes.len() - 17) * step / 40;
        let (some, damage) = read(&bytes[..end]);
        assert!(is_start(&some) && damage.is_some(), "cut after {end} bytes");
        let mut bad = bytes.clone();
        bad[end] ^= 0x10;
        let (some, damage) = read(&bad);
        assert!(is_start(&some) && damage.is_some(), "byte {end} is damaged");
    }
    for end in 0..16 {
        let mut nothing = Decode::new(All::default());
        assert!(trace::read_from(&bytes[..end], &mut nothing).is_err());
    }
}
