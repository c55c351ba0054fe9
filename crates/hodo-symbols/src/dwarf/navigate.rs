//! Navigates between debugging information entries.

use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, Unit, UnitOffset, UnitSectionOffset};

use super::{Debug, LazyUnit, ParsedUnit, Reader};

/// An entry in the file's own information, or in information that it shares with other files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub shared: bool,
    pub unit: usize,
    pub offset: UnitOffset,
}

impl At {
    /// The beginning of one of the file's own units.
    pub(super) fn unit(index: usize) -> Self {
        Self {
            shared: false,
            unit: index,
            offset: UnitOffset(0),
        }
    }
}

pub(crate) type Entry<'a> = DebuggingInformationEntry<'a, 'a, Reader>;

/// Longer chains of references are circular, and thus damaged.
const LONGEST: usize = 64;

impl Debug {
    /// Returns the sections that contain a unit.
    fn dwarf_of(&self, at: At) -> &gimli::Dwarf<Reader> {
        match self.dwarf.sup() {
            Some(other) if at.shared => other,
            _ => match self.parsed(at).and_then(|parsed| parsed.split.as_ref()) {
                Some(split) => &split.dwarf,
                None => &self.dwarf,
            },
        }
    }

    fn parsed(&self, at: At) -> Option<&ParsedUnit> {
        let units = if at.shared { &self.shared } else { &self.units };
        let lazy = units.get(at.unit)?;
        let parse = || {
            let dwarf = self.dwarf.sup().filter(|_| at.shared);
            let unit = dwarf.unwrap_or(&self.dwarf).unit(lazy.header.clone());
            let unit = unit.ok()?;
            let split = match at.shared {
                true => None,
                false => self.splits.read(&self.dwarf, &unit, at.unit),
            };
            Some(ParsedUnit { unit, split })
        };
        lazy.unit.get_or_init(parse).as_ref()
    }

    pub(crate) fn unit_of(&self, at: At) -> Option<&Unit<Reader>> {
        let parsed = self.parsed(at)?;
        let split = parsed.split.as_ref();
        Some(split.map_or(&parsed.unit, |split| &split.unit))
    }

    fn is_split(&self, at: At) -> bool {
        let parsed = self.parsed(at);
        parsed.is_some_and(|parsed| parsed.split.is_some())
    }

    /// Returns the code ranges of one of the file's own units.
    pub(crate) fn unit_ranges(&self, index: usize) -> Option<gimli::RangeIter<Reader>> {
        let parsed = self.parsed(At::unit(index))?;
        self.dwarf.unit_ranges(&parsed.unit).ok()
    }

    /// Returns the sections that contain one of the file's own units.
    pub(crate) fn dwarf_with(&self, unit: &Unit<Reader>) -> &gimli::Dwarf<Reader> {
        match self.splits.index(unit) {
            Some(index) => self.dwarf_of(At::unit(index)),
            None => &self.dwarf,
        }
    }

