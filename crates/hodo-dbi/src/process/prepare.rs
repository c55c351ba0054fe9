//! Code is translated as far as earlier runs have entered it, when a thread enters it for the first time; or their
//! translations are used.

use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_module::cache::CodeFile;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Stopped, TargetAddr};
use rustc_hash::FxHashSet;
use twox_hash::XxHash3_128;

use crate::fixups::Bases;
use crate::image::Image;
use crate::making::Making;
use crate::numbered::{Numbered, Source};
use crate::placed::Placed;
use crate::process::{MOST, Process};
use crate::region::Region;
use crate::unloaded::Left;
use crate::written::open;

/// This many requests of earlier runs are translated at once.
const PIECE: usize = 40;
/// Room for their translation.
const ROOM: u64 = 4 << 20;
/// Bytes that are hashed at once.
const AT_ONCE: usize = 64 << 10;
/// An image is made anew if it lacks more requests than this, and more than a fourth of those that it has.
const FEW: usize = 16;

impl Process {
    /// Code that does not change is entered at an instruction that is not translated. If it is the first one of its
    /// mapping, all that earlier runs have entered there is translated.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn enter(&mut self, thread: Stopped, pc: u64) -> Result<()> {
        self.list_files(thread)?;
        let Some(map) = self.files.mapping(pc) else {
            return Ok(());
        };
        let mut map = map.clone();
        let offset = map.offset + (pc - map.start);
        if let Some(code) = self.code.spans().at(pc) {
            let start = map.start.max(code.start);
            map.offset += start - map.start;
            (map.start, map.end) = (start, map.end.min(code.end));
        }
        if self.files.begin(&map) && !self.load_again(&map)? {
            self.prepare(thread, &map)?;
        }
        self.files.note(&map.path, offset, false);
        Ok(())
    }

    /// Takes note of the mappings that have code, if that was not done.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn list_files(&mut self, thread: Stopped) -> Result<()> {
        if !self.files.are_listed() {
            let maps = self.list(thread)?.into_iter();
            // Unexecutable, code may be part of a mapping with the data beside it.
            let is_code = |map: &Mapping| map.inode != 0 && self.code.spans().overlap(map.span());
            let maps = maps.filter(is_code).collect();
            self.files.list(maps);
            self.list_markers(thread);
        }
        Ok(())
    }

    /// Translates what earlier runs have entered in a mapping.
    fn prepare(&mut self, thread: Stopped, map: &Mapping) -> Result<()> {
        let entered = self.files.entered(&map.path);
        let here = |&offset: &u32| {
            let pc = map.start + u64::from(offset).checked_sub(map.offset)?;
            map.span().contains(pc).then_some(pc)
        };
        let starts: Vec<u64> = entered.starts.iter().filter_map(here).collect();
        let targets: Vec<u64> = entered.targets.iter().filter_map(here).collect();
        let (mut all, mut done) = (Vec::new(), 0);
        if let Some(image) = self.use_image(thread, map, starts.len())? {
            all.extend(image.returns());
            done = image.starts();
        }
        let mut making = None;
        if done == 0 && !starts.is_empty() {
            making = self.making(map);
        }
        for piece in starts[done..].chunks(PIECE) {
            let is_new =
                |&pc: &u64| self.known.get(pc).is_none() && self.is_code(pc) && !self.is_apart(pc);
            let new: Vec<u64> = piece.iter().copied().filter(is_new).collect();
            let Some(&first) = new.first() else {
                continue;
            };
            let Some(region) = self.cache.region_for(first, ROOM) else {
                making = None;
                break;
            };
            let most = MOST * new.len();
            if let Some(recorder) = &self.recorder
                && recorder
                    .borrow()
                    .check_room(&self.counters(), most)
                    .is_err()
            {
                making = None;
                break;
            }
            let (translation, pages) =
                self.translate(region, &new, None, most, (map.span(), false));
            self.tell_blocks(&translation);
            let at = self.cache[region].next();
            making = making.and_then(|mut making| {
                let stays = !translation.loses_flags;
                stays.then(|| making.add(at, &translation, &pages))??;
                Some(making)
            });
            self.extend(thread, region, translation.bytes.len())?;
            all.extend(self.add(region, translation)?);
        }
        if let Some(making) = making {
            self.keep_image(map, making, starts.iter().chain(&targets), starts.len());
        }
        let targets = targets.into_iter();
        let targets = targets.filter_map(|pc| Some((pc, self.known.get(pc)?)));
        all.extend(targets);
        self.put_targets(&all)
    }

    /// The place for the image of a mapping. `None`: translations of it cannot be kept, because more than counters is
    /// inserted into them, or its code may change.
    fn place_of_image(&self, map: &Mapping) -> Option<CodeFile> {
        let span = map.span();
        let stays = self.code.stays(span);
        let inserted = match &self.recorder {
            None if self.flags.are_kept() => "nothing, with flags",
            None => "nothing",
            Some(recorder) if !recorder.borrow().only_counts() => return None,
            Some(_) if self.flags.are_kept() => "counters, with flags",
            Some(_) => "counters",
        };
        let markers = if self.has_markers() {
            ", with markers"
        } else {
            ""
        };
        let inserted = format!("{inserted}{markers}");
        stays.then(|| CodeFile::new(self.files.program(), (&map.path, map.offset), &inserted))?
    }

    /// What code depends on whose translation begins at an address.
    fn bases(&self, original: u64, cache: u64) -> Bases {
        let recorder = self.recorder.as_ref();
        Bases {
            original,
            cache,
            table: self.targets.at as u32,
            counter: self.counters().len() as u32,
            block: recorder.map_or(0, |recorder| recorder.borrow().next_number()),
        }
    }

    /// Begins an image of a mapping.
    fn making(&self, map: &Mapping) -> Option<Making> {
        let region = self.cache.region_for(map.start, ROOM)?;
        let bases = self.bases(map.start, self.cache[region].next());
        self.place_of_image(map)?;
        Some(Making::new(bases, map.span()))
    }

    /// Ends an image, and keeps it for later runs. `entries`: instructions that may be entered.
    fn keep_image<'e>(
        &self,
        map: &Mapping,
        mut making: Making,
        entries: impl Iterator<Item = &'e u64>,
        starts: usize,
    ) {
        if let Some(file) = self.place_of_image(map)
            && let Some((hash, _)) = self.source(&making.pages())
            && let Some(bytes) = making.end(entries.copied(), starts, hash)
        {
            file.write(&bytes);
        }
    }

    /// Code of the program, and its hash. Without executions to count, only the hash is needed.
    fn source(&self, spans: &[Span]) -> Option<(u128, Source)> {
        let mut hash = XxHash3_128::new();
        let mut source = Source::default();
        let mut buffer = vec![0; AT_ONCE];
        for span in spans {
            let mut whole = Vec::new();
            for start in (span.start..span.end).step_by(AT_ONCE) {
                let part = &mut buffer[..AT_ONCE.min((span.end - start) as usize)];
                if self.memory().load(TargetAddr(start), part) != part.len() {
                    return None;
                }
                hash.write(part);
                if self.recorder.is_some() {
                    whole.extend_from_slice(part);
                }
            }
            source.parts.push((span.start, whole));
        }
        Some((hash.finish_128(), source))
    }

    /// Uses the image of a mapping, if there is one for about as many requests.
    fn use_image(
        &mut self,
        thread: Stopped,
        map: &Mapping,
        starts: usize,
    ) -> Result<Option<Placed>> {
        if starts == 0 {
            return Ok(None);
        }
        let file = self.place_of_image(map);
        let Some(image) = file.and_then(|file| Image::read(file.read()?)) else {
            return Ok(None);
        };
        let lacks = starts.checked_sub(image.starts());
        if lacks.is_none_or(|lacks| lacks > FEW.max(image.starts() / 4)) {
            return Ok(None);
        }
        let pages = image.pages(map.span());
        match pages.and_then(|pages| self.source(&pages)) {
            Some((hash, source)) if hash == image.source() => {
                self.place_image(thread, map, (Rc::new(image), source))
            }
            _ => Ok(None),
        }
    }

    /// Whether the program has the code now that an image was made from.
    pub(crate) fn is_made_from(&self, placed: &Placed) -> bool {
        let image = placed.image();
        let pages = image.pages(placed.map);
        let source = pages.and_then(|pages| self.source(&pages));
        source.is_some_and(|(hash, _)| hash == image.source())
    }

    /// Exits of an image lead to what is known, and those of other code to the image.
    pub(crate) fn link_image(&mut self, placed: &Placed) -> Result<()> {
        let own = placed.open().iter().copied();
        let waiting = self.known.waiting_in(placed.map);
        let waiting = waiting
            .into_iter()
            .chain(self.stops.take_waiting(|pc| placed.known(pc).is_some()));
        for (target, cell) in own.chain(waiting) {
            if let Some(at) = self.known.get(target) {
                self.memory().write(TargetAddr(cell), &at.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Puts the code of an image into the cache. `None`: there is no room.
    fn place_image(
        &mut self,
        thread: Stopped,
        map: &Mapping,
        (image, source): (Rc<Image>, Source),
    ) -> Result<Option<Placed>> {
        let len = image.code().len() as u64;
        let Some(region) = self.cache.region_for(map.start, len + 2 * ROOM) else {
            return Ok(None);
        };
        let mut bases = self.bases(map.start, self.cache[region].end_for(len));
        let identity = self.recorder.as_ref().and_then(|recorder| {
            let recorder = recorder.borrow();
            let (identity, known) = recorder.known_image(&image, map)?;
            bases.block = known.unwrap_or(bases.block);
            Some(identity)
        });
        let mut code = image.code().to_vec();
        let fixups = image.fixups();
        if fixups.apply(&mut code, Bases::default(), bases).is_none() {
            return Ok(None);
        }
        let mut blocks = None;
        if let Some(recorder) = &self.recorder {
            let file = (map.path.clone(), map.offset);
            let first = (bases.block, bases.counter);
            let numbered = Numbered::new(Rc::clone(&image), map.span(), source, file, first);
            let mut recorder = recorder.borrow_mut();
            let count = numbered.len();
            if recorder
                .check_room(&self.counters(), count as usize)
                .is_err()
            {
                return Ok(None);
            }
            let numbered = Rc::new(numbered);
            recorder.add_image(&numbered, identity);
            self.add_counters(bases.block..bases.block + count);
            blocks = Some(numbered);
        }
        let span = self.cache[region].split(len);
        let calls = self.calls_of(thread)?;
        let opened = open(&calls, span);
        calls.end()?;
        opened?;
        self.memory().write(TargetAddr(span.start), &code)?;
        let placed = Placed::new(image, span.start, map.span(), blocks);
        self.known.add_image(placed.clone());
        self.link_image(&placed)?;
        let mut own = Region::new(span, len, span);
        own.image = Some(placed.clone());
        self.cache.add(own);
        Ok(Some(placed))
    }
}

impl Process {
    /// All code in a range is about to be forgotten. If it is that of one mapping of a file, keeps its translations.
    pub(crate) fn keep_unloaded(&mut self, range: Span) {
        let Some(map) = self.files.only_begun(range) else {
            return;
        };
        let mut hard = self.code.hard();
        hard.remove(map.span());
        if hard.overlap(range) {
            return;
        }
        let is_here = |at: u64| map.span().contains(at);
        let known = self.known.pages(is_here);
        let images = self.known.images(is_here);
        let pages = self.pages.borrow();
        let code = pages.iter().filter(|(page, _)| is_here(**page));
        let code: Vec<(u64, Rc<[u8]>)> =
            code.map(|(&page, code)| (page, Rc::clone(code))).collect();
        if !known.iter().all(|(page, _)| pages.contains_key(page)) {
            return;
        }
        drop(pages);
        let hot = self.hot.iter().copied().filter(|&pc| is_here(pc)).collect();
        self.files.leave(Left {
            map,
            known,
            images,
            code,
            hot,
        });
    }

    /// Uses what was translated of a mapping before it was unloaded. Returns whether there is such a translation.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn load_again(&mut self, map: &Mapping) -> Result<bool> {
        let Some(left) = self.files.take_left(map) else {
            return Ok(false);
        };
        let mut now = [0; 4096];
        for (page, code) in &left.code {
            let count = self.memory().read_some(TargetAddr(*page), &mut now);
            if now[..count] != **code {
                return Ok(false);
            }
        }
        for image in &left.images {
            if !self.is_made_from(image) {
                return Ok(false);
            }
        }
        self.pages.borrow_mut().extend(left.code);
        self.hot.extend(left.hot);
        self.known.put_pages(left.known);
        for image in left.images {
            self.known.add_image(image.clone());
            self.link_image(&image)?;
        }
        let is_known = |pc| map.span().contains(pc) && self.known.get(pc).is_some();
        let targets: FxHashSet<u64> = self
            .stops
            .waiting_for()
            .filter(|&pc| is_known(pc))
            .collect();
        for (target, cell) in self.stops.take_waiting(|pc| targets.contains(&pc)) {
            if let Some(at) = self.known.get(target) {
                self.memory().write(TargetAddr(cell), &at.to_le_bytes())?;
            }
        }
        Ok(true)
    }
}
