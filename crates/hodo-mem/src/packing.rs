//! Records, packed by what threads repeat.
//!
//! Which block comes next is usually the one that came next after the last two blocks before, and a value of a record
//! is often as far from the last one of the same kind as that was from the one before. What is so takes a bit or a
//! byte; of other values, only the bytes of the difference are stored. Burtscher's VPC and TCgen compress traces in
//! this way ("Automatic Generation of High-Performance Trace Compressors", 2005).

use anyhow::{Context, Result, bail};
use hodo_dbi::{Block, size_of_other_record};

/// The number of pairs of blocks for which it is known what comes next, as a power of two.
const PAIRS: u32 = 14;

/// Records come as they are,
const PLAIN: u8 = 0;
/// or packed.
const PACKED: u8 = 1;

/// A value of the records of a block.
#[derive(Debug, Clone, Copy, Default)]
struct Field {
    size: u32,
    last: u64,
    step: u64,
}

/// What is known of the records before.
#[derive(Debug, Default)]
struct Model {
    /// By the number of the block: where its fields begin, how many there are, and when they were last used.
    blocks: Vec<Option<(u32, u32, u32)>>,
    fields: Vec<Field>,
    /// What came next after pairs of blocks.
    next: Vec<u32>,
    /// The pair.
    pair: [u32; 2],
    /// Counts chunks: none needs what was known in others.
    chunk: u32,
}

impl Model {
    /// Records may be of this block.
    fn add(&mut self, block: &Block) {
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        let first = self.fields.len() as u32;
        let new = block.value_sizes().map(|size| Field {
            size,
            ..Field::default()
        });
        self.fields.extend(new);
        let count = self.fields.len() as u32 - first;
        self.blocks[number] = Some((first, count, 0));
    }

    fn begin(&mut self) {
        self.chunk += 1;
        self.next.clear();
        self.next.resize(1 << PAIRS, u32::MAX);
        self.pair = [0; 2];
    }

    /// What comes next after the last two records.
    fn guess(&mut self) -> &mut u32 {
        let [a, b] = self.pair;
        let hash = a.wrapping_mul(0x9E37_79B1) ^ b.wrapping_mul(0x85EB_CA6B);
        &mut self.next[(hash >> (32 - PAIRS)) as usize]
    }

    fn came(&mut self, number: u32) {
        self.pair = [number, self.pair[0]];
    }

    /// The fields of a block.
    fn fields(&mut self, number: u32) -> Option<&mut [Field]> {
        let (first, count, used) = self.blocks.get_mut(number as usize)?.as_mut()?;
        let fields = &mut self.fields[*first as usize..][..*count as usize];
        if *used != self.chunk {
            *used = self.chunk;
            for field in &mut *fields {
                (field.last, field.step) = (0, 0);
            }
        }
        Some(fields)
    }
}

/// Packs records.
#[derive(Debug, Default)]
pub struct Packer {
    model: Model,
    numbers: Vec<u8>,
    codes: Vec<u8>,
    rest: Vec<u8>,
}

impl Packer {
    /// Records may be of this block.
    pub fn add(&mut self, block: &Block) {
        self.model.add(block);
    }

    /// Packs these. What is not records of these blocks stays as it is.
    pub fn pack(&mut self, records: &[u8]) -> Vec<u8> {
        self.packed(records).unwrap_or_else(|| plain(records))
    }

    fn packed(&mut self, records: &[u8]) -> Option<Vec<u8>> {
        self.numbers.clear();
        self.codes.clear();
        self.rest.clear();
        self.model.begin();
        let mut bytes = records;
        let mut guessed = 0u32;
        while !bytes.is_empty() {
            let number = u32::from_le_bytes(*take(&mut bytes)?);
            let guess = self.model.guess();
            if *guess == number {
                guessed += 1;
            } else {
                *guess = number;
                count(&mut self.numbers, guessed);
                guessed = 0;
                self.numbers.extend_from_slice(&number.to_le_bytes());
            }
            self.model.came(number);
            if let Some(size) = size_of_other_record(number) {
                self.rest.extend_from_slice(bytes.get(..size - 4)?);
                bytes = &bytes[size - 4..];
                continue;
            }
            for field in self.model.fields(number)? {
                let value = match field.size {
                    8 => u64::from_le_bytes(*take(&mut bytes)?),
                    4 => u32::from_le_bytes(*take(&mut bytes)?).into(),
                    size => {
                        self.rest.extend_from_slice(bytes.get(..size as usize)?);
                        bytes = &bytes[size as usize..];
                        continue;
                    }
                };
                let step = value.wrapping_sub(field.last);
                field.last = value;
                if step == field.step {
                    self.codes.push(0);
                    continue;
                }
                field.step = step;
                // Small numbers of either sign are small.
                let folded = step << 1 ^ (step.cast_signed() >> 63).cast_unsigned();
                let len = (8 - folded.leading_zeros() / 8).max(1);
                self.codes.push(len as u8);
                // Eight bytes are copied faster than some.
                let end = self.rest.len() + len as usize;
                self.rest.extend_from_slice(&folded.to_le_bytes());
                self.rest.truncate(end);
            }
        }
        count(&mut self.numbers, guessed);
        let parts = [&self.numbers, &self.codes, &self.rest];
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut packed = Vec::with_capacity(13 + len);
        packed.push(PACKED);
        for len in [records.len(), self.numbers.len(), self.codes.len()] {
            packed.extend_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
        }
        parts.iter().for_each(|part| packed.extend_from_slice(part));
        Some(packed)
    }
}

