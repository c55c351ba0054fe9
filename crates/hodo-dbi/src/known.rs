//! Where instructions of the program were translated to: by page, because neighbors are asked for one after the other.

use std::cell::Cell;
use std::rc::Rc;

use hodo_abi::Span;
use rustc_hash::FxHashMap;

use crate::placed::Placed;

const PAGE: u64 = 4096;

/// For each byte of a page, how far the translation of the instruction that begins there is from the page; zero is
/// none. Code and its translation are usually less than 2 GiB apart.
pub(crate) type Page = [i32; PAGE as usize];

/// Where instructions of the program were translated to. A copy costs little until it is changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The place of each page in the list.
    numbers: FxHashMap<u64, usize>,
    pages: Vec<Rc<Page>>,
    /// Instructions whose translations are farther away.
    far: FxHashMap<u64, u64>,
    /// Translations of earlier runs.
    images: Vec<Placed>,
    /// The page that was asked for last, and its place.
    last: Cell<Option<(u64, usize)>>,
}

impl Known {
    fn number(&self, page: u64) -> Option<usize> {
        match self.last.get() {
            Some((last, number)) if last == page => Some(number),
            _ => {
                let number = *self.numbers.get(&page)?;
                self.last.set(Some((page, number)));
                Some(number)
            }
        }
    }

    /// Where an instruction was translated to.
    pub(crate) fn get(&self, pc: u64) -> Option<u64> {
        let page = pc & !(PAGE - 1);
        let number = self.number(page);
        let distance = number.map_or(0, |number| self.pages[number][(pc - page) as usize]);
        match distance {
            0 => {
                if let Some(&at) = self.far.get(&pc) {
                    return Some(at);
                }
                let image = self.images.iter().find(|image| image.map.contains(pc))?;
                image.known(pc)
            }
            _ => Some(page.wrapping_add_signed(distance.into())),
        }
    }

    /// Instructions were translated in an earlier run.
    pub(crate) fn add_image(&mut self, image: Placed) {
        self.images.push(image);
    }

    /// Words of exits of images to an instruction that these do not have.
    pub(crate) fn waiting(&self, pc: u64) -> impl Iterator<Item = u64> {
        self.images.iter().flat_map(move |image| image.waiting(pc))
    }

    /// Such words of exits to all instructions in a range, and the instructions.
    pub(crate) fn waiting_in(&self, range: Span) -> Vec<(u64, u64)> {
        let all = self.images.iter().flat_map(|image| image.open());
        let wanted = all.filter(|(target, _)| range.contains(*target));
        wanted.copied().collect()
    }

    /// The exits of images to instructions for which `is_gone` holds, as [`Placed::exits`] has them.
    pub(crate) fn exits_to(&self, is_gone: impl Fn(u64) -> bool) -> Vec<[u64; 3]> {
        let exits = self.images.iter().flat_map(Placed::exits);
        exits.filter(|&[_, _, target]| is_gone(target)).collect()
    }

    /// Forgets all instructions of these images. Returns them.
    pub(crate) fn remove_images(&mut self, is_gone: impl Fn(u64) -> bool) -> Vec<Placed> {
        let is_gone = |image: &mut Placed| is_gone(image.map.start);
        self.images.extract_if(.., is_gone).collect()
    }

    /// An instruction was translated to this address.
    pub(crate) fn insert(&mut self, pc: u64, at: u64) {
        let page = pc & !(PAGE - 1);
        let number = self.number(page).unwrap_or_else(|| {
            self.pages.push(Rc::new([0; PAGE as usize]));
            self.numbers.insert(page, self.pages.len() - 1);
            self.pages.len() - 1
        });
        let distance = i32::try_from(at.wrapping_sub(page).cast_signed());
        Rc::make_mut(&mut self.pages[number])[(pc - page) as usize] = distance.unwrap_or(0);
        match distance {
            Ok(_) => self.far.remove(&pc),
            Err(_) => self.far.insert(pc, at),
        };
    }

    /// Forgets an instruction.
    pub(crate) fn remove(&mut self, pc: u64) {
        self.far.remove(&pc);
        let page = pc & !(PAGE - 1);
        if let Some(number) = self.number(page) {
            Rc::make_mut(&mut self.pages[number])[(pc - page) as usize] = 0;
        }
    }

    /// The instructions in these pages.
    pub(crate) fn pages(&self, is_wanted: impl Fn(u64) -> bool) -> Vec<(u64, Rc<Page>)> {
        let wanted = self.numbers.iter().filter(|(page, _)| is_wanted(**page));
        wanted
            .map(|(&page, &number)| (page, Rc::clone(&self.pages[number])))
            .filter(|(_, known)| known.iter().any(|&distance| distance != 0))
            .collect()
    }

    /// Images of these mappings.
    pub(crate) fn images(&self, is_wanted: impl Fn(u64) -> bool) -> Vec<Placed> {
        let images = self.images.iter();
        let wanted = images.filter(|image| is_wanted(image.map.start));
        wanted.cloned().collect()
    }

    /// The instructions in these pages have been translated, and no other ones.
    pub(crate) fn put_pages(&mut self, pages: Vec<(u64, Rc<Page>)>) {
        for (page, known) in pages {
            match self.numbers.get(&page) {
                Some(&number) => self.pages[number] = known,
                None => {
                    self.numbers.insert(page, self.pages.len());
                    self.pages.push(known);
                }
            }
        }
    }

    /// Forgets all instructions in these pages.
    pub(crate) fn remove_pages(&mut self, is_gone: impl Fn(u64) -> bool) {
        self.far.retain(|&pc, _| !is_gone(pc & !(PAGE - 1)));
        for (_, &number) in self.numbers.iter().filter(|(page, _)| is_gone(**page)) {
            self.pages[number] = Rc::new([0; PAGE as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_differ_after_changes() {
        let mut known = Known::default();
        assert_eq!(known.get(0x40_1000), None);
        known.insert(0x40_1000, 0x4000_0000);
        known.insert(0x7F00_0000_1FFF, 0x7F00_0000_0010);
        let mut copy = known.clone();
        copy.insert(0x40_1001, 0x3FFF_0000);
        copy.remove(0x40_1000);
        assert_eq!(copy.get(0x40_1000), None);
        assert_eq!(copy.get(0x40_1001), Some(0x3FFF_0000));
        assert_eq!(known.get(0x40_1000), Some(0x4000_0000));
        assert_eq!(known.get(0x40_1001), None);
        known.insert(0x7F00_0000_1002, 0x1234);
        assert_eq!(known.get(0x7F00_0000_1002), Some(0x1234));
        known.remove_pages(|page| page == 0x7F00_0000_1000);
        assert_eq!(known.get(0x7F00_0000_1002), None);
        assert_eq!(known.get(0x7F00_0000_1FFF), None);
        assert_eq!(copy.get(0x7F00_0000_1FFF), Some(0x7F00_0000_0010));
    }
}
