//! What programs do with memory: clients of the instrumentation engine.
//!
//! * [`allocations`]: what was allocated, at the peak and never freed.
//! * [`blame`]: whose accesses miss caches.
//! * [`cache`]: a model of caches; [`model`]: which ones; [`hierarchy`]: in more detail; [`replacement`]: which lines
//!   give way; [`causes`]: why accesses miss; [`coherence`]: what processors do to each other's caches.
//! * [`calls`]: which functions call which ones.
//! * [`counted`]: what clients have received so far, and what not.
//! * [`coverage`]: what of a program was executed.
//! * [`drmemtrace`]: DynamoRIO's traces.
//! * [`executions`]: how often each instruction was executed.
//! * [`heap`]: allocations; [`stacks`]: the calls in which threads are.
//! * [`hot`]: which memory is accessed most.
//! * [`lines`]: working sets, and lines that threads share.
//! * [`machine`]: the caches of machines.
//! * [`places`]: functions and source lines of instructions.
//! * [`report`]: results of tools, for people and for scripts.
//! * [`reuse`]: reuse distances.
//! * [`rounds`]: what threads do at the same time.
//! * [`stat`]: how many instructions and accesses.
//! * [`timeline`]: what had happened at some times of a run.
//! * [`trace`]: all accesses, in files.
//! * [`variables`]: variables, and the parts of them at addresses.
//! * [`view`]: all accesses, as text.
#![forbid(unsafe_code)]

pub mod allocations;
pub mod blame;
pub mod cache;
pub mod calls;
pub mod causes;
pub mod coherence;
pub mod counted;
pub mod coverage;
pub mod drmemtrace;
pub mod executions;
pub mod heap;
pub mod hierarchy;
pub mod hot;
pub mod lines;
pub mod machine;
pub mod model;
mod packed;
pub mod packing;
pub mod places;
pub mod replacement;
pub mod report;
pub mod reuse;
pub mod rounds;
mod same;
pub mod stacks;
pub mod stat;
pub mod timeline;
pub mod trace;
pub mod variables;
pub mod view;
