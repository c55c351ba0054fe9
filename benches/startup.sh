#!/usr/bin/env bash
# What hodo costs before a program does anything: CPU time (user and system, of hodo and the program together) of short programs, alone,
# with no plan kept, and with plans kept by the run before. Side by side in one run on this machine; asserts nothing.
#
#   benches/startup.sh [RUNS]     how often each is run; the least counts (5)
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${1:-5}"

cargo build --release --quiet --package hodo
hodo="${CARGO_TARGET_DIR:-$PWD/target}/release/hodo"
place="$(mktemp -d "${CARGO_TARGET_DIR:-$PWD/target}/bench.XXXXXX")"
trap 'rm -rf "$place"' EXIT
cd "$place"
export HODO_CACHE="$place/cache"

# Milliseconds of CPU time that the words take, and what they have started.
cpu() {
    local TIMEFORMAT='%U %S'
    { time "$@" >/dev/null 2>&1 </dev/null || true; } 2>&1 | awk '{ printf "%.0f\n", ($1 + $2) * 1000 }'
}
least() {
    for ((i = 0; i < runs; i++)); do cpu "$@"; done | sort -n | head -1
}
row() { printf '%-44s %8s %8s %8s %8s   %s\n' "$@"; }
# Name, goal in ms, hodo's words, the program's words.
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
# The interpreter itself: the word may lead to a script that looks for one.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
measure "record python3 -c pass" 50 "record -d trace" "$python" -c pass
measure "record -l git --version" 60 "record -l -d trace" git --version
measure "record -l clang --version" 400 "record -l -d trace" clang --version
measure "record -l ffmpeg -version" 600 "record -l -d trace" ffmpeg -version
measure "syscalls git --version" "30 beyond alone" "syscalls -o lines" git --version
measure "probe -e node:main, node -e 1" "300 beyond alone" "probe -o lines -e node:main" node -e 1
