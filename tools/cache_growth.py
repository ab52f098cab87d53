#!/usr/bin/env python3
"""Does what the cache does cost more when it holds more? Counts instructions, by valgrind.

    tools/cache_growth.py                 pools of 10^4, 10^5 and 10^6 pages
    tools/cache_growth.py --pages N ...   other sizes

Runs workloads of build/bench/bench/slackwater_cache_workloads (scripts/bench.sh builds it) twice:
under callgrind, which counts only what runs inside timed(), and by the clock. Prints, per
workload, the instructions and nanoseconds of one operation for each size, and by what factor the
instructions grow from the smallest to the largest. Exit status 1 where that is more than 1.1.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "build" / "bench" / "bench" / "slackwater_cache_workloads"
WORKLOADS = ["grant", "grant1", "commit", "cycle", "get", "evict", "suspend"]
REPETITIONS = "2"
LIMIT = 1.1


def figures(command):
    """The JSON lines of one run, and the instructions counted where it ran under callgrind."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    counted = re.search(r"Collected : (\d+)", done.stderr)
    return lines, int(counted.group(1)) if counted else 0


def num_operations(lines):
    """What timed() ran: a sample of a step is one operation per running sequence, a pair of get
    and free is one of each."""
    return sum(line["samples"] * line.get("running", 1) * line.get("per_sample", 1)
               for line in lines)


def measure(workload, pages):
    """(instructions of an operation, nanoseconds of the first figure)."""
    bench = [str(BENCH), "--only", workload, "--pages", str(pages), "--repetitions"]
    counted, instructions = figures(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         "--toggle-collect=*timed*"] + bench + [REPETITIONS])
    by_clock, _ = figures(bench + ["7"])
    return instructions / num_operations(counted), by_clock[0]["median_ns"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None or not BENCH.exists():
        sys.exit(f"needs valgrind and {BENCH.relative_to(ROOT)}; run scripts/bench.sh first")
    sizes = "".join(f"{pages:>22,}" for pages in arguments.pages)
    print(f"{'instructions / ns':20}{sizes}  growth")
    worst = 0.0
    for workload in WORKLOADS:
        row = []
        print(f"{workload:20}", end="", flush=True)
        for pages in arguments.pages:
            row.append(measure(workload, pages))
            print(f"{f'{row[-1][0]:,.0f} / {row[-1][1]:,.0f}':>22}", end="", flush=True)
        growth = row[-1][0] / row[0][0]
        worst = max(worst, growth)
        print(f"  {growth:.3f}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
