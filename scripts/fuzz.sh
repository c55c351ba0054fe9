#!/usr/bin/env bash
# Runs the fuzz targets. This needs neither a nightly compiler nor cargo-fuzz, because the stable compiler has the
# options for the coverage that guides libFuzzer.
#
#   scripts/fuzz.sh [SECONDS [TARGET…]]      SECONDS for each target (60); default: all targets
#   scripts/fuzz.sh --fixed                  a fixed seed and number of inputs: the same inputs each time (for CI)
#
# Findings are in fuzz/artifacts/TARGET/; `target/fuzz/…/TARGET FILE` repeats one. The corpus is in target/fuzz-corpus/.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
fixed=
if [ "${1:-}" = --fixed ]; then
    fixed=1
    shift
    seconds=60
else
    seconds="${1:-60}"
    shift || true
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in fuzz_targets/*.rs; do
        name="${file##*/}"
        targets+=("${name%.rs}")
    done
fi
target_dir="${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}"
triple="$(rustc -vV | sed -n 's/^host: //p')"

export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing"
# With a target triple, the flags do not apply to build scripts.
cargo build --quiet --release --target "$triple" --target-dir "$target_dir/fuzz"

for target in "${targets[@]}"; do
    corpus="$target_dir/fuzz-corpus/$target"
    runs=(-max_total_time="$seconds")
    if [ -n "$fixed" ]; then
        corpus="$target_dir/fuzz-corpus-fixed/$target"
        rm -rf "$corpus"
        case "$target" in
            plan* | probes* | assembler_riscv64 | memory_trace) runs+=(-seed=1 -runs=2000) ;;
            *) runs+=(-seed=1 -runs=30000) ;;
        esac
    fi
    mkdir -p "$corpus" "artifacts/$target"
    # Start with real files.
    case "$target" in
        definition*) grep '^  ' ../crates/hodo-probe-syntax/tests/good.txt | split -l 1 -a 3 - "$corpus/good-" ;;
        plan* | probes*)
            find /bin/true /bin/echo -size -100k -exec cp -n {} "$corpus/" \;
            if command -v riscv64-linux-gnu-gcc >/dev/null; then
                echo 'int main(void) { return 0; }' | riscv64-linux-gnu-gcc -O2 -xc - -o "$corpus/riscv64"
            fi
            ;;
    esac
    echo "fuzz $target (${runs[*]})"
    TMPDIR="${TMPDIR:-/dev/shm}" "$target_dir/fuzz/$triple/release/$target" "$corpus" "${runs[@]}" -timeout=20 -rss_limit_mb=4096 \
        -max_len=200000 -print_final_stats=1 -verbosity=0 -artifact_prefix="artifacts/$target/" 2>"$target_dir/fuzz-$target.log" ||
        { tail -50 "$target_dir/fuzz-$target.log" >&2; exit 1; }
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec|new_units_added)' "$target_dir/fuzz-$target.log"
done
