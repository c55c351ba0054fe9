//! What happens if code cannot be changed: an error says why, and nothing is changed.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod building;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, chroot};
use std::sync::atomic::{AtomicI64, Ordering};

use building::alone::alone;
use building::elf::Elf;
use building::skip;
use hodo_keys::{
    Errno, Error, Text, define_static_key_false, set_text, static_branch_likely,
    static_branch_unlikely, switch,
};

define_static_key_false!(KEY; SECOND);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hodo_keys_test_branch() -> bool {
    static_branch_unlikely!(KEY)
}

fn see() -> [bool; 4] {
    [
        hodo_keys_test_branch(),
        static_branch_likely!(KEY),
        static_branch_unlikely!(SECOND),
        static_branch_likely!(SECOND),
    ]
}

/// Checks that the keys work.
#[track_caller]
fn works() {
    assert_eq!(see(), [false; 4]);
    switch(&[KEY.enabling(), SECOND.enabling()]).expect("switched");
    assert_eq!(see(), [true; 4]);
    KEY.disable().expect("switched");
    assert_eq!(see(), [false, false, true, true]);
    SECOND.disable().expect("switched");
    assert_eq!(see(), [false; 4]);
}

/// Checks that no key can be switched, alone or with others.
#[track_caller]
fn refused(error: Error) {
    assert_eq!(KEY.enable(), Err(error));
    assert_eq!(KEY.inc(), Err(error));
    assert_eq!(switch(&[SECOND.enabling(), KEY.enabling()]), Err(error));
    assert_eq!(
        switch(&[KEY.incrementing(), SECOND.incrementing()]),
        Err(error)
    );
    assert_eq!(see(), [false; 4]);
    assert!(!KEY.is_enabled() && !SECOND.is_enabled());
    assert_eq!(KEY.users() + SECOND.users(), 0);
}

fn memory() -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .expect("there is /proc")
}

/// The first branch of the function above.
fn branch() -> u64 {
    let function = hodo_keys_test_branch as *const () as u64;
    let elf = Elf::read(&std::env::current_exe().expect("the program"));
    let name = "hodo_keys_test_branch";
    let code = elf.function(name);
    let entries = elf.entries();
    let entry = entries
        .iter()
        .find(|entry| code.iter().any(|one| one.ip() == entry.code))
        .expect("it has a branch");
    entry.code - elf.address(name) + function
}

#[test]
fn a_breakpoint_at_a_branch_is_left_alone() {
    if !alone("a_breakpoint_at_a_branch_is_left_alone") {
        return;
    }
    works();
    let address = branch();
    let memory = memory();
    let mut original = [0];
    memory.read_exact_at(&mut original, address).expect("read");
    memory.write_all_at(&[0xCC], address).expect("written");
    let error = Error::Foreign {
        address: address as usize,
        found: 0xCC,
    };
    assert_eq!(KEY.enable(), Err(error));
    assert_eq!(switch(&[SECOND.enabling(), KEY.enabling()]), Err(error));
    assert_eq!(
        error.to_string(),
        format!(
            "the static branch at {address:#x} was changed by something else (it begins with byte 0xcc): a breakpoint, or another tool's patch"
        )
    );
    let seen = || {
        [
            static_branch_likely!(KEY),
            static_branch_unlikely!(KEY),
            static_branch_unlikely!(SECOND),
        ]
    };
    assert_eq!(seen(), [false; 3]);
    assert!(!KEY.is_enabled() && !SECOND.is_enabled());
    // Keys that are not concerned still work.
    SECOND.enable().expect("switched");
    assert_eq!(seen(), [false, false, true]);
    SECOND.disable().expect("switched");
    let mut byte = [0];
    memory.read_exact_at(&mut byte, address).expect("read");
    assert_eq!(byte, [0xCC]);
    memory.write_all_at(&original, address).expect("written");
    works();
}

/// The limit on the number of descriptors; sets it, too.
fn descriptors(new: Option<u64>) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes it there.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(result, 0);
    let before = limit.rlim_cur;
    if let Some(new) = new {
        limit.rlim_cur = new;
        // SAFETY: the kernel reads it there.
        let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(result, 0);
    }
    before
}

#[test]
fn without_descriptors() {
    if !alone("without_descriptors") {
        return;
    }
    works();
    let limit = descriptors(None);
    descriptors(Some(0));
    refused(Error::Text(libc::EMFILE));
    assert_eq!(
        KEY.enable().expect_err("refused").to_string(),
        "the code of static branches cannot be changed (error 24): /proc/self/mem must be writable, and the kernel have membarrier (Linux 4.16)"
    );
    descriptors(Some(limit));
    works();
}

#[test]
fn without_proc() {
    if !alone("without_proc") {
        return;
    }
    works();
    let root = building::place().join("no-proc");
    fs::create_dir_all(&root).expect("an empty directory");
    if chroot(&root).is_err() {
        // SAFETY: this program has one thread.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 || chroot(&root).is_err() {
            return skip("neither root nor allowed to make a user namespace: no chroot");
        }
    }
    refused(Error::Text(libc::ENOENT));
}

/// Makes the kernel refuse `membarrier`, as a kernel built without it does, or a sandbox that does not know it.
fn forbid_membarrier() -> io::Result<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_membarrier as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: a filter of that length.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[test]
fn without_membarrier() {
    if !alone("without_membarrier") {
        return;
    }
    if let Err(error) = forbid_membarrier() {
        return skip(&format!("seccomp: {error}"));
    }
    refused(Error::Text(libc::ENOSYS));
}

/// Writes like the built-in way, but only this many times.
struct Failing(AtomicI64);

// SAFETY: there is one thread, and the kernel writes.
unsafe impl Text for Failing {
    unsafe fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        if self.0.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(libc::EIO);
        }
        memory().write_all_at(bytes, at as u64).expect("written");
        Ok(())
    }

    fn sync(&self) {}
}

static FAILING: Failing = Failing(AtomicI64::new(i64::MAX));
static TEXT: &dyn Text = &FAILING;

#[test]
fn a_change_that_fails_halfway_is_completed_by_the_next() {
    if !alone("a_change_that_fails_halfway_is_completed_by_the_next") {
        return;
    }
    set_text(&TEXT);
    works();
    let mut failures = 0;
    for writes in 0.. {
        // Both directions; what follows is the same change, another one, the opposite one, or another key.
        for next in 0..4 {
            FAILING.0.store(writes, Ordering::Relaxed);
            let result = switch(&[KEY.enabling(), SECOND.incrementing()]);
            FAILING.0.store(i64::MAX, Ordering::Relaxed);
            if result.is_ok() {
                assert!(failures > 20, "{failures}");
                assert_eq!(see(), [true; 4]);
                return;
            }
            failures += 1;
            assert_eq!(result, Err(Error::Text(libc::EIO)));
            assert!(KEY.is_enabled() && SECOND.users() == 1);
            let expected = match next {
                0 => KEY.enable().map(|()| [true; 4]),
                1 => SECOND.inc().map(|()| [true; 4]),
                2 => KEY.disable().map(|()| [false, false, true, true]),
                _ => SECOND.dec().map(|()| [true, true, false, false]),
            };
            assert_eq!(
                see(),
                expected.expect("switched"),
                "{writes} writes, {next}"
            );
            KEY.disable().expect("switched");
            while SECOND.users() > 0 {
                SECOND.dec().expect("switched");
            }
            works();
        }
    }
}
