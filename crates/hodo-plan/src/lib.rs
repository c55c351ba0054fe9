//! From an ELF image to the sites that can be patched.
//!
//! [`plan`] is a function of a file's bytes and needs no process. A [`model::Plan`] has for each function a site, with
//! the [`model::Tactic`] by which it is changed and the [`model::Mode`] in which it is recorded, or the reason why
//! there is none; and the calls into shared libraries. [`plan_probes`] does it for probes on single instructions. All
//! addresses are link-time addresses.
#![forbid(unsafe_code)]

mod around;
mod bits;
mod donor_slots;
mod far;
mod hosts;
mod image;
mod jumps;
mod ladder;
mod libcalls;
mod live;
pub mod model;
mod modes;
mod nodes;
mod pieces;
mod planner;
mod probes;
mod refusal;
mod regions;
mod relr;
mod rseq;
mod sites;
mod static_keys;
mod subject;
mod survey;
mod sweep;
mod tables;
mod tactics;
mod targets;
mod textrel;
mod verdicts;

pub use model::{PlanError, PlanOptions};
pub use planner::{plan, plan_nothing};
#[doc(hidden)]
pub use probes::is_planned_apart;
pub use probes::{plan_probes, plan_probes_at, plan_probes_with};
pub use survey::Survey;
