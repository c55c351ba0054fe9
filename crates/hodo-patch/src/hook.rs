//! Hooks on the functions that unwinders ask: see `hodo_arch::native::hooks`.

use hodo_arch::native::emit::Code;
use hodo_arch::native::hooks::{self, IslandLayout};
pub use hodo_arch::native::hooks::{LimitCall, Raise};
use hodo_arch::native::relocate::relocate_mapped;
use hodo_arch::native::scan::{Flow, Sweep};
use hodo_arch::native::stub;
use hodo_arch::native::track::{self, State};

use crate::{Image, Island, Patches, copied, layout};

/// Which function is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// glibc's `_dl_find_object`.
    FindObject,
    /// `dl_iterate_phdr` of any libc.
    IteratePhdr,
    /// `_Unwind_Backtrace` of any unwinder.
    Backtrace {
        /// Address of `_Unwind_GetIP`.
        get_ip: u64,
    },
    /// `setrlimit`, `getrlimit` or `prlimit` of any libc.
    Limits(LimitCall, Raise),
}

/// Where the instructions end that a jump at the start of `code` displaces.
fn window(code: &[u8], addr: u64) -> Result<u64, String> {
    let mut end = addr;
    for insn in Sweep::new(code, addr) {
        if end >= addr + 5 {
            break;
        }
        if insn.flow != Flow::Next {
            return Err("a branch in its first five bytes".to_owned());
        }
        end = insn.addr + u64::from(insn.len);
    }
    if end < addr + 5 {
        return Err("it is shorter than five bytes".to_owned());
    }
    let into = Sweep::new(code, addr).any(|insn| match insn.flow {
        Flow::Branch(to) | Flow::Jump(to) | Flow::Call(to) => addr < to && to < end,
        _ => false,
    });
    if into {
        return Err("a branch into its first five bytes".to_owned());
    }
    Ok(end)
}

impl Island {
    /// Hooks a function at a link-time address.
    ///
    /// # Errors
    /// Why the function cannot be hooked.
    pub fn add_hook(
        &mut self,
        hook: Hook,
        function: std::ops::Range<u64>,
        image: Image<'_>,
        patches: &mut Patches,
    ) -> Result<(), String> {
        let start = function.start;
        let code = (image.code)(function).ok_or("it is not in the file")?;
        let end = window(code, start)?;
        let displaced = &code[..(end - start) as usize];
        let from = start.wrapping_add(image.bias);
        self.check_reach(from)?;
        self.check_room(4096)?;
        let mut bytes = Vec::new();
        let at = self.end().next_multiple_of(16);
        let mut out = Code::new(&mut bytes, at);
        let island = IslandLayout {
            program_headers: self.frames.program_headers,
            name: self.frames.name,
        };
        match hook {
            Hook::FindObject => hooks::find_object(&mut out, &layout(), island),
            Hook::IteratePhdr => hooks::iterate_phdr(&mut out, &layout(), island),
            Hook::Backtrace { get_ip } => hooks::backtrace(&mut out, &layout(), get_ip),
            Hook::Limits(call, extra) => hooks::limits(&mut out, call, extra),
        }
        let moved =
            relocate_mapped(displaced, from, out.here()).map_err(|error| error.to_string())?;
        let resume = end.wrapping_add(image.bias);
        patches
            .copies
            .extend(copied(&moved, from, resume, out.here()));
        out.raw(&moved.bytes);
        if moved.falls_through {
            out.branch(&[0xE9], resume);
        }
        let offset = (at - self.base) as usize;
        self.code.resize(offset, 0xCC);
        self.rows = track::code_rows(&bytes, at, &[(0, State::ENTRY)]);
        for row in &mut self.rows {
            row.at += offset as u32;
        }
        self.code.extend(bytes);
        self.close_group();
        patches.writes.push((from, stub::jump(from, at)));
        Ok(())
    }
}
