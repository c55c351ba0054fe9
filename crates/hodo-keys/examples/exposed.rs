//! A program whose keys can be switched from outside while it runs:
//!
//! ```text
//! HODO_KEYS='VERBOSE,LEVELS[1]' cargo run -p hodo-keys --example exposed
//! hodo keys -p $(pidof exposed) list
//! hodo keys -p $(pidof exposed) enable 'LEVELS[*]'
//! ```
//!
//! Each line of input is a request; the answer shows which way the branches went. With the argument `alone` it does not
//! expose its keys.

use std::io::{BufRead, Write};

use hodo_keys::{
    define_static_key_array_false, define_static_key_false, define_static_key_true,
    static_branch_likely, static_branch_unlikely,
};

define_static_key_false! {
    /// Whether each request is printed.
    pub VERBOSE;
}

/// What is checked.
mod checks {
    hodo_keys::define_static_key_true! {
        /// Whether requests are checked.
        pub STRICT;
    }
}

define_static_key_array_false!(LEVELS[3]);
define_static_key_true!(COUNTING);

/// Handles a request, and returns the answer.
fn request(text: &str, count: &mut u64) -> String {
    if static_branch_likely!(COUNTING) {
        *count += 1;
    }
    // On while somebody wants it: `hodo record --event requests:begin -p …`.
    hodo_keys::tracepoint!(requests, begin, count = *count);
    if static_branch_unlikely!(VERBOSE) {
        eprintln!("request {text:?}");
    }
    let levels = [
        static_branch_unlikely!(LEVELS[0]),
        static_branch_unlikely!(LEVELS[1]),
        static_branch_unlikely!(LEVELS[2]),
    ];
    let strict = static_branch_likely!(checks::STRICT);
    let verbose = static_branch_unlikely!(VERBOSE);
    format!("{count} verbose {verbose}, strict {strict}, levels {levels:?}")
}

fn main() -> std::io::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("alone") => {}
        // For a test: switches a key all the time.
        Some("busy") => {
            std::thread::spawn(|| {
                loop {
                    VERBOSE.inc().expect("it can be switched");
                    VERBOSE.dec().expect("it can be switched");
                }
            });
        }
        // For a test: uses the keys.
        Some("users") => {
            LEVELS[2].inc().expect("it can be switched");
            hodo_keys::expose();
        }
        _ => hodo_keys::expose(),
    }
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    let mut count = 0;
    for line in std::io::stdin().lock().lines() {
        let answer = request(&line?, &mut count);
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
