#!/usr/bin/env bash
# The gate: every check a change has to pass, by hand and in CI. Needs no network.
#
#   scripts/gate.sh            all stages, in order
#   scripts/gate.sh tidy dev   these stages only
#
# A stage is quiet while it passes; its output is build/logs/STAGE.log, and the end of it is shown
# when it fails. The gate stops at the first failure; KEEP_GOING=1 makes it run everything.
# The last line counts the tests of all ctest runs together: `gate: N passed, N failed`.
set -euo pipefail
source "$(dirname "$0")/common.sh"

all_stages=(format tidy relassert dev tsan clang release install)

export PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}

# What the stages do. Each runs in a process of its own, where `set -e` holds: bash switches it off
# inside a function that is called from a condition.

stage_format() {
  local files file
  files=$(list_sources)
  [[ -n $files ]] || die "format: no C++ file found"
  xargs clang-format-14 --dry-run -Werror <<<"$files" || {
    while read -r file; do
      clang-format-14 --dry-run -Werror "$file" 2>/dev/null || say "format: $file"
    done <<<"$files"
    die "format: \`make format\` rewrites these"
  }
  wc -l <<<"$files" | sed 's/$/ files are formatted/'
}

stage_tidy() {
  python3 tools/tidy.py
  python3 tools/tidy_test.py
  python3 tools/mutants_test.py
}

# run_ctest PRESET [ARGUMENT...]: leaves its counts where the summary finds them.
run_ctest() {
  local preset=$1
  shift
  [[ ${KEEP_GOING:-0} == 1 ]] || set -- "$@" --stop-on-failure
  ctest --test-dir "build/$preset" -j "$jobs" --no-tests=error --output-on-failure \
    --output-junit "$logs/ctest-$preset.xml" "$@"
}

stage_relassert() {
  scripts/build.sh relassert
  run_ctest relassert
}

stage_dev() {
  scripts/build.sh dev
  run_ctest dev -L '^(fast|threads)$'
}

# Prints the build targets of the tests that carry a label; nothing where a test is no target.
targets_of_label() {
  local folder=$root/build/$1 paths
  paths=$(ctest --test-dir "$folder" -L "^$2\$" -N -V |
    sed -n -e 's/^Could not find executable //p' -e 's/^[0-9]*: Test command: \([^ "]\+\).*/\1/p' |
    sort -u)
  [[ -n $paths ]] || die "$1: no test has the label $2"
  if grep -qv "^$folder/" <<<"$paths"; then return; fi
  # shellcheck disable=SC2001  # one replacement a line
  sed "s|^$folder/||" <<<"$paths"
}

stage_tsan() {
  scripts/build.sh --configure-only tsan
  local targets
  targets=$(targets_of_label tsan threads)
  # shellcheck disable=SC2086  # a list of targets
  scripts/build.sh tsan $targets
  # ThreadSanitizer maps fixed address ranges, which full address randomisation can occupy.
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    ctest() { setarch "$(uname -m)" -R "$(type -P ctest)" "$@"; }
  fi
  run_ctest tsan -L '^threads$'
}

stage_clang() {
  scripts/build.sh clang
}

stage_release() {
  scripts/build.sh release
  run_ctest release -LE '^(slow|sim|client|gpu)$'
  smoke
}

# The program as a user has it, on the demo model.
smoke() {
  local program=build/release/slackwater bench count=0
  [[ -x $program ]] || die "smoke: $program is missing"
  local answer=("$program" generate --prompt "harbour (noun):" --max-tokens 8 --seed 7
    --temperature 0.8 --json)
  { "${answer[@]}" && "${answer[@]}" --target reference --threads 1 --chunk 3; } | python3 -c '
import json, sys
answers = [json.loads(line) for line in sys.stdin]
assert len(answers) == 2, answers
first, second = answers
assert 1 <= len(first["tokens"]) <= 8 and first["text"], first
assert first["tokens"] == second["tokens"], "targets, threads or chunks changed the tokens"
print("smoke: generate wrote", repr(first["text"]))'
  "$program" bench generate --prompt-tokens 8 --max-tokens 4 --repeat 1 --json |
    python3 -c 'import json, sys; print("smoke: bench printed", sorted(json.load(sys.stdin)))'
  while read -r bench; do
    case $bench in
      *_workloads) "$bench" --smoke >/dev/null ;;
      *) "$bench" --benchmark_min_time=0.001 >/dev/null ;;
    esac
    count=$((count + 1))
  done < <(find build/relassert -type f -executable \
    \( -name 'slackwater_*_bench' -o -name 'slackwater_*_workloads' \) 2>/dev/null)
  printf 'smoke: %d benchmark binaries ran\n' "$count"
}

