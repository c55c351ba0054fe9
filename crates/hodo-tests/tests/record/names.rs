//! Names of threads.

use std::fs;
use std::process::Command;

use hodo_tests::probing::{path, text};
use hodo_tests::target::{Target, run};
use hodo_tests::{Trace, scratch};

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
__attribute__((noipa)) void job(void) { usleep(1000); }
static void *work(void *name) {
    if (name) pthread_setname_np(pthread_self(), name);
    for (int i = 0; i < 3; i++) job();
    return 0;
}
int main(int count, char **words) {
    pthread_t threads[3];
    char *names[] = { "reader", "writer", 0 };
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, names[i]);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    puts("begun");
    fflush(stdout);
    getchar();
    if (count > 1) while (job(), access(words[1], F_OK));
    prctl(PR_SET_NAME, "boss");
    if (count > 1) { while (job(), !access(words[1], F_OK)); }
    return 0;
}
"#;

#[test]
fn threads_have_the_names_that_they_give_themselves() {
    let place = scratch("threads_have_the_names_that_they_give_themselves");
    fs::write(place.join("threads.c"), PROGRAM).expect("a source");
    let program = place.join("threads");
    let compile = ["-O1", "-g", "-pthread", "-o", path(&program)];
    let source = place.join("threads.c");
    let output = Command::new("gcc").args(compile).arg(source).output();
    assert!(output.expect("a compiler").status.success());
    let data = place.join("data");
    let output = Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo_tests::hodo())
        .args(["record", "-d", path(&data), path(&program)])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("hodo can be run");
    assert!(output.status.success(), "{output:?}");
    let trace = Trace::new(data.clone());
    let names = || -> Vec<String> {
        let info = trace.info();
        let tasks = info["tasks"].as_array().expect("tasks").iter();
        let names = tasks.map(|task| task["name"].as_str().expect("a name").to_owned());
        names.collect()
    };
    // A thread without a name of its own has that of the program.
    assert_eq!(names(), ["boss", "reader", "writer", "threads"]);
    let replay = trace.view("replay", &["-f", "+task"]);
    assert!(replay.contains("         reader |"), "{replay}");
    let chrome = trace.view("dump", &["--chrome"]);
    assert!(chrome.contains("writer"), "{chrome}");
    // A name that is given while hodo is attached is known when it detaches.
    let sign = place.join("sign");
    let mut target = Target::start_with(&program, &[path(&sign)]);
    drop(target.input.take());
    let toggled = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(700));
            fs::write(&sign, "").expect("a file");
        });
        run(&target, &["record", "--for", "2", "-d", path(&data)])
    });
    assert!(text(&toggled.stdout).is_empty());
    assert_eq!(names(), ["boss"]);
    fs::remove_file(&sign).expect("the file can be removed");
    target.ends("");
    fs::remove_dir_all(place).expect("the trace can be removed");
}
