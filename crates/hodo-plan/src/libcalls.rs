//! Calls into shared libraries.

use crate::image::Image;
use crate::model::{LibcallForm, LibcallSite};
use crate::modes;
use hodo_arch::x86_64::scan::got_jump;
use object::elf;
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget,
};
use std::collections::HashMap;

/// GOT slots of functions: address to name.
pub(crate) fn slots(image: &Image<'_>) -> HashMap<u64, String> {
    let mut slots = HashMap::new();
    let (Some(relocations), Some(symbols)) = (
        image.file.dynamic_relocations(),
        image.file.dynamic_symbol_table(),
    ) else {
        return slots;
    };
    for (addr, relocation) in relocations {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            continue;
        };
        if !matches!(r_type, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT) {
            continue;
        }
        let RelocationTarget::Symbol(index) = relocation.target() else {
            continue;
        };
        let Ok(symbol) = symbols.symbol_by_index(index) else {
            continue;
        };
        if let Ok(name) = symbol.name()
            && !name.is_empty()
        {
            slots.insert(addr, name.to_owned());
        }
    }
    slots
}

/// The PLT entries.
pub(crate) fn plt(image: &Image<'_>, slots: &HashMap<u64, String>) -> Vec<LibcallSite> {
    let mut sites = Vec::new();
    for section in image.file.sections() {
        let Ok(name) = section.name() else { continue };
        if !name.starts_with(".plt") && name != ".iplt" {
            continue;
        }
        let Ok(bytes) = section.data() else { continue };
        for (jump, got, len) in got_jump(bytes, section.address()) {
            if let Some(name) = slots.get(&got) {
                sites.push(LibcallSite {
                    name: name.clone(),
                    patch: jump,
                    patch_len: len,
                    form: LibcallForm::Plt,
                    got,
                    mode: modes::by_name(name),
                });
            }
        }
    }
    sites.sort_by(|a, b| (&a.name, a.patch).cmp(&(&b.name, b.patch)));
    sites
}
