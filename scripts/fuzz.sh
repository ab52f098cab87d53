#!/usr/bin/env bash
# Builds the fuzzers and runs each for FUZZ_SECONDS. Inputs that found new paths stay in
# build/fuzz/corpus, inputs that broke something in build/fuzz/crashes.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$root"
scripts/build.sh fuzz
fuzzers=$(find build/fuzz -type f -executable -name '*_fuzz*' | sort)
[[ -n $fuzzers ]] || die "fuzz: no fuzzer was built"
crashes=build/fuzz/crashes
mkdir -p "$crashes"
status=0
for fuzzer in $fuzzers; do
  name=${fuzzer##*/}
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  say "fuzz: $name for ${FUZZ_SECONDS:-60} s"
  if ! "$fuzzer" "$corpus" -max_total_time="${FUZZ_SECONDS:-60}" -print_final_stats=1 \
      -artifact_prefix="$crashes/$name-" >"$logs/$name.log" 2>&1; then
    tail -n 40 "$logs/$name.log" >&2
    say "fuzz: $name failed; the input is in $crashes"
    status=1
  else
    sed -n 's/^stat::number_of_executed_units: */fuzz: inputs tried: /p' "$logs/$name.log" >&2
  fi
done
exit "$status"
