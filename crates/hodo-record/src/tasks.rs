//! `task.txt`: the sessions, threads and processes of a recording in uftrace's format, for scripts that read it.

use std::fmt::Write as _;

use serde_json::Value;

/// A session's name has sixteen digits. They are the number of the task with which the session began.
fn session(pid: u64, task: u64) -> String {
    format!("{:016x}", pid << 32 | task)
}

/// The text of `task.txt`. `log`: the lines of `log.jsonl`; `nanoseconds`: converts a value of the counter to a time.
pub fn text(log: &str, nanoseconds: impl Fn(u64) -> u64) -> String {
    let mut text = String::new();
    for line in log.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let task = &line["task"];
        let number = |key: &str| task[key].as_u64().unwrap_or(0);
        let Some(kind) = task["kind"].as_str() else {
            continue;
        };
        let (pid, tid) = (number("pid"), number("tid"));
        let ns = nanoseconds(number("counter"));
        let time = format!("timestamp={}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        // Writing to a string cannot fail.
        let _ = match kind {
            "fork" => writeln!(text, "FORK {time} pid={pid} ppid={}", number("ppid")),
            "thread" => writeln!(text, "TASK {time} tid={tid} pid={pid}"),
            _ => {
                let sid = session(pid, number("id"));
                let exe = task["exe"].as_str().unwrap_or_default();
                let exe = exe.replace(['"', '\n'], "?");
                writeln!(text, "SESS {time} pid={pid} sid={sid} exename=\"{exe}\"")
                    .and_then(|()| writeln!(text, "TASK {time} tid={tid} pid={pid}"))
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_written_as_uftrace_writes_them() {
        let log = [
            r#"{"task":{"id":1,"tid":10,"pid":10,"ppid":9,"kind":"start","parent":0,"counter":1000,"exe":"/bin/a"}}"#,
            r#"{"remark":{"pid":0,"text":"x"}}"#,
            r#"{"task":{"id":2,"tid":11,"pid":10,"ppid":9,"kind":"thread","parent":1,"counter":2000}}"#,
            r#"{"task":{"id":3,"tid":12,"pid":12,"ppid":10,"kind":"fork","parent":1,"counter":3000}}"#,
            r#"{"task":{"id":4,"tid":12,"pid":12,"ppid":10,"kind":"exec","parent":3,"counter":4000,"exe":"/bin/b"}}"#,
            "{ half a li",
        ];
        let text = text(&log.join("\n"), |counter| 5_000_000_000 + counter);
        let expected = "\
SESS timestamp=5.000001000 pid=10 sid=0000000a00000001 exename=\"/bin/a\"
TASK timestamp=5.000001000 tid=10 pid=10
TASK timestamp=5.000002000 tid=11 pid=10
FORK timestamp=5.000003000 pid=12 ppid=10
SESS timestamp=5.000004000 pid=12 sid=0000000c00000004 exename=\"/bin/b\"
TASK timestamp=5.000004000 tid=12 pid=12
";
        assert_eq!(text, expected);
    }
}
