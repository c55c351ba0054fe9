#!/usr/bin/env bash
# Measures what hodo costs before a program does anything: the CPU time (user and system, of hodo and the program
# together) of short programs, alone, without a cached plan, and with plans that the previous run cached. Then it
# measures other costs that arise once: counting every instruction of a compiler, the pages of a long trace, and the
# time for which a process stops when probes are added. Side by side in one run on this machine; asserts nothing.
#
#   benches/startup.sh [RUNS]     how often each runs; the minimum counts (5)
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${1:-5}"

cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
benches="$PWD/benches"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
trap 'rm -rf "$place"' EXIT
cd "$place"
export HODO_CACHE="$place/cache"

# Milliseconds of CPU time of a command and its children.
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" >/dev/null 2>&1 </dev/null || true; } 2>&1 | awk '{ printf "%.0f\n", ($1 + $2) * 1000 }'
}
least() {
    for ((i = 0; i < runs; i++)); do cpu "$@"; done | sort -n | head -1
}
row() { printf '%-44s %8s %8s %8s %8s   %s\n' "$@"; }
# Name, goal in ms, hodo's arguments, the program's arguments.
measure() {
    local name=$1 goal=$2 how=$3
    shift 3
    if ! command -v "$1" >/dev/null; then
        row "$name" - - - - "$1 is not installed"
        return
    fi
    local alone cold warm
    alone=$(least "$@")
    rm -rf "$HODO_CACHE"
    # shellcheck disable=SC2086 # options are words
    cold=$(cpu "$hodo" $how "$@")
    # shellcheck disable=SC2086
    warm=$(least "$hodo" $how "$@")
    row "$name" "$alone" "$cold" "$warm" "$((warm - alone))" "$goal"
}

row "ms of CPU" alone "no plan" "kept" "beyond" "goal, kept"
measure "record true" 6 "record -d trace" /bin/true
measure "record git --version" 30 "record -d trace" git --version
# The interpreter itself, because the name may lead to a script that searches for one.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
measure "record python3 -c pass" 50 "record -d trace" "$python" -c pass
measure "record -l git --version" 60 "record -l -d trace" git --version
measure "record -l clang --version" 400 "record -l -d trace" clang --version
measure "record -l ffmpeg -version" 600 "record -l -d trace" ffmpeg -version
measure "syscalls git --version" "30 beyond alone" "syscalls -o lines" git --version
# The compiler itself, with 350 MB of libraries in which few instructions call the kernel.
rustc=$(rustc --print sysroot 2>/dev/null || true)/bin/rustc
measure "syscalls rustc --version" "500 without a plan" "syscalls -o lines" "$rustc" --version
measure "probe -e node:main, node -e 1" "300 beyond alone" "probe -o lines -e node:main" node -e 1

# The rest needs a compiler, and programs that are built here.
if ! command -v gcc >/dev/null; then
    echo "gcc is not installed: no more is measured"
    exit
fi
echo
printf '%-44s %12s   %s\n' "" figure goal
figure() { printf '%-44s %12s   %s\n' "$@"; }

# Counts all instructions of a compiler that compiles an empty file. Measures the time from start to end, and hodo's
# memory.
cc1=$(gcc -print-prog-name=cc1)
: >empty.c
counted() {
    /usr/bin/time -f '%e %M' -o took "$hodo" probe -o lines -e "p $cc1:*+* count" "$cc1" -quiet empty.c -o empty.s >/dev/null 2>&1 || true
    cat took
}
if [ -x "$cc1" ] && [ -x /usr/bin/time ]; then
    read -r seconds kilobytes < <(counted | tail -1)
    figure "count every instruction of cc1, s" "$seconds" 3
    figure "the same, MB at most" "$((kilobytes / 1024))" 500
else
    figure "count every instruction of cc1" - "needs cc1 and /usr/bin/time"
fi

# System time of a program that writes 51 million records, and of hodo. Most of it is page faults in the trace.
gcc -O2 -o calls "$benches/calls.c"
system() {
    local TIMEFORMAT='%S'
    { time "$@" >/dev/null 2>&1 </dev/null; } 2>&1
}
for i in 1 2 3; do system "$hodo" record -d trace ./calls 25500000; done | sort -g | head -1 >took
figure "system time of 51 M records, s" "$(cat took)" 0.15

# How long a program stops when it gets 1,000 probes.
{
    for ((i = 0; i < 1000; i++)); do
        echo "__attribute__((noipa)) int f$i(int n) { int s = n; for (int i = 0; i < n; i++) s = s * 31 + i; return s + $i; }"
    done
    echo '#include <unistd.h>'
    echo 'int main(void) { int n = 0; for (;;) {'
    for ((i = 0; i < 1000; i++)); do echo "n += f$i(3);"; done
    echo 'usleep(1000); } return n; }'
} >many.c
gcc -O1 -o many many.c
./many &
target=$!
trap 'kill "$target" 2>/dev/null || true; rm -rf "$place"' EXIT
for i in 1 2 3 4 5; do
    timeout -s INT 3 "$hodo" probe -v -p "$target" -e "p $PWD/many:f* count" >/dev/null 2>said || true
    sed -nE 's/.*stopped for ([0-9.]+) ms.*/\1/p' said | head -1
done | sort -g | head -1 >took
kill "$target"
wait "$target" 2>/dev/null || true
figure "stop of a program that gets 1,000 probes, ms" "$(cat took)" 2
