//! Vectors and masks in inserted code.

use crate::inserted::{
    Code, Compute, Scratch, ScratchMask, ScratchVector, Step, TooMany, VectorStep, Wide,
};

impl Code<'_> {
    /// Reserves a vector register, as [`Code::reserve`] does.
    ///
    /// # Errors
    /// If there are too many, or the processor has none: see [`vector_bytes`](crate::vector_bytes).
    pub fn reserve_vector(&mut self) -> Result<ScratchVector, TooMany> {
        let vector = ScratchVector(self.reserve_wide(crate::vector_bytes() > 0, Wide::is_vector)?);
        self.hold_wide(Wide::Vector(vector));
        Ok(vector)
    }

    /// Releases it.
    pub fn release_vector(&mut self, vector: ScratchVector) {
        self.release_wide(Wide::Vector(vector));
    }

    /// Reserves a mask register.
    ///
    /// # Errors
    /// If there are too many, or the processor has none: see [`has_masks`](crate::has_masks).
    pub fn reserve_mask(&mut self) -> Result<ScratchMask, TooMany> {
        let mask = ScratchMask(self.reserve_wide(crate::has_masks(), Wide::is_mask)?);
        self.hold_wide(Wide::Mask(mask));
        Ok(mask)
    }

    /// Releases it.
    pub fn release_mask(&mut self, mask: ScratchMask) {
        self.release_wide(Wide::Mask(mask));
    }

    /// Sets it to what is in memory: at the address that `base` has, plus a number. If it is not there, the program
    /// gets the signal.
    pub fn load_vector(&mut self, to: ScratchVector, base: Scratch, displacement: i32) {
        self.wide(VectorStep::Load(to, base, displacement));
    }

    /// Puts it into memory: at the address that `base` has, plus a number.
    pub fn store_vector(&mut self, base: Scratch, displacement: i32, from: ScratchVector) {
        self.wide(VectorStep::Store(base, displacement, from));
    }

    /// Sets all its elements to what a scratch register has.
    pub fn fill_vector(&mut self, to: ScratchVector, from: Scratch) {
        self.wide(VectorStep::Fill(to, from));
    }

    /// Sets it to what another one has.
    pub fn copy_vector(&mut self, to: ScratchVector, from: ScratchVector) {
        self.wide(VectorStep::Copy(to, from));
    }

    /// Sets it to what the program has in a vector register, by the instruction set's number.
    pub fn program_vector(&mut self, to: ScratchVector, number: u8) {
        assert!(
            number < crate::vector_registers(),
            "there is no vector register {number}"
        );
        self.wide(VectorStep::Program(to, number));
    }

    /// Sets a scratch register to an element of eight bytes.
    pub fn element(&mut self, to: Scratch, from: ScratchVector, number: u8) {
        self.wide(VectorStep::Element(to, from, checked(number)));
    }

    /// Sets an element of eight bytes to what a scratch register has.
    pub fn set_element(&mut self, to: ScratchVector, number: u8, from: Scratch) {
        self.wide(VectorStep::SetElement(to, checked(number), from));
    }

    /// Sets its elements to what is computed of them and those of the other one.
    pub fn compute_vector(&mut self, compute: Compute, to: ScratchVector, from: ScratchVector) {
        self.wide(VectorStep::Compute(compute, to, from));
    }

    /// Sets a mask to the bits of a scratch register.
    pub fn set_mask(&mut self, to: ScratchMask, from: Scratch) {
        self.wide(VectorStep::SetMask(to, from));
    }

    /// Sets a scratch register to the bits of a mask.
    pub fn mask_bits(&mut self, to: Scratch, from: ScratchMask) {
        self.wide(VectorStep::Bits(to, from));
    }

    /// Sets it to what the program has in a mask register, by the instruction set's number.
    pub fn program_mask(&mut self, to: ScratchMask, number: u8) {
        assert!(number < 8, "there is no mask register {number}");
        self.wide(VectorStep::ProgramMask(to, number));
    }

    /// Sets a mask to which elements of two vectors are equal.
    pub fn equal_elements(&mut self, to: ScratchMask, one: ScratchVector, other: ScratchVector) {
        self.wide(VectorStep::Equal(to, one, other));
    }

    /// Sets those elements of a vector that a mask has to those of another one.
    pub fn select_elements(&mut self, to: ScratchVector, mask: ScratchMask, from: ScratchVector) {
        self.wide(VectorStep::Select(to, mask, from));
    }

    fn wide(&mut self, step: VectorStep) {
        self.step(Step::Wide(step));
    }
}

fn checked(number: u8) -> u8 {
    let elements = crate::vector_bytes() / 8;
    assert!(
        u32::from(number) < elements,
        "a vector has {elements} elements"
    );
    number
}
