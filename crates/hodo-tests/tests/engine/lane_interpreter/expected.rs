//! What the interpreter says of a case: what the program writes whenever it stops, and all accesses.

use hodo_tests::interpreter::{Access, End, Kind, Memory, Registers, execute};

use super::cases::{AREA, Case, PAGE, PAGES, Page, STATE, state};

/// `si_code` of a fault without an address.
const SI_KERNEL: i64 = 128;

/// How a signal says that an access is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    signal: i32,
    code: i64,
    address: u64,
}

/// The pages that cases access.
#[derive(Debug, Clone)]
struct Area {
    pages: [Page; PAGES],
    bytes: Vec<u8>,
}

impl Area {
    /// The number of the page with an address.
    fn page(address: u64) -> Option<usize> {
        let page = address.checked_sub(AREA)? as usize / PAGE;
        (page < PAGES).then_some(page)
    }

    fn check(&self, address: u64, len: usize, kind: Kind) -> Result<(), Fault> {
        let fault = |signal, code, address| Fault {
            signal,
            code,
            address,
        };
        // Bits 47 to 63 are the same in all addresses that there can be.
        if !matches!(address.cast_signed() >> 47, 0 | -1) {
            return Err(fault(libc::SIGSEGV, SI_KERNEL, 0));
        }
        let mut at = address;
        while at < address + len as u64 {
            let page = Self::page(at).map_or(Page::Unmapped, |page| self.pages[page]);
            match page {
                Page::Free => {}
                Page::ReadOnly if kind == Kind::Load => {}
                // SEGV_ACCERR, SEGV_MAPERR, BUS_ADRERR
                Page::Closed | Page::ReadOnly => return Err(fault(libc::SIGSEGV, 2, at)),
                Page::Unmapped => return Err(fault(libc::SIGSEGV, 1, at)),
                Page::CutOff => return Err(fault(libc::SIGBUS, 2, at)),
            }
            at = (at | (PAGE as u64 - 1)) + 1;
        }
        Ok(())
    }

    fn part(address: u64, len: usize) -> std::ops::Range<usize> {
        let start = (address - AREA) as usize;
        start..start + len
    }

    /// What the program writes of it.
    fn accessible(&self) -> Vec<u8> {
        let pages =
            (0..PAGES).filter(|&page| matches!(self.pages[page], Page::Free | Page::ReadOnly));
        let bytes = pages.flat_map(|page| &self.bytes[PAGE * page..PAGE * (page + 1)]);
        bytes.copied().collect()
    }
}

impl Memory for Area {
    type Fault = Fault;

    fn load(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), Kind::Load)?;
        bytes.copy_from_slice(&self.bytes[Self::part(address, bytes.len())]);
        Ok(())
    }

    fn check_store(&self, address: u64, len: usize) -> Result<(), Fault> {
        self.check(address, len, Kind::Store)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check(address, bytes.len(), Kind::Store)?;
        self.bytes[Self::part(address, bytes.len())].copy_from_slice(bytes);
        Ok(())
    }
}

/// What the program writes at a fault, or at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    pub number: u32,
    /// 0 at the end.
    pub signal: i32,
    pub code: i64,
    pub address: u64,
    pub pc: u64,
    pub flags: u64,
    pub state: Vec<u8>,
    /// Of cases that store.
    pub memory: Vec<u8>,
}

/// Bytes of a stop, without the memory.
const STOP: usize = 40 + STATE;

impl Stop {
    /// Reads what the program has written, which has as much memory as what was expected.
    pub fn read(bytes: &mut &[u8], memory: usize) -> Option<Self> {
        let (own, rest) = bytes.split_at_checked(STOP + memory)?;
        *bytes = rest;
        let word = |at: usize| u64::from_le_bytes(own[at..at + 8].try_into().expect("eight bytes"));
        let mut stop = Self {
            number: word(0) as u32,
            signal: (word(0) >> 32) as i32,
            code: word(8).cast_signed(),
            address: word(16),
            pc: word(24),
            flags: word(32),
            state: own[40..STOP].to_vec(),
            memory: own[STOP..].to_vec(),
        };
        if stop.signal == 0 {
            // As `lahf` and `seto al` have them.
            stop.flags = stop.flags >> 8 & 0xD5 | (stop.flags & 1) << 11;
        }
        Some(stop)
    }
}

/// What a case does.
#[derive(Debug)]
pub struct Expected {
    pub stops: Vec<Stop>,
    /// All accesses that are complete.
    pub accesses: Vec<Access>,
    /// Those that faulted.
    pub faults: Vec<Access>,
    /// How often the instruction begins.
    pub starts: u64,
}

/// Executes a case with the interpreter. `number`: which one it is.
pub fn expected(number: usize, case: &Case, memory: &[u8]) -> Expected {
    const ILLEGAL_OPERAND: i64 = 2;
    let mut area = Area {
        pages: case.pages,
        bytes: memory.to_vec(),
    };
    let mut registers = case.registers.clone();
    let mut expected = Expected {
        stops: Vec::new(),
        accesses: Vec::new(),
        faults: Vec::new(),
        starts: 0,
    };
    let stop = |registers: &Registers, area: &Area, [signal, code, address]: [u64; 3]| Stop {
        number: number as u32,
        signal: signal as i32,
        code: code.cast_signed(),
        address,
        pc: if signal == 0 { 0 } else { case.pc },
        flags: case.flags(),
        state: state(registers),
        memory: if case.form.stores {
            area.accessible()
        } else {
            Vec::new()
        },
    };
    loop {
        let ran = execute(&case.bytes, &mut registers, &mut area).expect("it is known");
        expected.accesses.extend(ran.accesses);
        let what = match ran.end {
            End::Complete => [0; 3],
            End::Refused => [
                libc::SIGILL as u64,
                ILLEGAL_OPERAND.cast_unsigned(),
                case.pc,
            ],
            End::Fault(_, fault) => {
                let signal = match fault.code {
                    SI_KERNEL if case.is_on_stack => libc::SIGBUS,
                    _ => fault.signal,
                };
                [signal as u64, fault.code.cast_unsigned(), fault.address]
            }
        };
        expected.stops.push(stop(&registers, &area, what));
        expected.starts += u64::from(ran.end != End::Refused);
        let End::Fault(access, fault) = ran.end else {
            return expected;
        };
        expected.faults.push(access);
        let page = Area::page(fault.address).filter(|_| case.repairs);
        let Some(page) = page else {
            return expected;
        };
        area.pages[page] = Page::Free;
    }
}
