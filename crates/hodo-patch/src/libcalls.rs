//! Calls into shared libraries: their stubs, and what is written at their sites.

use std::collections::{BTreeMap, HashMap};

use hodo_arch::native::patch::{Through, call_through, lead_through, registers_through, shares};
use hodo_arch::native::relocate::RelocateError;
use hodo_plan::model::LibcallForm;

use crate::{Image, Island, OUT_OF_REACH, Patches, Recording, TracedCall, records};

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
            let through = match site.form {
                LibcallForm::Plt => Through::Entry,
                LibcallForm::Call => Through::Call,
                LibcallForm::Jump => Through::Jump,
            };
            let mut records = records(id, filter, site.mode, recording);
            records.registers = registers_through(through);
            let key = (got, id, shares(through));
            let reach = self.check_reach(at).and_then(|()| self.check_reach(got));
            let stub = reach.and_then(|()| match shared.get(&key) {
                Some(&stub) => Ok(stub),
                None => self.stub(&records, 0, &mut patches.faults, |body| {
                    Ok::<_, RelocateError>(call_through(body, got, through, at))
                }),
            });
            let lead = stub.and_then(|stub| {
                shared.insert(key, stub);
                lead_through(at, stub, through, site.patch_len)
                    .ok_or_else(|| OUT_OF_REACH.to_owned())
            });
            match lead {
                Ok(bytes) => {
                    writes.insert(site.patch, bytes);
                }
                Err(reason) => patches.failed.push((site.patch, reason)),
            }
        }
        writes
    }
}
