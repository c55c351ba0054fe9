//! Traces what the planner has found in a file.

use std::ops::Range;

use hodo_patch::{Sites, Traced, TracedCall};
use hodo_plan::model::{LibcallSite, Plan, PlannedFunction};

use crate::leads::follow;
use crate::world::World;

impl World {
    /// Patches functions of a plan, each with the name that it gets, and library calls. The file's code is in memory so far from where it
    /// is in the file.
    pub fn trace_planned<'p>(
        &mut self,
        (plan, file): (&Plan, &[u8]),
        bias: u64,
        functions: impl Iterator<Item = (&'p str, &'p PlannedFunction)>,
        calls: &[&LibcallSite],
    ) {
        let (names, functions): (Vec<_>, Vec<_>) = functions.unzip();
        let ids = self.names(names.into_iter().map(str::to_owned));
        let functions: Vec<_> = functions
            .into_iter()
            .zip(ids)
            .map(|(function, id)| Traced {
                function,
                id,
                filter: false,
            })
            .collect();
        let ids = self.names(calls.iter().map(|call| call.name.clone()));
        let libcalls: Vec<_> = calls
            .iter()
            .zip(ids)
            .map(|(site, id)| TracedCall {
                site,
                id,
                filter: false,
            })
            .collect();
        let sites = Sites {
            functions: &functions,
            libcalls: &libcalls,
            nops: &plan.nops,
            regions: &[],
        };
        // Segments of code are at the same offsets in the file.
        let code = |range: Range<u64>| file.get(range.start as usize..range.end as usize);
        self.add(sites, bias, &code);
        assert_eq!(self.patches.failed, []);
        follow(&self.patches);
    }
}
