//! A quick decoder for translators: length, kind and operand bytes of an instruction, by two tables. It says nothing
//! about what instructions do; `steps` and the crate iced do.
//!
//! Source of the tables: Intel SDM volume 2, appendix A (opcode maps), and section 2.1 (formats); AMD's manual, volume
//! 6, for those of XOP.

const MODRM: u16 = 1;
const IMM8: u16 = 2;
const IMM16: u16 = 4;
/// An immediate of 2 or 4 bytes.
const IMM_Z: u16 = 8;
/// That of `mov r, imm`: 2, 4 or 8 bytes.
const IMM_V: u16 = 16;
/// An address of 8 bytes (4 with the prefix 67).
const OFFSET: u16 = 32;
const PREFIX: u16 = 64;
const BAD: u16 = 128;
/// `F6` and `F7`: an immediate if the register field is 0 or 1.
const GROUP3: u16 = 256;
/// `lea`, nops, prefetches: a memory operand that is not accessed.
const NO_ACCESS: u16 = 512;
/// An immediate of 4 bytes.
const IMM32: u16 = 1024;
/// The bits from here on are the kind.
const KIND: u32 = 11;

/// The most bytes of an instruction.
const LONGEST: usize = 15;

/// How an instruction changes the flow of control, as far as its opcode shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It continues at the next one.
    Plain,
    /// A conditional branch with a distance.
    Branch,
    /// A jump with a distance.
    Jump,
    /// A call with a distance.
    Call,
    /// A near return.
    Return,
    /// The opcode `FF`: a call or jump through its operand if the register field is 2 or 4; a far one if 3 or 5.
    Group5,
    /// `loop` and `jrcxz`, which have only short forms.
    Loop,
    /// `syscall`.
    SystemCall,
    /// It faults, traps, or leaves the code segment: `ud2`, `int3`, `hlt`, `iret`, far returns.
    Stop,
    /// A near return that removes arguments.
    ReturnPop,
}

const KINDS: [Kind; 10] = [
    Kind::Plain,
    Kind::Branch,
    Kind::Jump,
    Kind::Call,
    Kind::Return,
    Kind::Group5,
    Kind::Loop,
    Kind::SystemCall,
    Kind::Stop,
    Kind::ReturnPop,
];

const fn kind(kind: Kind) -> u16 {
    (kind as u16) << KIND
}

/// Sets several entries of a table.
const fn set(mut table: [u16; 256], opcodes: &[u8], flags: u16) -> [u16; 256] {
    let mut index = 0;
    while index < opcodes.len() {
        table[opcodes[index] as usize] = flags;
        index += 1;
    }
    table
}

/// Sets a range of entries of a table.
const fn span(mut table: [u16; 256], first: u8, last: u8, flags: u16) -> [u16; 256] {
    let mut index = first as usize;
    while index <= last as usize {
        table[index] = flags;
        index += 1;
    }
    table
}

const ONE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 0x40 {
        table[index] = match index & 7 {
            0..=3 => MODRM,
            4 => IMM8,
            5 => IMM_Z,
            _ => BAD,
        };
        index += 1;
    }
    // REX
    table = span(table, 0x40, 0x4F, PREFIX);
    table = set(
        table,
        &[0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67],
        PREFIX,
    );
    table = set(table, &[0xF0, 0xF2, 0xF3], PREFIX);
    table = set(
        table,
        &[0x60, 0x61, 0x82, 0x9A, 0xD4, 0xD5, 0xD6, 0xEA],
        BAD,
    );
    table = set(table, &[0x63], MODRM);
    table = set(table, &[0x68, 0xA9], IMM_Z);
    table = set(table, &[0x69, 0x81, 0xC7], MODRM | IMM_Z);
    table = set(table, &[0x6A, 0xA8, 0xCD, 0xE4, 0xE5, 0xE6, 0xE7], IMM8);
    table = set(table, &[0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6], MODRM | IMM8);
    table = span(table, 0x70, 0x7F, IMM8 | kind(Kind::Branch));
    table = span(table, 0x84, 0x8F, MODRM);
    table = set(table, &[0x8D], MODRM | NO_ACCESS);
    table = span(table, 0xA0, 0xA3, OFFSET);
    table = span(table, 0xB0, 0xB7, IMM8);
    table = span(table, 0xB8, 0xBF, IMM_V);
    table = span(table, 0xD0, 0xD3, MODRM);
    table = span(table, 0xD8, 0xDF, MODRM);
    table = set(table, &[0xC2], IMM16 | kind(Kind::ReturnPop));
    table = set(table, &[0xC3], kind(Kind::Return));
    table = set(table, &[0xC8], IMM16 | IMM8);
    table = set(table, &[0xCA], IMM16 | kind(Kind::Stop));
    table = set(table, &[0xCB, 0xCC, 0xCF, 0xF1, 0xF4], kind(Kind::Stop));
    table = span(table, 0xE0, 0xE3, IMM8 | kind(Kind::Loop));
    table = set(table, &[0xE8], IMM_Z | kind(Kind::Call));
    table = set(table, &[0xE9], IMM_Z | kind(Kind::Jump));
    table = set(table, &[0xEB], IMM8 | kind(Kind::Jump));
    table = set(table, &[0xF6, 0xF7], MODRM | GROUP3);
    table = set(table, &[0xFE], MODRM);
    set(table, &[0xFF], MODRM | kind(Kind::Group5))
};

