//! Programs that change their own branches while they run (static keys).

use std::path::Path;
use std::process::Command;

use hodo_tests::target::{Target, command};
use hodo_tests::{Kind, Run, build, hodo};

fn available(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.is_available())
}

/// The standard output of a command, which must have succeeded, and its standard error.
fn output(command: &mut Command) -> (String, String) {
    let output = command.env("LC_ALL", "C").output().expect("it can be run");
    assert!(output.status.success(), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

fn timed(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300"]).arg(program);
    command
}

#[test]
fn switched_branches_work_while_the_program_is_recorded() {
    for kind in available(&Kind::ALL) {
        for (name, flags) in [
            ("usual", &[][..]),
            ("dense", &["-falign-functions=1", "-falign-loops=1"]),
        ] {
            let program = build("static_keys.c", kind, flags);
            for options in [&[][..], &["-l"], &["-D", "4"]] {
                let test = format!("switched_branches-{name}-{kind:?}");
                let trace = Run::new(&test, &program).args(["30"]).same(options);
                if kind.has_names() && !options.contains(&"-D") {
                    trace.has_calls(&[("main", 1), ("set", 155)]);
                }
            }
        }
    }
}

#[test]
fn switched_branches_work_with_probes_on_everything_else() {
    for kind in available(&Kind::ALL) {
        let program = build("static_keys.c", kind, &[]);
        let (alone, _) = output(timed(&program).arg("30"));
        let every = format!("{}:*+* count", program.display());
        let mut command = timed(hodo());
        let command = command.args(["probe", "-e", &every, "--"]).arg(&program);
        let (probed, said) = output(command.arg("30"));
        assert!(probed.starts_with(&alone), "{kind:?}: {probed}");
        // Three places are listed, and other machines' C libraries have others before them.
        let others = cfg!(not(target_arch = "x86_64"))
            && matches!(kind, Kind::Static | Kind::StaticPie)
            && said.contains(" more places");
        assert!(
            others || said.contains("it is a static branch, which the program itself changes"),
            "{kind:?}: {said}"
        );
        if kind.has_names() {
            let sets = probed
                .lines()
                .find(|line| line.ends_with(" set: (set+0x0)"));
            let hits = sets.and_then(|line| line.split_whitespace().next());
            assert_eq!(hits, Some("155"), "{kind:?}: {probed}");
        }
    }
}

#[test]
fn branches_keep_their_state_when_hodo_comes_and_goes() {
    for (kind, probed) in [(Kind::Pie, false), (Kind::Fixed, false), (Kind::Pie, true)] {
        let program = build("static_keys.c", kind, &[]);
        let target = Target::start_with(&program, &["wait"]);
        let trace = std::env::temp_dir().join(format!("switched-before-{}", target.pid()));
        let every = format!("{}:*+* count", program.display());
        let what = if probed { "probe" } else { "record" };
        let mut hodo = command(&target, &[what, "--for", "0.1"]);
        let hodo = match probed {
            true => hodo.args(["-e", &every]),
            false => hodo.arg("-d").arg(&trace),
        };
        output(hodo);
        target.ends("as before\n");
        let _ = std::fs::remove_dir_all(trace);
    }
}

#[test]
fn a_probe_on_a_static_branch_is_refused() {
    let program = build("static_keys.c", Kind::Pie, &[]);
    let definition = format!("{}:first count", program.display());
    let mut command = timed(hodo());
    let command = command.args(["probe", "-e", &definition, "--"]);
    let output = command.arg(&program).output().expect("hodo can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = "it is a static branch, which the program itself changes";
    assert!(said.contains(&format!("first: {reason}")), "{said}");
    let mut command = timed(hodo());
    let (plan, _) = self::output(command.arg("plan").arg(&program));
    let line = |text: &str| {
        let mut lines = plan.lines().map(str::trim);
        lines.any(|line| line == text)
    };
    assert!(
        line("static branches 9, which the program changes itself"),
        "{plan}"
    );
    assert!(
        line("1  a static branch is in the way") || line("2  a static branch is in the way"),
        "{plan}"
    );
}
