//! The auxiliary vector, with which the kernel tells a program about itself and about the machine (getauxval(3)).

use crate::sys;

/// The key of features of the processor (`include/uapi/linux/auxvec.h`).
pub const AT_HWCAP: u64 = 16;
/// The key of more of them.
pub const AT_HWCAP2: u64 = 26;

/// The value that has a key, in the content of `/proc/PID/auxv`.
#[must_use]
pub fn find(vector: &[u8], key: u64) -> Option<u64> {
    let (words, _) = vector.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .map(|pair| pair.map(u64::from_le_bytes))
        .find_map(|[other, value]| (other == key).then_some(value))
}

/// The value that this process was given for a key; `None` if it was given none.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn own(key: u64) -> Result<Option<u64>, sys::Errno> {
    let file = sys::open(c"/proc/self/auxv", sys::O_RDONLY)?;
    let mut vector = [0; 1024];
    let count = sys::read(file, &mut vector);
    // SAFETY: it was opened above.
    unsafe { sys::close(file) };
    Ok(find(&vector[..count?], key))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys() {
        let words: [u64; 8] = [6, 4096, AT_HWCAP2, 1 << 43, 9, 26, 0, 0];
        let vector: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(find(&vector, 6), Some(4096));
        assert_eq!(find(&vector, AT_HWCAP2), Some(1 << 43));
        assert_eq!(find(&vector, AT_HWCAP), None);
        assert_eq!(find(&vector[..10], 6), None);
        assert_eq!(own(6), Ok(Some(4096)));
        assert_eq!(own(9999), Ok(None));
    }
}
