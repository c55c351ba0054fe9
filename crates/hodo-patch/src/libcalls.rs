//! Calls into shared libraries: their stubs, and what is written at their sites.

use std::collections::{BTreeMap, HashMap};

use hodo_arch::native::emit::Code;
use hodo_arch::native::relocate::RelocateError;
use hodo_arch::native::stub::{self, Body};
use hodo_arch::native::track::{Row, pushed};
use hodo_plan::model::LibcallForm;

use crate::{Image, Island, Patches, Recording, TracedCall, records};

impl Island {
    /// What to write at the sites of calls into shared libraries, by link-time address.
    pub(crate) fn libcall_writes(
        &mut self,
        libcalls: &[TracedCall<'_>],
        image: Image<'_>,
        recording: Recording,
        patches: &mut Patches,
    ) -> BTreeMap<u64, Vec<u8>> {
        let mut writes = BTreeMap::new();
        // Call sites of one GOT slot share a stub.
        let mut shared = HashMap::new();
        for &TracedCall { site, id, filter } in libcalls {
            let at = site.patch.wrapping_add(image.bias);
            let got = site.got.wrapping_add(image.bias);
            let records = records(id, filter, site.mode, recording);
            let reach = self.check_reach(at).and_then(|()| self.check_reach(got));
            let stub = reach.and_then(|()| match shared.get(&(got, id)) {
                Some(&stub) => Ok(stub),
                None => self.stub(&records, 0, |body| {
                    Ok::<_, RelocateError>(indirect_jump(body, got))
                }),
            });
            match stub {
                Ok(stub) => {
                    shared.insert((got, id), stub);
                    let bytes = match site.form {
                        // The return address must stay what it was, and nothing of a displaced instruction be left: a
                        // prefix without effect makes up the sixth byte.
                        LibcallForm::Call => [&[0x67], &stub::call(at + 1, stub)[..]].concat(),
                        LibcallForm::Jump => [&[0x67], &stub::jump(at + 1, stub)[..]].concat(),
                        LibcallForm::Plt => stub::jump(at, stub),
                    };
                    writes.insert(site.patch, bytes);
                }
                Err(reason) => patches.failed.push((site.patch, reason)),
            }
        }
        writes
    }
}

/// `jmp *slot(%rip)` at `at`.
fn indirect_jump(at: u64, slot: u64) -> Body {
    let mut bytes = Vec::with_capacity(6);
    Code::new(&mut bytes, at).branch(&[0xFF, 0x25], slot);
    let rule = pushed(0);
    Body {
        bytes,
        resume: None,
        rows: vec![Row { at: 0, rule }],
        returns: false,
    }
}
