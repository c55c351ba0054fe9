//! Moves instructions to another address.
//!
//! The moved code does what the original does, register for register and flag for flag. Its length does not depend on
//! the addresses, so stubs can be laid out before their addresses are known.

use super::asm::{self, DWORD, RSP, fill, mem};
use super::cfa::{self, Row, State, Step, Then};
use super::scan::is_nop;
pub use crate::relocate::Moved;
use alloc::vec::Vec;
use core::fmt;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

/// Why code cannot be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelocateError {
    /// Not an instruction, or one that is cut off at the end.
    Invalid {
        /// Offset of the instruction.
        offset: usize,
    },
    /// A call that is not the last instruction.
    CallInside {
        /// Offset of the instruction.
        offset: usize,
    },
    /// An instruction that we do not move (far transfers, 16-bit branches, 32-bit instruction-pointer-relative memory).
    Unsupported {
        /// Offset of the instruction.
        offset: usize,
    },
    /// The new address is more than 2 GiB from something that the instruction refers to.
    OutOfRange {
        /// Offset of the instruction.
        offset: usize,
    },
    /// A branch into the middle of one of the moved instructions.
    TargetInside {
        /// Offset of the instruction.
        offset: usize,
    },
}

impl fmt::Display for RelocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, offset) = match self {
            Self::Invalid { offset } => ("no valid instruction", offset),
            Self::CallInside { offset } => ("a call that is not the last instruction", offset),
            Self::Unsupported { offset } => ("an instruction that cannot be moved", offset),
            Self::OutOfRange { offset } => ("a reference out of range", offset),
            Self::TargetInside { offset } => ("a branch into an instruction's middle", offset),
        };
        write!(f, "{what} at offset {offset}")
    }
}

impl core::error::Error for RelocateError {}

/// Moved code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// The new bytes.
    pub bytes: Vec<u8>,
    /// One entry for each original instruction, in order.
    pub map: Vec<Moved>,
    /// Where the frame is, from the function's entry on.
    pub rows: Vec<Row>,
    /// Whether control can reach the end, so that a jump back must follow. It cannot after a jump or return, or after a
    /// call: the callee returns to the original code.
    pub falls_through: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Copy,
    RipRelative,
    Drop,
    Jcc,
    ShortOnly,
    Jmp,
    Xbegin,
    Call,
    IndirectCall,
    CallThroughMemory,
    Stop,
    StopRipRelative,
}

struct Piece {
    instruction: Instruction,
    kind: Kind,
    old: usize,
    new: usize,
    displacement: usize,
}

/// `push imm32; mov dword [rsp+4], imm32`
const PUSH_RETURN: usize = 13;
/// The first of the two.
const PUSH_IMM: u8 = 5;
/// `pop qword [rsp-16]`. The address is relative to the stack pointer after the pop. So the value that was pushed is
/// then two words below the top of the stack, below the return address that comes next.
const POP_TARGET: usize = 4;
/// `jmp qword [rsp-8]`, to the address that was stored there.
const JUMP_TO_TARGET: usize = 4;

