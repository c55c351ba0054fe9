//! Writes to read-only memory where the kernel lets nobody do that through `/proc/self/mem`.

use crate::arch::number;
use crate::host::EIO;
use crate::sys::{self, Errno};

/// Rights of a mapping, as `mprotect` has them. `PROCMAP_QUERY` has the same bits.
const WRITE: u64 = 2;
const RIGHTS: u64 = 7;

/// How often it is tried: another thread that writes to the same page may just have made it read-only again.
const TRIES: u32 = 1000;

/// The kernel's `struct procmap_query` (`include/uapi/linux/fs.h`, Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_build_id_size: [u32; 2],
    name_and_build_id: [u64; 2],
}

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 17;

/// Asks the kernel for the mapping at an address.
fn mapping(addr: u64) -> Result<Query, Errno> {
    let maps = sys::open(c"/proc/self/maps", sys::O_RDONLY)?;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        addr,
        ..Query::default()
    };
    let pointer = &raw mut query as usize;
    // SAFETY: the kernel writes to the query, no further than the size that it has.
    let asked = unsafe {
        sys::call(
            number::IOCTL,
            [maps as usize, PROCMAP_QUERY, pointer, 0, 0, 0],
        )
    };
    // SAFETY: our own descriptor.
    unsafe { sys::close(maps) };
    asked.map(|_| query)
}

/// Gives memory rights.
///
/// # Safety
/// Whoever uses the memory has all rights that it needs.
unsafe fn protect(start: u64, size: u64, rights: u64) -> Result<(), Errno> {
    let args = [start as usize, size as usize, rights as usize, 0, 0, 0];
    // SAFETY: as the caller promises.
    unsafe { sys::call(number::MPROTECT, args) }.map(drop)
}

/// Writes to `file`, which is `/proc/self/mem`, while the pages are writable. Code remains executable: other threads
/// may be in it.
///
/// # Safety
/// As writing to that memory.
pub unsafe fn write(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < from.len() {
        // Neighboring pages may have become different mappings, for the kernel, by being written this way.
        // SAFETY: as the caller promises.
        match unsafe { write_in_mapping(file, &from[done..], at + done as u64) } {
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Writes what is in the mapping in which the address is. Returns how many bytes that was, at least 1.
///
/// # Safety
/// As [`write`].
unsafe fn write_in_mapping(file: i32, from: &[u8], at: u64) -> Result<usize, Errno> {
    for _ in 0..TRIES {
        // An old kernel has no such query. It has refused the write for another reason.
        let found = mapping(at).map_err(|_| EIO)?;
        let end = at.checked_add(from.len() as u64).ok_or(EIO)?.min(found.end);
        if at < found.start || at >= end {
            return Err(EIO);
        }
        let piece = &from[..(end - at) as usize];
        let rights = found.rights & RIGHTS & !WRITE;
        let start = at & !(found.page_size - 1);
        let size = (end - start).next_multiple_of(found.page_size);
        // SAFETY: the pages only get a right.
        unsafe { protect(start, size, rights | WRITE) }?;
        // SAFETY: the caller answers for what is written.
        let written = unsafe { sys::pwrite(file, piece, at) };
        // SAFETY: these are the rights that they had, or those of a page to which another thread is writing the same
        // way. That one tries again.
        unsafe { protect(start, size, rights) }?;
        match written {
            Err(EIO) | Ok(0) => {}
            result => return result,
        }
    }
    Err(EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that can only be read.
    fn page() -> u64 {
        let page = sys::map(4096).expect("memory") as u64;
        // SAFETY: nobody uses it.
        unsafe { protect(page, 4096, 1) }.expect("it is ours");
        page
    }

    fn memory() -> i32 {
        sys::open(c"/proc/self/mem", sys::O_RDWR).expect("there is /proc")
    }

    #[test]
    fn read_only_pages_are_written_and_read_only_again() {
        let page = page();
        if mapping(page).is_err() {
            std::println!("skipped: this kernel has no PROCMAP_QUERY (Linux 6.11)");
            return;
        }
        let memory = memory();
        // SAFETY: nobody else uses the page.
        assert_eq!(unsafe { write(memory, b"written", page + 100) }, Ok(7));
        let mut bytes = [0; 9];
        assert_eq!(sys::pread(memory, &mut bytes, page + 99), Ok(9));
        assert_eq!(&bytes, b"\0written\0");
        let found = mapping(page).expect("it is mapped");
        assert_eq!(found.rights & RIGHTS, 1);
        // SAFETY: nothing is there.
        assert_eq!(unsafe { write(memory, &[0; 16], 4096) }, Err(EIO));
    }

    #[test]
    fn neighboring_mappings_are_written_at_once() {
        const PAGES: u64 = 3;
        let first = sys::map(4096 * PAGES as usize).expect("memory") as u64;
        // Different rights make them different mappings.
        for (number, rights) in (0..).zip([1, 5, 1]) {
            // SAFETY: nobody uses the page.
            unsafe { protect(first + 4096 * number, 4096, rights) }.expect("it is ours");
        }
        if mapping(first).is_err() {
            std::println!("skipped: this kernel has no PROCMAP_QUERY (Linux 6.11)");
            return;
        }
        let memory = memory();
        let bytes = [7; 4096 + 2];
        // SAFETY: nobody else uses the pages.
        assert_eq!(unsafe { write(memory, &bytes, first + 4095) }, Ok(4098));
        let mut now = [0; 4096 + 4];
        assert_eq!(sys::pread(memory, &mut now, first + 4094), Ok(4100));
        assert_eq!((now[0], &now[1..4099], now[4099]), (0, &bytes[..], 0));
        for (number, rights) in (0..).zip([1, 5, 1]) {
            let found = mapping(first + 4096 * number).expect("it is mapped");
            assert_eq!(found.rights & RIGHTS, rights);
        }
    }

    #[test]
    fn several_threads_write_to_one_page() {
        let page = page();
        if mapping(page).is_err() {
            std::println!("skipped: this kernel has no PROCMAP_QUERY (Linux 6.11)");
            return;
        }
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let memory = memory();
                    for byte in 0..250u8 {
                        let at = page + thread * 8;
                        // SAFETY: each thread has its own place there.
                        let written = unsafe { write(memory, &[byte; 8], at) };
                        assert_eq!(written, Ok(8));
                        let mut now = [0; 8];
                        assert_eq!(sys::pread(memory, &mut now, at), Ok(8));
                        assert_eq!(now, [byte; 8]);
                    }
                });
            }
        });
        assert_eq!(mapping(page).expect("it is mapped").rights & RIGHTS, 1);
    }
}
