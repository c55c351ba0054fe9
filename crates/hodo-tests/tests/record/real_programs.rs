//! Real programs do under hodo what they do alone.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use hodo_tests::{Kind, Run, build, build_with, has_tool, hodo, needs};

/// Runs a program alone, traced, and traced inside its libraries; the traces must have at least this many calls.
fn check(run: &Run, own: u64, with_libraries: u64) {
    for (options, calls) in [(&[][..], own), (&["-l"], with_libraries)] {
        let trace = run.same(options);
        let seen: u64 = trace.calls().values().sum();
        assert!(seen >= calls, "{options:?}: only {seen} calls in the trace");
    }
}

const BASH: &str = r#"
declare -A count
fib() { local n=$1; if ((n < 2)); then echo "$n"; else echo $(( $(fib $((n-1))) + $(fib $((n-2))) )); fi; }
for i in {1..2000}; do (( count[k$((i % 13))] += i )); done
for key in k0 k5 k12; do echo "$key ${count[$key]}"; done
fib 7
trap 'echo trapped' USR1; kill -USR1 $$
text=$(printf '%s\n' {a..e}{1..9} | sort -r | head -3 | tr '\n' ' '); echo "$text"
[[ foobar =~ ^(foo)(.*)$ ]] && echo "${BASH_REMATCH[2]}"
coproc cat; echo through >&"${COPROC[1]}"; read -r line <&"${COPROC[0]}"; echo "$line"
(exit 5) | cat; echo "${PIPESTATUS[*]}"; sleep 0.01 & wait $!; exit 3
"#;

#[test]
fn bash() {
    needs!(has_tool("bash"), "there is no bash");
    check(
        &Run::new("bash", "bash").args(["-c", BASH]),
        100_000,
        500_000,
    );
}

const PYTHON: &str = r#"
import hashlib, json, re, subprocess, sys, threading, collections
class Node:
    def __init__(self, n): self.n, self.next = n, None
    def __repr__(self): return f"<{self.n}>"
def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
def generate():
    try:
        for i in range(100): yield i
    finally: print("closed")
