//! Labels and references to them: the part of an assembler that is the same for all instruction sets.
//!
//! A place in code is a [`Label`]. An instruction set says how its instructions can refer to places: each way is a
//! [`Reference`], with its length and its reach. Code is written in one of two ways:
//!
//! * where it will stay, in a [`Buffer`]: [`Labels`] fills in the references to a label when the label is bound;
//! * as a [`Draft`]: its references get the length that they need once all of the code is known.

mod draft;

use alloc::vec::Vec;

pub use crate::branch::JumpForm;
pub use draft::{Draft, Laid, Offsets};

/// Something is too far away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange;

/// A place in code, perhaps one that is not written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(u32);

impl Label {
    /// The label with a number. The caller gives each number once.
    fn new(number: usize) -> Self {
        Self(u32::try_from(number).expect("code has fewer labels"))
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes of code that depend on the distance to a place: a whole instruction, several, or a field of one.
pub trait Reference: Copy {
    /// Its length in bytes, and how far it reaches from its first byte.
    fn form(self) -> JumpForm;

    /// The next longer one that does the same, if there is any.
    fn longer(self) -> Option<Self>;

    /// Writes it into its bytes, with a distance that is within its reach.
    fn write(self, bytes: &mut [u8], distance: i64);

    /// Appends this many bytes that are never executed.
    fn fill(bytes: &mut Vec<u8>, len: usize);
}

/// Writes the reference at offset `at`, which leads to offset `place`.
fn write<R: Reference>(
    bytes: &mut [u8],
    reference: R,
    at: usize,
    place: usize,
) -> Result<(), OutOfRange> {
    let form = reference.form();
    let distance = place as i64 - at as i64;
    if !form.leads(distance) {
        return Err(OutOfRange);
    }
    reference.write(&mut bytes[at..at + form.len as usize], distance);
    Ok(())
}

/// The labels of code that is written where it will stay.
#[derive(Debug)]
pub struct Labels<R> {
    /// By label.
    places: Vec<Place>,
    /// References to labels that are not bound yet, or were not: their offsets, and the reference before to the same
    /// label.
    references: Vec<(R, usize, Option<u32>)>,
    /// How many of them are to labels that are not bound.
    open: usize,
}

/// What is known of a label.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Its offset.
    Bound(usize),
    /// The last reference to it, if there is any.
    Open(Option<u32>),
}

impl<R> Default for Labels<R> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            references: Vec::new(),
            open: 0,
        }
    }
}

impl<R: Reference> Labels<R> {
    /// A label that is not bound.
    pub fn label(&mut self) -> Label {
        self.places.push(Place::Open(None));
        Label::new(self.places.len() - 1)
    }

    /// Appends a reference to a label.
    ///
    /// # Panics
    /// If the label is bound and out of reach.
    pub fn refer(&mut self, bytes: &mut Vec<u8>, reference: R, label: Label) {
        let at = bytes.len();
        bytes.resize(at + reference.form().len as usize, 0);
        match &mut self.places[label.index()] {
            Place::Bound(place) => {
                write(bytes, reference, at, *place).expect("a place within reach");
            }
            Place::Open(last) => {
                let number =
                    u32::try_from(self.references.len()).expect("code has fewer references");
                self.references.push((reference, at, last.replace(number)));
                self.open += 1;
            }
        }
    }

    /// Binds a label to the end of the code.
    ///
    /// # Panics
    /// If something that refers to it does not reach it.
    pub fn bind(&mut self, bytes: &mut [u8], label: Label) {
        let place = bytes.len();
        let old = core::mem::replace(&mut self.places[label.index()], Place::Bound(place));
        debug_assert!(matches!(old, Place::Open(_)), "a label has one place");
        let mut next = match old {
            Place::Open(last) => last,
            Place::Bound(_) => None,
        };
        while let Some(number) = next {
            let (reference, at, before) = self.references[number as usize];
            write(bytes, reference, at, place).expect("a place within reach");
            self.open -= 1;
            next = before;
        }
    }

    /// The offset of a label.
    ///
    /// # Panics
    /// If it is not bound.
    #[must_use]
    pub fn at(&self, label: Label) -> usize {
        match self.places[label.index()] {
            Place::Bound(place) => place,
            Place::Open(_) => panic!("the label is not bound"),
        }
    }

    /// Whether every label that is referred to is bound.
    #[must_use]
    pub fn all_bound(&self) -> bool {
        self.open == 0
    }
}

/// Code that is written where it will stay. The assembler of each instruction set adds its instructions to this.
#[derive(Debug)]
pub struct Buffer<'a, R> {
    pub(crate) bytes: &'a mut Vec<u8>,
    /// Address of `bytes[0]`.
    base: u64,
    labels: Labels<R>,
}

impl<'a, R: Reference> Buffer<'a, R> {
    /// Appends to `bytes`, whose first byte will be at `base`.
    #[must_use]
    pub fn new(bytes: &'a mut Vec<u8>, base: u64) -> Self {
        Self {
            bytes,
            base,
            labels: Labels::default(),
        }
    }

    /// The address of the next byte.
    #[must_use]
    pub fn here(&self) -> u64 {
        self.base.wrapping_add(self.bytes.len() as u64)
    }

    /// The offset of the next byte in the buffer.
    ///
    /// # Panics
    /// If the buffer holds 4 GiB or more.
    #[must_use]
    pub fn offset(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("an island is smaller than 4 GiB")
    }

    /// What was appended from an offset on.
    #[must_use]
    pub fn from(&self, offset: u32) -> &[u8] {
        &self.bytes[offset as usize..]
    }

    /// The same, to be changed. References to labels that are not bound must stay.
    #[must_use]
    pub fn from_mut(&mut self, offset: u32) -> &mut [u8] {
        &mut self.bytes[offset as usize..]
    }

    /// Appends code that was made elsewhere.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a number of eight bytes that code reads.
    pub fn data(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    /// Pads with what is never executed up to a multiple of `alignment`, a power of two that is at least as large as
    /// the shortest instruction.
    pub fn align(&mut self, alignment: u64) {
        let missing = self.here().wrapping_neg() & (alignment - 1);
        R::fill(self.bytes, missing as usize);
    }

    /// A label of a place that comes later.
    pub fn label(&mut self) -> Label {
        self.labels.label()
    }

    /// A label of what comes next.
    pub fn label_here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Binds a label to what comes next.
    ///
    /// # Panics
    /// If something that refers to it does not reach it.
    pub fn bind(&mut self, label: Label) {
        self.labels.bind(self.bytes, label);
    }

    /// Appends a reference to a label.
    ///
    /// # Panics
    /// If the label is bound and out of reach.
    pub(crate) fn refer(&mut self, reference: R, label: Label) {
        self.labels.refer(self.bytes, reference, label);
    }

    /// The address of a label that is bound.
    ///
    /// # Panics
    /// If it is not bound.
    #[must_use]
    pub fn address_of(&self, label: Label) -> u64 {
        self.base + self.labels.at(label) as u64
    }

    /// Whether every label that is referred to is bound.
    #[must_use]
    pub fn all_bound(&self) -> bool {
        self.labels.all_bound()
    }
}
