//! The program's code, as a translation reads it.

use std::rc::Rc;

use hodo_abi::Span;
use hodo_ptrace::TargetAddr;

use super::{PAGE, Process};
use crate::native::Native;
use crate::translate::{Bytes, Set};

/// Code of the program that a translation has read.
pub(super) struct Fetched<'p> {
    process: &'p Process,
    /// Nothing else is read.
    within: Span,
    /// Pages that were read: where each begins, and what is there.
    pages: Vec<(u64, Rc<[u8]>)>,
    /// The page that was used last,
    last: usize,
    /// and the range of code.
    span: Span,
}

impl<'p> Fetched<'p> {
    /// Nothing was read yet.
    pub(super) fn new(process: &'p Process, within: Span) -> Self {
        Self {
            process,
            within,
            pages: Vec::new(),
            last: 0,
            span: Span::EMPTY,
        }
    }

    /// The pages that were read.
    pub(super) fn pages(self) -> Vec<u64> {
        self.pages.into_iter().map(|(start, _)| start).collect()
    }

    /// Bytes of code from an address on, and how many of them the program may execute.
    pub(super) fn read(&mut self, at: u64) -> Option<(Bytes, usize)> {
        if !self.span.contains(at) {
            self.span = self.process.code.spans().at(at)?;
        }
        let mut bytes = [0; 16];
        if !self.within.contains(at) {
            return None;
        }
        let len = (self.span.end - at).min(16) as usize;
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let page = self.page(here & !(PAGE - 1));
            let rest = page.get((here % PAGE) as usize..);
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
                break;
            };
            let count = rest.len().min(len - done);
            bytes[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        // The exit to an instruction whose rest cannot be fetched shows that fault.
        let is_cut = done == len && done < bytes.len() && Native::is_cut(&bytes, done);
        (done > 0 && !is_cut).then_some((bytes, done))
    }

    /// The page that begins here.
    fn page(&mut self, start: u64) -> &[u8] {
        if self.pages.get(self.last).is_none_or(|page| page.0 != start) {
            let found = self.pages.iter().position(|page| page.0 == start);
            self.last = found.unwrap_or_else(|| {
                self.pages.push((start, self.process.page(start)));
                self.pages.len() - 1
            });
        }
        &self.pages[self.last].1
    }
}

impl Process {
    /// A page of code, as far as it can be read.
    fn page(&self, at: u64) -> Rc<[u8]> {
        let page = Span::at(at, PAGE);
        let stays = self.code.stays(page);
        if let Some(known) = self.pages.borrow().get(&at)
            && stays
        {
            return Rc::clone(known);
        }
        let mut content = vec![0; PAGE as usize];
        let read = self.memory.read_some(TargetAddr(at), &mut content);
        content.truncate(read);
        let content: Rc<[u8]> = content.into();
        if stays {
            self.pages.borrow_mut().insert(at, Rc::clone(&content));
        }
        content
    }
}