fn classify(instruction: &Instruction, offset: usize, bytes: &[u8]) -> Result<Kind, RelocateError> {
    let unsupported = Err(RelocateError::Unsupported { offset });
    if instruction.is_invalid() {
        return Err(RelocateError::Invalid { offset });
    }
    if instruction.is_ip_rel_memory_operand() && instruction.memory_base() != Register::RIP {
        return unsupported;
    }
    let rip = instruction.is_ip_rel_memory_operand();
    if instruction.flow_control() != FlowControl::Next && is_narrow(bytes) {
        return unsupported;
    }
    Ok(match instruction.flow_control() {
        FlowControl::Next | FlowControl::Interrupt | FlowControl::Exception => {
            match instruction.mnemonic() {
                Mnemonic::Endbr64 => Kind::Drop,
                _ if is_nop(instruction) => Kind::Drop,
                Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 if rip => Kind::StopRipRelative,
                Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => Kind::Stop,
                _ if rip => Kind::RipRelative,
                _ => Kind::Copy,
            }
        }
        FlowControl::ConditionalBranch => match instruction.op0_kind() {
            OpKind::NearBranch64 if instruction.is_jcc_short_or_near() => Kind::Jcc,
            OpKind::NearBranch64 => Kind::ShortOnly,
            _ => return unsupported,
        },
        FlowControl::UnconditionalBranch => match instruction.op0_kind() {
            OpKind::NearBranch64 => Kind::Jmp,
            _ => return unsupported,
        },
        FlowControl::Call => match instruction.code() {
            Code::Call_rel32_64 => Kind::Call,
            Code::Syscall | Code::Sysenter => Kind::Copy,
            _ => return unsupported,
        },
        FlowControl::IndirectCall => {
            if instruction.code() != Code::Call_rm64 {
                return unsupported;
            }
            let stack = [Register::RSP, Register::ESP];
            if instruction.op0_kind() != OpKind::Register {
                Kind::CallThroughMemory
            } else if stack.contains(&instruction.op0_register()) {
                return unsupported;
            } else {
                Kind::IndirectCall
            }
        }
        FlowControl::IndirectBranch => match instruction.code() {
            Code::Jmp_rm64 if rip => Kind::StopRipRelative,
            Code::Jmp_rm64 => Kind::Stop,
            _ => return unsupported,
        },
        FlowControl::Return => match instruction.code() {
            Code::Retnq | Code::Retnq_imm16 | Code::Iretq => Kind::Stop,
            _ => return unsupported,
        },
        FlowControl::XbeginXabortXend => match instruction.code() {
            Code::Xbegin_rel32 => Kind::Xbegin,
            Code::Xbegin_rel16 => return unsupported,
            _ => Kind::Copy,
        },
    })
}

fn new_len(instruction: &Instruction, kind: Kind) -> usize {
    let len = instruction.len();
    match kind {
        Kind::Copy | Kind::RipRelative | Kind::Xbegin | Kind::Stop | Kind::StopRipRelative => len,
        Kind::Drop => 0,
        Kind::Jcc => 6,
        Kind::ShortOnly => len + 2 + 5,
        Kind::Jmp => 5,
        Kind::Call => PUSH_RETURN + 5,
        Kind::IndirectCall => PUSH_RETURN + len,
        Kind::CallThroughMemory => len + POP_TARGET + PUSH_RETURN + JUMP_TO_TARGET,
    }
}

fn pieces(code: &[u8], from: u64) -> Result<(Vec<Piece>, usize), RelocateError> {
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    let mut pieces = Vec::new();
    let mut new = 0;
    while decoder.can_decode() {
        let old = decoder.position();
        let instruction = decoder.decode();
        if let Some(Kind::Call | Kind::IndirectCall | Kind::CallThroughMemory) =
            pieces.last().map(|p: &Piece| p.kind)
        {
            return Err(RelocateError::CallInside { offset: old });
        }
        let bytes = &code[old..old + instruction.len()];
        let kind = classify(&instruction, old, bytes)?;
        let displacement = decoder
            .get_constant_offsets(&instruction)
            .displacement_offset();
        pieces.push(Piece {
            instruction,
            kind,
            old,
            new,
            displacement,
        });
        new += new_len(&instruction, kind);
    }
    Ok((pieces, new))
}

/// Whether a single instruction can be moved.
#[inline]
pub(super) fn is_movable(instruction: &Instruction, bytes: &[u8]) -> bool {
    classify(instruction, 0, bytes).is_ok()
}

/// The length of the moved code, wherever it goes.
///
/// # Errors
/// If the code cannot be moved.
pub fn relocated_len(code: &[u8], from: u64) -> Result<usize, RelocateError> {
    pieces(code, from).map(|(_, len)| len)
}

/// Moves whole instructions from the address `from` to the address `to`. Both are addresses at run time.
///
/// A call must be the last instruction. It becomes a push of the original return address and a jump.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate(code: &[u8], from: u64, to: u64) -> Result<Vec<u8>, RelocateError> {
    relocate_mapped(code, from, to).map(|relocated| relocated.bytes)
}

/// [`relocate`], and where each instruction went.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate_mapped(code: &[u8], from: u64, to: u64) -> Result<Relocated, RelocateError> {
    let (pieces, len) = pieces(code, from)?;
    let rows = frame_rows(&pieces, len);
    let moved = moved((code, pieces, len), from, to, &[])?;
    Ok(Relocated { rows, ..moved })
}