/// After `0F`.
const TWO: [u16; 256] = {
    let mut table = [MODRM; 256];
    table = set(table, &[0x04, 0x0A, 0x0C], BAD);
    table = set(table, &[0x05], kind(Kind::SystemCall));
    table = set(table, &[0x06, 0x07, 0x08, 0x09, 0x0E, 0x77], 0);
    table = set(table, &[0x0B], kind(Kind::Stop));
    table = set(table, &[0x0D], MODRM | NO_ACCESS);
    table = set(table, &[0x0F], MODRM | IMM8);
    table = span(table, 0x18, 0x1F, MODRM | NO_ACCESS);
    table = span(table, 0x30, 0x37, 0);
    table = span(table, 0x70, 0x73, MODRM | IMM8);
    table = span(table, 0x80, 0x8F, IMM_Z | kind(Kind::Branch));
    table = set(table, &[0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA], 0);
    table = set(
        table,
        &[0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6],
        MODRM | IMM8,
    );
    span(table, 0xC8, 0xCF, 0)
};

/// An instruction, as offsets into its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Its length in bytes.
    pub len: u8,
    /// Its kind.
    pub kind: Kind,
    /// Where the opcode's last byte is.
    pub opcode: u8,
    /// Where the ModRM byte is; 0: it has none.
    pub modrm: u8,
    /// Where the displacement of a memory operand relative to the next instruction is; 0: it has none.
    pub rip: u8,
    /// Whether it accesses the memory operand that its ModRM byte or its offset names.
    pub memory: bool,
    /// Its REX prefix; 0: it has none.
    pub rex: u8,
    /// Its segment prefix, `64` or `65`; 0: it has none.
    pub segment: u8,
}

/// The prefixes of an instruction.
#[derive(Default)]
struct Prefixes {
    rex: u8,
    segment: u8,
    short: bool,
    short_address: bool,
    lock: bool,
}

impl Prefixes {
    fn add(&mut self, byte: u8) {
        let rex = byte & 0xF0 == 0x40;
        self.rex = if rex { byte } else { 0 };
        self.short |= byte == 0x66;
        self.short_address |= byte == 0x67;
        self.lock |= byte == 0xF0;
        if matches!(byte, 0x64 | 0x65) {
            self.segment = byte;
        }
    }

    /// Whether a processor refuses an instruction because of them: nothing but a change of memory can be locked.
    fn forbid(&self, flags: u16, group5: u8) -> bool {
        let kind = KINDS[usize::from(flags >> KIND).min(KINDS.len() - 1)];
        self.lock
            && match kind {
                // What faults or traps does so with the prefix, too.
                Kind::Plain | Kind::Stop => false,
                Kind::Group5 => matches!(group5 >> 3 & 7, 2..=5),
                _ => true,
            }
    }

    fn wide(&self) -> bool {
        self.rex & 8 != 0
    }
}

/// Decodes the instruction at the start of `code`. `None`: there is none of 64-bit mode.
#[must_use]
pub fn decode(code: &[u8; 16]) -> Option<Insn> {
    parse(code).ok()
}

/// How many bytes a processor fetches, an instruction's or not, before it executes them or finds that they are none. It
/// faults first if it cannot.
#[must_use]
pub fn fetched(code: &[u8; 16]) -> usize {
    parse(code).map_or_else(|len| len.min(LONGEST), |insn| usize::from(insn.len))
}

/// Whether the first bytes would be an instruction, or none, of more bytes than instructions may have.
#[must_use]
pub fn is_too_long(code: &[u8; 16]) -> bool {
    parse(code).is_err_and(|len| len > LONGEST)
}

