//! The instructions, by their names.

use super::encode::{one, prefixed, sized, two};
use super::{Code, Cond, Field, Label, Mem, Reg, Size};

/// The opcode's extension in place of a register.
const fn digit(number: u8) -> Reg {
    Reg::whole(number).part(Size::Dword)
}

/// The eight arithmetic operations that share their forms. The number is the operation's.
macro_rules! arithmetic {
    ($(#$number:literal $mnemonic:literal
        $(rr $rr:ident)? $(rm $rm:ident)? $(mr $mr:ident)? $(ri $ri:ident)? $(ri8 $ri8:ident)? $(mi $mi:ident)? $(mi8 $mi8:ident)?;
    )*) => {
        impl Code<'_> {
            $(
                $(
                    #[doc = concat!("`", $mnemonic, " to, from`")]
                    #[inline]
                    pub fn $rr(&mut self, to: Reg, from: Reg) {
                        debug_assert_eq!(to.size, from.size);
                        self.op(sized($number << 3, to.size), from, to);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " to, [from]`")]
                    #[inline]
                    pub fn $rm(&mut self, to: Reg, from: Mem) {
                        self.op(sized($number << 3 | 2, to.size), to, from);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " [to], from`")]
                    #[inline]
                    pub fn $mr(&mut self, to: Mem, from: Reg) {
                        self.op(sized($number << 3, from.size), from, to);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " to, number`, of four bytes, or of one for a register of one")]
                    #[inline]
                    pub fn $ri(&mut self, to: Reg, number: u32) {
                        match to.number {
                            0 => {
                                self.short(sized($number << 3 | 4, to.size));
                            }
                            _ => self.op(sized(0x80, to.size), digit($number), to),
                        }
                        self.immediate(to.size, number);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " to, number`, of one byte")]
                    #[inline]
                    pub fn $ri8(&mut self, to: Reg, number: i8) {
                        self.op(one(0x83, to.size), digit($number), to);
                        self.plain(&[number.cast_unsigned()]);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " [to], number`, of four bytes, or of one for memory of one")]
                    #[inline]
                    pub fn $mi(&mut self, size: Size, to: Mem, number: u32) {
                        self.op(sized(0x80, size), digit($number), to);
                        self.immediate(size, number);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " [to], number`, of one byte")]
                    #[inline]
                    pub fn $mi8(&mut self, size: Size, to: Mem, number: i8) {
                        self.op(one(0x83, size), digit($number), to);
                        self.plain(&[number.cast_unsigned()]);
                    }
                )?
            )*
        }
    };
}

arithmetic! {
    #0 "add" rr add_rr rm add_rm mr add_mr ri add_ri ri8 add_ri8 mi add_mi;
    #1 "or" rr or_rr rm or_rm ri or_ri mi or_mi;
    #4 "and" rr and_rr ri and_ri ri8 and_ri8;
    #5 "sub" rr sub_rr rm sub_rm ri sub_ri ri8 sub_ri8 mi8 sub_mi8;
    #6 "xor" rr xor_rr rm xor_rm ri xor_ri;
    #7 "cmp" rr cmp_rr rm cmp_rm mr cmp_mr ri cmp_ri ri8 cmp_ri8 mi cmp_mi mi8 cmp_mi8;
}

/// Instructions without operands.
macro_rules! plain {
    ($($name:ident $bytes:expr;)*) => {
        impl Code<'_> {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                #[inline]
                pub fn $name(&mut self) {
                    self.plain(&$bytes);
                }
            )*
        }
    };
}

plain! {
    cdqe [0x48, 0x98];
    cqo [0x48, 0x99];
    int3 [0xCC];
    lahf [0x9F];
    pushfq [0x9C];
    rdtsc [0x0F, 0x31];
    ret [0xC3];
    sahf [0x9E];
    syscall [0x0F, 0x05];
}

/// Instructions with one operand, a register or memory, and the digit that extends the opcode.
macro_rules! single {
    ($($mnemonic:literal $opcode:literal $number:literal $(r $r:ident)? $(m $m:ident)?;)*) => {
        impl Code<'_> {
            $(
                $(
                    #[doc = concat!("`", $mnemonic, " reg`")]
                    #[inline]
                    pub fn $r(&mut self, reg: Reg) {
                        self.op(sized($opcode, reg.size), digit($number), reg);
                    }
                )?
                $(
                    #[doc = concat!("`", $mnemonic, " [mem]`")]
                    #[inline]
                    pub fn $m(&mut self, size: Size, mem: Mem) {
                        self.op(sized($opcode, size), digit($number), mem);
                    }
                )?
            )*
        }
    };
}