counts = collections.Counter(i % 7 for i in range(20000))
print(sorted(counts.items()), json.dumps({"a": [1, 2.5, None]}), hashlib.sha256(b"x" * 1000).hexdigest())
print(re.sub(r"(\w+) (\w+)", r"\2 \1", "hello world"), deep(900), next(generate()))
try: deep(10**6)
except RecursionError as error: print(type(error).__name__)
results = []
threads = [threading.Thread(target=lambda n=n: results.append(sum(range(n * 1000)))) for n in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(sorted(results), subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout)
sys.exit(4)
"#;

/// A python3 that is not a script.
fn python() -> Option<PathBuf> {
    let code = "import os, sys; print(os.path.realpath(sys.executable))";
    let output = Command::new("python3").args(["-c", code]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

#[test]
fn python3() {
    let Some(python) = python() else {
        return hodo_tests::skip("there is no python3");
    };
    let run = |name: &str, path: PathBuf| Run::new(name, path).args(["-I", "-S", "-c", PYTHON]);
    check(&run("python3", python), 20, 200_000);
    // The distribution's python3 is stripped.
    let stripped = PathBuf::from("/usr/bin/python3");
    if stripped.exists() {
        check(&run("python3-stripped", stripped), 100_000, 200_000);
    }
}

const SQL: &str = "create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
insert into t select i, 'text ' || (i * 7919 % 1000), i / 3.0 from n;
create index tb on t(b);
select count(*), sum(a), round(avg(c), 3), max(b) from t;
select b, count(*) from t group by b order by 2 desc, 1 limit 5;
select json_group_array(a) from (select a from t where b like 'text 99%' order by a limit 10);
begin; delete from t where a % 2; rollback; select count(*) from t;
select no_such_column from t;";

#[test]
fn sqlite3() {
    needs!(has_tool("sqlite3"), "there is no sqlite3");
    check(
        &Run::new("sqlite3", "sqlite3").args([":memory:"]).input(SQL),
        100,
        100_000,
    );
    check(
        &Run::new("sqlite3-file", "sqlite3")
            .args(["file.db"])
            .input(SQL),
        100,
        100_000,
    );
}

const REDIS: &str = r#"
redis-server --port "$1" --bind 127.0.0.1 --save '' --appendonly no --daemonize no >server.log 2>&1 &
server=$!
for i in $(seq 200); do redis-cli -p "$1" ping >/dev/null 2>&1 && break; sleep 0.05; done
cli() { redis-cli -p "$server_port" "$@"; }
server_port=$1
for i in $(seq 20); do echo "set key$i value$i"; echo "lpush list $i"; echo "zadd set $i member$i"; done | cli
cli get key7; cli lrange list 0 4; cli zrangebyscore set 5 8
cli eval 'local n = 0 for i = 1, 1000 do n = n + redis.call("incr", KEYS[1]) end return n' 1 counter
cli save; cli debug reload; cli get counter; cli shutdown nosave
wait $server; echo "status $?"; rm -f server.log dump.rdb
"#;

#[test]
fn redis_server() {
    needs!(
        has_tool("redis-server") && has_tool("redis-cli"),
        "there is no redis-server with redis-cli"
    );
    // Not a port from the ephemeral range: it must be free from one run to the next.
    let first = std::process::id() % 20_000;
    let mut ports = (0..20_000).map(|n| 10_000 + (first + n) % 20_000);
    let port = ports.find(|port| TcpListener::bind(format!("127.0.0.1:{port}")).is_ok());
    let port = port.expect("a free port").to_string();
    check(
        &Run::new("redis", "sh").args(["-c", REDIS, "sh", &port]),
        20_000,
        50_000,
    );
}

#[test]
fn the_c_compiler() {
    let output = Command::new("gcc")
        .arg("-print-prog-name=cc1")
        .output()
        .expect("gcc can be run");
    let cc1 = String::from_utf8(output.stdout).expect("a path is text");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/signals.c");
    let run = Run::new("cc1", cc1.trim()).args(["-quiet", "-O2", source, "-o", "-"]);
    check(&run, 100_000, 200_000);
}

#[test]
fn the_compiler_driver() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/values.c");
    // The result of assembler and linker is printed, except for its name.
    let script = "gcc -O1 -w \"$1\" -o program && cksum <program && ./program";
    check(
        &Run::new("driver", "sh").args(["-c", script, "sh", source]),
        500_000,
        500_000,
    );
}

const GIT: &str = r#"
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org GIT_AUTHOR_DATE='1700000000 +0000'
export GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.org GIT_COMMITTER_DATE='1700000000 +0000'
git init -q -b main repository && cd repository || exit 1
for i in $(seq 5); do seq $((i * 100)) >"file$i"; git add -A; git commit -qm "Commit $i"; done
git checkout -qb side HEAD~2; echo more >>file1; git commit -qam side; git merge -q main -m merge
git log --oneline --graph --stat; git gc -q; git fsck --no-progress; git diff HEAD~1 | tail -5; git grep -c 99; git show nothing
"#;

#[test]
fn git() {
    needs!(has_tool("git"), "there is no git");
    check(&Run::new("git", "sh").args(["-c", GIT]), 50_000, 50_000);
}

const PERL: &str = r#"
use strict; my %h; $h{$_ % 17} .= chr(65 + $_ % 26) for 1..5000;
print join(",", map { "$_=" . length $h{$_} } sort { $a <=> $b } keys %h), "\n";
sub f { my $n = shift; $n < 2 ? $n : f($n - 1) + f($n - 2) } print f(15), "\n";
my $t = "abc" x 100; my $c = () = $t =~ /(b)(?=c)/g; print "$c\n";
eval { die { code => 7 } }; print $@->{code}, "\n";
local $SIG{ALRM} = sub { print "alarm\n" }; kill ALRM => $$;
print sprintf("%.10f %s", atan2(1, 1) * 4, `echo child`); exit 9;
"#;

#[test]
fn perl() {
    needs!(has_tool("perl"), "there is no perl");
    let run = Run::new("perl", "perl")
        .args(["-e", PERL])
        .env("PERL_HASH_SEED", "0");
    check(&run, 50_000, 50_000);
}

const LUA: &str = r#"
local t = {} for i = 1, 20000 do t[i] = (i * 7919) % 1009 end table.sort(t) print(#t, t[1], t[20000])
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end print(fib(20))
local co = coroutine.wrap(function() for i = 1, 5 do coroutine.yield(i * i) end end) for i = 1, 5 do io.write(co(), " ") end print()
print(pcall(error, {code = 3})) print(select(2, pcall(function() local x = nil; return x.y end)))
print(string.format("%q %5.2f", "a\nb", math.pi), ("x"):rep(10):gsub("x", "y"), #tostring(print) > 0)
print(string.find("hello world", "(o) (w)")) error("the end")
"#;

#[test]
fn lua() {
    needs!(has_tool("lua5.4"), "there is no lua5.4");
    // The output of the first pcall contains a table's address.
    let script = LUA.replace(
        "print(pcall(error, {code = 3}))",
        "print(pcall(error, 'code'))",
    );
    check(
        &Run::new("lua", "lua5.4").args(["-e", &script]),
        50_000,
        50_000,
    );
}

#[test]
fn a_rust_program() {
    let kinds = [
        ("debug", &["--edition=2024"][..]),
        ("release", &["--edition=2024", "-O"]),
    ];
    // All of them, where nothing is run.
    let programs = kinds.map(|(name, flags)| (name, build_with("rustc", &["words.rs"], flags)));
    for (name, program) in programs {
        check(&Run::new(&format!("words-{name}"), program), 20_000, 20_000);
    }
}

#[test]
fn hodo_itself() {
    let program = build("values.c", Kind::Pie, &[]);
    check(
        &Run::new("hodo", hodo())
            .args(["plan", "--json"])
            .args([program]),
        100_000,
        100_000,
    );
}

#[test]
fn a_go_program() {
    needs!(has_tool("go"), "there is no Go compiler");
    let program = build_with("go", &["goroutines.go"], &[]);
    let run = Run::new("go", program);
    for options in [&[][..], &["-l"]] {
        let (alone, traced) = (run.alone(), run.traced(options));
        assert_eq!(alone, traced.outcome, "{}", traced.remarks);
    }
}

const NODE: &str = r#"
const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2); let s = 0; for (let i = 0; i < 3e6; i++) s = (s + i * 31) % 1000003;
class A { constructor(n) { this.n = n } get twice() { return this.n * 2 } } const all = Array.from({length: 5000}, (_, i) => new A(i));
console.log(fib(24), s, all.map(a => a.twice).reduce((a, b) => a + b), JSON.stringify({a: [1, {b: null}]}));
try { null.x } catch (e) { console.log(e.name) } const { Worker } = require('worker_threads');
const w = new Worker('require("worker_threads").parentPort.postMessage([...Array(1000).keys()].reduce((a, b) => a + b))', {eval: true});
const said = new Promise(done => w.on('message', n => { console.log(n); Promise.resolve(1).then(() => { console.log(require('zlib').gzipSync('x'.repeat(1000)).length); done(); }); }));
// The message may come just before the exit, or together with it: wait for both.
w.on('exit', () => said.then(() => process.exit(6)));
"#;

#[test]
fn node() {
    needs!(has_tool("node"), "there is no node");
    let run = Run::new("node", "node").args(["-e", NODE]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
}

#[test]
fn java() {
    needs!(has_tool("java") && has_tool("javac"), "there is no Java");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/Faults.java");
    let run = Run::new("java", "java").args([source]);
    let (alone, traced) = (run.alone(), run.traced(&[]));
    assert_eq!(alone, traced.outcome, "{}", traced.remarks);
}