/// [`relocate_mapped`] with room between the instructions. Each gap is the offset of an original instruction and a
/// number of bytes; that many bytes of breakpoints come before the moved instruction. Branches within the code lead to
/// the start of the gap. `map` also has the offsets of the gaps, if there are any. `rows` is empty, because the code in
/// the gaps has frames of its own.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate_apart(
    code: &[u8],
    from: u64,
    to: u64,
    gaps: &[(usize, usize)],
) -> Result<Relocated, RelocateError> {
    let (pieces, len) = pieces(code, from)?;
    moved((code, pieces, len), from, to, gaps)
}

/// The same for code that was decoded already.
fn moved(
    (code, mut pieces, len): (&[u8], Vec<Piece>, usize),
    from: u64,
    to: u64,
    gaps: &[(usize, usize)],
) -> Result<Relocated, RelocateError> {
    let gap = |piece: &Piece| {
        let gap = gaps.iter().find(|(offset, _)| *offset == piece.old);
        gap.map_or(0, |(_, len)| *len)
    };
    let mut room = 0;
    for piece in &mut pieces {
        piece.new += room;
        room += gap(piece);
    }
    let mut writer = Writer {
        code,
        pieces: &pieces,
        from,
        to,
        bytes: Vec::with_capacity(len + room),
    };
    for piece in &pieces {
        writer.breakpoints(gap(piece));
        let start = writer.bytes.len();
        writer.write(piece)?;
        debug_assert_eq!(
            writer.bytes.len() - start,
            new_len(&piece.instruction, piece.kind)
        );
    }
    let bytes = writer.bytes;
    let falls_through = !pieces.last().is_some_and(|p| {
        matches!(
            p.kind,
            Kind::Jmp
                | Kind::Stop
                | Kind::StopRipRelative
                | Kind::Call
                | Kind::IndirectCall
                | Kind::CallThroughMemory
        )
    });
    let map = pieces
        .iter()
        .map(|p| Moved {
            old: p.old,
            new: p.new,
        })
        .collect();
    Ok(Relocated {
        bytes,
        map,
        rows: Vec::new(),
        falls_through,
    })
}

