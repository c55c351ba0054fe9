//! Code that is not searched for calls before its functions are looked at one by one.

/// Returns whether code may have a call of a function in the same file, or through a slot. That is not found out: such
/// calls consist of several instructions.
pub(crate) fn may_call(
    _code: &[u8],
    _at: usize,
    _is_called: impl Fn(usize) -> bool,
    _has_slots: bool,
    _is_slot: impl Fn(usize) -> bool,
) -> bool {
    true
}

/// How many bytes the longest of these calls has.
pub(crate) const LONGEST_CALL: usize = 8;
