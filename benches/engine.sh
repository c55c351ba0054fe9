#!/usr/bin/env bash
# The cost of probes in one's own process, with a program that uses hodo-probe's engine.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --release --package hodo-probe --example engine-speed
