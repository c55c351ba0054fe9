//! Packed relative relocations (`SHT_RELR`, in the generic ABI since 2023).

/// The words that packed relative relocations name.
pub(crate) fn unpack(entries: &[u8], mut found: impl FnMut(u64)) {
    let mut at = 0u64;
    for entry in entries.as_chunks::<8>().0 {
        let entry = u64::from_le_bytes(*entry);
        if entry & 1 == 0 {
            found(entry);
            at = entry.wrapping_add(8);
            continue;
        }
        for bit in 1..64u64 {
            if entry >> bit & 1 == 1 {
                found(at.wrapping_add((bit - 1) * 8));
            }
        }
        at = at.wrapping_add(63 * 8);
    }
}
