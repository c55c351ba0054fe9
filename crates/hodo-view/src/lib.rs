//! The views that turn a trace into text. The text layouts are uftrace's, so that habits and scripts carry over.
//!
//! Each view is a function of its options that writes to any writer. [`SourceOptions`] are common to all.
#![forbid(unsafe_code)]

mod callers;
mod clip;
mod costs;
mod counters;
mod dump;
mod event_formats;
mod events;
mod filter;
mod format;
mod graph;
mod histograms;
mod info;
mod live;
mod naming;
mod pattern;
mod perfetto;
mod replay;
mod report;
mod source;
mod stream;
mod syscalls;
mod tally;
mod tasks;
mod tree;
mod values;

pub use counters::counts;
pub use dump::{DumpFormat, DumpOptions, dump, flame_graph};
pub use event_formats::events;
pub use events::{EventFormat, EventOptions};
pub use format::parse_time;
pub use graph::{GraphOptions, graph};
pub use histograms::histograms;
pub use hodo_symbols::Style;
pub use hodo_trace::TailCalls;
pub use info::{InfoOptions, info};
pub use live::{Live, LiveOptions, Now};
pub use pattern::{Match, compile as compile_pattern};
pub use replay::{ReplayOptions, check_replay, replay};
pub use report::{ReportFormat, ReportOptions, report};
pub use source::{Range, SourceOptions};
pub use syscalls::{
    DescriptorNames, SocketQueries, Stamp, SyscallsFormat, SyscallsOptions, Times, chosen_syscalls,
    followed_syscalls, plain_call, plain_result, signal_name, syscalls,
};