single! {
    "inc" 0xFE 0 r inc_r m inc_m;
    "dec" 0xFE 1 r dec_r m dec_m;
    "not" 0xF6 2 r not_r;
    "neg" 0xF6 3 r neg_r;
    "div" 0xF6 6 r div_r;
    "idiv" 0xF6 7 r idiv_r;
}

/// Shifts, by a number or by `cl`.
macro_rules! shifts {
    ($($mnemonic:literal $number:literal $by_number:ident $by_cl:ident;)*) => {
        impl Code<'_> {
            $(
                #[doc = concat!("`", $mnemonic, " reg, bits`")]
                #[inline]
                pub fn $by_number(&mut self, reg: Reg, bits: u8) {
                    self.op(sized(0xC0, reg.size), digit($number), reg);
                    self.plain(&[bits]);
                }

                #[doc = concat!("`", $mnemonic, " reg, cl`")]
                #[inline]
                pub fn $by_cl(&mut self, reg: Reg) {
                    self.op(sized(0xD2, reg.size), digit($number), reg);
                }
            )*
        }
    };
}

shifts! {
    "shl" 4 shl_ri shl_rcl;
    "shr" 5 shr_ri shr_rcl;
    "sar" 7 sar_ri sar_rcl;
}

/// Tests of single bits, whose result is the carry.
macro_rules! bits {
    ($($mnemonic:literal $number:literal $name:ident;)*) => {
        impl Code<'_> {
            $(
                #[doc = concat!("`", $mnemonic, " reg, bit`")]
                #[inline]
                pub fn $name(&mut self, reg: Reg, bit: u8) {
                    self.op(two(0xBA, reg.size), digit($number), reg);
                    self.plain(&[bit]);
                }
            )*
        }
    };
}

bits! {
    "bt" 4 bt_ri;
    "bts" 5 bts_ri;
    "btr" 6 btr_ri;
}

/// Moves.
impl Code<'_> {
    /// `mov to, from`
    #[inline]
    pub fn mov_rr(&mut self, to: Reg, from: Reg) {
        debug_assert_eq!(to.size, from.size);
        self.op(sized(0x88, to.size), from, to);
    }

    /// `mov to, [from]`
    #[inline]
    pub fn mov_rm(&mut self, to: Reg, from: Mem) {
        self.op(sized(0x8A, to.size), to, from);
    }

    /// `mov [to], from`
    #[inline]
    pub fn mov_mr(&mut self, to: Mem, from: Reg) {
        self.op(sized(0x88, from.size), from, to);
    }

    /// `mov to, number`, of as many bytes as the register, which has one or four
    #[inline]
    pub fn mov_ri(&mut self, to: Reg, number: u32) {
        debug_assert!(matches!(to.size, Size::Byte | Size::Dword));
        let opcode = if to.size == Size::Byte { 0xB0 } else { 0xB8 };
        self.in_opcode(opcode, to.size, to);
        self.immediate(to.size, number);
    }

    /// `movabs to, number`, of eight bytes
    #[inline]
    pub fn movabs_ri(&mut self, to: Reg, number: u64) {
        self.in_opcode(0xB8, Size::Qword, to);
        self.data(number);
    }

    /// `mov [to], number`: four sign-extended bytes, or one byte for byte-sized memory
    #[inline]
    pub fn mov_mi(&mut self, size: Size, to: Mem, number: u32) {
        self.op(sized(0xC6, size), digit(0), to);
        self.immediate(size, number);
    }

    /// `mov to, segment`: a segment register by its number
    #[inline]
    pub fn mov_rs(&mut self, to: Reg, segment: u8) {
        self.op(one(0x8C, to.size), digit(segment & 7), to);
    }

    /// `movzx to, from`: from part of a register
    #[inline]
    pub fn movzx_rr(&mut self, to: Reg, from: Reg) {
        self.op(two(0xB6 | word(from.size), to.size), to, from);
    }

    /// `movzx to, [from]`: one byte or two
    #[inline]
    pub fn movzx_rm(&mut self, to: Reg, size: Size, from: Mem) {
        self.op(two(0xB6 | word(size), to.size), to, from);
    }

    /// `movsx to, from`: from part of a register
    #[inline]
    pub fn movsx_rr(&mut self, to: Reg, from: Reg) {
        self.op(two(0xBE | word(from.size), to.size), to, from);
    }

    /// `movsxd to, dword [from]`
    #[inline]
    pub fn movsxd_rm(&mut self, to: Reg, from: Mem) {
        self.op(one(0x63, to.size), to, from);
    }

    /// `lea to, [from]`
    #[inline]
    pub fn lea(&mut self, to: Reg, from: Mem) {
        self.op(one(0x8D, to.size), to, from);
    }

    /// `push reg`
    #[inline]
    pub fn push_r(&mut self, reg: Reg) {
        self.in_opcode(0x50, Size::Dword, reg);
    }

    /// `pop reg`
    #[inline]
    pub fn pop_r(&mut self, reg: Reg) {
        self.in_opcode(0x58, Size::Dword, reg);
    }

    /// `push number`: four sign-extended bytes
    #[inline]
    pub fn push_i(&mut self, number: u32) {
        self.plain(&[0x68]);
        self.number(number);
    }

    /// `pop qword [to]`. If `to` is relative to the stack pointer, that is its value after the pop.
    #[inline]
    pub fn pop_m(&mut self, to: Mem) {
        self.op(one(0x8F, Size::Dword), digit(0), to);
    }

    /// `push qword [from]`
    #[inline]
    pub fn push_m(&mut self, from: Mem) {
        self.op(one(0xFF, Size::Dword), digit(6), from);
    }

    /// `xchg rax, reg`
    #[inline]
    pub fn xchg_rax(&mut self, reg: Reg) {
        self.in_opcode(0x90, Size::Qword, reg);
    }

    /// `set… to`
    #[inline]
    pub fn setcc(&mut self, condition: Cond, to: Reg) {
        self.set_if(condition as u8, to);
    }

    /// `seto to`
    #[inline]
    pub fn seto(&mut self, to: Reg) {
        self.set_if(0, to);
    }

    #[inline]
    fn set_if(&mut self, condition: u8, to: Reg) {
        debug_assert_eq!(to.size, Size::Byte);
        self.op(two(0x90 | condition, Size::Byte), digit(0), to);
    }

    /// `cmov… to, from`
    #[inline]
    pub fn cmovcc(&mut self, condition: Cond, to: Reg, from: Reg) {
        self.op(two(0x40 | condition as u8, to.size), to, from);
    }
}

