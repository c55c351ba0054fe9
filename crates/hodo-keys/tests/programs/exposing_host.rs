//! Loads a library with its own copy of hodo-keys, closes it while the library's threads are at work, and asks both
//! copies for their keys.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hodo_keys::{define_static_key_false, static_branch_unlikely};

define_static_key_false!(HOST);

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}

fn sockets() -> Vec<String> {
    let mine = format!("hodoscope-keys-{}-", std::process::id());
    let list = std::fs::read_to_string("/proc/net/unix").expect("there is /proc");
    let names = list.lines().filter_map(|line| line.split_once('@'));
    let mine = names.filter(|(_, name)| name.starts_with(&mine));
    let mut names: Vec<String> = mine.map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn ask(socket: &str, request: &str) -> String {
    let address = SocketAddr::from_abstract_name(socket).expect("a short name");
    let mut stream = UnixStream::connect_addr(&address).expect("somebody listens");
    stream.write_all(request.as_bytes()).expect("it is heard");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn main() {
    hodo_keys::expose();
    let path = std::env::args().nth(1).expect("the library");
    let path = CString::new(path).expect("a path");
    // SAFETY: the library is ours, and its functions have these types.
    let (library, begin, seen) = unsafe {
        let library = dlopen(path.as_ptr(), 2);
        assert!(!library.is_null());
        let symbol = |name: &CStr| dlsym(library, name.as_ptr());
        let begin: extern "C" fn() = std::mem::transmute(symbol(c"begin"));
        let seen: extern "C" fn() -> u32 = std::mem::transmute(symbol(c"seen"));
        (library, begin, seen)
    };
    begin();
    assert_eq!(seen(), 2);
    // SAFETY: it was opened; its threads keep it mapped.
    assert_eq!(unsafe { dlclose(library) }, 0);
    let sockets = sockets();
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    let begin = Instant::now();
    let told = loop {
        let told = ask(&sockets[1], "list\n");
        if told.contains("exposing_plugin::BRIEF\",\"enabled\":false") {
            break told;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{told}");
        sleep(Duration::from_millis(10));
    };
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(ask(&sockets[0], "enable *\n").contains("exposing_host::HOST"));
    assert!(static_branch_unlikely!(HOST));
    assert!(ask(&sockets[1], "enable PLUGIN\n").contains("exposing_plugin::PLUGIN"));
    println!("the library says {}", seen());
}