/// Writes pieces at their new address, one after the other.
struct Writer<'a> {
    /// The original code.
    code: &'a [u8],
    pieces: &'a [Piece],
    /// The address of the original code.
    from: u64,
    /// The address of `bytes`.
    to: u64,
    /// What is written so far.
    bytes: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn breakpoints(&mut self, len: usize) {
        let len = self.bytes.len() + len;
        fill(&mut self.bytes, len);
    }

    fn original(&self, piece: &Piece) -> &'a [u8] {
        &self.code[piece.old..piece.old + piece.instruction.len()]
    }

    /// Where a branch to `address` leads: within the moved code if it led within the original.
    fn target(&self, piece: &Piece, address: u64) -> Result<u64, RelocateError> {
        let inside = address.wrapping_sub(self.from);
        if inside >= self.code.len() as u64 {
            return Ok(address);
        }
        self.pieces
            .iter()
            .find(|p| p.old as u64 == inside)
            .map(|p| self.to.wrapping_add(p.new as u64))
            .ok_or(RelocateError::TargetInside { offset: piece.old })
    }

    /// The distance from the offset `end`, where an instruction ends, to an address.
    fn distance(&self, piece: &Piece, end: usize, target: u64) -> Result<[u8; 4], RelocateError> {
        let end = self.to.wrapping_add(end as u64);
        i32::try_from(target.wrapping_sub(end) as i64)
            .map(i32::to_le_bytes)
            .map_err(|_| RelocateError::OutOfRange { offset: piece.old })
    }

    /// An assembler at the next byte.
    fn out(&mut self) -> asm::Code<'_> {
        asm::Code::new(&mut self.bytes, self.to)
    }

    /// Writes a branch of this length to the target of the original branch.
    fn branch(
        &mut self,
        piece: &Piece,
        len: u64,
        write: impl FnOnce(&mut asm::Code<'_>, u64),
    ) -> Result<(), RelocateError> {
        let target = self.target(piece, piece.instruction.near_branch64())?;
        self.branch_to(piece, len, target, write)
    }

    fn branch_to(
        &mut self,
        piece: &Piece,
        len: u64,
        target: u64,
        write: impl FnOnce(&mut asm::Code<'_>, u64),
    ) -> Result<(), RelocateError> {
        let mut out = self.out();
        out.reach(len, target)
            .map_err(|_| RelocateError::OutOfRange { offset: piece.old })?;
        write(&mut out, target);
        Ok(())
    }

    /// Pushes the address that the original call pushes.
    fn push_return(&mut self, piece: &Piece) {
        let back = piece.instruction.next_ip();
        let mut out = self.out();
        out.push_i(back as u32);
        out.mov_mi(DWORD, mem(RSP, 4), (back >> 32) as u32);
    }

    /// Makes the copy at `start` access the same memory as the original, relative to the instruction pointer.
    fn patch_memory(&mut self, piece: &Piece, start: usize) -> Result<(), RelocateError> {
        let end = start + piece.instruction.len();
        let displacement = self.distance(piece, end, piece.instruction.ip_rel_memory_address())?;
        self.bytes[start + piece.displacement..][..4].copy_from_slice(&displacement);
        Ok(())
    }

    /// Appends the original with another `reg` field in its ModRM byte, which makes it a different instruction with the
    /// same operand.
    fn with_reg(&mut self, piece: &Piece, reg: u8) -> Result<(), RelocateError> {
        let original = self.original(piece);
        let opcode = opcode_at(original).ok_or(RelocateError::Invalid { offset: piece.old })?;
        let modrm = self.bytes.len() + opcode + 1;
        self.bytes.extend_from_slice(original);
        self.bytes[modrm] = self.bytes[modrm] & !0x38 | reg << 3;
        Ok(())
    }

    fn write(&mut self, piece: &Piece) -> Result<(), RelocateError> {
        let instruction = &piece.instruction;
        let original = self.original(piece);
        let start = self.bytes.len();
        match piece.kind {
            Kind::Drop => Ok(()),
            Kind::Copy | Kind::Stop => {
                self.bytes.extend_from_slice(original);
                Ok(())
            }
            Kind::RipRelative | Kind::StopRipRelative => {
                self.bytes.extend_from_slice(original);
                self.patch_memory(piece, start)
            }
            Kind::Jcc => {
                let offset = piece.old;
                let condition =
                    condition_bits(original).ok_or(RelocateError::Invalid { offset })?;
                self.branch(piece, 6, |code, to| code.jcc_to(condition, to))
            }
            Kind::ShortOnly => {
                self.bytes
                    .extend_from_slice(&original[..original.len() - 1]);
                // Taken: to the jump. Not taken: past it.
                self.branch(piece, 8, |code, to| {
                    code.raw(&[2]);
                    code.jmp_by(5);
                    code.jmp_to(to);
                })
            }
            Kind::Jmp => self.branch(piece, 5, |code, to| code.jmp_to(to)),
            Kind::Xbegin => {
                let target = self.target(piece, instruction.near_branch64())?;
                let distance = self.distance(piece, start + original.len(), target)?;
                self.bytes
                    .extend_from_slice(&original[..original.len() - 4]);
                self.bytes.extend_from_slice(&distance);
                Ok(())
            }
            Kind::Call => {
                self.push_return(piece);
                // A call of the code's start calls the function, and must be recorded.
                let target = match instruction.near_branch64() {
                    start if start == self.from => start,
                    other => self.target(piece, other)?,
                };
                self.branch_to(piece, 5, target, |code, to| code.jmp_to(to))
            }
            Kind::IndirectCall => {
                self.push_return(piece);
                self.with_reg(piece, 4)
            }
            Kind::CallThroughMemory => {
                // The operand is read first, with all registers and the stack as they were: so a call through a null
                // pointer faults in the same state as the original.
                self.with_reg(piece, 6)?;
                if instruction.is_ip_rel_memory_operand() {
                    self.patch_memory(piece, start)?;
                }
                self.out().pop_m(mem(RSP, -16));
                self.push_return(piece);
                self.out().jmp_m(mem(RSP, -8));
                Ok(())
            }
        }
    }
}

/// The frame rows of pieces that begin with a function's entry.
fn frame_rows(pieces: &[Piece], len: usize) -> Vec<Row> {
    let inside = |piece: &Piece| {
        let target = piece.instruction.near_branch_target();
        pieces.iter().position(|p| p.instruction.ip() == target)
    };
    let steps: Vec<_> = pieces
        .iter()
        .map(|piece| Step {
            at: piece.new as u32,
            instruction: &piece.instruction,
            then: match piece.kind {
                Kind::Jcc | Kind::ShortOnly => Then::Next(inside(piece)),
                Kind::Jmp => Then::Stop(inside(piece)),
                Kind::Stop | Kind::StopRipRelative => Then::Stop(None),
                Kind::Call | Kind::IndirectCall => Then::Call {
                    read: 0,
                    popped: 0,
                    pushed: PUSH_IMM,
                },
                Kind::CallThroughMemory => {
                    let read = piece.instruction.len() as u8;
                    let popped = read + POP_TARGET as u8;
                    Then::Call {
                        read,
                        popped,
                        pushed: popped + PUSH_IMM,
                    }
                }
                Kind::Copy | Kind::RipRelative | Kind::Drop | Kind::Xbegin => Then::Next(None),
            },
        })
        .collect();
    cfa::rows(&steps, len as u32, &[(0, State::ENTRY)])
}

/// Offset of the opcode after legacy and REX prefixes.
fn opcode_at(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| {
        !matches!(
            byte,
            0x26 | 0x2E | 0x36 | 0x3E | 0x40..=0x4F | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3
        )
    })
}