/// Arithmetic, locked instructions, and queries to the processor.
impl Code<'_> {
    /// `imul to, from`
    #[inline]
    pub fn imul_rr(&mut self, to: Reg, from: Reg) {
        self.op(two(0xAF, to.size), to, from);
    }

    /// `imul to, from, number`, of four bytes
    #[inline]
    pub fn imul_rri(&mut self, to: Reg, from: Reg, number: u32) {
        self.op(one(0x69, to.size), to, from);
        self.number(number);
    }

    /// `test a, b`
    #[inline]
    pub fn test_rr(&mut self, a: Reg, b: Reg) {
        self.op(sized(0x84, a.size), b, a);
    }

    /// `test byte [mem], number`
    #[inline]
    pub fn test_mi(&mut self, mem: Mem, number: u8) {
        self.op(one(0xF6, Size::Byte), digit(0), mem);
        self.plain(&[number]);
    }

    /// `bsr to, from`
    #[inline]
    pub fn bsr_rr(&mut self, to: Reg, from: Reg) {
        self.op(two(0xBD, to.size), to, from);
    }

    /// `popcnt to, from`
    #[inline]
    pub fn popcnt_rr(&mut self, to: Reg, from: Reg) {
        self.op(prefixed(0xF3, two(0xB8, to.size)), to, from);
    }

    /// The `lock` prefix of the next instruction.
    #[inline]
    pub fn lock(&mut self) -> &mut Self {
        self.plain(&[0xF0]);
        self
    }

    /// `xadd [to], from`
    #[inline]
    pub fn xadd_mr(&mut self, to: Mem, from: Reg) {
        self.op(two(0xC1, from.size), from, to);
    }

    /// `cmpxchg [to], from`
    #[inline]
    pub fn cmpxchg_mr(&mut self, to: Mem, from: Reg) {
        self.op(two(0xB1, from.size), from, to);
    }

    /// `lsl to, from`: the limit of a segment
    #[inline]
    pub fn lsl_rr(&mut self, to: Reg, from: Reg) {
        self.op(two(0x03, to.size), to, from);
    }

    /// `rdpid to`
    #[inline]
    pub fn rdpid(&mut self, to: Reg) {
        let opcode = two(0xC7, Size::Dword);
        self.op(prefixed(0xF3, opcode), digit(7), to);
    }

    /// A two-byte `nop`
    #[inline]
    pub fn nop2(&mut self) {
        self.plain(&[0x66, 0x90]);
    }

    /// `nop [mem]`
    #[inline]
    pub fn nop_m(&mut self, mem: Mem) {
        self.op(two(0x1F, Size::Dword), digit(0), mem);
    }
}

