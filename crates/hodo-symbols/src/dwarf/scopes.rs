//! Which variables are visible at an instruction.

use std::collections::HashMap;

use gimli::UnitOffset;

use super::Debug;
use super::navigate::At;

/// The scopes around an instruction.
pub(crate) struct Scope {
    /// The function, with the blocks and inlined functions in it that contain the instruction; the innermost is last.
    pub chain: Vec<At>,
}

/// The namespaces that contain a global variable. There may be none.
type Path = Vec<String>;

impl Debug {
    /// Returns the scopes around an instruction, or `None` if no function is known there.
    pub(crate) fn scope(&self, pc: u64) -> Option<Scope> {
        for (index, unit) in self.all() {
            let mut inside = false;
            if let Some(mut ranges) = self.unit_ranges(index) {
                while let Ok(Some(range)) = ranges.next() {
                    inside |= range.begin <= pc && pc < range.end;
                }
            }
            if !inside {
                continue;
            }
            let mut chain = Vec::new();
            let mut entries = unit.entries();
            while let Ok(Some((_, entry))) = entries.next_dfs() {
                let is_scope = matches!(
                    entry.tag(),
                    gimli::DW_TAG_subprogram
                        | gimli::DW_TAG_inlined_subroutine
                        | gimli::DW_TAG_lexical_block
                        | gimli::DW_TAG_try_block
                        | gimli::DW_TAG_catch_block
                );
                if is_scope && self.ranges(unit, entry).iter().any(|r| r.contains(&pc)) {
                    chain.push(At {
                        shared: false,
                        unit: index,
                        offset: entry.offset(),
                    });
                }
            }
            if !chain.is_empty() {
                return Some(Scope { chain });
            }
        }
        None
    }

    /// Returns the name of the return type of the function around an instruction, unless it returns one number in the
    /// register for integers.
    #[must_use]
    pub fn returned_elsewhere(&self, pc: u64) -> Option<String> {
        let chain = self.scope(pc)?.chain;
        let mut functions = chain.into_iter();
        let function = functions.find(|at| self.tag(*at) == Some(gimli::DW_TAG_subprogram))?;
        let ty = self.type_of(function)?;
        let text = |kind: &str| self.name(ty).unwrap_or_else(|| kind.to_owned());
        match self.tag(ty)? {
            gimli::DW_TAG_base_type => match self.encoding(ty) {
                gimli::DW_ATE_float
                | gimli::DW_ATE_complex_float
                | gimli::DW_ATE_imaginary_float
                | gimli::DW_ATE_decimal_float => Some(text("floating-point number")),
                _ if self.size(ty).is_some_and(|size| size > 8) => Some(text("large number")),
                _ => None,
            },
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                Some(text("structure"))
            }
            gimli::DW_TAG_array_type => Some(text("vector")),
            _ => None,
        }
    }

    /// Returns the variables and parameters of the innermost function around an instruction, with their names, the
    /// innermost first.
    pub(crate) fn locals(&self, scope: &Scope) -> Vec<(String, At)> {
        let mut found: Vec<(String, At)> = Vec::new();
        for block in scope.chain.iter().rev() {
            // What a copy of a function does not mention is in the function itself.
            for origin in self.origins(*block) {
                for child in self.children(origin) {
                    let is_variable = matches!(
                        self.tag(child),
                        Some(gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter)
                    );
                    if let (true, Some(name)) = (is_variable, self.name(child))
                        && !found.iter().any(|(known, _)| *known == name)
                    {
                        found.push((name, child));
                    }
                }
            }
            let function = [gimli::DW_TAG_subprogram, gimli::DW_TAG_inlined_subroutine];
            if self.tag(*block).is_some_and(|tag| function.contains(&tag)) {
                break;
            }
        }
        found
    }

    /// Finds a variable outside functions by its name, first in this unit, then in the others. Namespaces may be left
    /// out.
    pub(crate) fn global(&self, name: &str, unit: Option<usize>) -> Option<At> {
        let wanted: Vec<&str> = name.split("::").collect();
        let others = (0..self.units.len()).filter(|index| Some(*index) != unit);
        for index in unit.into_iter().chain(others) {
            let mut best: Option<(usize, At)> = None;
            self.globals(index, &mut |path, at| {
                if path.len() >= wanted.len()
                    && path[path.len() - wanted.len()..] == wanted[..]
                    && best.is_none_or(|(length, _)| path.len() < length)
                {
                    best = Some((path.len(), at));
                }
            });
            if let Some((_, at)) = best {
                return Some(at);
            }
        }
        None
    }

    /// Calls `each` with a unit's variables outside functions.
    pub(crate) fn globals(&self, index: usize, each: &mut impl FnMut(&Path, At)) {
        let Some(unit) = self.unit(index) else { return };
        let mut declared: HashMap<UnitOffset, Path> = HashMap::new();
        // The enclosing namespaces and types, with their depths.
        let mut around: Vec<(isize, String)> = Vec::new();
        let mut depth = 0;
        let mut hidden: Option<isize> = None;
        let mut entries = unit.entries();
        while let Ok(Some((delta, entry))) = entries.next_dfs() {
            depth += delta;
            around.retain(|(outer, _)| *outer < depth);
            if hidden.is_some_and(|outer| depth > outer) {
                continue;
            }
            hidden = None;
            let at = At {
                shared: false,
                unit: index,
                offset: entry.offset(),
            };
            match entry.tag() {
                gimli::DW_TAG_subprogram => hidden = Some(depth),
                gimli::DW_TAG_namespace
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_union_type => {
                    if let Some(name) = self.name(at) {
                        around.push((depth, name));
                    }
                }
                gimli::DW_TAG_variable | gimli::DW_TAG_member => {
                    let Some(name) = self.name(at) else { continue };
                    let mut path: Path = around.iter().map(|(_, name)| name.clone()).collect();
                    path.push(name);
                    if let Some(declaration) = self.link(at, gimli::DW_AT_specification)
                        && let Some(known) = declared.get(&declaration.offset)
                    {
                        path.clone_from(known);
                    }
                    let placed = self.attr(at, gimli::DW_AT_location).is_some()
                        || self.attr(at, gimli::DW_AT_const_value).is_some();
                    let elsewhere = self.attr(at, gimli::DW_AT_declaration).is_some();
                    if (placed || !elsewhere) && entry.tag() == gimli::DW_TAG_variable {
                        each(&path, at);
                    }
                    declared.insert(entry.offset(), path);
                }
                _ => {}
            }
        }
    }
}