# The library from outside: install, find_package, compile every header alone, run.
stage_install() {
  local work=build/install-test
  rm -rf "$work"
  scripts/build.sh release
  cmake --install build/release --prefix "$work/prefix"
  # From another folder, so that the model is the installed one.
  (cd "$work" && prefix/bin/slackwater generate --prompt "harbour (noun):" --max-tokens 1)
  cmake -S tests/install/consumer -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER=g++-12 -DCMAKE_PREFIX_PATH="$root/$work/prefix" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)"
  cmake --build "$work/build" -j "$jobs"
  ctest --test-dir "$work/build" --no-tests=error --output-on-failure \
    --output-junit "$logs/ctest-install.xml"
}

# How they are run and reported.

declare -A result_of seconds_of

run_stage() {
  local stage=$1 log=$logs/$1.log start=$EPOCHREALTIME status=ok
  printf 'gate: %-10s ' "$stage"
  bash "$0" --stage "$stage" >"$log" 2>&1 </dev/null || status=FAILED
  seconds_of[$stage]=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  result_of[$stage]=$status
  printf '%s %s s\n' "$status" "${seconds_of[$stage]}"
  [[ $status == ok ]] && return
  printf -- '---- the end of build/logs/%s.log ----\n' "$stage"
  tail -n 80 "$log"
  printf -- '----\n'
  return 1
}

print_table() {
  local stage
  printf '\n%-10s %-8s %8s\n' stage result seconds
  for stage in "$@"; do
    printf '%-10s %-8s %8s\n' "$stage" "${result_of[$stage]:-not run}" "${seconds_of[$stage]:--}"
  done
}

# Adds up the JUnit files of the given stages, and prints `PASSED FAILED SKIPPED`.
count_tests() {
  local stage files=()
  for stage in "$@"; do
    [[ ! -e $logs/ctest-$stage.xml ]] || files+=("$logs/ctest-$stage.xml")
  done
  python3 - ${files[@]+"${files[@]}"} <<'PYTHON'
import sys
import xml.etree.ElementTree

total = failed = skipped = 0
for path in sys.argv[1:]:
    suite = xml.etree.ElementTree.parse(path).getroot().attrib
    total += int(suite["tests"])
    failed += int(suite["failures"])
    skipped += int(suite["skipped"]) + int(suite["disabled"])
print(total - failed - skipped, failed, skipped)
PYTHON
}

main() {
  local stages=("$@") stage failed_stages=0 passed failed skipped start=$SECONDS
  ((${#stages[@]})) || stages=("${all_stages[@]}")
  mkdir -p "$logs"
  for stage in "${stages[@]}"; do
    declare -F "stage_$stage" >/dev/null ||
      die "gate: no stage '$stage'; stages: ${all_stages[*]}"
    # Counts of an earlier run must not be taken for this one's.
    rm -f "$logs/ctest-$stage.xml"
  done
  for stage in "${stages[@]}"; do
    run_stage "$stage" && continue
    failed_stages=$((failed_stages + 1))
    [[ ${KEEP_GOING:-0} == 1 ]] || break
  done
  print_table "${stages[@]}"
  read -r passed failed skipped <<<"$(count_tests "${stages[@]}")"
  printf 'total %d s\n' $((SECONDS - start))
  # A stage that failed before or beside its tests counts as one failure.
  if ((failed < failed_stages)); then failed=$failed_stages; fi
  if ((passed + failed == 0)) && [[ " ${stages[*]} " == *" relassert "* ]]; then
    printf 'gate: no test ran\n'
    failed=1
  fi
  printf 'gate: %d passed, %d failed' "$passed" "$failed"
  if ((skipped)); then printf ', %d skipped' "$skipped"; fi
  printf '\n'
  ((failed == 0))
}

cd "$root"
if [[ ${1:-} == --stage ]]; then
  "stage_$2"
else
  main "$@"
fi
