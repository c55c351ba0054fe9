//! Probes in all ways: they change nothing, and the comparison would notice if they did.

#[path = "../../hodo-tests/src/skipped.rs"]
mod skipped;

use std::path::Path;
use std::process::Command;

use hodo_rvmodel::coverage::{cover, executed};
use hodo_rvmodel::probes::region::Region;
use hodo_rvmodel::probes::{Mechanism, Refused, Way, run};
use hodo_rvmodel::samples;

const COMPILER: &str = "riscv64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-riscv64";

#[test]
fn samples_do_what_they_do_without_probes() {
    for sample in samples::kinds().iter().chain(&samples::registers()) {
        for mechanism in Mechanism::ALL {
            let hit = sample.hit(mechanism).expect("nothing changes");
            let possible = match mechanism {
                Mechanism::Boosted | Mechanism::Copied => continue,
                // The comparison has no register for its jump.
                Mechanism::Shadow(Way::Pair) => sample.name != "none",
                _ => true,
            };
            assert_eq!(hit.is_ok(), possible, "{}, {mechanism:?}", sample.name);
        }
    }
}

#[test]
fn what_uses_its_address_is_not_copied() {
    for sample in samples::kinds() {
        for mechanism in [Mechanism::Boosted, Mechanism::Copied] {
            let hit = sample.hit(mechanism).expect("nothing changes");
            let plain = ["`addiw`", "`ld`"].contains(&sample.name);
            match hit {
                Ok(_) => assert!(plain, "{}", sample.name),
                Err(why) => assert_eq!((plain, why), (false, Refused::Relative), "{}", sample.name),
            }
        }
    }
}

#[test]
fn wrong_probes_are_noticed() {
    for sample in samples::kinds() {
        let region = Region::new(&sample.site, &sample.code);
        let (seed, plain) = run::reaching(&region, sample.probe).expect("it runs");
        for mechanism in Mechanism::ALL {
            let Ok(mut setup) = run::build(&region, sample.probe, mechanism) else {
                continue;
            };
            // A simulation may not use its first instruction's result.
            if setup.handler && !["`addiw`", "`ld`"].contains(&sample.name) {
                continue;
            }
            let code = &mut setup.writes[0].1;
            // Its first instruction becomes `addi s3, s3, 1`.
            code[..4].copy_from_slice(&0x0019_8993u32.to_le_bytes());
            let noticed = match run::passes(&region, sample.probe, Some(&setup), seed) {
                Ok(probed) => !run::changes(&plain, &probed, &setup).is_empty(),
                Err(_) => true,
            };
            assert!(noticed, "{}, {mechanism:?}", sample.name);
        }
    }
}

#[test]
fn logs_of_the_emulator_are_read() {
    let log = "----------------\nIN: main\n0x0000000000010434:  1141              addi    sp,sp,-16\n\
        0x0000000000010436:  e022              sd      s0,0(sp)\n\nIN: \n0x0000004000000100:  8082  ret\n";
    assert_eq!(
        executed(log, 0, 0x2_0000).into_iter().collect::<Vec<_>>(),
        [0x10434, 0x10436]
    );
    assert_eq!(
        executed(log, 0x40_0000_0000, 0x200)
            .into_iter()
            .collect::<Vec<_>>(),
        [0x100]
    );
}

#[test]
fn a_program_can_be_probed_everywhere() {
    for tool in [COMPILER, EMULATOR] {
        if Command::new(tool).arg("--version").output().is_err() {
            skipped::skip(&format!("{tool} is not installed"));
            return;
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let source = "#include <stdio.h>\n#include <stdlib.h>\nint main(int c, char **v) { char *e; \
        printf(\"%d %s %ld\\n\", c, v[0], strtol(\"123x\", &e, 10)); return *e != 'x'; }\n";
    std::fs::write(at("program.c"), source).expect("a file");
    let run = |command: &mut Command| {
        let output = command.output().expect("it can be started");
        assert!(output.status.success(), "{command:?}: {output:?}");
    };
    let file = |path: &Path| path.to_str().expect("a text").to_owned();
    let program = at("program");
    run(Command::new(COMPILER)
        .args(["-static", "-no-pie", "-O2", "-o"])
        .args([&program, &at("program.c")]));
    run(Command::new(EMULATOR)
        .args(["-d", "in_asm", "-D", &file(&at("log"))])
        .arg(&program));
    let log = std::fs::read_to_string(at("log")).expect("the emulator's log");
    let found = cover(&program, &log, 0).expect("it is readable");
    assert_eq!(found.wrong, [""; 0]);
    assert!(found.executed > 1000 && found.compared > 1000, "{found:#?}");
    for (index, mechanism) in Mechanism::ALL.into_iter().enumerate() {
        assert!(
            found.covered[index] > found.executed / 2,
            "{mechanism:?}: {found:#?}"
        );
        assert!(found.costs[index].hits > 0, "{mechanism:?}");
    }
    let wrong = cover(&program, &log, 0x1000_0000).expect_err("nothing is there");
    assert!(wrong.to_string().contains("first mapping"), "{wrong}");
}
