//! Reads and writes operands.

use iced_x86::{OpKind, Register};

use super::arithmetic::Width;
use super::{Execution, Halt, Machine, RSP, State};

impl State {
    /// A general register, or a part of one.
    fn get(&self, register: Register) -> Option<u64> {
        if !register.is_gpr() {
            return None;
        }
        let whole = self.registers[register.full_register().number()];
        Some(match is_second_byte(register) {
            true => whole >> 8 & 0xFF,
            false => whole & Width(register.size() as u8).mask(),
        })
    }

    /// Sets it. Setting a 32-bit part zeroes the upper half; smaller parts leave the rest as it is.
    fn set(&mut self, register: Register, value: u64) -> Option<()> {
        if !register.is_gpr() {
            return None;
        }
        let whole = &mut self.registers[register.full_register().number()];
        let mask = Width(register.size() as u8).mask();
        *whole = match register.size() {
            8 | 4 => value & mask,
            _ if is_second_byte(register) => *whole & !0xFF00 | (value & 0xFF) << 8,
            _ => *whole & !mask | value & mask,
        };
        Some(())
    }
}

fn is_second_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

impl<M: Machine> Execution<'_, M> {
    /// How wide an operand is.
    pub(super) fn width(&self, operand: u32) -> Result<Width, Halt> {
        let size = match self.raw.op_kind(operand) {
            OpKind::Register => self.raw.op_register(operand).size(),
            OpKind::Memory => self.raw.memory_size().size(),
            _ => return Err(Halt::Unknown),
        };
        match size {
            1 | 2 | 4 | 8 => Ok(Width(size as u8)),
            _ => Err(Halt::Unknown),
        }
    }

    /// The value of an operand: zero-extended, except for immediates, which are sign-extended.
    pub(super) fn read(&mut self, operand: u32) -> Result<u64, Halt> {
        match self.raw.op_kind(operand) {
            OpKind::Register => {
                let value = self.state.get(self.raw.op_register(operand));
                value.ok_or(Halt::Unknown)
            }
            OpKind::Memory => {
                let width = self.width(operand)?;
                let at = self.address(operand)?;
                self.load(at, width)
            }
            _ => self.raw.try_immediate(operand).map_err(|_| Halt::Unknown),
        }
    }

    /// Sets an operand.
    pub(super) fn write(&mut self, operand: u32, value: u64) -> Result<(), Halt> {
        match self.raw.op_kind(operand) {
            OpKind::Register => {
                let register = self.raw.op_register(operand);
                self.state.set(register, value).ok_or(Halt::Unknown)
            }
            OpKind::Memory => {
                let width = self.width(operand)?;
                let at = self.address(operand)?;
                let bytes = value.to_le_bytes();
                Ok(self.machine.write(at, &bytes[..usize::from(width.0)])?)
            }
            _ => Err(Halt::Unknown),
        }
    }

    fn load(&mut self, at: u64, width: Width) -> Result<u64, Halt> {
        let mut bytes = [0; 8];
        self.machine.read(at, &mut bytes[..usize::from(width.0)])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The address of a memory operand.
    fn address(&self, operand: u32) -> Result<u64, Halt> {
        let state = &self.state;
        let of = |register: Register, _, _| match register {
            Register::FS => Some(state.fs),
            Register::GS => Some(state.gs),
            Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
            register => state.get(register),
        };
        let address = self.raw.virtual_address(operand, 0, of);
        address.ok_or(Halt::Unknown)
    }

    /// The same without the segment's base, as `lea` computes it.
    pub(super) fn address_without_segment(&self) -> Result<u64, Halt> {
        let state = &self.state;
        let of = |register: Register, _, _| match register.is_segment_register() {
            true => Some(0),
            false => state.get(register),
        };
        self.raw.virtual_address(1, 0, of).ok_or(Halt::Unknown)
    }

    pub(super) fn push(&mut self, value: u64) -> Result<(), Halt> {
        let to = self.state.registers[RSP].wrapping_sub(8);
        self.machine.write(to, &value.to_le_bytes())?;
        self.state.registers[RSP] = to;
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Result<u64, Halt> {
        let value = self.load(self.state.registers[RSP], Width::QWORD)?;
        let rsp = &mut self.state.registers[RSP];
        *rsp = rsp.wrapping_add(8);
        Ok(value)
    }
}