/// Whether there is an operand size prefix that nothing overrides. Vendors' processors disagree on what it does to
/// branches.
pub(super) fn is_narrow(bytes: &[u8]) -> bool {
    let prefixes = &bytes[..opcode_at(bytes).unwrap_or(bytes.len())];
    let wide = prefixes.last().is_some_and(|last| last & 0xF8 == 0x48);
    prefixes.contains(&0x66) && !wide
}

fn condition_bits(bytes: &[u8]) -> Option<u8> {
    let at = opcode_at(bytes)?;
    match bytes[at] {
        opcode @ 0x70..=0x7F => Some(opcode & 15),
        0x0F => bytes.get(at + 1).map(|opcode| opcode & 15),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(code: &[u8], from: u64, to: u64) -> Vec<u8> {
        let moved = relocate_mapped(code, from, to).unwrap();
        assert_eq!(moved.bytes.len(), relocated_len(code, from).unwrap());
        moved.bytes
    }

    #[test]
    fn rip_relative_memory_keeps_its_address() {
        // mov eax, [rip+0x100]
        let bytes = moved(&[0x8B, 0x05, 0, 1, 0, 0], 0x1000, 0x2000);
        assert_eq!(bytes, [0x8B, 0x05, 0x00, 0xF1, 0xFF, 0xFF]);
        // cmp dword [rip+0x100], 7: an immediate after the displacement
        let bytes = moved(&[0x83, 0x3D, 0, 1, 0, 0, 7], 0x1000, 0x1100);
        assert_eq!(bytes, [0x83, 0x3D, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn short_branches_grow() {
        assert_eq!(
            moved(&[0x74, 0x10], 0x1000, 0x1000),
            [0x0F, 0x84, 0x0C, 0, 0, 0]
        );
        assert_eq!(moved(&[0xEB, 0x10], 0x1000, 0x1000), [0xE9, 0x0D, 0, 0, 0]);
        assert_eq!(
            moved(&[0xE3, 0x10], 0x1000, 0x1000),
            [0xE3, 2, 0xEB, 5, 0xE9, 0x09, 0, 0, 0]
        );
    }

    #[test]
    fn calls_return_to_the_original() {
        let bytes = moved(&[0xE8, 0, 0, 0, 0], 0x1_2345_6000, 0x1_2345_7000);
        assert_eq!(bytes[..5], [0x68, 0x05, 0x60, 0x45, 0x23]);
        assert_eq!(bytes[5..13], [0xC7, 0x44, 0x24, 4, 1, 0, 0, 0]);
        assert_eq!(bytes[13], 0xE9);
        // nop; a call to the nop
        let bytes = moved(&[0x90, 0xE8, 0xFA, 0xFF, 0xFF, 0xFF], 0x1000, 0x2000);
        assert_eq!(bytes[bytes.len() - 5], 0xE9);
        let end = 0x2000 + bytes.len() as i32;
        let last = bytes[bytes.len() - 4..].try_into().unwrap();
        assert_eq!(end + i32::from_le_bytes(last), 0x1000);
        // call [rsp+8]: push [rsp+8]; pop [rsp-16]; the return address; jmp [rsp-8]
        let bytes = moved(&[0xFF, 0x54, 0x24, 8], 0, 0);
        assert_eq!(bytes[..8], [0xFF, 0x74, 0x24, 8, 0x8F, 0x44, 0x24, 0xF0]);
        assert_eq!(bytes[8..13], [0x68, 4, 0, 0, 0]);
        assert_eq!(bytes[21..], [0xFF, 0x64, 0x24, 0xF8]);
        // call r11; call [rip+5]
        assert_eq!(moved(&[0x41, 0xFF, 0xD3], 0, 0)[13..], [0x41, 0xFF, 0xE3]);
        let bytes = moved(&[0xFF, 0x15, 5, 0, 0, 0], 0, 0x10);
        assert_eq!(bytes[..6], [0xFF, 0x35, 0xF5, 0xFF, 0xFF, 0xFF]);
    }

    #[test]
    fn endbr_is_dropped_and_the_map_knows() {
        let moved = relocate_mapped(&[0xF3, 0x0F, 0x1E, 0xFA, 0x55, 0xC3], 0, 0x100).unwrap();
        assert_eq!(moved.bytes, [0x55, 0xC3]);
        assert!(!moved.falls_through);
        let map: Vec<_> = moved.map.iter().map(|m| (m.old, m.new)).collect();
        assert_eq!(map, [(0, 0), (4, 0), (5, 1)]);
    }

    #[test]
    fn refusals() {
        let refused = |code: &[u8], to| relocate_mapped(code, 0x1000, to).unwrap_err();
        assert_eq!(
            refused(&[0xE8, 0, 0, 0, 0, 0x90], 0),
            RelocateError::CallInside { offset: 5 }
        );
        assert_eq!(refused(&[0x48], 0), RelocateError::Invalid { offset: 0 });
        assert_eq!(
            refused(&[0x8B, 0x05, 0, 1, 0, 0], 1 << 40),
            RelocateError::OutOfRange { offset: 0 }
        );
        assert_eq!(
            refused(&[0xFF, 0xD4], 0),
            RelocateError::Unsupported { offset: 0 }
        );
    }

    #[test]
    fn gaps_come_before_their_instructions() {
        // dec ecx; jnz to the start: each iteration of the loop passes the gap
        let code = [0xFF, 0xC9, 0x75, 0xFC];
        let moved = relocate_apart(&code, 0x1000, 0x9000, &[(0, 3), (2, 1)]).unwrap();
        assert_eq!(
            moved.bytes,
            [
                0xCC, 0xCC, 0xCC, 0xFF, 0xC9, 0xCC, 0x0F, 0x85, 0xF4, 0xFF, 0xFF, 0xFF
            ]
        );
        let map: Vec<_> = moved.map.iter().map(|m| (m.old, m.new)).collect();
        assert_eq!(map, [(0, 0), (2, 5)]);
    }

    #[test]
    fn a_branch_to_itself_passes_its_gap() {
        for (code, distance_at) in [
            (&[0xE2, 0xFE][..], 8),       // loop to itself
            (&[0x67, 0xE3, 0xFD][..], 9), // jecxz to itself
            (&[0xEB, 0xFE][..], 4),       // jmp to itself
            (&[0x75, 0xFE][..], 5),       // jnz to itself
        ] {
            let moved = relocate_apart(code, 0x1000, 0x9000, &[(0, 3)]).unwrap();
            let distance = moved.bytes[distance_at..][..4].try_into().unwrap();
            let end = distance_at as i32 + 4;
            assert_eq!(i32::from_le_bytes(distance), -end, "{code:02x?}");
            assert_eq!(moved.bytes.len(), end as usize);
        }
    }

    #[test]
    fn a_loop_within_stays_within() {
        // dec ecx; jnz to the start
        let bytes = moved(&[0xFF, 0xC9, 0x75, 0xFC], 0x1000, 0x9000);
        assert_eq!(bytes, [0xFF, 0xC9, 0x0F, 0x85, 0xF8, 0xFF, 0xFF, 0xFF]);
    }
}
