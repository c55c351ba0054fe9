#!/usr/bin/env bash
# Runs tests for RISC-V and AArch64 in qemu's user mode emulator: those of static keys (hodo-keys), of the crate below
# them (hodo-sys), of instructions (hodo-isa), and of function tracing (hodo-ftrace). For RISC-V, it also runs those of
# all other crates that work there. Then scripts/linux.sh runs, in qemu's system emulator, those that need a real
# kernel: those of stopped threads (hodo-ptrace), and some of whole programs (hodo-tests). Static keys for RISC-V run
# there only, if it can be had.
# Installs what is missing, if it may.
# Whatever cannot be installed is reported with the reason, and does not count as a failure. If rustup cannot add a
# target, or HODO_RUST=debian is set, Debian's Rust is used (scripts/debian-rust.sh).
#
#   scripts/cross.sh                      both
#   scripts/cross.sh riscv64 [WORD…]      one of them; with words, only tests with one of the words in their names
#   scripts/cross.sh machine [WORD…]      only tests that run in the machine for RISC-V
#   scripts/cross.sh install              only installs what both need
#   scripts/cross.sh wide ARCH [WORD…]    whole programs: all of these tests in the machine for riscv64 or aarch64, and
#                                         longer ones, which takes an hour or more (HODO_ROUNDS=1000: how often hodo
#                                         attaches to a busy program)
#
# If a file of tests fails, the others still run. Except in the wide list, the failed one runs a second time, because an
# emulator on a busy machine stretches every race in a test. At the end, the script names those that failed twice, and
# those that passed at the second attempt.
#
# Of the files in crates/hodo-keys/tests, those with `mod emulator;` run: qemu does not notice by itself that code has
# changed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"
skipped="$target/tmp/skipped.txt"

# Files of tests are named PACKAGE/NAME. NAME is `lib` for the tests inside a library.
named() {
    local package="$1" name
    shift
    for name in "$@"; do
        echo "$package/$name"
    done
}

