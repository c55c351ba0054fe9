//! Probes (`hodo-probe`) at call sites, and next to them.

use crate::build::{Form, check, home, libraries};
use crate::dynamic::BUILDS;

/// The ways in which the two libraries get into a program.
const FORMS: [(Form, &str); 2] = [
    (Form::Shared, "libhodo_probe_c.so"),
    (Form::Static, "libhodo_probe_c.so"),
];

/// What is switched thousands of times.
const LONG: (&str, &str) = ("fentry", "gcc");

fn each(name: &str, forms: &[(Form, &str)]) {
    let header = home().join("../hodo-probe-capi/include");
    for (way, with, flags, framed) in BUILDS {
        for (form, library) in forms {
            let libraries = libraries("debug");
            let include = format!("-I{}", header.display());
            let library = libraries.join(library).display().to_string();
            let path = format!("-Wl,-rpath,{}", libraries.display());
            let mut all = flags.to_vec();
            all.extend(["-fasynchronous-unwind-tables", &include, &library, &path]);
            // One of them takes longer. The emulator translates the code again after each change.
            if cfg!(not(target_arch = "x86_64")) {
                all.push("-DTIMES=5");
            } else if (*way, *with) == LONG {
                all.push("-DTIMES=2000");
            }
            if *framed {
                all.push("-DFRAMED");
            }
            let file = format!("{name}.c");
            check(
                &format!("{name}-{way}-{form:?}"),
                with,
                &[&file],
                &all,
                *form,
            );
        }
    }
}

#[test]
fn probes_at_call_sites_are_called_by_the_tracer() {
    each("probed", &FORMS);
}

#[test]
fn probes_come_and_go_while_sites_are_switched() {
    each("probing", &FORMS[..1]);
}
