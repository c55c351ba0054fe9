//! The user's cache directory: plans and stubs of earlier recordings.
//!
//! A plan depends on a file's content and name, on the request, and on the hodo that makes it. All of this is the key,
//! which is stored in full in the cache's file. The content is identified by its hash, not by the times of the file,
//! because images of whole systems give all their versions the same times. A cached plan is used only if its file
//! belongs to the user, its checksum is right, and all its places are inside the code of the file. Everything else is
//! planned anew. The cache is never required: if something cannot be read or written, hodo works as without a cache.

use std::cell::{Cell, OnceCell, RefCell};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::ops::{Deref, Range};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use hodo_abi::Isa;
use hodo_plan::model::{Plan, ProbePlan, SitePlan, Wanted};
use hodo_plan::{PlanError, PlanOptions, Survey};
use memmap2::Mmap;
use object::{File as ObjectFile, Object};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::image::{Image, Version};

/// The environment variable that names the directory, or is "off".
pub const VARIABLE: &str = "HODO_CACHE";
/// The first bytes of each file. The number changes with the format.
const MAGIC: [u8; 8] = *b"hodopln2";
/// The extension of the files.
const SUFFIX: &str = ".plan";
/// The largest total size in bytes. If it is exceeded, the oldest files are removed until three quarters of it are
/// left.
const LIMIT: u64 = 512 << 20;
/// Larger files are neither written nor read.
const LARGEST: u64 = 128 << 20;
/// A use is noted at most once in this time.
const NOTED: Duration = Duration::from_secs(3600);

/// The key of a plan.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Key {
    hodo: Own,
    path: Vec<u8>,
    content: Vec<u128>,
    asked: Asked,
}

/// The hodo that makes the plan.
#[derive(Serialize, Deserialize, PartialEq, Eq, Clone)]
struct Own {
    version: String,
    file: Version,
    build_id: Option<Vec<u8>>,
}

/// The request.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
enum Asked {
    Functions {
        functions: bool,
        libcalls: bool,
        keep: u32,
    },
    Probes {
        keep: u32,
        breakpoints: bool,
        at: Vec<u64>,
    },
    /// Stubs. This is a hash of everything else that they are made from.
    Stubs(u128),
}

/// Checks that a file's code is for this processor. Other files can be planned and mapped, too, but code emitted for
/// this machine must not get into them.
fn can_run(image: &Image) -> Result<(), PlanError> {
    match image.isa() {
        Some(isa) if isa != Isa::NATIVE => Err(PlanError::Foreign(isa)),
        _ => Ok(()),
    }
}

/// The number of plans of a few probes that are made without a survey of all code.
const APART: usize = 2;

/// The plans of a file, for its functions and for probes. Cached plans are read. For all others, the file is surveyed
/// only once.
pub struct Planning<'i> {
    /// The file.
    pub image: &'i Image,
    survey: OnceCell<Survey<'i>>,
    /// How many plans of probes were made without a survey of all code.
    apart: Cell<usize>,
    /// Whether nothing is emitted for the plans: the file may be for any processor whose code hodo knows.
    only_shown: bool,
}

impl<'i> Planning<'i> {
    /// Creates the planning of a file. Reads nothing yet.
    #[must_use]
    pub const fn new(image: &'i Image) -> Self {
        Self {
            image,
            survey: OnceCell::new(),
            apart: Cell::new(0),
            only_shown: false,
        }
    }

    /// Creates the planning of a file of any instruction set, for plans that are only shown.
    #[must_use]
    pub const fn only_shown(image: &'i Image) -> Self {
        Self {
            image,
            survey: OnceCell::new(),
            apart: Cell::new(0),
            only_shown: true,
        }
    }

    /// Checks that the code is for this processor, or will only be shown.
    fn check(&self) -> Result<(), PlanError> {
        match self.only_shown {
            true => Ok(()),
            false => can_run(self.image),
        }
    }

    /// Returns whether the code had to be surveyed.
    #[cfg(test)]
    fn is_surveyed(&self) -> bool {
        self.survey.get().is_some()
    }

