//! Memory traces with any changes: of the engine's format, a recording of a real program whose blocks and records were
//! changed before they were put into chunks, and any bytes as a file; any bytes as a file of DynamoRIO's format.
//! Reading ends without a panic, and what it says fits the blocks.
#![no_main]

use std::sync::{Arc, OnceLock};

use hodo_dbi::{Access, Block, Client, Decode, Listener, Message, Observe, Target};
use hodo_fuzz::Bytes;
use hodo_mem::packing::{Packer, Unpacker};
use hodo_mem::{drmemtrace, trace};
use libfuzzer_sys::fuzz_target;

/// Checks what it hears.
struct Checks;

impl Client for Checks {
    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        assert!(upto <= block.insns.len());
        assert!((1..u64::from(u32::MAX)).contains(&times), "executed {times} times");
    }

    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        assert!(upto <= block.insns.len());
        let ends = accesses
            .iter()
            .all(|access| usize::from(access.insn) < block.insns.len());
        assert!(ends, "an access of no instruction");
        let _ = block.bytes(block.insns.len() - 1);
    }
}

/// Keeps blocks, and the records of the first thread.
#[derive(Default)]
struct Keeps {
    blocks: Vec<Arc<Block>>,
    records: Vec<u8>,
}

impl Listener for Keeps {
    fn hear(&mut self, message: &Message) -> anyhow::Result<()> {
        /// Bytes of records, which begin with what is executed first.
        const ENOUGH: usize = 20_000;
        match message {
            Message::Block(block) => self.blocks.push(Arc::clone(block)),
            Message::Records { bytes, .. } if self.records.len() < ENOUGH => {
                self.records.extend(bytes)
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The blocks of a program, encoded, and records.
fn recording() -> &'static (Vec<u8>, Vec<u8>) {
    static RECORDING: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    RECORDING.get_or_init(|| {
        // In a thread of its own: the engine blocks the signals of its caller.
        let run = || {
            let command = ["/bin/true".into()];
            hodo_dbi::listen(
                &Target::program("/bin/true".as_ref(), &command),
                Observe::Accesses,
                Keeps::default(),
            )
        };
        let keeps = std::thread::spawn(run)
            .join()
            .expect("no panic")
            .expect("it can be observed")
            .1;
        let mut records = keeps.records;
        records.truncate(1 << 15);
        let used = keeps.blocks.iter().take(1 << 11);
        let used: Vec<&Block> = used.map(AsRef::as_ref).collect();
        (
            postcard::to_allocvec(&used).expect("they can be encoded"),
            records,
        )
    })
}

/// Changes bytes at places that the input chooses.
fn changed(bytes: &[u8], input: &mut Bytes<'_>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..input.take::<1>()[0] % 16 {
        let at = u32::from_le_bytes(input.take()) as usize % bytes.len();
        let [value] = input.take::<1>();
        bytes[at] = value;
    }
    bytes
}

fuzz_target!(|input: &[u8]| {
    let _ = trace::read_from(input, &mut Decode::new(Checks));
    let _ = trace::read_from(input, &mut Decode::counting(Checks));
    let _ = drmemtrace::read_from(input, &mut Checks);
    let (blocks, records) = recording();
    let mut choices = Bytes(input);
    let blocks = changed(blocks, &mut choices);
    let records = changed(records, &mut choices);
    let Ok(blocks) = postcard::from_bytes::<Vec<Block>>(&blocks) else {
        return;
    };
    let mut decode = [Decode::new(Checks), Decode::counting(Checks)];
    let mut kept = Vec::new();
    let (mut packer, mut unpacker) = (Packer::default(), Unpacker::default());
    for block in blocks {
        // A repeated instruction may say that it has made any number of accesses.
        if block.is_sound() && !block.is_repeated() {
            let block = Arc::new(block);
            for decode in &mut decode {
                let _ = decode.hear(&Message::Block(Arc::clone(&block)));
            }
            kept.push(block);
        }
    }
    for block in &kept {
        packer.add(block);
        unpacker.add(block);
    }
    let packed = packer.pack(&records);
    let unpacked = unpacker.unpack(&packed).expect("it was packed");
    assert!(unpacked == records, "records have changed");
    let _ = unpacker.unpack(&changed(&packed, &mut choices));
    let both = Message::Records {
        thread: 0,
        bytes: records,
    };
    for decode in &mut decode {
        let _ = decode.hear(&both);
        let _ = decode.end();
    }
});