/// The same as [`decode`]; if there is none, how many bytes that has.
fn parse(code: &[u8; 16]) -> Result<Insn, usize> {
    let too_long = code.len();
    let mut prefixes = Prefixes::default();
    let mut at = 0;
    let mut flags = ONE[usize::from(code[0])];
    while flags & PREFIX != 0 {
        prefixes.add(code[at]);
        at += 1;
        if at > 14 {
            return Err(too_long);
        }
        flags = ONE[usize::from(code[at])];
    }
    let mut opcode = at;
    let first = code[at];
    if first == 0x0F {
        (opcode, flags) = two_bytes(code, at + 1);
    } else if matches!(first, 0xC4 | 0xC5 | 0x62) || is_xop(code, at) {
        (opcode, flags) = vector(code, at);
    }
    at = opcode + 1;
    if at > code.len() {
        return Err(too_long);
    }
    let modrm = code.get(at).copied().unwrap_or(0);
    let is_bad = flags & BAD != 0 || prefixes.forbid(flags, modrm);
    let mut insn = Insn {
        len: 0,
        kind: KINDS[usize::from(flags >> KIND).min(KINDS.len() - 1)],
        opcode: opcode as u8,
        modrm: 0,
        rip: 0,
        memory: flags & OFFSET != 0,
        rex: prefixes.rex,
        segment: prefixes.segment,
    };
    if flags & MODRM != 0 {
        if at >= code.len() {
            return Err(too_long);
        }
        insn.modrm = at as u8;
        let group3 = flags & GROUP3 != 0 && code[at] & 0x30 == 0;
        if group3 {
            flags |= if first & 1 == 0 { IMM8 } else { IMM_Z };
        }
        if code[at] < 0xC0 {
            insn.memory = flags & NO_ACCESS == 0;
            at += operand(code, at, &mut insn);
        } else {
            at += 1;
        }
    }
    at += immediates(flags, &prefixes);
    if at > LONGEST || is_bad {
        return Err(at);
    }
    insn.len = at as u8;
    Ok(insn)
}

/// Whether these bytes are the prefix of instructions of AMD's maps 8 to 10, not `pop`.
fn is_xop(code: &[u8; 16], at: usize) -> bool {
    code[at] == 0x8F && code.get(at + 1).is_some_and(|byte| byte & 31 >= 8)
}

/// Where the last opcode byte is, and its flags.
fn two_bytes(code: &[u8; 16], at: usize) -> (usize, u16) {
    match code[at] {
        0x38 => (at + 1, MODRM),
        0x3A => (at + 1, MODRM | IMM8),
        opcode => (at, TWO[usize::from(opcode)]),
    }
}

/// The same after a VEX, EVEX or XOP prefix.
fn vector(code: &[u8; 16], at: usize) -> (usize, u16) {
    let (opcode, map) = match code[at] {
        0xC5 => (at + 2, 1),
        0xC4 | 0x8F => (at + 3, code[at + 1] & 31),
        _ => (at + 4, code[at + 1] & 7),
    };
    let evex = code[at] == 0x62;
    let Some(&byte) = code.get(opcode) else {
        return (opcode, BAD);
    };
    let flags = match map {
        8 if code[at] == 0x8F => MODRM | IMM8,
        9 if code[at] == 0x8F => MODRM,
        10 if code[at] == 0x8F => MODRM | IMM32,
        // vzeroupper, vzeroall
        1 if byte == 0x77 && !evex => 0,
        1 => TWO[usize::from(byte)] & (IMM8 | BAD) | MODRM,
        2 | 5 | 6 => MODRM,
        3 => MODRM | IMM8,
        _ => BAD,
    };
    (opcode, flags)
}

/// The length of a memory operand from its ModRM byte on.
fn operand(code: &[u8; 16], at: usize, insn: &mut Insn) -> usize {
    let modrm = code[at];
    let low = modrm & 7;
    let scaled = low == 4;
    let base = match scaled {
        true => code[(at + 1) & 15] & 7,
        false => low,
    };
    let start = 1 + usize::from(scaled);
    match modrm >> 6 {
        0 if base == 5 => {
            if !scaled {
                insn.rip = (at + start) as u8;
            }
            start + 4
        }
        0 => start,
        1 => start + 1,
        _ => start + 4,
    }
}