    pub(crate) fn entry(&self, at: At) -> Option<Entry<'_>> {
        self.unit_of(at)?.entry(at.offset).ok()
    }

    pub(crate) fn attr(&self, at: At, name: DwAt) -> Option<AttributeValue<Reader>> {
        self.entry(at)?.attr_value(name).ok()?
    }

    /// Returns the entry that an attribute refers to.
    pub(crate) fn link(&self, at: At, name: DwAt) -> Option<At> {
        let find = |units: &[LazyUnit], shared, offset: gimli::DebugInfoOffset| {
            let start = |lazy: &LazyUnit| match lazy.header.offset() {
                UnitSectionOffset::DebugInfoOffset(start) => start.0,
                UnitSectionOffset::DebugTypesOffset(start) => start.0,
            };
            let unit = units.partition_point(|lazy| start(lazy) <= offset.0);
            let unit = unit.checked_sub(1)?;
            let offset = offset.to_unit_offset(&units[unit].header)?;
            Some(At {
                shared,
                unit,
                offset,
            })
        };
        match self.attr(at, name)? {
            AttributeValue::UnitRef(offset) => Some(At { offset, ..at }),
            AttributeValue::DebugInfoRef(offset) if at.shared => find(&self.shared, true, offset),
            // In another file, there is only one unit.
            AttributeValue::DebugInfoRef(offset) if self.is_split(at) => {
                let offset = offset.to_unit_offset(&self.unit_of(at)?.header)?;
                Some(At { offset, ..at })
            }
            AttributeValue::DebugInfoRef(offset) => find(&self.units, false, offset),
            AttributeValue::DebugInfoRefSup(offset) => find(&self.shared, true, offset),
            _ => None,
        }
    }

    /// Returns an entry, the entries that it is a copy of, and the declaration that it completes.
    pub(crate) fn origins(&self, at: At) -> impl Iterator<Item = At> {
        let next = |at: &At| {
            let origin = self.link(*at, gimli::DW_AT_abstract_origin);
            origin.or_else(|| self.link(*at, gimli::DW_AT_specification))
        };
        std::iter::successors(Some(at), next).take(LONGEST)
    }

    pub(crate) fn name(&self, at: At) -> Option<String> {
        self.origins(at).find_map(|at| {
            let value = self.attr(at, gimli::DW_AT_name)?;
            let unit = self.unit_of(at)?;
            let text = self.dwarf_of(at).attr_string(unit, value).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        })
    }

    pub(crate) fn tag(&self, at: At) -> Option<gimli::DwTag> {
        Some(self.entry(at)?.tag())
    }

    pub(crate) fn number(&self, at: At, name: DwAt) -> Option<u64> {
        let value = self.attr(at, name)?;
        value
            .udata_value()
            .or_else(|| Some(value.sdata_value()?.cast_unsigned()))
    }

    /// Returns the encoding of a base type.
    pub(crate) fn encoding(&self, ty: At) -> gimli::DwAte {
        match self.attr(ty, gimli::DW_AT_encoding) {
            Some(AttributeValue::Encoding(encoding)) => encoding,
            _ => gimli::DwAte(0),
        }
    }

    /// Returns the entries directly inside another one.
    pub(crate) fn children(&self, at: At) -> Vec<At> {
        let mut children = Vec::new();
        let Some(unit) = self.unit_of(at) else {
            return children;
        };
        let Ok(mut tree) = unit.entries_tree(Some(at.offset)) else {
            return children;
        };
        let Ok(root) = tree.root() else {
            return children;
        };
        let mut inside = root.children();
        while let Ok(Some(child)) = inside.next() {
            let offset = child.entry().offset();
            children.push(At { offset, ..at });
        }
        children
    }

    /// Returns the type of a variable, member, pointer or array, without typedefs and qualifiers. `None` means `void`.
    pub(crate) fn type_of(&self, at: At) -> Option<At> {
        let mut at = self
            .origins(at)
            .find_map(|at| self.link(at, gimli::DW_AT_type))?;
        for _ in 0..LONGEST {
            match self.tag(at)? {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type => at = self.link(at, gimli::DW_AT_type)?,
                _ => return Some(at),
            }
        }
        None
    }

    /// Returns the number of elements in each dimension of an array, or 0 where it is unknown.
    pub(crate) fn dimensions(&self, array: At) -> Vec<u64> {
        let children = self.children(array).into_iter();
        let of = |at: At| {
            let bound = || Some(self.number(at, gimli::DW_AT_upper_bound)?.wrapping_add(1));
            self.number(at, gimli::DW_AT_count).or_else(bound)
        };
        children
            .filter(|at| self.tag(*at) == Some(gimli::DW_TAG_subrange_type))
            .map(|at| of(at).unwrap_or(0))
            .collect()
    }

    /// Returns the size of a type in bytes.
    pub(crate) fn size(&self, ty: At) -> Option<u64> {
        if let Some(size) = self.number(ty, gimli::DW_AT_byte_size) {
            return Some(size);
        }
        match self.tag(ty)? {
            gimli::DW_TAG_array_type => {
                let element = self.size(self.type_of(ty)?)?;
                let dimensions = self.dimensions(ty);
                let count = dimensions.iter().try_fold(1u64, |a, b| a.checked_mul(*b))?;
                count.checked_mul(element)
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => Some(8),
            _ => self.size(self.type_of(ty)?),
        }
    }
}
