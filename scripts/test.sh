#!/usr/bin/env bash
# Runs everything that must pass before a change lands: format, lints, tests, documentation. Installs what is missing
# with apt-get, if it may. The script ends at the first step that fails, but tests run to their end.
#
#   scripts/test.sh                              everything
#   scripts/test.sh WORD…                        only tests of this machine whose names contain one of these words
#   scripts/test.sh --target riscv64 [WORD…]     only the tests for RISC-V, in qemu; with words, as above
#   scripts/test.sh --target aarch64 [WORD…]     the same for AArch64 (static keys, function tracing)
#   scripts/test.sh --target x86-64              everything except these
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

step() { printf '\n== %s\n' "$*"; }

# scripts/cross.sh runs the tests for other machines.
with_cross=yes
case "${1:-}" in
-h | --help)
    sed -n 's/^# \{0,1\}//p; /^set /q' "$0" | sed 1d
    exit
    ;;
--target | --target=*)
    target="${1#--target}"
    target="${target#=}"
    shift
    [ -n "$target" ] || { target="${1:-}"; shift || true; }
    case "$target" in
    riscv64* | aarch64*)
        skipped="${CARGO_TARGET_DIR:-target}/tmp/skipped.txt"
        rm -f "$skipped"
        passed=0
        scripts/cross.sh "${target:0:7}" "$@" || passed=$?
        if [ -s "$skipped" ]; then
            step "not run"
            sort -u "$skipped"
        fi
        exit "$passed"
        ;;
    x86-64 | x86_64*) with_cross= ;;
    *) echo "--target: riscv64, aarch64 or x86-64, not '$target'" >&2; exit 2 ;;
    esac
    ;;
-*) echo "$1 is no switch: see $0 --help" >&2; exit 2 ;;
esac

# Tools that the tests need, each with its package. Tests report missing optional tools themselves.
missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need gcc gcc
need g++ g++
need clang clang
need musl-gcc musl-tools
need sqlite3 sqlite3
need redis-server redis-server
need redis-cli redis-tools
need lua5.4 lua5.4
need perl perl
need python3 python3
need git git
need go golang-go
need node nodejs
need strace strace
need valgrind valgrind
need gdb gdb
need dwz dwz
need debuginfod-find debuginfod
# Some tests for RISC-V only read files from its packages.
need riscv64-linux-gnu-gcc gcc-riscv64-linux-gnu
# The encodings in docs/porting.md are compared with what assemblers make.
need aarch64-linux-gnu-as binutils-aarch64-linux-gnu
need arm-linux-gnueabihf-as binutils-arm-linux-gnueabihf
need powerpc64le-linux-gnu-as binutils-powerpc64le-linux-gnu
# The compilers' packages only recommend what their output needs.
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
[ -e /usr/riscv64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-riscv64-cross)

