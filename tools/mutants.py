#!/usr/bin/env python3
"""Do the suites notice planted faults? Runs them against every SLACKWATER_MUTANT of the source.

    tools/mutants.py                builds the preset `mutants` and tries every mutant
    tools/mutants.py --only NAME    tries one (may be repeated)
    tools/mutants.py --tests FILTER lets only the tests of that googletest filter judge
    tools/mutants.py --list         prints the mutants and where they are planted

First all suites run without a mutant and must pass. Then, for each mutant, they run until one
fails: fast suites before slow ones, and those of the mutant's own room before others. A crash and
a hang count as noticed, like a failed test. Exit status: 0 all found, 1 a mutant survived, 2 the
suites are red or nothing could be run.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "mutants"
PLANTED = re.compile(r"\bSLACKWATER_MUTANT\(\s*(\w+)\s*\)")
LABEL_ORDER = ["fast", "threads", "sim", "slow"]
# Nothing a machine lacks can be judged: no GPU, no client.
LABELS_LEFT_OUT = {"gpu", "client"}
# A suite hangs when it takes this many times what it takes without a mutant, and this long.
HANG_FACTOR, HANG_SECONDS = 10, 60


@dataclass(frozen=True)
class Suite:
    """One ctest entry: a command that passes or fails."""

    name: str
    command: tuple
    labels: frozenset
    folder: str
    environment: tuple = ()

    @property
    def rank(self):
        return min((LABEL_ORDER.index(label) for label in self.labels if label in LABEL_ORDER),
                   default=len(LABEL_ORDER))

    @property
    def is_googletest(self):
        return any(argument.startswith("--gtest_") for argument in self.command)


@dataclass(frozen=True)
class Outcome:
    """What one run of one suite showed."""

    passed: bool
    hung: bool
    seconds: float
    tests_run: int  # tests that were started, the failing one included
    found_by: str  # the test that failed, or the suite where that is not known
    operations: int | None  # of `after N operations` in the failing output


def find_mutants(root):
    """Maps each name to the places where it is planted, in order of name."""
    places = collections.defaultdict(list)
    for folder in ("src", "include"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cc") or path.name == "mutant.h":
                continue
            for number, line in enumerate(path.read_text().split("\n"), 1):
                for name in PLANTED.findall(line.split("//")[0]):
                    places[name].append(f"{path.relative_to(root)}:{number}")
    return dict(sorted(places.items()))


def parse_suites(listing):
    """Suites of a `ctest --show-only=json-v1` listing, fast ones first."""
    suites = []
    for test in json.loads(listing)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        labels = frozenset(properties.get("LABELS", []))
        if properties.get("DISABLED") or labels & LABELS_LEFT_OUT:
            continue
        if "command" not in test:
            raise ValueError(f"the program of test {test['name']} was not built")
        suites.append(Suite(test["name"], tuple(test["command"]), labels,
                            properties.get("WORKING_DIRECTORY", "."),
                            tuple(properties.get("ENVIRONMENT", []))))
    return sorted(suites, key=lambda suite: (suite.rank, suite.name))


def restrict(suites, test_filter):
    """One suite per googletest program, which runs the tests of `test_filter` only."""
    programs = {suite.command[0]: suite for suite in suites if suite.is_googletest}
    return [dataclasses.replace(suite, name=suite.name.split(".")[0],
                                command=suite.command + (f"--gtest_filter={test_filter}",))
            for suite in programs.values()]


def order_for(suites, places):
    """Fast before slow as before; within a label, the rooms of the mutant first."""
    rooms = {place.split("/")[2 if place.startswith("include/") else 1] for place in places}
    return sorted(suites, key=lambda suite: (
        suite.rank, suite.name.split(".")[0] not in rooms, suite.name))


def parse_output(suite_name, output):
    """Returns (tests started, the test that failed, operations) of a failing run's output."""
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)(?:, where .*)? \(\d+ ms\)", output, re.M)
    # Without a verdict the process ended within the test that started last.
    found_by = failed[0] if failed else started[-1] if started else suite_name
    count = started.index(found_by) + 1 if found_by in started else max(len(started), 1)
    operations = re.search(r"\bafter (\d+) operations?\b", output)
    return count, found_by, int(operations.group(1)) if operations else None


