//! What is not generic in the system calls of AArch64 Linux (`arch/arm64/include/uapi/asm/unistd.h` and `fcntl.h`).

/// The first number, and the names from there on.
pub(super) const NAMES: [(u64, &str); 1] = [(38, "renameat")];

/// The names of arguments that the kernel has in another order than elsewhere.
pub(super) const ARGUMENTS: [(&str, &str); 1] =
    [("clone", "clone_flags newsp parent_tidptr tls child_tidptr")];

/// Flags of `open` with other values: its own, and the generic ones. These are `O_DIRECTORY`, `O_NOFOLLOW`, `O_DIRECT`
/// and `O_LARGEFILE`.
const OPEN_FLAGS: [(u64, u64); 4] = [
    (0x4000, 0x10000),
    (0x8000, 0x20000),
    (0x10000, 0x4000),
    (0x20000, 0x8000),
];

/// Returns the flags of `open` with the generic values.
pub(super) fn open_flags(flags: u64) -> u64 {
    let own = OPEN_FLAGS.iter().fold(0, |all, (own, _)| all | own);
    let others = OPEN_FLAGS.iter().filter(|(own, _)| flags & own != 0);
    others.fold(flags & !own, |all, (_, generic)| all | generic)
}