/// The bytes of the immediates.
fn immediates(flags: u16, prefixes: &Prefixes) -> usize {
    // Distances of branches ignore the prefix 66 (on Intel's processors, and in what compilers emit).
    let short = prefixes.short && !prefixes.wide() && flags >> KIND == 0;
    let z = if short { 2 } else { 4 };
    let has = |flag: u16, len: usize| if flags & flag != 0 { len } else { 0 };
    has(IMM8, 1)
        + has(IMM16, 2)
        + has(IMM32, 4)
        + has(IMM_Z, z)
        + has(IMM_V, if prefixes.wide() { 8 } else { z })
        + has(OFFSET, if prefixes.short_address { 4 } else { 8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Option<Insn> {
        let mut code = [0; 16];
        code[..bytes.len()].copy_from_slice(bytes);
        decode(&code)
    }

    #[test]
    fn parts_are_found() {
        // mov rax, fs:[rip + 0x1234]
        let insn = decoded(&[0x64, 0x48, 0x8B, 0x05, 0x34, 0x12, 0, 0]).unwrap();
        assert_eq!((insn.len, insn.opcode, insn.modrm, insn.rip), (8, 2, 3, 4));
        assert_eq!((insn.rex, insn.segment, insn.memory), (0x48, 0x64, true));
        // lea rax, [rsp + rcx * 8 + 8]
        let insn = decoded(&[0x48, 0x8D, 0x44, 0xCC, 8]).unwrap();
        assert_eq!((insn.len, insn.rip, insn.memory), (5, 0, false));
        // ret 8; syscall; jrcxz; call [rax]
        assert_eq!(decoded(&[0xC2, 8, 0]).unwrap().kind, Kind::ReturnPop);
        assert_eq!(decoded(&[0x0F, 0x05]).unwrap().kind, Kind::SystemCall);
        assert_eq!(decoded(&[0xE3, 0]).unwrap().kind, Kind::Loop);
        assert_eq!(decoded(&[0xFF, 0x10]).unwrap().kind, Kind::Group5);
        assert_eq!(decoded(&[0x06]), None);
    }

    #[test]
    fn jumps_and_calls_cannot_be_locked() {
        for branch in [
            &[0xEB, 0][..],
            &[0x74, 0],
            &[0x0F, 0x84, 0, 0, 0, 0],
            &[0xE8, 0, 0, 0, 0],
            &[0xE3, 0],
            &[0xC3],
            &[0xFF, 0x10],
            &[0xFF, 0x20],
            &[0x0F, 0x05],
        ] {
            assert!(decoded(branch).is_some());
            assert_eq!(decoded(&[&[0xF0], branch].concat()), None, "{branch:x?}");
        }
        // lock inc dword [rax]
        assert!(decoded(&[0xF0, 0xFF, 0x00]).is_some());
    }

    #[test]
    fn instructions_of_amds_maps_are_as_long_as_their_operands() {
        let len = |bytes: &[u8]| decoded(bytes).map(|insn| insn.len);
        // vpcmov, vfrczps, bextr; each with [rax + 0x11223344]
        let operand = [0x80, 0x44, 0x33, 0x22, 0x11];
        let with = |start: [u8; 4]| len(&[&start[..], &operand].concat());
        assert_eq!(with([0x8F, 0xE8, 0x78, 0xA2]), Some(10));
        assert_eq!(with([0x8F, 0xE9, 0x78, 0x80]), Some(9));
        assert_eq!(with([0x8F, 0xEA, 0x78, 0x10]), Some(13));
        // pop [rax]; pop rcx
        assert_eq!(len(&[0x8F, 0x00]), Some(2));
        assert_eq!(len(&[0x8F, 0xC1]), Some(2));
    }

    #[test]
    fn bytes_are_fetched_up_to_an_instructions_end() {
        let fetched = |bytes: &[u8]| {
            let mut code = [0; 16];
            code[..bytes.len()].copy_from_slice(bytes);
            (fetched(&code), is_too_long(&code))
        };
        assert_eq!(fetched(&[0x15]), (5, false));
        assert_eq!(fetched(&[0x0F, 0x0B]), (2, false));
        // Those are none.
        assert_eq!(fetched(&[0x06]), (1, false));
        assert_eq!(fetched(&[0xF0, 0xE9]), (6, false));
        assert_eq!(fetched(&[0x66; 16]), (15, true));
        assert_eq!(fetched(&[&[0x2E; 11][..], &[0x15]].concat()), (15, true));
    }

    #[test]
    fn an_instruction_has_at_most_fifteen_bytes() {
        let with = |prefixes: usize, rest: &[u8]| {
            decoded(&[&[0x66].repeat(prefixes)[..], rest].concat()).map(|insn| insn.len)
        };
        assert_eq!(with(14, &[0x90]), Some(15));
        assert_eq!(with(15, &[0x90]), None);
        assert_eq!(with(13, &[0x0F, 0x05]), Some(15));
        assert_eq!(with(14, &[0x0F, 0x05]), None);
        assert_eq!(with(12, &[0x0F, 0x38, 0xF1]), None);
        for prefixes in 0..15 {
            assert!(with(prefixes, &[0xC4, 0xE2]).is_none_or(|len| len <= 15));
            assert!(with(prefixes, &[0x62, 0xF2]).is_none_or(|len| len <= 15));
        }
    }
}
