//! Reads Perfetto traces: the wire format of protocol buffers, and Perfetto's tracks and events.

use std::collections::{BTreeMap, HashMap};

/// A packet.
#[derive(Debug, Default, Clone)]
pub struct Packet {
    /// Nanoseconds.
    pub time: Option<u64>,
    /// Events: 1 is the beginning of a slice, 2 its end, 3 an instant, 4 a counter's value.
    pub kind: Option<u64>,
    /// The track of an event, or the track that the packet describes.
    pub track: u64,
    /// Events only.
    pub name: String,
    /// Events only.
    pub category: String,
    /// Events only.
    pub annotations: BTreeMap<String, String>,
    /// Counters only.
    pub counter: Option<u64>,
    /// Tracks of threads: pid, tid and name.
    pub thread: Option<(u64, u64, String)>,
    /// Tracks of processes: pid and name.
    pub process: Option<(u64, String)>,
}

/// A field's value.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(bytes) => panic!("{bytes:?} is no number"),
        }
    }

    fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Number(number) => panic!("{number} is not bytes"),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("UTF-8")
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a number of more than ten bytes");
}

/// The fields of a message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(value)
            }
            kind => panic!("wire type {kind} of field {}", key >> 3),
        };
        fields.push((key >> 3, value));
    }
    fields
}

/// The value of a field that occurs only once in a message.
fn only<'a>(bytes: &'a [u8], number: u64) -> Option<Value<'a>> {
    let mut all = fields(bytes).into_iter().filter(|field| field.0 == number);
    let only = all.next().map(|field| field.1);
    assert!(all.next().is_none(), "field {number} is there twice");
    only
}

/// All packets of a trace.
///
/// # Panics
/// If the bytes are not a trace.
pub fn packets(trace: &[u8]) -> Vec<Packet> {
    let mut names: HashMap<u64, String> = HashMap::new();
    let mut packets = Vec::new();
    for (number, bytes) in fields(trace) {
        assert_eq!(number, 1, "a trace has only packets");
        let bytes = bytes.bytes();
        let mut packet = Packet {
            time: only(bytes, 8).map(|value| value.number()),
            ..Packet::default()
        };
        let flags = only(bytes, 13).map(|value| value.number());
        let expected = if packets.is_empty() { 1 } else { 2 };
        assert_eq!(flags, Some(expected), "names count from the beginning on");
        assert!(only(bytes, 10).is_some(), "a packet needs a sequence");
        if let Some(interned) = only(bytes, 12) {
            for (number, entry) in fields(interned.bytes()) {
                assert_eq!(number, 2);
                let iid = only(entry.bytes(), 1).expect("a number").number();
                let name = only(entry.bytes(), 2).expect("a name").text();
                assert!(names.insert(iid, name).is_none(), "a name is told twice");
            }
        }
        if let Some(event) = only(bytes, 11) {
            read_event(event.bytes(), &names, &mut packet);
        }
        if let Some(track) = only(bytes, 60) {
            let track = track.bytes();
            packet.track = only(track, 1).expect("a track").number();
            packet.process = only(track, 3).map(|process| {
                let pid = only(process.bytes(), 1).expect("a pid").number();
                (pid, only(process.bytes(), 6).expect("a name").text())
            });
            packet.thread = only(track, 4).map(|thread| {
                let number = |field| only(thread.bytes(), field).expect("a number").number();
                let name = only(thread.bytes(), 5).expect("a name").text();
                (number(1), number(2), name)
            });
        }
        packets.push(packet);
    }
    packets
}

fn read_event(bytes: &[u8], names: &HashMap<u64, String>, packet: &mut Packet) {
    for (number, value) in fields(bytes) {
        match number {
            4 => {
                let name = only(value.bytes(), 10).expect("a name").text();
                let shown = fields(value.bytes())
                    .into_iter()
                    .find_map(|(number, value)| match number {
                        3 | 7 => Some(value.number().to_string()),
                        4 => Some(value.number().cast_signed().to_string()),
                        6 => Some(value.text()),
                        _ => None,
                    });
                packet.annotations.insert(name, shown.expect("a value"));
            }
            9 => packet.kind = Some(value.number()),
            10 => packet.name = names[&value.number()].clone(),
            11 => packet.track = value.number(),
            22 => packet.category = value.text(),
            30 => packet.counter = Some(value.number()),
            number => panic!("field {number} of an event"),
        }
    }
}
