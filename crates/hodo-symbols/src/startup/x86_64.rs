//! x86-64.

/// Returns the first argument (`rdi`) at the call of `__libc_start_main` in the startup code at `entry`.
pub(super) fn main_of(code: &[u8], entry: u64) -> Option<u64> {
    (0..code.len().saturating_sub(9)).find_map(|at| {
        let number = i32::from_le_bytes(code[at + 3..at + 7].try_into().ok()?);
        let calls = |bytes: &[u8]| {
            bytes.starts_with(&[0xE8])
                || bytes.starts_with(&[0x67, 0xE8])
                || bytes.starts_with(&[0xFF, 0x15])
        };
        if !calls(&code[at + 7..]) {
            return None;
        }
        match code[at..at + 3] {
            // lea rdi, [rip + number]
            [0x48, 0x8D, 0x3D] => Some(
                entry
                    .wrapping_add(at as u64 + 7)
                    .wrapping_add_signed(number.into()),
            ),
            // mov rdi, number
            [0x48, 0xC7, 0xC7] => Some(i64::from(number).cast_unsigned()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_code_shows_where_main_is() {
        // xor ebp, ebp; lea rdi, [rip + 0x100]; call [rip + 5]
        let code = [
            0x31, 0xED, 0x48, 0x8D, 0x3D, 0, 1, 0, 0, 0xFF, 0x15, 5, 0, 0, 0, 0xF4,
        ];
        assert_eq!(main_of(&code, 0x1000), Some(0x1109));
        // mov rdi, 0x401000; call +0
        let code = [0x48, 0xC7, 0xC7, 0, 0x10, 0x40, 0, 0xE8, 0, 0, 0, 0, 0xF4];
        assert_eq!(main_of(&code, 0x1000), Some(0x40_1000));
        assert_eq!(main_of(&[0x90; 64], 0x1000), None);
        assert_eq!(main_of(&[], 0x1000), None);
    }
}
