#!/usr/bin/env bash
# Compares branches on static keys with no branch, an AtomicBool, the crate static-keys and a callsite of tracing, in
# one run on this machine. Then measures the cost of switching. Prints ratios; asserts nothing.
#
#   benches/keys.sh [ROUNDS]      ROUNDS interleaved rounds of each (21)
set -euo pipefail
cd "$(dirname "$0")/keys"

# Loops are not unrolled, so that those without a branch are the same loops. All begin at a cache line.
export RUSTFLAGS="-C no-vectorize-loops -C no-vectorize-slp -C llvm-args=-unroll-runtime=false -C llvm-args=-align-loops=64"
exec cargo run --release --quiet --target-dir "${CARGO_TARGET_DIR:-../../target}/bench-keys" -- "$@"