if [ ${#missing[@]} -gt 0 ]; then
    step "install ${missing[*]}"
    # All together, or each alone if one of them is not available.
    install_packages "${missing[@]}" ||
        for package in "${missing[@]}"; do
            install_packages "$package" || echo "$package cannot be installed"
        done
    command -v gcc >/dev/null || { echo "there is no gcc: the tests cannot run" >&2; exit 1; }
fi
# The runtime for programs that clang instruments is in a separate package.
if command -v clang >/dev/null && [ ! -e "$(clang -print-file-name=libclang_rt.xray-x86_64.a)" ]; then
    package="libclang-rt-$(clang -dumpversion | cut -d . -f 1)-dev"
    install_packages "$package" || echo "$package cannot be installed"
fi

# Some programs with static keys are built for these targets. Without them, they are left out.
for target in x86_64-unknown-linux-musl x86_64-unknown-none; do
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] ||
        timeout 120 rustup target add "$target" >/dev/null 2>&1 ||
        echo "rustup cannot add the target $target"
done

# Tests store files here. The trace directories of failed tests remain for inspection.
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

if [ $# -eq 0 ]; then
    step "format"
    cargo fmt --all --check

    step "lints"
    cargo clippy --workspace --all-targets --quiet -- -D warnings
fi

step "build"
# All at once: cargo chooses the features of dependencies for what it builds together, and would compile many of them
# again for a part.
cargo test --quiet --workspace --no-run --lib --bins --tests --examples
if [ $# -eq 0 ]; then
    # Libraries for C programs are part of no test.
    cargo build --quiet --workspace --lib
    # One of the tests reads this library's optimized code, and hodo must link when it is optimized, too.
    cargo build --quiet --profile checked-release --package hodo --bin hodo --package hodo-ftrace-c --lib
    "${CARGO_TARGET_DIR:-target}/checked-release/hodo" --version
    # Tests need not ask cargo, which would let them wait as long as it builds for another machine.
    export HODO_TEST_BUILT=1
fi
# The tests run this hodo. They do not check whether it is up to date.
HODO_BIN="$(pwd)/target/debug/hodo"
if [ -n "${CARGO_TARGET_DIR:-}" ]; then
    HODO_BIN="$CARGO_TARGET_DIR/debug/hodo"
fi
export HODO_BIN

step "tests"
skipped="$(dirname "$(dirname "$HODO_BIN")")/tmp/skipped.txt"
rm -f "$skipped"
# This is printed in any case, before the tests' own last lines.
say_skipped() {
    if [ -s "$skipped" ]; then
        step "not run"
        sort -u "$skipped"
    fi
}
trap say_skipped EXIT
run() {
    if command -v cargo-nextest >/dev/null; then
        # A test that passes only at the second attempt is listed at the end as flaky.
        cargo nextest run --workspace --no-fail-fast --retries 1 --failure-output immediate-final --status-level retry --final-status-level slow "$@"
    else
        cargo test --workspace --no-fail-fast --lib --bins --tests --examples -- "$@"
    fi
}
if [ $# -gt 0 ]; then
    run "$@"
    exit
fi

# These run in parallel, because the emulators leave one processor free most of the time.
logs="$(dirname "$skipped")"
mkdir -p "$logs"
# What else must pass.
others() {
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet || return
    cargo test --workspace --doc --quiet || return

    step "kernels, in qemu"
    scripts/kernels.sh || return

    step "fuzzing, a fixed number of inputs"
    scripts/fuzz.sh --fixed
}
if [ -z "$with_cross" ]; then
    others
    run
    exit
fi
# Before the tests, because they also examine what exists.
scripts/cross.sh install
scripts/cross.sh riscv64 >"$logs/riscv64.log" 2>&1 &
riscv64=$!
# This runs hodo-tests/tests/riscv64, too, or reports why not.
export HODO_RISCV64=
native=0
run 2>&1 | tee "$logs/tests.log" || native=$?
# The emulated machine leaves a processor free for these.
scripts/cross.sh aarch64 >"$logs/aarch64.log" 2>&1 &
aarch64=$!
other=0
others || other=$?
emulated=0
for target in riscv64 aarch64; do
    step "$target"
    if wait "${!target}"; then
        awk '/^test result: ok/ { passed += $4 } / / && !/^(test result|running|test )|has been running|^not run for / { print } END { print passed " tests passed" }' "$logs/$target.log"
    else
        emulated=$?
        # The failed groups of tests are printed last.
        cat "$logs/$target.log"
    fi
done
step "x86-64"
# The last lines of the run.
if grep -q '^ *Summary \[' "$logs/tests.log"; then
    sed -n '/^ *Summary \[/,$p' "$logs/tests.log"
else
    tail -n 3 "$logs/tests.log"
fi
[ "$native" = 0 ] || exit "$native"
[ "$other" = 0 ] || { echo "documentation or fuzzing has failed: see above" >&2; exit "$other"; }
exit "$emulated"
