//! Why something is not done.

use std::borrow::Cow;
use std::fmt;

use hodo_codegen::native::patch::NoWindow;
use hodo_plan::model::Reason;

/// Why something is not put into an island, or not written over a program's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The island has no more room: a larger one would do.
    Full,
    /// A reason in the code, or in where it is. It also holds for another island in the same place.
    Code(Cow<'static, str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the island is full"),
            Self::Code(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<&'static str> for Refusal {
    fn from(reason: &'static str) -> Self {
        Self::Code(reason.into())
    }
}

impl From<NoWindow> for Refusal {
    fn from(reason: NoWindow) -> Self {
        Self::Code(reason.to_string().into())
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Code(reason.to_string().into())
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Code(reason.into())
    }
}
