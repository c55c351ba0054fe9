#!/usr/bin/env bash
# Branches on static keys, beside nothing at all, an AtomicBool, the crate static-keys and a callsite of tracing, in one run
# on this machine; then what switching costs. Prints ratios; asserts nothing.
#
#   benches/keys.sh [ROUNDS]      ROUNDS interleaved rounds of each (21)
set -euo pipefail
cd "$(dirname "$0")/keys"

# Loops are not unrolled, or those without a branch would be other loops; and all begin at a line of cache.
export RUSTFLAGS="-C no-vectorize-loops -C no-vectorize-slp -C llvm-args=-unroll-runtime=false -C llvm-args=-align-loops=64"
exec cargo run --release --quiet --target-dir "${CARGO_TARGET_DIR:-../../target}/bench-keys" -- "$@"
