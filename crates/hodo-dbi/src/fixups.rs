//! Where code of the cache depends on its place, on that of the program's code, and on that of the table of targets.

/// What a word depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depends {
    /// Four bytes: the distance from a place in the cache to an address of the program.
    Distance,
    /// Eight bytes: an address of the program.
    Original,
    /// Eight bytes: an address in the cache.
    Cache,
    /// Four bytes: an address in the table of targets.
    Table,
    /// Four bytes: where a counter is in the block of a thread.
    Counter,
    /// Four bytes: the number of a block of code.
    Block,
}
/// How many of these there are.
pub(crate) const KINDS: usize = Depends::Block as usize + 1;

/// Where code and what it depends on is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bases {
    /// The program's code,
    pub(crate) original: u64,
    /// its translation,
    pub(crate) cache: u64,
    /// and the table of targets.
    pub(crate) table: u32,
    /// The number of the first counter, and that of the first block of code.
    pub(crate) counter: u32,
    pub(crate) block: u32,
}

/// Words of code that depend on places, as offsets from its beginning, by what they depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fixups(pub(crate) [Vec<u32>; KINDS]);

impl Fixups {
    /// Adds a word.
    pub(crate) fn add(&mut self, offset: u64, depends: Depends) {
        self.0[depends as usize].push(offset as u32);
    }

    /// Appends words of code that begins at an offset.
    pub(crate) fn extend(&mut self, offset: u64, others: &Self) {
        for (all, others) in self.0.iter_mut().zip(&others.0) {
            all.extend(others.iter().map(|other| other + offset as u32));
        }
    }

    /// Changes code that was made for some bases so that it is right for others. `None`: a word is not in the code.
    pub(crate) fn apply(&self, code: &mut [u8], from: Bases, to: Bases) -> Option<()> {
        let original = to.original.wrapping_sub(from.original);
        let cache = to.cache.wrapping_sub(from.cache);
        let table = to.table.wrapping_sub(from.table);
        let counter = to.counter.wrapping_sub(from.counter).wrapping_mul(8);
        let block = to.block.wrapping_sub(from.block);
        let [distances, originals, addresses, entries, counters, blocks] = &self.0;
        add::<4>(code, distances, original.wrapping_sub(cache))?;
        add::<8>(code, originals, original)?;
        add::<8>(code, addresses, cache)?;
        add::<4>(code, entries, table.into())?;
        add::<4>(code, counters, counter.into())?;
        add::<4>(code, blocks, block.into())
    }
}

/// Adds to words of `N` bytes.
fn add<const N: usize>(code: &mut [u8], places: &[u32], difference: u64) -> Option<()> {
    for &place in places {
        let word = code.get_mut(place as usize..)?.first_chunk_mut::<N>()?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(word);
        let sum = u64::from_le_bytes(wide).wrapping_add(difference);
        word.copy_from_slice(&sum.to_le_bytes()[..N]);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_their_bases() {
        let from = Bases {
            original: 0x1000,
            cache: 0x8000,
            table: 0x100,
            ..Bases::default()
        };
        let to = Bases {
            original: 0x7F00_0000_1000,
            cache: 0x7F00_0000_0000,
            table: 0x200,
            counter: 3,
            block: 5,
        };
        let mut code = Vec::new();
        code.extend((-0x6F00i32).to_le_bytes()); // From 0x8000 to 0x1100.
        code.extend(0x1234u64.to_le_bytes());
        code.extend(0x8010u64.to_le_bytes());
        code.extend(0x110u32.to_le_bytes());
        code.extend(0x400u32.to_le_bytes());
        code.extend(7u32.to_le_bytes());
        let mut fixups = Fixups::default();
        let mut piece = Fixups::default();
        fixups.add(0, Depends::Distance);
        piece.add(0, Depends::Original);
        piece.add(8, Depends::Cache);
        piece.add(16, Depends::Table);
        piece.add(20, Depends::Counter);
        piece.add(24, Depends::Block);
        fixups.extend(4, &piece);
        assert_eq!(fixups.apply(&mut code, from, to), Some(()));
        assert_eq!(code[..4], 0x1100i32.to_le_bytes());
        assert_eq!(code[4..12], 0x7F00_0000_1234u64.to_le_bytes());
        assert_eq!(code[12..20], 0x7F00_0000_0010u64.to_le_bytes());
        assert_eq!(code[20..24], 0x210u32.to_le_bytes());
        assert_eq!(code[24..28], 0x418u32.to_le_bytes());
        assert_eq!(code[28..], 12u32.to_le_bytes());
        assert_eq!(fixups.apply(&mut code[..31], from, to), None);
    }
}
