//! What is the same where calls put the return address in a register.

/// At most this many instructions are followed. The startup code of glibc and musl is shorter.
const MOST: usize = 64;

/// What is known of the registers, by their numbers.
pub(super) type Registers = [Option<u64>; 32];

/// Reads a word of memory.
pub(super) type Word<'c> = dyn Fn(u64) -> Option<u64> + 'c;

/// What an instruction does.
pub(super) enum Step {
    /// It writes a register; the value may not be known.
    Write(usize, Option<u64>),
    /// It continues elsewhere, and leaves the address after itself in a register.
    Jump(usize, Option<u64>),
}

/// What an instruction does, and its length. `None` for instructions that startup code does not use before that call.
pub(super) type Decoded = Option<(Step, u64)>;

/// What an instruction set decides.
pub(super) struct Machine {
    /// The register that is always zero, and into which results vanish.
    pub zero: usize,
    /// The register that has the return address.
    pub link: usize,
    /// The register of the first argument.
    pub argument: usize,
    /// Decodes the first instruction of code at this address.
    pub step: fn(&[u8], u64, &Registers, &Word<'_>) -> Decoded,
}

/// Startup code.
pub(super) struct Code<'c> {
    pub machine: &'c Machine,
    pub bytes: &'c [u8],
    /// Where it begins.
    pub start: u64,
    /// Reads memory.
    pub word: &'c Word<'c>,
}

impl Code<'_> {
    /// Returns the first argument at the call of or jump to `__libc_start_main`. That is the first call at which this
    /// argument is known.
    pub fn main(&self) -> Option<u64> {
        let Machine {
            zero,
            link: usual,
            argument,
            ..
        } = *self.machine;
        let mut registers = [None; 32];
        let mut pc = self.start;
        for _ in 0..MOST {
            registers[zero] = Some(0);
            let (step, next) = self.step(pc, &registers)?;
            match step {
                Step::Write(register, value) => {
                    registers[register] = value;
                    pc = next;
                }
                Step::Jump(link, target) => {
                    // A return from the previous call.
                    let back = registers[usual];
                    let returns = link == zero && back.is_some() && back == target;
                    if let (Some(main), false) = (registers[argument], returns) {
                        return Some(main);
                    }
                    registers[link] = Some(next);
                    pc = target?;
                }
            }
        }
        None
    }

    /// Returns where the code at an address jumps to, if it does nothing else.
    pub fn jump_at(&self, addr: u64) -> Option<u64> {
        let zero = self.machine.zero;
        let mut registers = [None; 32];
        registers[zero] = Some(0);
        let mut pc = addr;
        // A long jump first puts the address in a register. There may be a landing.
        for _ in 0..2 {
            match self.step(pc, &registers)? {
                (Step::Jump(link, target), _) if link == zero => return target,
                (Step::Write(register, value @ Some(_)), next) => {
                    registers[register] = value;
                    pc = next;
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns what an instruction does, and the address of the next one.
    fn step(&self, pc: u64, registers: &Registers) -> Decoded {
        let at = usize::try_from(pc.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(at..)?;
        let (step, len) = (self.machine.step)(bytes, pc, registers, self.word)?;
        Some((step, pc.wrapping_add(len)))
    }
}

/// Sign-extends the lower bits of a number.
pub(super) fn signed(value: u32, bits: u32) -> i64 {
    i64::from((value << (32 - bits)).cast_signed() >> (32 - bits))
}

/// Adds a number to one that may not be known.
pub(super) fn plus(base: Option<u64>, offset: i64) -> Option<u64> {
    base.map(|base| base.wrapping_add_signed(offset))
}
