#!/usr/bin/env bash
# `slackwater demo` with every drafter, both loops and five seeds each, and the totals of all runs.
#
#   scripts/demo_matrix.sh [OPTION...]      options of the program, such as --requests 12
#
# Fails where an answer differs from the solo loop's, where a run takes longer than LIMIT_S seconds
# (60), or where something that the set is to show did not happen in any of its runs. PROGRAM and
# SEEDS ("1 2 3 4 5") change what runs. Results: build/logs/demo-matrix.jsonl, a line per run.
set -euo pipefail
source "$(dirname "$0")/common.sh"

program=${PROGRAM:-$root/build/release/slackwater}
limit=${LIMIT_S:-60}
results=$logs/demo-matrix.jsonl
mkdir -p "$logs"
: >"$results"
failed=0
for drafter in none ngram mtp model; do
  for loop in plain overlap; do
    for seed in ${SEEDS:-1 2 3 4 5}; do
      run=(demo --json --requests 24 --drafter "$drafter" --loop "$loop" --seed "$seed" "$@")
      if ! timeout "$limit" "$program" "${run[@]}" >>"$results"; then
        say "failed: slackwater ${run[*]}"
        failed=1
      fi
    done
    say "$drafter, $loop: done"
  done
done
python3 - "$results" <<'PYTHON' || failed=1
import json
import sys

runs = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
names = ("requests", "tokens", "steps", "suspends", "suspends_in_flight", "resumes",
         "resumes_old_slot", "resumes_new_slot", "late_acceptances", "recomputes", "losses",
         "rebalances", "drafts_proposed", "drafts_accepted", "reused_tokens",
         "certificate_failures", "differences")
totals = {name: sum(run[name] for run in runs) for name in names}
totals["longest_s"] = round(max(run["seconds"] + run["solo_seconds"] for run in runs), 1)
print(f"{len(runs)} runs")
for name, total in totals.items():
    print(f"{name:22} {total:>12}")
shown = ("suspends", "resumes", "resumes_old_slot", "resumes_new_slot", "late_acceptances",
         "rebalances")
missing = [name for name in shown if totals[name] == 0]
if missing:
    print("never happened: " + ", ".join(missing))
sys.exit(bool(missing or totals["differences"] or totals["certificate_failures"]))
PYTHON
exit "$failed"