/// Records as they are.
pub(crate) fn plain(records: &[u8]) -> Vec<u8> {
    [&[PLAIN], records].concat()
}

/// A number in as few bytes as it needs, of seven bits each.
fn count(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take<'b, const N: usize>(bytes: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

fn take_count(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let [byte] = *take(bytes)?;
        number |= u32::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Unpacks what [`Packer::pack`] has made.
#[derive(Debug, Default)]
pub struct Unpacker {
    model: Model,
}

impl Unpacker {
    /// The maximum number of bytes of records.
    const MOST: usize = 1 << 28;

    /// Records may be of this block.
    pub fn add(&mut self, block: &Block) {
        self.model.add(block);
    }

    /// The records.
    ///
    /// # Errors
    /// If that is not what these bytes are.
    pub fn unpack(&mut self, packed: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = match packed {
            [PACKED, packed @ ..] => packed,
            [PLAIN, records @ ..] => return Ok(records.to_vec()),
            _ => bail!("records are packed in an unknown way"),
        };
        let mut len = || Some(u32::from_le_bytes(*take(&mut bytes)?) as usize);
        let (Some(all), Some(numbers), Some(codes)) = (len(), len(), len()) else {
            bail!("packed records are too short");
        };
        let (Some(mut numbers), Some(rest)) = (bytes.get(..numbers), bytes.get(numbers..)) else {
            bail!("numbers of packed records are missing");
        };
        let (Some(mut codes), Some(mut rest)) = (rest.get(..codes), rest.get(codes..)) else {
            bail!("codes of packed records are missing");
        };
        if all > Self::MOST {
            bail!("packed records are too long");
        }
        let mut out = vec![0; all];
        let mut to = &mut out[..];
        self.model.begin();
        let mut guessed = take_count(&mut numbers).context("numbers are missing")?;
        while !to.is_empty() {
            let guess = self.model.guess();
            let number = match guessed {
                0 => {
                    let number = take(&mut numbers).context("a number is missing")?;
                    *guess = u32::from_le_bytes(*number);
                    let number = *guess;
                    guessed = take_count(&mut numbers).context("numbers are missing")?;
                    number
                }
                _ => {
                    guessed -= 1;
                    *guess
                }
            };
            self.model.came(number);
            let read = self.record(number, (&mut codes, &mut rest), &mut to);
            read.with_context(|| format!("a record of block {number} cannot be unpacked"))?;
        }
        Ok(out)
    }

    #[inline]
    fn record(
        &mut self,
        number: u32,
        (codes, rest): (&mut &[u8], &mut &[u8]),
        to: &mut &mut [u8],
    ) -> Option<()> {
        put(to, number.to_le_bytes())?;
        if let Some(size) = size_of_other_record(number) {
            return copy(rest, to, size - 4);
        }
        for field in self.model.fields(number)? {
            if !matches!(field.size, 4 | 8) {
                copy(rest, to, field.size as usize)?;
                continue;
            }
            let [len] = *take(codes)?;
            if len > 0 {
                let folded = number_of(rest, usize::from(len))?;
                *rest = &rest[usize::from(len)..];
                field.step = folded >> 1 ^ (folded & 1).wrapping_neg();
            }
            field.last = field.last.wrapping_add(field.step);
            match field.size {
                8 => put(to, field.last.to_le_bytes())?,
                _ => put(to, (field.last as u32).to_le_bytes())?,
            }
        }
        Some(())
    }
}

/// Writes bytes, if there is room.
#[inline]
fn put<const N: usize>(to: &mut &mut [u8], bytes: [u8; N]) -> Option<()> {
    let (first, rest) = std::mem::take(to).split_first_chunk_mut()?;
    *first = bytes;
    *to = rest;
    Some(())
}

fn copy(from: &mut &[u8], to: &mut &mut [u8], size: usize) -> Option<()> {
    let (first, rest) = std::mem::take(to).split_at_mut_checked(size)?;
    first.copy_from_slice(from.get(..size)?);
    (*from, *to) = (&from[size..], rest);
    Some(())
}

/// The number in the first bytes, at most eight.
#[inline]
fn number_of(bytes: &[u8], len: usize) -> Option<u64> {
    if let Some(word) = bytes.first_chunk()
        && (1..=8).contains(&len)
    {
        return Some(u64::from_le_bytes(*word) & u64::MAX >> (64 - 8 * len));
    }
    let mut word = [0; 8];
    word.get_mut(..len)?.copy_from_slice(bytes.get(..len)?);
    Some(u64::from_le_bytes(word))
}