# All tests of a crate.
whole_crate() {
    local file
    echo "$1/lib"
    for file in "crates/$1"/tests/*.rs; do
        [ ! -e "$file" ] || named "$1" "$(basename "$file" .rs)"
    done
}

static_keys=(hodo-sys/lib hodo-keys/lib)
for file in $(grep -l '^mod emulator;' crates/hodo-keys/tests/*.rs); do
    static_keys+=("$(named hodo-keys "$(basename "$file" .rs)")")
done
spans=(hodo-keys-tracing/tracing)
# shellcheck disable=SC2207 # one word for each, here and below
function_tracing=($(whole_crate hodo-ftrace) hodo-ftrace-c/lib hodo-ftrace-c/ftrace)
instructions=(hodo-isa/lib hodo-isa/riscv64_run hodo-codegen/lib hodo-codegen/riscv64_detour)
aarch64_probes=($(named hodo-probe lib engine aarch64_differential beside_keys))
aarch64_instructions=(hodo-isa/lib hodo-isa/aarch64_run hodo-codegen/lib hodo-codegen/aarch64_detour)
aarch64_agent=($(named hodo-agent aarch64_slow_paths aarch64_syscalls aarch64_traps))
plans=($(named hodo-plan lib compiled damaged kept probed relocated riscv64 riscv64_patchable riscv64_properties statics))
stubs=($(named hodo-patch lib kept stubs))
# Larger programs have no free memory within reach of a jump.
probes=($(named hodo-probe lib engine riscv64_differential beside_keys))
other_crates=($(for crate in hodo-probe-syntax hodo-symbols hodo-trace hodo-view; do whole_crate $crate; done))
stopped_threads=(hodo-inject/lib hodo-record/lib hodo-ptrace/lib hodo-ptrace/stopped)
aarch64_stopped_threads=(hodo-record/lib hodo-ptrace/lib hodo-ptrace/stopped hodo-inject/lib hodo-inject/round_trip)

# Tests of the other crates that do not run for RISC-V, and why. (Files about the other instruction set say so
# themselves.)
left_out=(
    "hodo-isa, riscv64_decode, riscv64_liveness, riscv64_registers: they only read, as they do on x86-64, and take minutes in the emulator"
    "hodo-plan, probes, properties: they compare with a decoder of x86-64; riscv64_properties is about RISC-V's programs"
    "hodo-keys-tracing, example: it starts cargo"
    "hodo, command_line, other_machines: they start hodo, which the user mode emulator cannot"
    "hodo-tests, all but those named in scripts/cross.sh: minutes each in the emulated machine"
)

# Whole-program tests that run in a real Linux for RISC-V and AArch64: the directory in crates/hodo-tests/tests, the
# file there, and the names of its tests. Without names, all of them run.
whole_programs=(
    "record filters calls_of_a_limited_depth everything_without_options"
    "record processes cancelled_threads"
    "record control_flow coroutines_by_swapcontext"
    "record large"
    "record libraries"
    "record left"
    "record locks a_program_locks_its_own_memory_only"
    "attach killed programs_with_traps_outlive_hodo attached_programs_with_traps_outlive_hodo"
    "attach moments contexts_saved_through_a_jump frames_with_signed_return_addresses_are_left_open queued_signals_arrive_as_sent threads_that_are_cancelled threads_that_throw_all_the_time"
    "record registers vector_registers_in_use_at_entries_on_new_stacks"
    "attach live_control an_attached_process_changes_too_and_gets_its_code_back"
    "syscalls printed calls_that_handlers_leave_are_counted errors_are_reported"
    "probes armed"
    "probes after"
)

# shellcheck disable=SC2207
whole_tests=($(printf '%s\n' "${whole_programs[@]%% *}" | sort -u | sed s:^:hodo-tests/:))

# The groups and tests that failed twice, and those that failed once.
failed=()
unsteady=()

# Runs a command under this name, twice if it fails.
attempt() {
    local what="$1"
    shift
    if ! "$@"; then
        echo "$what: failed, once more"
        if "$@"; then unsteady+=("$what"); else failed+=("$what"); fi
    fi
}

# Runs a command as the group with this name, and tells what it has cost.
group() {
    local TIMEFORMAT="$1: %0R s, of which %0U s in programs and %0S s in the kernel"
    time attempt "$@"
}

# Files of tests, by PACKAGE/NAME. The name is `lib` for the tests inside a library.
declare -A built

# Builds tests with these arguments of cargo. One call does it for all groups: cargo chooses the features of
# dependencies for all packages that it builds together, so that other calls would compile most of them again.
build_tests() {
    local list="$target/tmp/built.json" package kind name file
    mkdir -p "$target/tmp"
    cargo test --quiet --no-run --message-format json "$@" >"$list" || return
    while read -r package kind name file; do
        case "$kind" in *lib) name=lib ;; esac
        built["$package/$name"]="$file"
    done < <(sed -n 's#.*"manifest_path":"[^"]*/\([^/"]*\)/Cargo.toml","target":{"kind":\["\([a-z]*\)[^]]*\][^}]*"name":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*#\1 \2 \3 \4#p' "$list")
}

# Runs one of the files of tests, by a command: the test, the words of the command, `--`, and the tests' arguments.
run_test() {
    local test="$1" command=()
    shift
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    [ -n "${built[$test]:-}" ] || { echo "$test has not been built"; return 1; }
    # What cargo does for the tests that it runs.
    (cd "crates/${test%%/*}" && HODO_CACHE="$target/plans" "${command[@]}" "${built[$test]}" --quiet "${@:2}")
}

# Runs tests as a group: its name, the tests, `--`, a command that runs files, `--`, and the tests' arguments.
tests() {
    local what="$1" all=() test
    shift
    while [ "$1" != -- ]; do
        all+=("$1")
        shift
    done
    shift
    local TIMEFORMAT="$what: %0R s, of which %0U s in programs and %0S s in the kernel"
    time for test in "${all[@]}"; do
        attempt "$what: $test" run_test "$test" "$@"
    done
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

# Installs what both need. Arguments: see run.
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
    name="${triple^^}"
    name="CARGO_TARGET_${name//-/_}"
    export "${name}_LINKER=$gnu-gcc"
}

# Builds all tests for a machine, with what they use: Rust's name of the target, and tests.
build_all() {
    local triple="$1" test libraries=(--lib) options=()
    local -A seen=()
    shift
    for test in "$@"; do
        [ -n "${seen[/${test%%/*}]:-}" ] || options+=(-p "${test%%/*}")
        seen[/${test%%/*}]=1
        case "$test" in
        */lib) ;;
        *) [ -n "${seen[${test#*/}]:-}" ] || options+=(--test "${test#*/}") ;;
        esac
        seen[${test#*/}]=1
    done
    if [ -n "${seen[/hodo-tests]:-}" ]; then
        options+=(-p hodo)
        libraries+=(--bin hodo)
    fi
    options+=(--features hodo-sys/alloc --target "$triple")
    build_tests "${options[@]}" --lib || return
    # Libraries for C programs are part of no test. The packages are the same, for the same features.
    local words=() word test=
    for word in "${options[@]}"; do
        case "$test$word" in
        --test) test=next ;;
        next*) test= ;;
        *) words+=("$word") ;;
        esac
    done
    cargo build --quiet "${words[@]}" "${libraries[@]}" || return
    # One of the tests reads this library's optimized code.
    cargo build --quiet --target "$triple" --profile checked-release -p hodo-ftrace-c --lib || return
    # What tests would ask cargo for.
    export HODO_TEST_BUILT=1
}

# Three names: Rust's, that of Debian's package of the C library, and the one that both use for everything else.
run() {
    local arch="$1" rust="$2" libc="$3" triple="$2-unknown-linux-gnu" gnu="$1-linux-gnu"
    shift 3
    prepare "$arch" "$rust" "$libc" || return 0
    local -n all="$arch"
    group "$arch, lints" lint "$arch" "$triple" "$@"
    group "$arch, build" build_all "$triple" "${all[@]}"
    [ -n "${built[hodo-sys/lib]:-}" ] || return 0
    local emulator=(-- "qemu-$arch" -L "/usr/$gnu" --)
    local emulated=(-- env HODO_EMULATED=1 "${emulator[@]:1}")
    # These change code that other threads run, which qemu 7.2 sometimes does not survive. At most one of them works at
    # a time in any case.
    local alone=(-- env RUST_TEST_THREADS=1 "${emulator[@]:1}")
    rm -f "$target/$triple/tmp/skipped.txt"
    # A real Linux runs these, too, without help for emulators.
    if [ "$arch" != riscv64 ] || [ -n "$no_linux" ]; then
        tests "$arch, static keys" "${static_keys[@]}" "${emulated[@]}" "$@"
        [ "$arch" != riscv64 ] || tests "$arch, static keys and spans" "${spans[@]}" "${emulated[@]}" "$@"
    fi
    tests "$arch, function tracing" "${function_tracing[@]}" "${emulator[@]}" "$@"
    if [ "$arch" = riscv64 ]; then
        local words=("$@")
        # Another processor has these.
        [ $# -gt 0 ] || words=(--skip vectors)
        tests "$arch, its instructions" "${instructions[@]}" "${emulator[@]}" "$@"
        tests "$arch, system calls" hodo-agent/riscv64_syscalls "${emulator[@]}" "$@"
        tests "$arch, plans" "${plans[@]}" "${emulator[@]}" "$@"
        tests "$arch, stubs" "${stubs[@]}" "${alone[@]}" "${words[@]}"
        tests "$arch, probes in one's own process" "${probes[@]}" "${emulated[@]}" "${words[@]}"
        tests "$arch, translated code" hodo-dbi/riscv64_translated "${emulated[@]}" "$@"
        tests "$arch, probes of C programs" hodo-probe-capi/c "${emulated[@]}" "$@"
        if [ $# = 0 ]; then
            tests "$arch, vector registers" hodo-patch/stubs hodo-probe/engine \
                -- env QEMU_CPU=rv64,v=true RUST_TEST_THREADS=1 "${emulated[@]:2}" vectors
        fi
        tests "$arch, crates" "${other_crates[@]}" "${emulator[@]}" "$@"
        # The same files, compiled in another way.
        group "$arch, static keys in optimized code" \
            env HODO_EMULATED=1 "${name}_RUNNER=qemu-$arch -L /usr/$gnu" cargo test --quiet --target "$triple" --no-fail-fast \
            --release -p hodo-keys --lib --test branches --test tracepoints -- "$@"
        local line
        [ $# -gt 0 ] || for line in "${left_out[@]}"; do not_run "$arch" "$line"; done
    fi
    if [ "$arch" = aarch64 ]; then
        tests "$arch, its instructions" "${aarch64_instructions[@]}" "${emulator[@]}" "$@"
        tests "$arch, the agent" "${aarch64_agent[@]}" "${emulator[@]}" "$@"
        tests "$arch, stubs" "${stubs[@]}" "${alone[@]}" "$@"
        # This processor has no instructions that add to memory, and signs no addresses.
        [ $# -gt 0 ] || tests "$arch, stubs on an old processor" hodo-patch/stubs \
            -- env QEMU_CPU=cortex-a53 "${alone[@]:2}" calls:: windows:: state::
        local length
        [ $# -gt 0 ] || for length in 16 256; do
            tests "$arch, the agent, vectors of $length bytes" hodo-agent/aarch64_slow_paths \
                -- env QEMU_CPU="max,sve-default-vector-length=$length" "${emulator[@]:1}" vectors_predicates
        done
        tests "$arch, probes in one's own process" "${aarch64_probes[@]}" "${emulated[@]}" "$@"
        tests "$arch, probes of C programs" hodo-probe-capi/c "${emulated[@]}" "$@"
        tests "$arch, branches written at once" "${static_keys[@]:1}" \
            -- env HODO_EMULATED=words "${emulator[@]:1}" "$@"
        aarch64_machine "$@"
    fi
    tell_skipped "$arch" "$triple"
}

# Runs the tests that need a kernel in the machine for AArch64.
aarch64_machine() {
    local triple=aarch64-unknown-linux-gnu linux=("$PWD/scripts/linux.sh" aarch64) why
    why="$("${linux[@]}" missing)"
    if [ -n "$why" ]; then
        not_run aarch64 "in a real Linux: $why"
        return
    fi
    trap 'scripts/linux.sh aarch64 stop' EXIT
    "${linux[@]}" start || { failed+=("aarch64, in a real Linux: it does not start"); return 0; }
    tests "aarch64, in a real Linux: what is done with stopped threads" "${aarch64_stopped_threads[@]}" \
        -- env HODO_VM_TIMEOUT=900 "${linux[@]}" run -- "$@"
    tests "aarch64, in a real Linux: the agent" "${aarch64_agent[@]}" -- env HODO_VM_TIMEOUT=900 "${linux[@]}" run -- "$@"
    "${linux[@]}" stop
    if [ $# = 0 ]; then
        HODO_VM_SMP=1 "${linux[@]}" start || { failed+=("aarch64, in a real Linux: it does not start again"); return 0; }
        whole aarch64 "$triple" "${whole_programs[@]}"
        "${linux[@]}" stop
    fi
    trap - EXIT
}

# All crates must compile for RISC-V without warnings. For AArch64, there are only static keys, instructions, function
# tracing, generated code, stubs, stopped threads and probes.
lint() {
    local arch="$1" triple="$2"
    shift 2
    [ $# = 0 ] || return 0
    if [ -n "${RUSTC:-}" ] || ! cargo clippy --version >/dev/null 2>&1; then
        not_run "$arch" "lints: this Rust has none"
        return
    fi
    case "$arch" in
    riscv64) cargo clippy --quiet --workspace --all-targets --target "$triple" -- -D warnings ;;
    *)
        # shellcheck disable=SC2046 # one word for each
        cargo clippy --quiet --target "$triple" -p hodo-sys -p hodo-keys -p hodo-isa -p hodo-ftrace -p hodo-ftrace-c \
            -p hodo-codegen -p hodo-ptrace -p hodo-record -p hodo-agent -p hodo-patch -p hodo-probe -p hodo-inject \
            --features hodo-sys/alloc --lib --test environment --test ftrace --test round_trip \
            --test aarch64_run --test aarch64_detour --test stopped --test stubs \
            --test aarch64_differential --test engine --test beside_keys \
            $(printf -- '--test %s ' "${aarch64_agent[@]#*/}") \
            $(printf -- '--test %s ' "${static_keys[@]:2}" | sed 's:hodo-keys/::g') -- -D warnings
        ;;
    esac
}

# Runs the tests that need a kernel in the machine for RISC-V.
machine() {
    local triple=riscv64gc-unknown-linux-gnu linux=("$PWD/scripts/linux.sh" riscv64)
    prepare riscv64 riscv64gc libc6-dev-riscv64-cross || return 0
    if [ -n "$no_linux" ]; then
        not_run riscv64 "in a real Linux: $no_linux"
        return
    fi
    [ -n "${built[hodo-sys/lib]:-}" ] || group "riscv64, build" build_all "$triple" "${riscv64[@]}"
    [ -n "${built[hodo-sys/lib]:-}" ] || return 0
    local inside=(-- env HODO_VM_TIMEOUT=900 "${linux[@]}" run --)
    rm -f "$target/$triple/tmp/skipped.txt"
    trap 'scripts/linux.sh riscv64 stop' EXIT
    # Use one processor. With two, each waits for the other at every change of code, for a very long time if this
    # machine is busy. And if qemu has a thread for each, it may keep an old translation of code that is written at the
    # same moment.
    HODO_VM_SMP=1 "${linux[@]}" start || { failed+=("riscv64, in a real Linux: it does not start"); return 0; }
    tests "riscv64, in a real Linux: static keys" "${static_keys[@]}" "${spans[@]}" "${inside[@]}" "$@"
    if [ $# = 0 ]; then
        whole riscv64 "$triple" "${whole_programs[@]}"
        # These are programs of this machine, with the features that all others have.
        group "riscv64, in a real Linux: a probe on every instruction, and programs as they are alone" \
            env HODO_RISCV64="$target/$triple/debug/hodo" HODO_RISCV64_OPTIMIZED=1 HODO_VM_TIMEOUT=900 \
            cargo test --quiet --workspace --test riscv64
    fi
    "${linux[@]}" stop
    "${linux[@]}" start || { failed+=("riscv64, in a real Linux: it does not start again"); return 0; }
    tests "riscv64, in a real Linux: what is done with stopped threads" "${stopped_threads[@]}" "${inside[@]}" "$@"
    tell_skipped "riscv64, in a real Linux" "$triple"
    "${linux[@]}" stop
    trap - EXIT
}

# Builds the programs of tests for an architecture: the file of tests, and its arguments. Compilers are slow in the
# machine, so this is done here.
build_programs() {
    local arch="$1" tool tools="$PWD/target/$1-linux/tools"
    mkdir -p "$tools"
    for tool in gcc g++; do
        ! command -v "$arch-linux-gnu-$tool" >/dev/null || ln -sf "$(command -v "$arch-linux-gnu-$tool")" "$tools/$tool"
    done
    # Reports each test as failed, since none can run. Some wait for what does not come.
    run_test "$2" env HODO_TEST_BUILDS=1 PATH="$tools:$PATH" timeout 300 "qemu-$arch" -L "/usr/$arch-linux-gnu" -- "${@:3}" \
        >/dev/null 2>&1 || true
}

# Runs whole-program tests in the machine that was started for an architecture: its name, Rust's name of the target, and
# lines as in `whole_programs`.
whole() {
    local arch="$1" triple="$2" test names=() line words
    shift 2
    for line in "$@"; do
        read -ra words <<<"$line"
        test="hodo-tests/${words[0]}"
        names=("${words[@]:2}")
        names=("${names[@]/#/${words[1]}::}")
        if [ ${#names[@]} = 0 ]; then names=("${words[1]}::"); else names+=(--exact); fi
        tell_skipped "$arch, in a real Linux" "$triple"
        build_programs "$arch" "$test" "${names[@]}"
        rm -f "$target/$triple/tmp/skipped.txt"
        tests "$arch, in a real Linux: whole programs, $line" "$test" \
            -- env HODO_BIN="$target/$triple/debug/hodo" HODO_VM_TIMEOUT=1800 HODO_TEST_TIMEOUT=400 \
            "$PWD/scripts/linux.sh" "$arch" run -- "${names[@]}"
    done
}

# Runs one whole-program test in the machine, and says how it ended: the file, the test, what is special about the run,
# and the words of a command in front of it. `wide` has the other variables.
wide_test() {
    local file="$1" name="$2" special="$3" begun=$SECONDS skipped="$target/$triple/tmp/skipped.txt" how=pass why= log
    shift 3
    log="$results/$file-${name//::/-}${special:+-${special// /-}}.txt"
    rm -f "$skipped"
    run_test "hodo-tests/$file" env HODO_BIN="$target/$triple/debug/hodo" HODO_VM_TIMEOUT="${limit:-600}" HODO_TEST_TIMEOUT=400 \
        "$PWD/scripts/linux.sh" "$arch" run "$@" -- --exact "$name" ${ignored:+--ignored} >"$log" 2>&1 || how=FAIL
    case "$how" in
    FAIL) why="see $log" ;;
    *)
        if grep -q ' 1 ignored' "$log"; then
            how=skip why="it takes long"
        elif [ -s "$skipped" ]; then
            how=skip why="$(sed 's/^[^ ]*: //' "$skipped" | sort -u | paste -sd ';')"
        fi
        ;;
    esac
    ends+=("$how")
    printf '%s %5d s  %s %s%s%s\n' "$how" $((SECONDS - begun)) "$file" "$name" "${special:+ ($special)}" "${why:+: $why}"
    [ "$how" != FAIL ] || failed+=("$file $name${special:+ ($special)}")
}

# Runs all whole-program tests in the machine for an architecture, not only those of `whole_programs`. Arguments: as for
# `run`, and words.
wide() {
    local arch="$1" triple="$2-unknown-linux-gnu" results="$target/wide-$1" file name ends=() ignored= limit= length why
    prepare "$1" "$2" "$3" || return 0
    shift 3
    why="$(scripts/linux.sh "$arch" missing)"
    [ -z "$why" ] || { not_run "$arch" "in a real Linux: $why"; return 0; }
    local -n all="$arch"
    local files=()
    # Those of the engine are for x86-64. The others read the source tree, or start a machine themselves.
    for file in crates/hodo-tests/tests/*; do
        file="$(basename "$file" .rs)"
        case "$file" in engine | riscv64 | tree) ;; *) files+=("$file") ;; esac
    done
    # shellcheck disable=SC2046 # one word for each
    group "$arch, build" build_all "$triple" "${all[@]}" $(named hodo-tests "${files[@]}")
    [ ${#failed[@]} = 0 ] || return 0
    mkdir -p "$results"
    trap 'scripts/linux.sh "$arch" stop' EXIT
    HODO_VM_SMP=1 scripts/linux.sh "$arch" start || { failed+=("$arch, in a real Linux: it does not start"); return 0; }
    for file in "${files[@]}"; do
        while read -r name; do
            is_wanted "$file $name" "$@" || continue
            build_programs "$arch" "hodo-tests/$file" --exact "$name" </dev/null
            wide_test "$file" "$name" "" </dev/null
        done < <(run_test "hodo-tests/$file" "qemu-$arch" -L "/usr/$arch-linux-gnu" -- --list | sed -n 's/: test$//p')
    done
    # shellcheck disable=SC2016 # the other shell expands it
    local with_length='echo "$0" >/proc/sys/abi/sve_default_vector_length && exec "$@"'
    for name in registers::every_register_is_kept_at_entry_and_exit \
        registers::vector_registers_in_use_at_entries_on_new_stacks; do
        for length in 16 32 64 256; do
            [ "$arch" = aarch64 ] && is_wanted "record $name" "$@" || continue
            wide_test record "$name" "vectors of $length bytes" bash -c "$with_length" "$length"
        done
    done
    ignored=yes limit=$((600 + 10 * ${HODO_ROUNDS:-1000}))
    name=running::a_thousand_rounds_leave_nothing
    ! is_wanted "attach $name" "$@" || wide_test attach "$name" "${HODO_ROUNDS:-1000} rounds"
    scripts/linux.sh "$arch" stop
    trap - EXIT
    printf '%s\n' "${ends[@]}" | sort | uniq -c
}

# Whether a name has one of these words, if there are any.
is_wanted() {
    local word
    [ $# -gt 1 ] || return 0
    for word in "${@:2}"; do
        case "$1" in *"$word"*) return 0 ;; esac
    done
    return 1
}

# All that runs for AArch64, and for RISC-V, also in the machine. One build makes all of it.
# shellcheck disable=SC2034 # used by these names
aarch64=("${static_keys[@]}" "${function_tracing[@]}" "${aarch64_instructions[@]}" "${aarch64_agent[@]}" "${stubs[@]}"
    "${aarch64_stopped_threads[@]}" "${aarch64_probes[@]}" hodo-probe-capi/c "${whole_tests[@]}")
riscv64=("${static_keys[@]}" "${spans[@]}" "${function_tracing[@]}" "${instructions[@]}" hodo-agent/riscv64_syscalls
    "${plans[@]}" "${stubs[@]}" "${probes[@]}" hodo-dbi/riscv64_translated hodo-probe-capi/c "${other_crates[@]}" "${stopped_threads[@]}"
    "${whole_tests[@]}")

only="${1:-}"
shift || true
case "$only" in "" | riscv64 | aarch64 | machine | install | wide) ;; *) echo "riscv64, aarch64, machine, install or wide, not $only" >&2; exit 2 ;; esac
if [ "$only" = install ]; then
    prepare riscv64 riscv64gc libc6-dev-riscv64-cross || true
    prepare aarch64 aarch64 libc6-dev-arm64-cross || true
    exit
fi
if [ "$only" = wide ]; then
    case "${1:-}" in
    riscv64) wide riscv64 riscv64gc libc6-dev-riscv64-cross "${@:2}" ;;
    aarch64) wide aarch64 aarch64 libc6-dev-arm64-cross "${@:2}" ;;
    *) echo "wide: riscv64 or aarch64, not '${1:-}'" >&2; exit 2 ;;
    esac
fi
# Why there is no machine for RISC-V, if so.
no_linux=
case "$only" in "" | riscv64 | machine) no_linux="$(scripts/linux.sh riscv64 missing)" ;; esac
case "$only" in "" | riscv64) run riscv64 riscv64gc libc6-dev-riscv64-cross "$@" ;; esac
case "$only" in "" | riscv64 | machine) machine "$@" ;; esac
case "$only" in "" | aarch64) run aarch64 aarch64 libc6-dev-arm64-cross "$@" ;; esac
if [ ${#unsteady[@]} -gt 0 ]; then
    echo "passed at the second attempt:"
    printf '  %s\n' "${unsteady[@]}"
fi
if [ ${#failed[@]} -gt 0 ]; then
    [ "$only" = wide ] && echo "failed:" || echo "failed twice:"
    printf '  %s\n' "${failed[@]}"
    exit 1
fi