def run_suite(suite, mutant, limit):
    """Runs one suite with a mutant chosen, or with none."""
    command = list(suite.command)
    if suite.is_googletest:
        command += ["--gtest_brief=0", "--gtest_fail_fast", "--gtest_color=no"]
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in suite.environment))
    environment.pop("SLACKWATER_MUTANT", None)
    if mutant:
        environment["SLACKWATER_MUTANT"] = mutant
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=suite.folder, env=environment, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        hung = False
    except subprocess.TimeoutExpired:
        # The whole group: a suite may have started processes of its own.
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        hung = True
    passed = process.returncode == 0 and not hung
    count, found_by, operations = parse_output(suite.name, output)
    if passed:
        count = len(re.findall(r"^\[ RUN      \] ", output, re.M)) or 1
    return Outcome(passed, hung, time.monotonic() - start, count, found_by, operations), output


def hang_limit(clean_seconds, jobs):
    return max(HANG_SECONDS, HANG_FACTOR * clean_seconds) * max(1, jobs)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    mutant: str
    found_by: str  # empty: survived
    tests_run: int
    operations: int | None
    seconds: float


def try_mutant(mutant, suites, clean_seconds, jobs):
    """Runs the suites until one notices the mutant."""
    tests_run, seconds = 0, 0.0
    for suite in suites:
        limit = hang_limit(clean_seconds[suite.name], jobs)
        outcome, _ = run_suite(suite, mutant, limit)
        tests_run += outcome.tests_run
        seconds += outcome.seconds
        if not outcome.passed:
            found_by = outcome.found_by + (" (hang)" if outcome.hung else "")
            return Verdict(mutant, found_by, tests_run, outcome.operations, seconds)
    return Verdict(mutant, "", tests_run, None, seconds)


def format_table(verdicts):
    """The verdicts as aligned text, survivors marked."""
    rows = [("mutant", "found by", "tests", "operations", "seconds")]
    for verdict in verdicts:
        operations = "-" if verdict.operations is None else str(verdict.operations)
        rows.append((verdict.mutant, verdict.found_by or "SURVIVED", str(verdict.tests_run),
                     operations, f"{verdict.seconds:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join((cell.ljust if column < 2 else cell.rjust)(widths[column])
                  for column, cell in enumerate(row)).rstrip() for row in rows)


def build():
    subprocess.run([ROOT / "scripts" / "build.sh", "mutants"], check=True)


def list_suites():
    listing = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], check=True,
                             capture_output=True, text=True)
    return parse_suites(listing.stdout)


def run_clean(suites):
    """Seconds of each suite without a mutant, or None when one fails."""
    seconds = {}
    for suite in suites:
        outcome, output = run_suite(suite, None, 1800)
        if not outcome.passed:
            print("\n".join(output.split("\n")[-40:]))
            print(f"mutants: {suite.name} fails without a mutant ({outcome.found_by})")
            return None
        seconds[suite.name] = outcome.seconds
        print(f"mutants: {suite.name} passes in {outcome.seconds:.1f} s", flush=True)
    return seconds


def select(mutants, only):
    """The chosen mutants, or a SystemExit that names what is unknown."""
    unknown = sorted(set(only or ()) - set(mutants))
    if unknown:
        print(f"mutants: not planted anywhere: {', '.join(unknown)}")
        raise SystemExit(2)
    return {name: places for name, places in mutants.items() if not only or name in only}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this one")
    parser.add_argument("--tests", metavar="FILTER", help="only these tests judge")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants tried at a time")
    return parser.parse_args()


def main():
    options = parse_arguments()
    mutants = select(find_mutants(ROOT), options.only)
    if options.list:
        for name, places in mutants.items():
            print(f"{name}  {' '.join(places)}")
        return 0
    if not mutants:
        print("mutants: none is planted")
        return 2
    build()
    suites = list_suites()
    if options.tests:
        suites = restrict(suites, options.tests)
    if not suites:
        print("mutants: there are no suites")
        return 2
    clean_seconds = run_clean(suites)
    if clean_seconds is None:
        return 2
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(pool.map(
            lambda name: try_mutant(name, order_for(suites, mutants[name]), clean_seconds,
                                    options.jobs), mutants))
    print(format_table(verdicts))
    survivors = [verdict.mutant for verdict in verdicts if not verdict.found_by]
    print(f"mutants: {len(verdicts) - len(survivors)} found, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
