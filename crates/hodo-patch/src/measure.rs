//! An empty function of our own, for measuring what recording a call costs.

use crate::refusal::Refusal;
use hodo_codegen::native::stub::Body;
use hodo_plan::model::{EntryOnlyReason, Mode};

use crate::{Island, Recording, records};

impl Island {
    /// Adds the stub of a function that only returns, and returns the stub's address. `call`: its exit is recorded,
    /// too.
    ///
    /// # Errors
    /// If the island is full.
    pub fn add_empty(&mut self, call: bool, recording: Recording) -> Result<u64, Refusal> {
        let mode = match call {
            true => Mode::Call,
            false => Mode::EntryOnly(EntryOnlyReason::WalksStack),
        };
        let records = records(1, false, mode, recording);
        let body = Body {
            resume: Some(self.ret()),
            ..Body::default()
        };
        self.stub(&records, 0, &mut Vec::new(), |_| Ok::<_, Refusal>(body))
    }
}
