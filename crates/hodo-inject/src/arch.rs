//! What depends on the processor in an address space: where things are in it, and the bytes of calls and jumps. All
//! other code of this crate is the same for all processors. What those share whose calls put the return address in a
//! register is in `linked`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod linked;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// How far islands can be from the code that jumps there, and how much address space they get: bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// From the code: a little less than a jump can reach.
    pub jump: u64,
    /// From the code, if there is no room so close to all of it.
    pub far: u64,
    /// Above a program that is loaded low: room for its heap.
    pub heap: u64,
    /// Below the dynamic linker: room for libraries that are mapped later.
    pub libraries: u64,
    /// Below that room: where the island for libraries is looked for, besides its own bytes.
    pub slack: u64,
    /// The island for libraries.
    pub island: u64,
    /// To which multiples islands are aligned: the same as files are. With any other alignment, their distances from
    /// the code would differ at each start of a program, and kept stubs could not be used again.
    pub align: u64,
}

/// Where jumps reach 2 GiB.
#[cfg(not(target_arch = "aarch64"))]
const FAR: Reach = Reach {
    jump: 0x7000_0000,
    far: 0x7000_0000,
    heap: 256 << 20,
    libraries: 1 << 30,
    slack: 64 << 20,
    island: 512 << 20,
    align: 4 << 10,
};

/// Where things are in the data that a function like `swapcontext` saves, as numbers of words from some place in it.
#[derive(Debug, Clone, Copy)]
pub struct Saved {
    /// The return addresses to the caller.
    pub back: &'static [usize],
    /// The stack pointer.
    pub sp: usize,
    /// How many bytes that is above S.
    pub above: u64,
    /// Two words that are equal in such data.
    pub equal: Option<(usize, usize)>,
}

impl Saved {
    /// How many words it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        let others = self.equal.map_or(0, |(one, other)| one.max(other));
        let last = self
            .back
            .iter()
            .copied()
            .fold(self.sp.max(others), usize::max);
        last + 1
    }
}

/// Where signal handlers tell the kernel the address to which they return.
#[derive(Debug, Clone, Copy)]
pub struct Restorer {
    /// The flag that says that they do: `SA_RESTORER`.
    pub flag: u64,
}

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
