#!/usr/bin/env bash
# Runs tests for RISC-V and AArch64 in qemu's user mode emulator: those of static keys (hodo-keys), of the crate below
# them (hodo-sys), of instructions (hodo-isa), and of function tracing (hodo-ftrace). For RISC-V, it also runs those of all other crates that work there.
# Then scripts/riscv64-linux.sh runs, in qemu's system emulator, those that need a real kernel for RISC-V. Installs what
# is missing, if it may. Whatever cannot be installed is reported with the reason, and does not count as a failure. If
# rustup cannot add a target, or HODO_RUST=debian is set, Debian's Rust is used (scripts/debian-rust.sh).
#
#   scripts/cross.sh                      both
#   scripts/cross.sh riscv64 [WORD…]      one of them; with words, only tests with one of the words in their names
#   scripts/cross.sh machine [WORD…]      only tests that run in the machine for RISC-V
#   scripts/cross.sh install              only installs what both need
#
# If a group of tests fails, the others still run. The failed group runs a second time, because an emulator on a busy
# machine stretches every race in a test. At the end, the script names the groups that failed twice, and those that
# passed at the second attempt.
#
# Of the files in crates/hodo-keys/tests, those with `mod emulator;` run: qemu does not notice by itself that code has
# changed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"
skipped="$target/tmp/skipped.txt"

# Crates whose tests all run in the user mode emulator for RISC-V.
emulated=(hodo-probe-syntax hodo-symbols hodo-trace hodo-view)

# Test files of hodo-plan that run there.
planned=(compiled damaged kept probed relocated riscv64 riscv64_patchable riscv64_properties statics)

# Tests of the other crates that do not run for RISC-V, and why. (Files about the other instruction set say so
# themselves.)
left_out=(
    "hodo-isa, riscv64_decode, riscv64_liveness, riscv64_registers: they only read, as they do on x86-64, and take minutes in the emulator"
    "hodo-plan, probes, properties: they compare with a decoder of x86-64; riscv64_properties is about RISC-V's programs"
    "hodo-keys-tracing, example: it starts cargo"
    "hodo, command_line, other_machines: they start hodo, which the user mode emulator cannot"
    "hodo-tests, all but those named in scripts/cross.sh: minutes each in the emulated machine"
)

# Whole-program tests that run in a real Linux for RISC-V: the file in crates/hodo-tests/tests, and the names of its
# tests. Without names, all of them run.
whole_programs=(
    "filters calls_of_a_limited_depth everything_without_options"
    "processes cancelled_threads"
    "control_flow coroutines_by_swapcontext"
    "libraries"
    "left"
    "killed programs_with_traps_outlive_hodo attached_programs_with_traps_outlive_hodo"
    "attach_moments contexts_saved_through_a_jump queued_signals_arrive_as_sent threads_that_are_cancelled threads_that_throw_all_the_time"
    "registers vector_registers_in_use_at_entries_on_new_stacks"
    "live_control an_attached_process_changes_too_and_gets_its_code_back"
    "syscalls errors_are_reported"
    "probes_armed"
    "probes_after"
)

# The groups that failed twice, and those that failed once.
failed=()
unsteady=()

# Runs a command as the group with this name.
group() {
    local what="$1"
    shift
    local begun=$SECONDS
    if ! "$@"; then
        echo "$what: failed after $((SECONDS - begun)) s, once more"
        if "$@"; then unsteady+=("$what"); else failed+=("$what"); fi
    fi
    echo "$what: $((SECONDS - begun)) s"
}

not_run() {
    echo "not run for $1: $2"
    mkdir -p "$(dirname "$skipped")"
    echo "the tests for $1: $2" >>"$skipped"
}

# Prints which tests for $1, whose triple is $2, were skipped since the last call.
tell_skipped() {
    local own="$target/$2/tmp/skipped.txt" line
    [ -s "$own" ] || return 0
    while read -r line; do
        not_run "$1" "$line"
    done < <(sort -u "$own")
    rm -f "$own"
}

