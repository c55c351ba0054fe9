//! Files that are packed in one of the ways in which DynamoRIO packs its traces.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};
use std::path::Path;
use std::vec;

use anyhow::{Context, Result, bail};
use flate2::CrcReader;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder};
use lz4_flex::frame::FrameDecoder;
use zip::{CompressionMethod, ZipArchive};

/// Bytes of a buffer. There may be a thousand files.
const ROOM: usize = 1 << 16;

type Buffered = BufReader<File>;

/// Opens a file, by the end of its name.
///
/// # Errors
/// If it cannot be opened, or is packed in another way.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>> {
    let file = BufReader::with_capacity(ROOM, File::open(path)?);
    Ok(match path.extension().and_then(OsStr::to_str) {
        Some("gz") => Box::new(BufReader::with_capacity(ROOM, MultiGzDecoder::new(file))),
        Some("lz4") => Box::new(BufReader::with_capacity(ROOM, FrameDecoder::new(file))),
        Some("zip") => Box::new(BufReader::with_capacity(ROOM, Components::open(file)?)),
        Some("trace") => Box::new(file),
        _ => {
            bail!("only files that end in .trace, .trace.gz, .trace.zip and .trace.lz4 can be read")
        }
    })
}

/// A component of an archive.
#[derive(Debug)]
struct Component {
    name: String,
    /// Where its bytes begin in the archive.
    start: u64,
    /// Bytes there.
    stored: u64,
    deflated: bool,
    checksum: u32,
}

/// The bytes of a component that is read.
enum Bytes {
    Stored(CrcReader<Take<Buffered>>),
    Deflated(Box<CrcReader<DeflateDecoder<Take<Buffered>>>>),
}

/// The components of an archive, one after the other.
struct Components {
    next: vec::IntoIter<Component>,
    now: Option<(Component, Bytes)>,
    /// Unless it is with the component that is read.
    file: Option<Buffered>,
}

impl Components {
    fn open(file: Buffered) -> Result<Self> {
        let mut archive = ZipArchive::new(file).context("it is not an archive")?;
        let mut components = Vec::new();
        for index in 0..archive.len() {
            let found = archive.by_index_raw(index)?;
            let name = found.name()?.into_owned();
            let deflated = match found.compression() {
                CompressionMethod::Stored => false,
                CompressionMethod::Deflated => true,
                other => bail!("{name} is packed by {other}, which hodo cannot read"),
            };
            if found.encrypted() {
                bail!("{name} is encrypted");
            }
            let start = found.data_start().context("it has no bytes")?;
            components.push(Component {
                start,
                stored: found.compressed_size(),
                deflated,
                checksum: found.crc32(),
                name,
            });
        }
        // chunk.0000 comes first.
        components.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
        Ok(Self {
            next: components.into_iter(),
            now: None,
            file: Some(archive.into_inner()),
        })
    }

    /// Begins with the next component. Returns whether there is one.
    fn advance(&mut self) -> io::Result<bool> {
        let (Some(component), Some(mut file)) = (self.next.next(), self.file.take()) else {
            return Ok(false);
        };
        file.seek(SeekFrom::Start(component.start))?;
        let stored = file.take(component.stored);
        let bytes = match component.deflated {
            true => Bytes::Deflated(Box::new(CrcReader::new(DeflateDecoder::new(stored)))),
            false => Bytes::Stored(CrcReader::new(stored)),
        };
        self.now = Some((component, bytes));
        Ok(true)
    }
}

impl Read for Components {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.now.is_none() && !self.advance()? {
                return Ok(0);
            }
            let Some((component, bytes)) = &mut self.now else {
                return Ok(0);
            };
            let read = match bytes {
                Bytes::Stored(bytes) => bytes.read(buffer)?,
                Bytes::Deflated(bytes) => bytes.read(buffer)?,
            };
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let sum = match bytes {
                Bytes::Stored(bytes) => bytes.crc().sum(),
                Bytes::Deflated(bytes) => bytes.crc().sum(),
            };
            if sum != component.checksum {
                let text = format!("{} is damaged: its checksum is wrong", component.name);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let Some((_, bytes)) = self.now.take() else {
                return Ok(0);
            };
            self.file = Some(match bytes {
                Bytes::Stored(bytes) => bytes.into_inner().into_inner(),
                Bytes::Deflated(bytes) => bytes.into_inner().into_inner().into_inner(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};
    use std::path::PathBuf;

    use lz4_flex::frame::FrameEncoder;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn put(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hodo-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("room");
        path
    }

    fn read(path: &Path) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = open(path).and_then(|mut file| Ok(file.read_to_end(&mut bytes)?));
        std::fs::remove_file(path)?;
        read.map(|_| bytes)
    }

    fn archive(components: &[(&str, CompressionMethod, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for &(name, method, bytes) in components {
            let options = SimpleFileOptions::default().compression_method(method);
            writer.start_file(name, options).expect("a component");
            writer.write_all(bytes).expect("room");
        }
        writer.finish().expect("an archive").into_inner()
    }

    #[test]
    fn components_are_read_in_the_order_of_their_numbers() {
        let long = vec![7; 300_000];
        let archive = archive(&[
            ("chunk.0001", CompressionMethod::Deflated, b"b"),
            ("chunk.0000", CompressionMethod::Stored, b"a"),
            ("chunk.10000", CompressionMethod::Stored, b""),
            ("chunk.0002", CompressionMethod::Deflated, &long),
            ("chunk.10001", CompressionMethod::Deflated, b"d"),
        ]);
        let found = read(&put("order.trace.zip", &archive)).expect("an archive");
        assert_eq!(found, [&b"ab"[..], &long, b"d"].concat());
    }

    #[test]
    fn damage_is_noticed() {
        let whole = archive(&[("chunk.0000", CompressionMethod::Stored, &[1; 100])]);
        let mut damaged = whole.clone();
        let at = damaged.windows(100).position(|part| part == [1; 100]);
        damaged[at.expect("it is there")] = 2;
        let error = read(&put("damaged.trace.zip", &damaged)).expect_err("it is damaged");
        assert!(format!("{error:#}").contains("checksum"), "{error:#}");
        let cut = &whole[..whole.len() - 30];
        assert!(read(&put("cut.trace.zip", cut)).is_err());
        assert!(read(&put("other.trace.xz", b"")).is_err());
    }

    #[test]
    fn frames_of_lz4_are_read() {
        let mut frame = FrameEncoder::new(Vec::new());
        frame.write_all(&[5; 100_000]).expect("room");
        let frame = frame.finish().expect("a frame");
        let found = read(&put("frame.trace.lz4", &frame)).expect("a frame");
        assert_eq!(found, [5; 100_000]);
    }
}
