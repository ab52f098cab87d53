#!/usr/bin/env bash
# Runs the benchmarks at full size and leaves their figures in build/bench/results.
#
# The folder is not build/release: that one is configured without benchmarks, and changing its
# configuration back and forth would rebuild it each time.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$root"
BUILD_DIR=$root/build/bench CONFIGURE_ARGS=-DSLACKWATER_BENCHMARKS=ON scripts/build.sh release
results=build/bench/results
mkdir -p "$results"
while read -r bench; do
  say "bench: ${bench##*/}"
  "$bench" --benchmark_repetitions=7 --benchmark_report_aggregates_only=true \
    --benchmark_out_format=json --benchmark_out="$results/${bench##*/}.json"
done < <(find build/bench -type f -executable -name 'slackwater_*_bench' | sort)
build/bench/slackwater bench generate --json | tee "$results/generate.json"