    /// Returns the survey of the code, made on first use.
    fn survey(&self, options: &PlanOptions) -> Result<&Survey<'i>, PlanError> {
        if let Some(survey) = self.survey.get() {
            return Ok(survey);
        }
        let image = self.image;
        let survey = Survey::with_names(
            &image.path,
            (&image.bytes, image.separate()),
            options.threads,
        )?;
        Ok(self.survey.get_or_init(|| survey))
    }

    /// Plans the functions, or reads a cached plan.
    ///
    /// # Errors
    /// Those of [`hodo_plan::plan`]; and if the file is for another kind of processor.
    pub fn plan(&self, options: &PlanOptions) -> Result<Plan> {
        let context = || format!("planning {}", self.image.path.display());
        self.check().with_context(context)?;
        if !options.functions && !options.libcalls {
            return hodo_plan::plan_nothing(&self.image.bytes).with_context(context);
        }
        let asked = Asked::Functions {
            functions: options.functions,
            libcalls: options.libcalls,
            keep: options.keep,
        };
        let make = || Ok::<_, PlanError>(self.survey(options)?.plan(options));
        kept(self.image, asked, make).with_context(context)
    }

    /// Plans probes, or reads a cached plan. Only the options `threads`, `keep` and `breakpoints` are used.
    ///
    /// # Errors
    /// Those of [`hodo_plan::plan_probes`]; and if the file is for another kind of processor.
    pub fn plan_probes(&self, wanted: Wanted<'_>, options: &PlanOptions) -> Result<ProbePlan> {
        let context = || format!("planning probes on {}", self.image.path.display());
        self.check().with_context(context)?;
        let make = || Ok::<_, PlanError>(self.survey(options)?.plan_probes(wanted, options));
        // A plan for every instruction is larger than the code, and reading it takes as long as making it.
        let Wanted::At(at) = wanted else {
            return make().with_context(context);
        };
        let asked = Asked::Probes {
            keep: options.keep,
            breakpoints: options.breakpoints,
            at: at.to_vec(),
        };
        let make = || match self.survey.get().is_none() && self.apart.get() < APART {
            true => {
                self.apart.set(self.apart.get() + 1);
                let file = (&self.image.bytes[..], self.image.separate());
                hodo_plan::plan_probes_at(&self.image.path, file, at, options)
            }
            false => make(),
        };
        kept(self.image, asked, make).with_context(context)
    }
}

/// A plan whose places can be checked against the code of a file.
trait Fits: Serialize + DeserializeOwned {
    /// Returns whether everything that would be changed or displaced is in code.
    fn fits(&self, is_code: &dyn Fn(Range<u64>) -> bool) -> bool;
}

impl Fits for Plan {
    fn fits(&self, is_code: &dyn Fn(Range<u64>) -> bool) -> bool {
        let inside = |site: &SitePlan| {
            is_code(site.patch..site.patch.wrapping_add(site.patch_len.into()))
                && is_code(site.displaced.clone())
        };
        let mut sites = self.functions.iter().flat_map(|f| f.outcome.as_ref());
        let bytes = |at: u64, len: usize| at..at.wrapping_add(len as u64);
        let mut calls = self.libcalls.iter();
        sites.all(inside)
            && calls.all(|call| is_code(bytes(call.patch, call.patch_len.into())))
            && (self.nops.iter()).all(|(at, nops)| is_code(bytes(*at, nops.len())))
    }
}

impl Fits for ProbePlan {
    fn fits(&self, is_code: &dyn Fn(Range<u64>) -> bool) -> bool {
        self.sites.iter().all(|site| {
            is_code(site.patch..site.patch.wrapping_add(site.patch_len.into()))
                && is_code(site.displaced.clone())
        })
    }
}

/// Returns the cached plan, or makes one and caches it.
fn kept<T: Fits, E: std::error::Error + Send + Sync + 'static>(
    image: &Image,
    asked: Asked,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<T> {
    let Some(Slot {
        directory,
        path,
        key,
    }) = Slot::new(image, asked)
    else {
        return Ok(make()?);
    };
    let is_code = |range: Range<u64>| {
        let segments = image.segments.iter().filter(|segment| segment.executable);
        let inside = |start: u64, size: u64| {
            range.start <= range.end && range.start >= start && range.end - start <= size
        };
        segments.into_iter().any(|s| inside(s.addr, s.size))
    };
    if let Some(plan) = read::<T>(&path, &key).filter(|plan| plan.fits(&is_code)) {
        image.planned_before.set(true);
        return Ok(plan);
    }
    let plan = make()?;
    // Somebody may have written to the file while it was planned.
    if image.is_as_it_was() {
        // If the cache cannot be written, the plan is just not cached.
        let _ = write(directory, &path, &key, &plan);
    }
    Ok(plan)
}

