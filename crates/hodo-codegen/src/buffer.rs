//! Labels and fixups: the part of an assembler that is the same for all instruction sets.
//!
//! A place in code is a [`Label`]. Code that is written where it will stay keeps [`Labels`]: what refers to a label is
//! put right when the label is bound.

use alloc::vec::Vec;

/// A place in code, which may come later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(u32);

impl Label {
    /// The label with a number. Whoever gives numbers gives each once.
    pub(crate) fn new(number: usize) -> Self {
        Self(u32::try_from(number).expect("code has fewer labels"))
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something that refers to a label.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use<F> {
    label: Label,
    /// Which field is to be written.
    pub(crate) field: F,
}

/// The labels of code that is written where it will stay.
#[derive(Debug)]
pub(crate) struct Labels<F> {
    /// Offsets of those that are bound.
    places: Vec<Option<usize>>,
    /// What refers to others.
    uses: Vec<Use<F>>,
}

impl<F> Default for Labels<F> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            uses: Vec::new(),
        }
    }
}

impl<F> Labels<F> {
    /// A label that is not bound.
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label::new(self.places.len() - 1)
    }

    /// Where a label is, if it is bound. If not, `field` will be given back when it is.
    pub(crate) fn place(&mut self, label: Label, field: F) -> Option<(usize, F)> {
        match self.places[label.index()] {
            Some(place) => Some((place, field)),
            None => {
                self.uses.push(Use { label, field });
                None
            }
        }
    }

    /// Binds a label to an offset. Gives what refers to it.
    pub(crate) fn bind(&mut self, label: Label, place: usize) -> impl Iterator<Item = F> {
        let old = self.places[label.index()].replace(place);
        debug_assert_eq!(old, None, "a label has one place");
        self.uses
            .extract_if(.., move |one| one.label == label)
            .map(|one| one.field)
    }

    /// Where a label is.
    ///
    /// # Panics
    /// If it is not bound.
    pub(crate) fn at(&self, label: Label) -> usize {
        self.places[label.index()].expect("a label that is bound")
    }

    /// Whether all that is referred to is bound.
    pub(crate) fn all_bound(&self) -> bool {
        self.uses.is_empty()
    }
}
