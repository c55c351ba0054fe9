#!/usr/bin/env python3
"""Records the programs here with uftrace, and writes what it shows of them, for tests/uftrace.rs.

Usage: regenerate.py [PROGRAM...]. Needs gcc and uftrace 0.13. For each program there are two files:
  PROGRAM.trace   functions, tasks and events, as `uftrace dump` tells them
  PROGRAM.shown   command lines, each with what uftrace prints
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

COMMON = [
    "replay",
    "replay -f duration",
    "replay -f tid,time",
    "replay -f +elapsed",
    "replay -f delta,addr",
    "replay -f task,module",
    "replay -f all",
    "replay -f none",
    "replay --no-comment",
    "replay --task-newline",
    "replay --column-view",
    "replay --column-view --column-offset=4",
    "replay --libname",
    "replay --no-libcall",
    "replay --flat",
    "replay --color=yes",
    "replay -D 1",
    "replay -D 2",
    "replay -t 1us",
    "replay -t 100us",
    "report",
    "report -s self",
    "report -s call",
    "report -s call,self",
    "report -s func",
    "report --avg-total",
    "report --avg-self",
    "report --avg-self -s max",
    "report -f all",
    "report -f total-avg,self-max,call,size",
    "report -f +total-min -s total-min",
    "report -f none",
    "report --task",
    "report --task -s tid",
    "report -D 2",
    "report -t 1us",
    "report --no-libcall",
    "report --color=yes",
    "graph",
    "graph main",
    "graph -f total,self,addr",
    "graph -f self",
    "graph -f none",
    "graph -D 2",
    "graph -t 1us",
    "graph --task",
    "graph --task -f tid,self",
    "graph --task -f none",
    "graph --color=yes",
    "dump",
    "dump --chrome",
    "dump -D 2",
]

PROGRAMS = {
    "abc": [
        "replay -F a",
        "replay -F b",
        "replay -N b",
        "replay -H b",
        "replay -F a -N c",
        "replay -F a -D 2",
        "replay -F a -H b",
        "replay -F a -F bar",
        "replay -F ^b",
        "replay -F [ab]",
        "replay -F get*",
        "replay -F [ab] --match=glob",
        "replay -F b* --match=glob",
        "replay -F getpid",
        "replay -N getpid -t 100ns",
        "replay -t 400",
        "replay -t 400ns -D 3",
        "replay -Z 30",
        "replay -r 2us~6us",
        "replay -r ~6us",
        "replay -r 6us~",
        "replay -r 6us~ -f +time",
        "report -F a",
        "report -N b",
        "report -H b",
        "report -F b -D 1",
        "report -Z 30",
        "report -r 2us~6us",
        "graph a",
        "graph c",
        "graph getpid",
        "graph -F a",
        "graph -N b",
        "graph -H b",
        "graph -D 2 a",
        "graph -r 2us~6us",
        "dump -F a",
        "dump --chrome -F a",
    ],
    "fork": [
        "replay --tid=THREAD",
        "replay --tid=CHILD",
        "replay -F work",
        "replay -N work",
        "replay -F main -D 2",
        "report --tid=CHILD",
        "report -F work",
        "graph work",
        "graph leaf",
        "graph --tid=THREAD",
        "dump --tid=CHILD",
    ],
    "tree": [
        "replay -F factorial",
        "replay -F factorial -D 2",
        "replay -F large -N small",
        "replay -N spin -t 10us",
        "replay -N factorial",
        "replay -F middle -H small -D 2",
        "replay -t 20us -F main",
        "replay -t 1s",
        "replay -H factorial -D 3",
        "report -F factorial",
        "report -N spin",
        "report -t 20us -s self",
        "graph factorial",
        "graph spin",
        "graph even",
        "graph -f total,self small",
        "graph -N spin",
        "graph -H even",
    ],
    "names": [
        "replay --demangle=full",
        "replay --demangle=no",
        "replay -F ^shapes::",
        "replay -F shapes::Box::get",
        "replay -N ^shapes::.*",
        "report --demangle=full",
        "report -s func --demangle=no",
        "graph --demangle=full main",
    ],
}


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def main():
    for program in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            make(program)


def make(program):
    for source in os.listdir(HERE):
        name, kind = os.path.splitext(source)
        if kind in (".c", ".cc"):
            compiler = "gcc" if kind == ".c" else "g++"
            run(compiler, "-pg", "-O0", "-pthread", "-o", name, os.path.join(HERE, source))
    data = "data"
    run("uftrace", "record", "--no-event", "--no-sched", "-d", data, "./" + program, check=False)
    dump = run("uftrace", "dump", "-d", data)
    raw = run("uftrace", "dump", "-d", data, "--demangle=no")
    bases = {}
    sids, sessions, tasks = [], [], []
    for line in open(data + "/task.txt"):
        word = dict(part.split("=", 1) for part in line.split()[1:])
        time = word["timestamp"].replace(".", "")
        if line.startswith("SESS"):
            sids.append(word["sid"])
            sessions.append((int(word["pid"]), int(time), os.path.basename(word["exename"].strip('"'))))
        elif line.startswith("TASK"):
            tasks.append((int(word["tid"]), int(word["pid"]), int(time), "task"))
        elif line.startswith("FORK"):
            tasks.append((int(word["pid"]), int(word["ppid"]), int(time), "fork"))
    for sid in sids:
        maps = [line for line in open(f"{data}/sid-{sid}.map") if " /" in line or "\t/" in line]
        for line in maps:
            path = line.split()[5]
            name = os.path.basename(path)
            if any(name == session[2] for session in sessions):
                bases.setdefault(name, (int(line.split("-")[0], 16), path))
    names = [session[2] for session in sessions]
    out = []
    # Functions that were called: link address and kind from the .sym file, names from the dump.
    called = {}
    tid = None
    events = []
    pattern = re.compile(r"(\d+)\.(\d{9})\s+(\d+): \[(entry|exit )\] (.*)\(([0-9a-f]+)\) depth: (\d+)")
    for line in raw.splitlines():
        match = pattern.match(line)
        if not match:
            continue
        seconds, part, tid, kind, name, addr, depth = match.groups()
        called[int(addr, 16)] = name
        events.append((int(seconds + part), int(tid), kind.strip(), int(addr, 16), int(depth)))
    owner = {}
    sizes = {}
    kinds = {}
    for exe, (base, path) in bases.items():
        symbols = []
        for line in open(f"{data}/{exe}.sym"):
            if not line.startswith("#"):
                addr, kind, name = line.rstrip("\n").split(" ", 2)
                symbols.append((int(addr, 16), kind, name))
        symbols.sort()
        for (addr, kind, name), (after, _, _) in zip(symbols, symbols[1:] + symbols[-1:]):
            # What is recorded is where mcount returns to, a little behind the function's beginning.
            for inside in called:
                if addr <= inside - base < after and kind in "TtPwW":
                    owner[inside] = exe
                    sizes[inside] = after - addr
                    kinds[inside] = "P" if kind == "P" else "T"
    missing = [f"{name} {addr:x}" for addr, name in called.items() if addr not in owner]
    assert not missing, missing
    for exe in dict.fromkeys(names):
        out.append(f"module /usr/bin/{exe}")
        for addr in sorted(called):
            if owner[addr] == exe:
                out.append(f"function {addr:x} {sizes[addr]:x} {kinds[addr]} {called[addr]}")
    seen = set()
    for number, (tid, pid, time, kind) in enumerate(tasks):
        if kind == "fork":
            kind, parent, pid, name = "fork", pid, tid, names[0]
            # It is told after it has happened.
            time = max(e[0] for e in events if e[1] == parent and called[e[3]] == "fork" and e[2] == "entry" and e[0] < time) + 1
        elif tid in seen:
            kind, parent, name = "exec", tid, next(s[2] for s in sessions if s[0] == pid and s[2] != names[0])
        elif seen:
            kind, parent, name = "thread", pid, names[0]
        else:
            kind, parent, name = "start", 0, names[0]
        # A fork is told twice: by the parent, and by the child.
        seen.add(tid)
        first = min(e[0] for e in events if e[1] == tid and (kind != "exec" or e[0] >= time))
        out.append(f"task {tid} {pid} {name} {kind} {parent} {min(time, first)}")
    for time, tid, kind, addr, depth in events:
        out.append(f"{time} {tid} {kind} {addr:x} {depth}")
    threads = [t for t in tasks if t[3] == "task" and t[0] != t[1]]
    forks = [t for t in tasks if t[3] == "fork"]

    def shown(text):
        text = text.replace("THREAD", str(threads[0][0]) if threads else "0")
        return text.replace("CHILD", str(forks[0][0]) if forks else "0")

    with open(os.path.join(HERE, program + ".trace"), "w") as file:
        file.write("\n".join(out) + "\n")
    with open(os.path.join(HERE, program + ".shown"), "w") as file:
        for case in COMMON + PROGRAMS[program]:
            case = shown(case)
            command, *rest = case.split(" ")
            text = run("uftrace", command, "--no-pager", "-d", data, *rest, check=False)
            for sid in sids:
                text = text.replace(sid, "SESSION")
            # Our name is three letters shorter.
            text = text.replace("uftrace stopped tracing with remaining functions\n===", "hodo stopped tracing with remaining functions\n")
            if case.startswith("dump") and "--" not in case.replace("--tid", ""):
                text = "\n".join(l for l in text.split("\n") if not l.startswith("uftrace file header"))
            if "--chrome" in case:
                text = text[: text.index("], ") + 1] + "\n"
            file.write(f"$ {case}\n{text}")


main()
