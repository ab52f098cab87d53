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
rm -f "$results/generate.json"
while read -r bench; do
  say "bench: ${bench##*/}"
  "$bench" --benchmark_repetitions=7 --benchmark_report_aggregates_only=true \
    --benchmark_out_format=json --benchmark_out="$results/${bench##*/}.json"
done < <(find build/bench -type f -executable -name 'slackwater_*_bench' | sort)

SLACKWATER_COMMIT=$(git rev-parse --short HEAD)
export SLACKWATER_COMMIT

# The control plane of the cache, on the workloads that other engines were measured on.
rm -f "$results/cache_workloads.json"
for block in 16 32; do
  build/bench/bench/slackwater_cache_workloads --tokens-per-block "$block" |
    tee -a "$results/cache_workloads.json"
done
for pages in 10000 1000000; do
  for workload in grant evict; do
    build/bench/bench/slackwater_cache_workloads --only "$workload" --pages "$pages" |
      tee -a "$results/cache_workloads.json"
  done
done

# One-token generation beside its ceiling: the demo model lives in the cache, a checkpoint of
# 400 MB with random weights in memory.
large=build/bench/models/400mb
[[ -e $large/config.json ]] ||
  python3 tools/make_checkpoint.py --preset 400mb --seed 1 --out "$large"
for threads in 1 2; do
  build/bench/slackwater bench generate --threads "$threads" --prompt-tokens 256 --max-tokens 128 \
    --json | tee -a "$results/generate.json"
  build/bench/slackwater bench generate --threads "$threads" --prompt-tokens 32 --max-tokens 32 \
    --model "$large" --json | tee -a "$results/generate.json"
done
