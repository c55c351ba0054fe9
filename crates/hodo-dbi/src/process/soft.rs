//! Code that may change, in a process.

use anyhow::{Context, Result, ensure};
use hodo_abi::Span;
use hodo_isa::native::asm::BREAKPOINT;
use hodo_ptrace::maps::{self, Mapping};
use hodo_ptrace::{Stopped, TargetAddr};

use crate::changes::{Check, Found};
use crate::marks;
use crate::native::block;
use crate::places;
use crate::process::Process;
use crate::protected::Notice;
use crate::written::map;

const PAGE: u64 = 4096;
/// Bytes of the longest instruction.
pub(super) const LONGEST: u64 = 15;

/// The pages that have the instruction at an address.
fn pages(pc: u64) -> impl Iterator<Item = u64> {
    let [first, last] = [pc, pc.saturating_add(LONGEST - 1)].map(|at| at & !(PAGE - 1));
    (first..=last).step_by(PAGE as usize)
}

impl Process {
    /// Whether the program may execute this, of which it may be the first to access anything: where a stack grows down
    /// to, it has the rights of the rest.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn may_execute(&mut self, thread: Stopped, at: u64) -> Result<bool> {
        if self.is_code(at) {
            return Ok(true);
        }
        let maps = maps::read(thread.tid())?;
        let is_stack =
            |map: &&Mapping| map.span().contains(at) && map.path.as_os_str() == "[stack]";
        let stack = maps.iter().find(is_stack).map(Mapping::span);
        let Some(stack) = stack.filter(|stack| self.code.soft().at(stack.end - 1).is_some()) else {
            return Ok(false);
        };
        self.add_code(stack, true, true)?;
        Ok(true)
    }

    /// Maps room for marks.
    pub(crate) fn map_marks(&mut self, thread: Stopped) -> Result<()> {
        let maps = maps::read(thread.tid())?;
        let place = places::for_table(&maps, marks::ROOM);
        let span = Span::at(place.context("there is no room below 2 GiB")?, marks::ROOM);
        let calls = self.calls_of(thread)?;
        map(&calls, span, libc::PROT_READ)?;
        calls.end()?;
        self.mapped.push(span);
        self.marks.get_mut().add_room(span);
        Ok(())
    }

    /// Marks the pages of a range whose code was translated: the program may execute them, or not.
    pub(crate) fn mark(&self, range: Span, executable: bool) -> Result<()> {
        for marks in self.marks.borrow().within(range) {
            let marked = vec![u8::from(!executable); marks.len() as usize];
            self.memory().write(TargetAddr(marks.start), &marked)?;
        }
        Ok(())
    }

    /// A thread has found that code is not what was translated. Returns where it continues in the cache. `None`: the
    /// program may not execute it.
    ///
    /// # Errors
    /// If there is no room, or the process is gone.
    pub(crate) fn changed(&mut self, thread: Stopped, check: &Check) -> Result<Option<u64>> {
        if !self.is_code(check.pc) {
            return Ok(None);
        }
        let known = self.known.get(check.pc);
        // A word that leads on already must not lead back: threads would go round for ever.
        let is_open = self.memory().read_u64(TargetAddr(check.cell))? == check.trap;
        let is_last = known.is_some_and(|known| {
            self.changes.found(check, known) == Found::Last || is_open && known == check.entry
        });
        let Some(first) = known.filter(|_| is_last) else {
            // Another thread was faster.
            let at = self.translated(thread, check.pc)?;
            if is_open && let Some(at) = at.filter(|&at| self.may_be_led_to(check.pc, at)) {
                self.memory()
                    .write(TargetAddr(check.cell), &at.to_le_bytes())?;
            }
            return Ok(at);
        };
        self.known.remove(check.pc);
        let Some(at) = self.translated(thread, check.pc)? else {
            return Ok(None);
        };
        let Some(new) = self.changes.of(at) else {
            if self.may_be_led_to(check.pc, at) {
                self.memory()
                    .write(TargetAddr(check.cell), &at.to_le_bytes())?;
            }
            return Ok(Some(at));
        };
        let (words, is_first) = self.changes.append(check, &new);
        if !is_first {
            self.known.insert(check.pc, first);
        }
        for word in words {
            self.memory().write(TargetAddr(word), &at.to_le_bytes())?;
        }
        Ok(Some(at))
    }

    /// Whether a check of an instruction may lead to this translation of it for ever: that leads on when the code
    /// changes once more.
    fn may_be_led_to(&self, pc: u64, at: u64) -> bool {
        self.changes.of(at).is_some() || self.protected.has(pc, at)
    }

    /// How hodo notices that the instruction at an address has changed, which may.
    pub(crate) fn notice(&self, pc: u64) -> Notice {
        let pages = pages(pc).filter(|&page| self.code.soft().overlap(Span::at(page, PAGE)));
        let notices = pages.map(|page| self.protected.notice(page));
        notices.fold(Notice::Protected, |all, notice| match (all, notice) {
            (Notice::Compared, _) | (_, Notice::Compared) => Notice::Compared,
            (Notice::Undecided, _) | (_, Notice::Undecided) => Notice::Undecided,
            _ => Notice::Protected,
        })
    }

    /// Code is about to be translated that may change: decides how that is noticed.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn protect(&mut self, thread: Stopped, pc: u64) -> Result<()> {
        for page in pages(pc) {
            let span = Span::at(page, PAGE);
            if !self.code.soft().overlap(span) || self.protected.notice(page) != Notice::Undecided {
                continue;
            }
            // Whom the memory is lent to writes to it as alone.
            if self.is_lent() || !self.is_private(thread, page)? {
                self.protected.add_shared(page);
                continue;
            }
            let is_writable = self.code.writable().overlap(span);
            if is_writable {
                let calls = self.calls_of(thread)?;
                let is_done = calls.mprotect(TargetAddr(page), PAGE, libc::PROT_READ)?;
                calls.end()?;
                if !is_done {
                    // There are too many mappings.
                    self.protected.add_shared(page);
                    continue;
                }
                self.memory().note_rights();
            }
            if self.protected.add_page(page, is_writable) {
                self.blocks
                    .given()
                    .try_for_each(|block| self.say_protected(block))?;
            }
        }
        Ok(())
    }

    /// Has a thread know whether memory is protected.
    ///
    /// # Errors
    /// If the process is gone.
    pub(super) fn say_protected(&self, block: u64) -> Result<()> {
        let at = TargetAddr(block + u64::from(block::PROTECTED));
        let is_used = u16::from(self.protected.is_used());
        self.memory().write(at, &is_used.to_le_bytes())
    }

    /// Whether only this process writes to a page, and not as to a stack.
    fn is_private(&self, thread: Stopped, page: u64) -> Result<bool> {
        let sp = thread.regs()?.sp();
        let maps = self.list(thread)?;
        let map = maps.iter().find(|map| map.span().contains(page));
        Ok(map.is_some_and(|map| {
            !map.shared && !map.span().contains(sp) && map.path.as_os_str() != "[stack]"
        }))
    }

    /// Pages in a range are about to change: what was translated from them leads to breakpoints from now on, and the
    /// program may write to them, as far as it has allowed that. Returns whether there are any. Without a thread, the
    /// program has given them other rights.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn end_protection(&mut self, thread: Option<Stopped>, range: Span) -> Result<bool> {
        let taken = self.protected.take(range);
        for made in taken.iter().flat_map(|(_, made)| made) {
            self.end_translation(made.pc, made.entry)?;
        }
        if let Some(thread) = thread
            && !taken.is_empty()
        {
            let calls = self.calls_of(thread)?;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let mut is_done = true;
            for &(page, _) in &taken {
                if self.may_write(page) {
                    is_done &= calls.mprotect(TargetAddr(page), PAGE, rights)?;
                }
            }
            calls.end()?;
            self.memory().note_rights();
            ensure!(
                is_done,
                "the program cannot write to its code any more: there are too many mappings"
            );
        }
        Ok(!taken.is_empty())
    }

    /// In a child that was just forked: gives pages of code the rights that they have by now in its maker.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn renew_rights(&mut self, thread: Stopped) -> Result<()> {
        let calls = self.calls_of(thread)?;
        for span in self.code.writable().all() {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            calls.mprotect(TargetAddr(span.start), span.len(), rights)?;
        }
        for page in self.protected.pages() {
            calls.mprotect(TargetAddr(page), PAGE, libc::PROT_READ)?;
        }
        calls.end()?;
        self.blocks
            .given()
            .try_for_each(|block| self.say_protected(block))
    }

    /// Who comes to a translation of code that may change stops there from now on, and goes on in a new one.
    fn end_translation(&mut self, pc: u64, entry: u64) -> Result<()> {
        self.memory().write(TargetAddr(entry), &BREAKPOINT)?;
        self.stops.add_moved(entry, pc);
        self.protected.add_former(pc, entry);
        if self.known.get(pc) == Some(entry) {
            self.known.remove(pc);
        }
        Ok(())
    }

    /// Ends all translations of code that may change.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn end_changing(&mut self) -> Result<()> {
        let ended = self.protected.take_all().into_iter();
        let ended: Vec<(u64, u64)> = ended.chain(self.changes.take_all()).collect();
        for (pc, entry) in ended {
            self.known.remove(pc);
            self.end_translation(pc, entry)?;
        }
        Ok(())
    }

    /// Whether hodo has taken the right to write to some page.
    pub(crate) fn protects(&self) -> bool {
        self.protected.is_used()
    }

    /// Whether hodo has taken the right to write to some page of a range.
    pub(crate) fn guards(&self, range: Span) -> bool {
        let mut pages = self.protected.within(range);
        pages.any(|page| self.may_write(page))
    }

    /// Whether the program may write to this address, at which it has code.
    pub(crate) fn may_write(&self, address: u64) -> bool {
        self.code.writable().at(address).is_some()
    }

    /// Whether there is code here that the program may write to.
    pub(crate) fn has_writable_code(&self, range: Span) -> bool {
        self.code.writable().overlap(range)
    }

    /// The kernel writes frames of handlers, or results of calls, here from now on.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn add_stack(&mut self, thread: Stopped, stack: Span) -> Result<()> {
        self.protected.add_stack(stack);
        self.end_protection(Some(thread), stack).map(drop)
    }

    /// A thread has come to an instruction through a former translation: all of them lead to the new one from now on.
    ///
    /// # Errors
    /// If there is no room, or the process is gone.
    pub(crate) fn lead_former(&mut self, thread: Stopped, pc: u64) -> Result<()> {
        if self.protected.former(pc).is_empty() {
            return Ok(());
        }
        let Some(at) = self.translated(thread, pc)? else {
            return Ok(());
        };
        let former = self.protected.former(pc);
        let moved: Vec<(u64, u64)> = former.iter().map(|&entry| (entry, at)).collect();
        self.lead(thread, &moved)
    }

    /// Whether the instruction at an address may change without a system call that removes it.
    pub(crate) fn may_change(&self, pc: u64) -> bool {
        self.code.may_change(pc)
    }
}