/// The path of something in the cache, and its key.
struct Slot {
    directory: &'static Path,
    path: PathBuf,
    key: Vec<u8>,
}

impl Slot {
    /// Returns `None` if there is no cache.
    fn new(image: &Image, asked: Asked) -> Option<Self> {
        let directory = directory()?;
        let key = Key::new(image, asked)?;
        let key = postcard::to_allocvec(&key).ok()?;
        let path = directory.join(name(&image.path, &key));
        Some(Self {
            directory,
            path,
            key,
        })
    }
}

/// The place in the cache for the stubs of a file.
pub struct Stubs(Slot);

impl Stubs {
    /// Returns the place for stubs that are made from the file and from data with this hash, or `None` if there is no
    /// cache.
    pub fn new(image: &Image, made_of: u128) -> Option<Self> {
        Slot::new(image, Asked::Stubs(made_of)).map(Self)
    }

    /// Calls `act` with the cached stubs, if they can be trusted.
    pub fn read<T>(&self, act: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let Slot { path, key, .. } = &self.0;
        let file = open(path)?;
        let stubs = body(&file.bytes, key)?;
        let done = act(stubs);
        file.note_use();
        Some(done)
    }

    /// Caches stubs that were made for the file.
    pub fn write(&self, image: &Image, stubs: Vec<u8>) {
        let Slot {
            directory,
            path,
            key,
        } = &self.0;
        // Somebody may have written to the file in the meantime.
        if image.is_as_it_was() {
            // If the cache cannot be written, the stubs are just not cached.
            let _ = put(directory, path, &with_header(key, &stubs));
        }
    }
}

impl Key {
    fn new(image: &Image, asked: Asked) -> Option<Self> {
        Some(Self {
            hodo: own()?,
            path: image.path.as_os_str().as_encoded_bytes().to_vec(),
            content: image.content().to_vec(),
            asked,
        })
    }
}

/// Where threads have entered the code of a file in earlier runs of a program, as offsets in the file. It is only
/// advice: whoever reads it must be right without it, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// Instructions at which something had to be translated, in the order in which that was noticed.
    pub starts: Vec<u32>,
    /// Instructions to which returns and indirect branches led.
    pub targets: Vec<u32>,
}

/// The place for what is kept of a file for a program.
#[derive(Debug, Clone)]
pub struct EnteredFile {
    path: PathBuf,
    key: Vec<u8>,
}

impl EnteredFile {
    /// `None`: nothing is kept, because the cache is off, or one of the files cannot be inspected.
    pub fn new(program: &Path, file: &Path) -> Option<Self> {
        let versions = [Version::of(program).ok()?, Version::of(file).ok()?];
        let key = postcard::to_allocvec(&("entered", versions)).ok()?;
        let path = directory()?.join(name(file, &key));
        Some(Self { path, key })
    }

    /// What is kept, if anything can be read.
    pub fn read(&self) -> Option<Entered> {
        read(&self.path, &self.key)
    }

    /// Keeps this from now on. Where that cannot be, everything works without it.
    pub fn write(&self, entered: &Entered) {
        if let Some(directory) = self.path.parent() {
            let _ = write(directory, &self.path, &self.key, entered);
        }
    }
}

/// The place for translated code of a mapping of a file, for a program.
#[derive(Debug, Clone)]
pub struct CodeFile {
    path: PathBuf,
    key: Vec<u8>,
}

impl CodeFile {
    /// The mapping begins at this offset in the file. `inserted`: what is inserted into the code. `None`: nothing is
    /// kept, because the cache is off, or one of the files cannot be inspected.
    pub fn new(program: &Path, (file, offset): (&Path, u64), inserted: &str) -> Option<Self> {
        let versions = [Version::of(program).ok()?, Version::of(file).ok()?];
        let key = ("code", inserted, own()?, versions, offset);
        let key = postcard::to_allocvec(&key).ok()?;
        let path = directory()?.join(name(file, &key));
        Some(Self { path, key })
    }

    /// What is kept, if it can be trusted.
    pub fn read(&self) -> Option<KeptCode> {
        let (file, meta) = open_own(&self.path)?;
        // SAFETY: hodo never changes or cuts a file of the cache, but replaces it. Only the user can do that.
        let bytes = unsafe { Mmap::map(&file) }.ok()?;
        let start = bytes.len() - body(&bytes, &self.key)?.len();
        note_use(&file, meta.modified().ok());
        Some(KeptCode { bytes, start })
    }

