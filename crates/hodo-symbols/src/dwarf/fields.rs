//! Which parts of variables are at addresses.

use std::collections::{BTreeSet, HashMap};

use gimli::{AttributeValue, Operation};

use super::Debug;
use super::navigate::At;

/// Parts in parts are named down to this depth.
const DEEPEST: usize = 16;

impl Debug {
    /// The parts of variables outside functions that are at these addresses of the file: `table[3].count`, or
    /// `name::space::number`. Addresses without one are left out.
    #[must_use]
    pub fn fields_at(&self, addrs: &BTreeSet<u64>) -> HashMap<u64, String> {
        let mut found = HashMap::new();
        for index in 0..self.units.len() {
            self.globals(index, &mut |path, at| {
                let (Some(start), Some(ty)) = (self.fixed_address(at), self.type_of(at)) else {
                    return;
                };
                let size = self.size(ty).unwrap_or(0);
                for &addr in addrs.range(start..start.saturating_add(size)) {
                    let mut name = path.join("::");
                    self.add_part(&mut name, ty, addr - start);
                    found.entry(addr).or_insert(name);
                }
            });
        }
        found
    }

    /// The address of a variable that is always at the same place.
    fn fixed_address(&self, variable: At) -> Option<u64> {
        let AttributeValue::Exprloc(expression) = self.attr(variable, gimli::DW_AT_location)?
        else {
            return None;
        };
        let unit = self.unit_of(variable)?;
        let mut operations = expression.operations(unit.encoding());
        let address = match operations.next().ok()?? {
            Operation::Address { address } => address,
            Operation::AddressIndex { index } => self.dwarf_with(unit).address(unit, index).ok()?,
            _ => return None,
        };
        // More than an address is thread-local, or in several pieces.
        operations.next().ok()?.is_none().then_some(address)
    }

    /// Adds the part at this offset of something of this type to its name.
    fn add_part(&self, name: &mut String, mut ty: At, mut offset: u64) {
        for _ in 0..DEEPEST {
            let next = match self.tag(ty) {
                Some(gimli::DW_TAG_array_type) => self.element_at(name, ty, &mut offset),
                _ => self.member_at(name, ty, &mut offset),
            };
            match next {
                Some(next) => ty = next,
                None => return,
            }
        }
    }

    fn element_at(&self, name: &mut String, array: At, offset: &mut u64) -> Option<At> {
        let element = self.type_of(array)?;
        let size = self.size(element).filter(|&size| size > 0)?;
        let mut number = *offset / size;
        *offset %= size;
        let mut indices = Vec::new();
        for count in self.dimensions(array).into_iter().skip(1).rev() {
            let count = count.max(1);
            indices.push(number % count);
            number /= count;
        }
        indices.push(number);
        for index in indices.into_iter().rev() {
            *name += &format!("[{index}]");
        }
        Some(element)
    }

    fn member_at(&self, name: &mut String, structure: At, offset: &mut u64) -> Option<At> {
        let members = self.members(structure, 0, 0);
        let is_here = |(_, member, start): &&(String, At, u64)| {
            let size = self.type_of(*member).and_then(|ty| self.size(ty));
            (*start..start.saturating_add(size.unwrap_or(0))).contains(offset)
        };
        let (member, at, start) = members.iter().find(is_here)?;
        *name += ".";
        *name += member;
        *offset -= start;
        self.type_of(*at)
    }
}
