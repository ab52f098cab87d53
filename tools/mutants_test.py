#!/usr/bin/env python3
"""Tests of tools/mutants.py: what it reads, how it judges, what it prints."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutants  # noqa: E402  needs the line above

FAILED_RUN = """\
Running main() from gtest_main.cc
[==========] Running 3 tests from 1 test suite.
[ RUN      ] Slots.Allocate
[       OK ] Slots.Allocate (0 ms)
[ RUN      ] Slots.Model/1
seed 12
slots_fuzz.cc:40: Failure
free slots differ after 1742 operations
[  FAILED  ] Slots.Model/1, where GetParam() = 4 (3 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Slots.Model/1, where GetParam() = 4
"""

ABORTED_RUN = """\
[ RUN      ] Slots.Allocate
[       OK ] Slots.Allocate (0 ms)
[ RUN      ] Slots.Release
slots.cc:12: CHECK(slot < num_slots) failed: slot 5 of 4
"""


def suite(name, command, labels=("fast",), environment=()):
    return mutants.Suite(name, tuple(command), frozenset(labels), ".", tuple(environment))


def shell(script, name="storage.fast"):
    return suite(name, ("sh", "-c", script))


class ParseTest(unittest.TestCase):
    def test_a_failed_test_is_named_and_counted(self):
        self.assertEqual(mutants.parse_output("storage.fast", FAILED_RUN),
                         (2, "Slots.Model/1", 1742))

    def test_an_abort_is_charged_to_the_test_that_was_running(self):
        self.assertEqual(mutants.parse_output("storage.fast", ABORTED_RUN),
                         (2, "Slots.Release", None))

    def test_a_program_without_tests_is_named_by_its_suite(self):
        self.assertEqual(mutants.parse_output("cli.smoke", "wrong\n"), (1, "cli.smoke", None))

    def test_a_listing_becomes_suites_fast_ones_first(self):
        def entry(name, **properties):
            return {"name": name, "command": ["/bin/true", "--gtest_filter=*"],
                    "properties": [{"name": key, "value": value}
                                   for key, value in properties.items()]}
        listing = json.dumps({"tests": [
            entry("a.slow", LABELS=["slow"]), entry("b.threads", LABELS=["threads"]),
            entry("c.fast", LABELS=["fast"], WORKING_DIRECTORY="/tmp", ENVIRONMENT=["A=1"]),
            entry("d.gpu", LABELS=["gpu"]), entry("e.off", DISABLED=True), entry("f.plain")]})
        suites = mutants.parse_suites(listing)
        self.assertEqual([s.name for s in suites], ["c.fast", "b.threads", "a.slow", "f.plain"])
        self.assertEqual((suites[0].folder, suites[0].environment), ("/tmp", ("A=1",)))
        self.assertTrue(suites[0].is_googletest)

    def test_a_test_that_was_not_built_is_an_error(self):
        with self.assertRaises(ValueError):
            mutants.parse_suites('{"tests": [{"name": "a.fast"}]}')

    def test_mutants_are_found_in_code_and_not_in_comments(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src/storage").mkdir(parents=True)
            (root / "include").mkdir()
            (root / "src/storage/a.cc").write_text(
                "// SLACKWATER_MUTANT(example)\n"
                "if (SLACKWATER_MUTANT(skip_save)) return;\n"
                "int n = SLACKWATER_MUTANT(off_by_one) ? 1 : SLACKWATER_MUTANT(skip_save);\n")
            self.assertEqual(mutants.find_mutants(root), {
                "off_by_one": ["src/storage/a.cc:3"],
                "skip_save": ["src/storage/a.cc:2", "src/storage/a.cc:3"]})

    def test_a_filter_keeps_one_suite_per_program_and_wins_over_its_own(self):
        suites = [suite("model.fast", ["model_test", "--gtest_filter=-*Slow.*"]),
                  suite("model.slow", ["model_test", "--gtest_filter=*Slow.*"], ["slow"]),
                  suite("cli.smoke", ["python3", "cli_test.py"])]
        self.assertEqual([(s.name, s.command[0], s.command[-1])
                          for s in mutants.restrict(suites, "Forward.*")],
                         [("model", "model_test", "--gtest_filter=Forward.*")])

    def test_the_own_room_comes_first_within_a_label(self):
        suites = [suite("base.fast", []), suite("storage.fast", []),
                  suite("storage.slow", [], ["slow"])]
        ordered = mutants.order_for(suites[::-1], ["src/storage/a.cc:3"])
        self.assertEqual([s.name for s in ordered], ["storage.fast", "base.fast", "storage.slow"])


class RunTest(unittest.TestCase):
    def test_a_mutant_that_is_noticed_names_the_test(self):
        noticing = shell('test -z "$SLACKWATER_MUTANT" || { printf "%s" "$0"; exit 1; }')
        noticing = suite(noticing.name, noticing.command + (FAILED_RUN,))
        verdict = mutants.try_mutant("skip_save", [shell("true", "base.fast"), noticing],
                                     {"base.fast": 0, "storage.fast": 0}, 1)
        self.assertEqual((verdict.found_by, verdict.tests_run, verdict.operations),
                         ("Slots.Model/1", 3, 1742))

    def test_a_mutant_that_nobody_notices_survives(self):
        verdict = mutants.try_mutant("skip_save", [shell("true")], {"storage.fast": 0}, 1)
        self.assertEqual((verdict.found_by, verdict.tests_run), ("", 1))

    def test_a_hang_is_noticed_and_its_children_end(self):
        outcome, _ = mutants.run_suite(shell("sleep 60 & sleep 60"), "skip_save", 0.2)
        self.assertTrue(outcome.hung)
        self.assertFalse(outcome.passed)
        self.assertLess(outcome.seconds, 30)

    def test_no_mutant_is_chosen_in_the_clean_run(self):
        outcome, output = mutants.run_suite(shell('echo "<$SLACKWATER_MUTANT>"'), None, 10)
        self.assertTrue(outcome.passed)
        self.assertEqual(output, "<>\n")

    def test_the_environment_of_a_suite_is_set(self):
        asked = suite("a.fast", ("sh", "-c", 'test "$A" = "1=2"'), environment=("A=1=2",))
        self.assertTrue(mutants.run_suite(asked, None, 10)[0].passed)

    def test_the_clean_run_stops_at_a_red_suite(self):
        self.assertIsNone(mutants.run_clean([shell("exit 3")]))
        self.assertEqual(set(mutants.run_clean([shell("true")])), {"storage.fast"})

    def test_the_hang_limit_grows_with_the_suite_and_the_load(self):
        self.assertEqual(mutants.hang_limit(0.1, 1), mutants.HANG_SECONDS)
        self.assertEqual(mutants.hang_limit(100, 2), 2 * 100 * mutants.HANG_FACTOR)


class ReportTest(unittest.TestCase):
    def test_the_table_marks_survivors(self):
        table = mutants.format_table([
            mutants.Verdict("skip_save", "Slots.Model", 12, 1742, 0.52),
            mutants.Verdict("late_write", "", 400, None, 31.0)])
        self.assertEqual(table.split("\n"), [
            "mutant      found by     tests  operations  seconds",
            "skip_save   Slots.Model     12        1742      0.5",
            "late_write  SURVIVED       400           -     31.0"])

    def test_an_unknown_name_is_refused(self):
        with self.assertRaises(SystemExit) as refusal:
            mutants.select({"skip_save": ["src/a.cc:1"]}, ["skip_safe"])
        self.assertEqual(refusal.exception.code, 2)
        self.assertEqual(mutants.select({"a": ["x"], "b": ["y"]}, ["b"]), {"b": ["y"]})


if __name__ == "__main__":
    # The judged functions report to a person; a test run needs only the verdict.
    unittest.main(buffer=True)
