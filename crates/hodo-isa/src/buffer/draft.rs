//! Code whose references get the length that they need once all of it is known.

use alloc::vec::Vec;

use super::{Label, OutOfRange, Reference};

/// Code that is being written.
#[derive(Debug)]
pub struct Draft<R> {
    /// The bytes that are known.
    bytes: Vec<u8>,
    /// What stands between those bytes, in order, each with the number of bytes before it.
    parts: Vec<(usize, Part<R>)>,
    labels: usize,
}

#[derive(Debug)]
enum Part<R> {
    Bind(Label),
    Refer(R, Target),
    /// Bytes that come from elsewhere.
    Hole(usize),
}

/// Where a reference leads.
#[derive(Debug, Clone, Copy)]
enum Target {
    Label(Label),
    Address(u64),
}

impl<R: Reference> Part<R> {
    fn len(&self) -> usize {
        match self {
            Self::Bind(_) => 0,
            Self::Refer(reference, _) => reference.form().len as usize,
            Self::Hole(len) => *len,
        }
    }
}

/// Code whose addresses are known.
#[derive(Debug)]
pub struct Laid {
    /// All of it. Holes are filled with breakpoints.
    pub bytes: Vec<u8>,
    /// Where its labels are.
    pub labels: Offsets,
}

/// The offsets of labels.
#[derive(Debug)]
pub struct Offsets(Vec<u64>);

impl Offsets {
    /// The offset of a label, which must be bound.
    #[must_use]
    pub fn at(&self, label: Label) -> u64 {
        self.0[label.index()]
    }
}

impl<R> Default for Draft<R> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            parts: Vec::new(),
            labels: 0,
        }
    }
}

impl<R: Reference> Draft<R> {
    /// A label that is not bound.
    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label::new(self.labels - 1)
    }

    /// Binds a label to what comes next.
    pub fn bind(&mut self, label: Label) {
        self.part(Part::Bind(label));
    }

    /// A label of what comes next.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends bytes that come from elsewhere. [`set_holes`](Self::set_holes) can change how many.
    pub fn hole(&mut self, len: usize) {
        self.part(Part::Hole(len));
    }

    /// Appends a reference to a label.
    pub fn refer(&mut self, reference: R, label: Label) {
        self.part(Part::Refer(reference, Target::Label(label)));
    }

    /// Appends a reference to an address.
    pub fn refer_to(&mut self, reference: R, address: u64) {
        self.part(Part::Refer(reference, Target::Address(address)));
    }

    fn part(&mut self, part: Part<R>) {
        self.parts.push((self.bytes.len(), part));
    }

    /// Its length in bytes, with references as long as they are now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.parts.iter().map(|(_, part)| part.len()).sum::<usize>()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offsets of the labels, with references as long as they are now.
    fn offsets(&self) -> Offsets {
        let mut labels = vec![0; self.labels];
        let mut parts = 0;
        for (before, part) in &self.parts {
            if let Part::Bind(label) = part {
                labels[label.index()] = (before + parts) as u64;
            }
            parts += part.len();
        }
        Offsets(labels)
    }

    /// Makes references to labels as long as they need to be. Returns the offset of each label.
    pub fn settle(&mut self) -> Offsets {
        loop {
            let labels = self.offsets();
            let mut changed = false;
            let mut parts = 0;
            for (before, part) in &mut self.parts {
                let at = (*before + parts) as u64;
                parts += part.len();
                if let Part::Refer(reference, Target::Label(label)) = part
                    && !reference.form().leads(distance(at, labels.at(*label)))
                    && let Some(longer) = reference.longer()
                {
                    *reference = longer;
                    changed = true;
                }
            }
            if !changed {
                return labels;
            }
        }
    }

    /// Changes the lengths of the holes.
    pub fn set_holes(&mut self, lengths: &[usize]) {
        let holes = self.parts.iter_mut().filter_map(|(_, part)| match part {
            Part::Hole(len) => Some(len),
            _ => None,
        });
        for (hole, length) in holes.zip(lengths) {
            *hole = *length;
        }
    }

    /// The finished code, for an address.
    ///
    /// # Errors
    /// If the longest form of a reference does not reach its target.
    pub fn lay(mut self, start: u64) -> Result<Laid, OutOfRange> {
        let labels = self.settle();
        let mut bytes = Vec::with_capacity(self.len());
        let mut done = 0;
        for (before, part) in &self.parts {
            bytes.extend_from_slice(&self.bytes[done..*before]);
            done = *before;
            match *part {
                Part::Bind(_) => {}
                Part::Hole(len) => R::fill(&mut bytes, len),
                Part::Refer(reference, target) => {
                    let at = bytes.len();
                    let to = match target {
                        Target::Label(label) => start.wrapping_add(labels.at(label)),
                        Target::Address(address) => address,
                    };
                    let form = reference.form();
                    let distance = distance(start.wrapping_add(at as u64), to);
                    if !form.leads(distance) {
                        return Err(OutOfRange);
                    }
                    bytes.resize(at + form.len as usize, 0);
                    reference.write(&mut bytes[at..], distance);
                }
            }
        }
        bytes.extend_from_slice(&self.bytes[done..]);
        Ok(Laid { bytes, labels })
    }
}

fn distance(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from).cast_signed()
}
