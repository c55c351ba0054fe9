//! Programs that lock their memory, or set the base of gs: hodo's reservations must not become memory, its register is
//! the program's if it wants it, and the calls return what they return alone.

use std::fs;

use hodo_tests::probing::path;
use hodo_tests::target::{Target, run};
use hodo_tests::{Kind, Run, build, scratch};

#[test]
fn a_program_locks_its_own_memory_only() {
    for kind in [Kind::Pie, Kind::Static, Kind::Musl, Kind::MuslStatic]
        .into_iter()
        .filter(|kind| kind.is_available())
    {
        let program = build("locks.c", kind, &[]);
        for options in [&[][..], &["-l"]] {
            let run = Run::new(&format!("locks-{kind:?}"), &program);
            run.same(options).has_calls(&[("lock", 24)]);
        }
    }
}

#[test]
fn a_program_that_locks_all_later_memory_can_be_attached_to() {
    let program = build("locks.c", Kind::Pie, &[]);
    let target = Target::start_with(&program, &["waits"]);
    let place = scratch("locks_all_later_memory");
    let (maps, threads) = (target.maps(), target.threads());
    let data = place.join("data");
    for _ in 0..3 {
        run(&target, &["record", "--for", "0.1", "-d", path(&data)]);
        target.is_untouched(&maps, threads);
    }
    target.ends("0, 16 and 16 pages, 1, small 1\n");
    fs::remove_dir_all(place).expect("the trace can be removed");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_may_set_the_base_of_gs() {
    for kind in [Kind::Pie, Kind::Static]
        .into_iter()
        .filter(|kind| kind.is_available())
    {
        let program = build("gs_base.c", kind, &["-pthread"]);
        for (options, arguments) in [(&[][..], &[][..]), (&[], &["number"]), (&["-l"], &[])] {
            let run = Run::new(&format!("gs_base-{kind:?}"), &program);
            let trace = run.args(arguments).same(options);
            // What happened before is recorded: nobody has called this function afterwards.
            trace.has_calls(&[("deep", 11)]);
        }
    }
}