/// Jumps and calls.
impl Code<'_> {
    /// `j… to`
    pub fn jcc(&mut self, condition: Cond, to: Label) {
        self.plain(&[0x0F, 0x80 | condition as u8]);
        self.refer(to, Field::Long);
    }

    /// `j… to`: a condition by its four bits
    pub fn jcc_by(&mut self, condition: u8, to: Label) {
        self.plain(&[0x0F, 0x80 | condition & 15]);
        self.refer(to, Field::Long);
    }

    /// `j… to`, within 127 bytes
    pub fn jcc_short(&mut self, condition: Cond, to: Label) {
        self.plain(&[0x70 | condition as u8]);
        self.refer(to, Field::Short);
    }

    /// `jmp to`
    pub fn jmp(&mut self, to: Label) {
        self.plain(&[0xE9]);
        self.refer(to, Field::Long);
    }

    /// `j… to`: a condition by its four bits, to an address
    ///
    /// # Panics
    /// If the address is more than 2 GiB away.
    pub fn jcc_to(&mut self, condition: u8, to: u64) {
        self.plain(&[0x0F, 0x80 | condition & 15]);
        self.distance(to);
    }

    /// `jmp to`, within 127 bytes
    pub fn jmp_short(&mut self, to: Label) {
        self.plain(&[0xEB]);
        self.refer(to, Field::Short);
    }

    /// `jrcxz to`, within 127 bytes
    pub fn jrcxz(&mut self, to: Label) {
        self.plain(&[0xE3]);
        self.refer(to, Field::Short);
    }

    /// `jmp` over this many bytes
    #[inline]
    pub fn jmp_by(&mut self, bytes: i8) {
        self.plain(&[0xEB, bytes.cast_unsigned()]);
    }

    /// `call to`
    pub fn call(&mut self, to: Label) {
        self.plain(&[0xE8]);
        self.refer(to, Field::Long);
    }

    /// `jmp to` an address
    ///
    /// # Panics
    /// If it is more than 2 GiB away; islands are placed so that it never is.
    pub fn jmp_to(&mut self, to: u64) {
        self.plain(&[0xE9]);
        self.distance(to);
    }

    /// `call to` an address
    ///
    /// # Panics
    /// If it is more than 2 GiB away; islands are placed so that it never is.
    pub fn call_to(&mut self, to: u64) {
        self.plain(&[0xE8]);
        self.distance(to);
    }

    /// A call with a prefix that has no effect and makes it one byte longer.
    ///
    /// # Panics
    /// If the address is more than 2 GiB away.
    pub fn call_to_long(&mut self, to: u64) {
        self.plain(&[0x67]);
        self.call_to(to);
    }

    /// A jump with a prefix that has no effect and makes it one byte longer.
    ///
    /// # Panics
    /// If the address is more than 2 GiB away.
    pub fn jmp_to_long(&mut self, to: u64) {
        self.plain(&[0x67]);
        self.jmp_to(to);
    }

    /// `jmp reg`
    #[inline]
    pub fn jmp_r(&mut self, reg: Reg) {
        self.op(one(0xFF, Size::Dword), digit(4), reg);
    }

    /// `jmp [mem]`
    #[inline]
    pub fn jmp_m(&mut self, mem: Mem) {
        self.op(one(0xFF, Size::Dword), digit(4), mem);
    }

    /// `call [mem]`
    #[inline]
    pub fn call_m(&mut self, mem: Mem) {
        self.op(one(0xFF, Size::Dword), digit(2), mem);
    }
}

/// Immediate operands.
impl Code<'_> {
    /// A one-byte or four-byte number.
    #[inline]
    fn immediate(&mut self, size: Size, number: u32) {
        match size {
            Size::Byte => self.plain(&[number as u8]),
            _ => self.number(number),
        }
    }
}

/// The bit that makes an opcode work on words instead of bytes.
const fn word(size: Size) -> u8 {
    debug_assert!(matches!(size, Size::Byte | Size::Word));
    matches!(size, Size::Word) as u8
}
