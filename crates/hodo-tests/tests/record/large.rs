//! Programs whose code does not fit into what one jump reaches on some processors.

use hodo_tests::probing::{path, probed};
use hodo_tests::{Kind, Run, build};

/// Where a part of the functions is.
const FAR: &str = "-Wl,--section-start=.far=0x14000000";

const KINDS: [Kind; 3] = [Kind::Pie, Kind::Fixed, Kind::Cet];

#[test]
fn functions_in_all_parts_of_a_large_program_are_traced() {
    let available = KINDS.into_iter().filter(|kind| kind.is_available());
    let mut builds: Vec<_> = available.map(|kind| (kind, vec![FAR])).collect();
    if cfg!(target_arch = "aarch64") {
        builds.push((Kind::Pie, vec![FAR, "-mbranch-protection=standard"]));
    }
    for (kind, flags) in builds {
        let program = build("large.c", kind, &flags);
        let trace = Run::new(&format!("large-{kind:?}-{}", flags.len()), program).same(&[]);
        trace.has_calls(&[
            ("main", 1),
            ("near_all", 10),
            ("near_leaf", 10),
            ("far_leaf", 20),
            ("far_sum", 20),
            ("far_even", 55),
            ("far_odd", 45),
            ("far_both", 10),
            ("far_copy", 10),
            ("far_throw", 10),
            ("strlen", 20),
        ]);
    }
}

#[test]
fn probes_are_hit_in_all_parts_of_a_large_program() {
    let program = build("large.c", Kind::Pie, &[FAR]);
    let file = path(&program);
    let expected = [
        ("near_leaf", 10),
        ("far_leaf", 20),
        ("far_sum", 20),
        ("far_both", 10),
        ("far_even", 55),
    ];
    let definitions = expected.map(|(name, _)| {
        [
            format!("p:{name} {file}:{name} count"),
            format!("r:{name}_end {file}:{name} count"),
        ]
    });
    let found = probed(definitions.as_flattened(), &[file], 1);
    let hits = |name: &str| {
        let event = found.iter().find(|event| event["name"] == name);
        event.and_then(|event| event["hits"].as_u64())
    };
    for (name, count) in expected {
        assert_eq!(hits(name), Some(count), "{name}: {found:?}");
        assert_eq!(
            hits(&format!("{name}_end")),
            Some(count),
            "{name}: {found:?}"
        );
    }
}
