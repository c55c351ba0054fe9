#!/usr/bin/env bash
# What probes in one's own process cost: the engine of hodo-probe, used by a program of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --release --package hodo-probe --example engine-speed