# Installs what both need, and sets `files` to the tests of static keys. Arguments: see run.
prepare() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    local missing=()
    command -v "qemu-$arch" >/dev/null || missing+=(qemu-user)
    command -v "$gnu-gcc" >/dev/null || missing+=("gcc-$gnu")
    [ -e "/usr/$gnu/lib/libc.so" ] || missing+=("$libc")
    if [ ${#missing[@]} -gt 0 ] && ! install_packages "${missing[@]}"; then
        not_run "$arch" "the packages ${missing[*]} cannot be installed"
        return 1
    fi
    # Some programs of the tests are written in C++, and some are compiled by clang. Without clang they are left out.
    command -v "$gnu-g++" >/dev/null || install_packages "g++-$gnu" || not_run "$arch" "programs in C++: the package g++-$gnu cannot be installed"
    command -v clang >/dev/null || install_packages clang || true
    unset RUSTC
    if [ "${HODO_RUST:-}" = debian ] ||
        { [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] && ! timeout 120 rustup target add "$triple" >/dev/null 2>&1; }; then
        local why="$target/debian-rust.why"
        mkdir -p "$target"
        if ! RUSTC="$(scripts/debian-rust.sh "$arch" 2>"$why")"; then
            not_run "$arch" "there is no Rust for $triple, neither by rustup nor from Debian: $(tail -n 1 "$why")"
            return 1
        fi
        export RUSTC
    fi
    # GLib's own allocator (2.74) may be locked by one of qemu's threads at a fork. The child would then wait forever.
    export G_SLICE=always-malloc
    local file
    files=()
    for file in $(grep -l '^mod emulator;' crates/hodo-keys/tests/*.rs); do
        file="${file##*/}"
        files+=(--test "${file%.rs}")
    done
    name="${triple^^}"
    name="CARGO_TARGET_${name//-/_}"
    export "${name}_LINKER=$gnu-gcc"
}

# Three names: Rust's, that of Debian's package of the C library, and the one that both use for everything else.
run() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    shift 3
    prepare "$arch" "$rust" "$libc" || return 0
    local test=("${name}_RUNNER=qemu-$arch -L /usr/$gnu" cargo test --quiet --target "$triple" --no-fail-fast)
    local emulated_test=(env HODO_EMULATED=1 "${test[@]}")
    test=(env "${test[@]}")
    # Another run tests what is specific to an emulator.
    local words=("$@")
    [ $# -gt 0 ] || words=(--skip vectors)
    if [ -n "${RUSTC:-}" ]; then
        [ $# -gt 0 ] || not_run "$arch" "lints: Debian's Rust has none"
    elif [ $# = 0 ] && cargo clippy --version >/dev/null 2>&1; then
        group "$arch, lints" lint "$arch" "$triple"
    fi
    rm -f "$target/$triple/tmp/skipped.txt"
    group "$arch, static keys" \
        "${emulated_test[@]}" -p hodo-sys -p hodo-keys --features hodo-sys/alloc --lib "${files[@]}" -- "$@"
    group "$arch, function tracing" "${test[@]}" -p hodo-ftrace -p hodo-ftrace-c -- "$@"
    if [ "$arch" = riscv64 ]; then
        group "$arch, static keys and spans" "${emulated_test[@]}" -p hodo-keys-tracing --test tracing -- "$@"
        group "$arch, static keys in optimized code" \
            "${emulated_test[@]}" --release -p hodo-keys --lib --test branches --test tracepoints -- "$@"
        group "$arch, its instructions" "${test[@]}" -p hodo-isa -p hodo-codegen --lib --test riscv64_run --test riscv64_detour -- "$@"
        group "$arch, system calls" "${test[@]}" -p hodo-agent --test riscv64_syscalls -- "$@"
        group "$arch, plans" "${test[@]}" -p hodo-plan --lib "${planned[@]/#/--test=}" -- "$@"
        group "$arch, stubs" "${test[@]}" -p hodo-patch --lib --test stubs -- "${words[@]}"
        # Larger programs have no free memory within reach of a jump.
        group "$arch, probes in one's own process" "${emulated_test[@]}" -p hodo-probe \
            --lib --test engine --test riscv64_differential --test beside_keys -- "${words[@]}"
        group "$arch, translated code" "${emulated_test[@]}" -p hodo-dbi --test riscv64_translated -- "$@"
        group "$arch, probes of C programs" "${emulated_test[@]}" -p hodo-probe-capi --test c -- "$@"
        if [ $# = 0 ]; then
            # The emulator's default processor does not have these.
            group "$arch, stubs and vector registers" \
                env QEMU_CPU=rv64,v=true "${emulated_test[@]}" -p hodo-patch --test stubs -- vectors
            group "$arch, probes and vector registers" \
                env QEMU_CPU=rv64,v=true "${emulated_test[@]}" -p hodo-probe --test engine -- vectors
        fi
        group "$arch, crates" "${test[@]}" "${emulated[@]/#/-p}" --lib --tests -- "$@"
        local line
        [ $# -gt 0 ] || for line in "${left_out[@]}"; do not_run "$arch" "$line"; done
    fi
    if [ "$arch" = aarch64 ]; then
        group "$arch, its instructions" "${test[@]}" -p hodo-isa --lib --test aarch64_run -- "$@"
        group "$arch, branches written at once" env HODO_EMULATED=words "${test[@]}" -p hodo-keys "${files[@]}" -- "$@"
    fi
    tell_skipped "$arch" "$triple"
}

# All crates must compile for RISC-V without warnings. For AArch64, there are only static keys, instructions and function
# tracing.
lint() {
    case "$1" in
    riscv64) cargo clippy --quiet --workspace --all-targets --features hodo-sys/alloc --target "$2" -- -D warnings ;;
    *)
        cargo clippy --quiet --target "$2" -p hodo-sys -p hodo-keys --features hodo-sys/alloc --lib "${files[@]}" -- -D warnings
        cargo clippy --quiet --target "$2" -p hodo-isa -p hodo-ftrace -p hodo-ftrace-c --all-targets -- -D warnings
        ;;
    esac
}

# Runs the tests that need a kernel in the machine for RISC-V.
machine() {
    local triple=riscv64gc-unknown-linux-gnu linux="$PWD/scripts/riscv64-linux.sh"
    prepare riscv64 riscv64gc libc6-dev-riscv64-cross || return 0
    local why
    why="$("$linux" missing)"
    if [ -n "$why" ]; then
        not_run riscv64 "in a real Linux: $why"
        return
    fi
    local test=(env "${name}_RUNNER=$linux run" HODO_VM_TIMEOUT=900 cargo test --quiet --target "$triple" --no-fail-fast)
    rm -f "$target/$triple/tmp/skipped.txt"
    trap 'scripts/riscv64-linux.sh stop' EXIT
    # Use one processor. With two, each waits for the other at every change of code, for a very long time if this
    # machine is busy. And if qemu has a thread for each, it may keep an old translation of code that is written at the
    # same moment.
    HODO_VM_SMP=1 "$linux" start || { failed+=("riscv64, in a real Linux: it does not start"); return 0; }
    group "riscv64, in a real Linux: static keys" \
        "${test[@]}" -p hodo-sys -p hodo-keys --features hodo-sys/alloc --lib "${files[@]}" -- "$@"
    group "riscv64, in a real Linux: static keys and spans" "${test[@]}" -p hodo-keys-tracing --test tracing -- "$@"
    [ $# -gt 0 ] || whole
    "$linux" stop
    "$linux" start || { failed+=("riscv64, in a real Linux: it does not start again"); return 0; }
    group "riscv64, in a real Linux: what is done with stopped threads" "${test[@]}" -p hodo-inject -p hodo-record -p hodo-ptrace --lib --test stopped -- "$@"
    tell_skipped "riscv64, in a real Linux" "$triple"
    "$linux" stop
    trap - EXIT
}

# Runs the whole-program tests with these names in the machine that was started for `machine`.
whole() {
    group "riscv64, hodo is built" cargo build --quiet --target "$triple" -p hodo
    local built="$target/$triple/debug/hodo"
    local tests=() names=() line words tool tools=target/riscv64-linux/tools
    # Compilers are slow there, so the programs are built here.
    mkdir -p "$tools"
    for tool in gcc g++; do
        ! command -v "riscv64-linux-gnu-$tool" >/dev/null || ln -sf "$(command -v "riscv64-linux-gnu-$tool")" "$tools/$tool"
    done
    for line in "${whole_programs[@]}"; do
        read -ra words <<<"$line"
        tests=(--quiet --target "$triple" -p hodo-tests --test "${words[0]}")
        names=("${words[@]:1}")
        [ ${#names[@]} = 0 ] || names+=(--exact)
        tell_skipped "riscv64, in a real Linux" "$triple"
        # Reports each test as failed, since none can run.
        HODO_TEST_BUILDS=1 env "${name}_RUNNER=env PATH=$PWD/$tools:$PATH qemu-riscv64 -L /usr/riscv64-linux-gnu" \
            cargo test "${tests[@]}" -- "${names[@]}" >/dev/null 2>&1 || true
        rm -f "$target/$triple/tmp/skipped.txt"
        group "riscv64, in a real Linux: whole programs, $line" \
            env HODO_BIN="$built" HODO_VM_TIMEOUT=1800 HODO_TEST_TIMEOUT=400 "${name}_RUNNER=$linux run" \
            cargo test "${tests[@]}" -- "${names[@]}"
    done
    group "riscv64, in a real Linux: a probe on every instruction, and programs as they are alone" \
        env HODO_RISCV64="$built" HODO_RISCV64_OPTIMIZED=1 HODO_VM_TIMEOUT=900 \
        cargo test --quiet -p hodo-tests --test riscv64_reference --test riscv64_programs
}

only="${1:-}"
shift || true
case "$only" in "" | riscv64 | aarch64 | machine | install) ;; *) echo "riscv64, aarch64, machine or install, not $only" >&2; exit 2 ;; esac
if [ "$only" = install ]; then
    prepare riscv64 riscv64gc libc6-dev-riscv64-cross || true
    prepare aarch64 aarch64 libc6-dev-arm64-cross || true
    exit
fi
case "$only" in "" | riscv64) run riscv64 riscv64gc libc6-dev-riscv64-cross "$@" ;; esac
case "$only" in "" | riscv64 | machine) machine "$@" ;; esac
case "$only" in "" | aarch64) run aarch64 aarch64 libc6-dev-arm64-cross "$@" ;; esac
if [ ${#unsteady[@]} -gt 0 ]; then
    echo "passed at the second attempt:"
    printf '  %s\n' "${unsteady[@]}"
fi
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed twice:"
    printf '  %s\n' "${failed[@]}"
    exit 1
fi