    /// Keeps this from now on. Where that cannot be, everything works without it.
    pub fn write(&self, code: &[u8]) {
        if let Some(directory) = self.path.parent() {
            let _ = put(directory, &self.path, &with_header(&self.key, code));
        }
    }
}

/// Translated code, as it was kept.
#[derive(Debug)]
pub struct KeptCode {
    bytes: Mmap,
    /// Where it begins in the file.
    start: usize,
}

impl Deref for KeptCode {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Returns what identifies this build of hodo, if it has a build id.
pub fn build_id() -> Option<Vec<u8>> {
    own()?.build_id
}

/// Identifies this hodo.
fn own() -> Option<Own> {
    static OWN: OnceLock<Option<Own>> = OnceLock::new();
    OWN.get_or_init(Own::new).clone()
}

impl Own {
    fn new() -> Option<Self> {
        let exe = File::open("/proc/self/exe").ok()?;
        // SAFETY: the kernel lets nobody write to a file while it is being executed.
        let bytes = unsafe { Mmap::map(&exe) }.ok()?;
        let object = ObjectFile::parse(&*bytes).ok()?;
        Some(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            file: Version::from(&exe.metadata().ok()?),
            build_id: object.build_id().ok()?.map(<[u8]>::to_vec),
        })
    }
}

/// Returns the name of a file in the cache: a readable part, and a part that makes it unique.
fn name(path: &Path, key: &[u8]) -> String {
    let known = path.file_name().unwrap_or_default().to_string_lossy();
    let known: String = (known.chars().take(40))
        .map(|c| match c.is_ascii_alphanumeric() || "._+-".contains(c) {
            true => c,
            false => '_',
        })
        .collect();
    let known = known.trim_start_matches('.');
    format!("{known}-{:016x}{SUFFIX}", XxHash3_64::oneshot(key))
}

/// The magic number, the sizes of the key and of the plan in bytes, and the checksum of both.
const HEADER: usize = 8 + 8 + 8 + 8;

thread_local! {
    /// The buffer for reading. Reading many files into new memory each time would take most of the time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A larger buffer is freed after use.
const BUFFERED: usize = 32 << 20;

/// An open file of the cache.
struct Opened {
    file: File,
    bytes: Vec<u8>,
    used: Option<SystemTime>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.bytes.capacity() <= BUFFERED {
            BUFFER.set(std::mem::take(&mut self.bytes));
        }
    }
}

impl Opened {
    /// Notes a use.
    fn note_use(&self) {
        note_use(&self.file, self.used);
    }
}

/// Notes that a file was used that was last used then. The files that are not used are removed first.
fn note_use(file: &File, used: Option<SystemTime>) {
    let age = used.and_then(|used| used.elapsed().ok());
    if age.is_some_and(|age| age > NOTED) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Opens a file of the cache, if it belongs to the user.
fn open_own(path: &Path) -> Option<(File, fs::Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    let fits = meta.is_file() && is_own(&meta) && meta.len() <= LARGEST;
    fits.then_some((file, meta))
}

/// Reads a file of the cache, if it belongs to the user.
fn open(path: &Path) -> Option<Opened> {
    let (mut file, meta) = open_own(path)?;
    let used = meta.modified().ok();
    let mut bytes = BUFFER.take();
    bytes.clear();
    bytes.reserve(meta.len() as usize);
    file.read_to_end(&mut bytes).ok()?;
    Some(Opened { file, bytes, used })
}

/// Reads a plan. Returns `None` if there is none with this key that can be trusted.
fn read<T: DeserializeOwned>(path: &Path, key: &[u8]) -> Option<T> {
    let file = open(path)?;
    let plan = decode(&file.bytes, key)?;
    file.note_use();
    Some(plan)
}

/// Returns the cached data in a file's content, if the key matches and the checksum is right.
fn body<'b>(bytes: &'b [u8], key: &[u8]) -> Option<&'b [u8]> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let (magic, words) = header.split_at_checked(8)?;
    let [key_len, body_len, sum] = *words.as_chunks::<8>().0 else {
        return None;
    };
    let len = |bytes: [u8; 8]| usize::try_from(u64::from_le_bytes(bytes)).ok();
    let (own, body) = rest.split_at_checked(len(key_len)?)?;
    let whole = magic == MAGIC
        && own == key
        && Some(body.len()) == len(body_len)
        && XxHash3_64::oneshot(rest) == u64::from_le_bytes(sum);
    whole.then_some(body)
}

