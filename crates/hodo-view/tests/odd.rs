//! Views of traces that are out of the ordinary.

use std::path::{Path, PathBuf};

use hodo_trace::format::record::{self, ENTRY, EXIT};
use hodo_trace::testing::Builder;
use hodo_view::{ReplayOptions, SourceOptions};
use serde_json::json;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("odd-{name}-{}", std::process::id()))
}

fn source(data: &Path) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    }
}

fn run(view: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
    let mut out = Vec::new();
    view(&mut out).expect("a view");
    String::from_utf8(out).expect("text")
}

/// The hit of a probe with a payload.
fn hit(b: &mut Builder, task: u32, id: u32, words: &[u64]) {
    b.record(task, ENTRY, id, 0, 0);
    let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
    b.word(task, u64::from(special) << 32 | words.len() as u64);
    for word in words {
        b.word(task, *word);
    }
}

#[test]
fn hits_that_are_not_shown_leave_their_values_to_no_other() {
    let mut b = Builder::new(&directory("hits"), false);
    let f = b.function("f", 'T');
    let probe = b.function("probe", 'B');
    b.log(
        &json!({"probe": {"id": probe, "group": "g", "name": "probe", "symbol": "f", "offset": 0,
        "args": [{"name": "n", "type": "u64", "word": 0, "value": 0, "bits": 64}]}}),
    );
    let task = b.task(100, "start", 0, 0);
    hit(&mut b, task, probe, &[0, 1]);
    b.record(task, ENTRY, f, 9, 0);
    hit(&mut b, task, probe, &[0, 2]);
    b.record(task, EXIT, f, 9, 0);
    let data = b.finish();
    let options = ReplayOptions {
        source: SourceOptions {
            filter: vec!["^f$".to_owned()],
            ..source(&data)
        },
        fields: Some("none".to_owned()),
        ..ReplayOptions::default()
    };
    let text = run(|out| hodo_view::replay(&options, out));
    assert_eq!(text, "f() {\n  /* probe: n=2 */\n} /* f */\n");
    std::fs::remove_dir_all(data).expect("a trace");
}
