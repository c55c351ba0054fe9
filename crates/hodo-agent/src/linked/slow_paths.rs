//! The slow paths' entries, as the assembly of each instruction set names them.

/// How often a window is recorded before the thread does without one.
pub(crate) const ATTEMPTS: u64 = 4;

unsafe extern "C" {
    static hodo_agent_start: u8;
    static hodo_agent_epoch: u8;
    static hodo_agent_chunk: u8;
    static hodo_agent_shadow: u8;
    static hodo_agent_window: u8;
    static hodo_agent_tail: u8;
    static hodo_agent_frame: u8;
    static hodo_agent_tails: u8;
    static hodo_agent_syscall: u8;
    static hodo_agent_ret: u8;
    static hodo_agent_end: u8;
}

/// The blob and where its entries are, as offsets into it.
#[derive(Debug, Clone, Copy)]
pub struct Runtime {
    /// Position-independent code.
    pub code: &'static [u8],
    /// The time has another upper half.
    pub epoch: usize,
    /// The result is a slot of a new chunk.
    pub chunk: usize,
    /// A word: upper half of an entry record. The result is 0, or 1 if the stack cannot have a shadow; then that is
    /// recorded. With 0 for the word no record is made, and no window.
    pub shadow: usize,
    /// No words. There is no result.
    pub window: usize,
    /// A word: upper half of a record of a tail call. The result is 1 if the return address is one in an
    /// island; then that is
    /// recorded.
    pub tail: usize,
    /// Stubs make single records themselves: not used.
    pub record: usize,
    /// Makes a single record without the time: not used.
    pub record_untimed: usize,
    /// A word: function id. In: what the shadow has. The result is the return address.
    pub frame: usize,
    /// Words: a duration, and the upper half of an entry record. The result is 1 if the call was taken back.
    pub tails: usize,
    /// A system call instruction. What comes after it is a breakpoint, or leads home: see [`crate::call_and_home`].
    pub syscall: usize,
    /// A return instruction.
    pub ret: usize,
}

/// The runtime, ready to be copied into a target.
#[must_use]
pub fn runtime() -> Runtime {
    let start = &raw const hodo_agent_start;
    let offset = |symbol: *const u8| symbol.addr() - start.addr();
    Runtime {
        // SAFETY: start and end bound one object in read-only data, laid out by the assembly above.
        code: unsafe { core::slice::from_raw_parts(start, offset(&raw const hodo_agent_end)) },
        epoch: offset(&raw const hodo_agent_epoch),
        chunk: offset(&raw const hodo_agent_chunk),
        shadow: offset(&raw const hodo_agent_shadow),
        window: offset(&raw const hodo_agent_window),
        tail: offset(&raw const hodo_agent_tail),
        record: 0,
        record_untimed: 0,
        frame: offset(&raw const hodo_agent_frame),
        tails: offset(&raw const hodo_agent_tails),
        syscall: offset(&raw const hodo_agent_syscall),
        ret: offset(&raw const hodo_agent_ret),
    }
}