/// Decodes the plan in a file's content, if the key matches and the checksum is right.
fn decode<T: DeserializeOwned>(bytes: &[u8], key: &[u8]) -> Option<T> {
    let (plan, left) = postcard::take_from_bytes(body(bytes, key)?).ok()?;
    left.is_empty().then_some(plan)
}

fn encode<T: Serialize>(key: &[u8], plan: &T) -> Option<Vec<u8>> {
    Some(with_header(key, &postcard::to_allocvec(plan).ok()?))
}

fn with_header(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.reserve_exact(key.len() + body.len());
    bytes.extend(key);
    bytes.extend(body);
    let sum = XxHash3_64::oneshot(&bytes[HEADER..]);
    let words = [key.len() as u64, body.len() as u64, sum];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    for (word, place) in words.iter().zip(bytes[MAGIC.len()..].chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Writes a plan.
fn write<T: Serialize>(directory: &Path, path: &Path, key: &[u8], plan: &T) -> Result<()> {
    put(directory, path, &encode(key, plan).context("no room")?)
}

/// Writes a file of the cache: first under another name, then renamed, so that a reader sees all of it or nothing.
fn put(directory: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.len() as u64 > LARGEST.min(hodo_ptrace::limits::file_size()) {
        return Ok(());
    }
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    trim(directory, LIMIT);
    Ok(())
}

/// Returns whether only this user, who owns the file, can write to it.
fn is_own(meta: &fs::Metadata) -> bool {
    // SAFETY: geteuid only returns a number.
    let own = unsafe { libc::geteuid() };
    meta.uid() == own && meta.permissions().mode() & 0o022 == 0
}

/// Returns the directory, and creates it if necessary. Returns `None` if the cache is off, or if the directory is not
/// the user's alone.
fn directory() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = DIRECTORY.get_or_init(|| {
        let path = wanted()?;
        // If root runs with another user's HOME, it must not take over directories of that user.
        let named = std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty());
        let there = path.ancestors().find_map(|path| fs::metadata(path).ok());
        if !named && !there.is_some_and(|meta| is_own(&meta)) {
            return None;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .ok()?;
        let meta = fs::symlink_metadata(&path).ok()?;
        (meta.is_dir() && is_own(&meta)).then_some(path)
    });
    found.as_deref()
}

/// Returns where the cache should be, or `None` if it is off.
pub fn wanted() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(named) = variable(VARIABLE) {
        return (named != "off").then(|| named.into());
    }
    let absolute = |path: &PathBuf| path.is_absolute();
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(absolute).or_else(|| {
        let home = variable("HOME").map(PathBuf::from).filter(absolute)?;
        Some(home.join(".cache"))
    });
    cache.map(|cache| cache.join("hodo"))
}

/// A file of the cache.
#[derive(Debug)]
pub struct Entry {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The time of its last use, accurate to an hour.
    pub used: SystemTime,
}

/// Lists the files of a cache, the last used first.
///
/// # Errors
/// If the directory exists and cannot be read.
pub fn entries(directory: &Path) -> std::io::Result<Vec<Entry>> {
    let all = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        all => all?,
    };
    let mut entries = Vec::new();
    for entry in all {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        // This includes files that a killed hodo left.
        if !name.ends_with(SUFFIX.as_bytes()) && !name.starts_with(b".new-") {
            continue;
        }
        // Another hodo may have removed it.
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() {
            entries.push(Entry {
                path: entry.path(),
                size: meta.len(),
                used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
    Ok(entries)
}

/// If there are more than `limit` bytes, removes the files that were not used for the longest time.
fn trim(directory: &Path, limit: u64) {
    let Ok(entries) = entries(directory) else {
        return;
    };
    let all: u64 = entries.iter().map(|entry| entry.size).sum();
    if all <= limit {
        return;
    }
    let mut kept = 0;
    for entry in entries {
        kept += entry.size;
        if kept > limit / 4 * 3 {
            let _ = fs::remove_file(entry.path);
        }
    }
}

/// Removes all files of a cache. Returns their total size in bytes.
///
/// # Errors
/// If a file cannot be removed.
pub fn clear(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in entries(directory).with_context(|| directory.display().to_string())? {
        match fs::remove_file(&entry.path) {
            // Another hodo has removed or renamed it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            removed => {
                removed.with_context(|| format!("removing {}", entry.path.display()))?;
            }
        }
        bytes += entry.size;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
