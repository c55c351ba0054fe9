//! Calls into shared libraries: their stubs, and the bytes that are written at their sites.

use std::collections::{BTreeMap, HashMap};

use hodo_codegen::native::patch::{
    SLOT_REACH, Through, call_through, lead_through, reach_through, registers_through, shares,
};
use hodo_isa::native::relocate::RelocateError;
use hodo_plan::model::LibcallForm;

use crate::{Image, Island, OUT_OF_REACH, Patches, Recording, Region, Traced, TracedCall, records};

/// Why a call cannot be recorded.
const CUT: &str = "the displaced instructions of another site overlap those that load its address";

/// Where displaced instructions begin and end, in ascending order.
pub(crate) fn ends(functions: &[Traced<'_>], regions: &[Region<'_>]) -> Vec<u64> {
    let sites = functions
        .iter()
        .filter_map(|traced| traced.function.outcome.as_ref().ok());
    let far = sites.clone().filter_map(|site| site.far.as_ref());
    let far = far.map(|far| &far.displaced);
    let sites = sites.chain(regions.iter().map(|region| region.site));
    let displaced = sites.map(|site| &site.displaced).chain(far);
    let mut ends: Vec<u64> = displaced
        .flat_map(|range| [range.start, range.end])
        .collect();
    ends.sort_unstable();
    ends
}

impl Island {
    /// The bytes to write at the sites of calls into shared libraries, by link-time address. `ends`: where displaced
    /// instructions begin and end, in ascending order.
    pub(crate) fn libcall_writes(
        &mut self,
        libcalls: &[TracedCall<'_>],
        ends: &[u64],
        image: Image<'_>,
        recording: Recording,
        patches: &mut Patches,
    ) -> BTreeMap<u64, Vec<u8>> {
        let mut writes = BTreeMap::new();
        // Call sites with the same GOT slot share a stub.
        let mut shared = HashMap::new();
        for &TracedCall { site, id, filter } in libcalls {
            let at = site.patch.wrapping_add(image.bias);
            let got = site.got.wrapping_add(image.bias);
            let through = match site.form {
                LibcallForm::Plt => Through::Entry,
                LibcallForm::Call => Through::Call,
                LibcallForm::Jump => Through::Jump,
                LibcallForm::Loaded { register, .. } => Through::Loaded(register),
            };
            let mut records = records(id, filter, site.mode, recording);
            records.registers = registers_through(through);
            let key = (got, id, shares(through));
            let inside = site.patch + 1..site.patch + u64::from(site.patch_len);
            let cut = ends.partition_point(|&end| end < inside.start);
            let reach = match ends.get(cut) {
                Some(end) if inside.contains(end) => Err(CUT.into()),
                _ => self
                    .check_within(at, reach_through(through, site.patch_len))
                    .and_then(|()| self.check_within(got, SLOT_REACH)),
            };
            let stub = reach.and_then(|()| match shared.get(&key) {
                Some(&stub) => Ok(stub),
                None => self.stub(&records, 0, &mut patches.faults, |body| {
                    Ok::<_, RelocateError>(call_through(body, got, through, at))
                }),
            });
            let lead = stub.and_then(|stub| {
                shared.insert(key, stub);
                lead_through(at, stub, through, site.patch_len).ok_or_else(|| OUT_OF_REACH.into())
            });
            match lead {
                Ok(bytes) => {
                    writes.insert(site.patch, bytes);
                    // Up to the call, a register holds the stub's address, even if the instructions that load it are
                    // displaced.
                    if let LibcallForm::Loaded { end, .. } = site.form {
                        patches.add_way(at + 1..end.wrapping_add(image.bias));
                    }
                }
                Err(reason) => patches.failed.push((site.patch, reason)),
            }
        }
        writes
    }
}
