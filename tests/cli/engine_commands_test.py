#!/usr/bin/env python3
"""The commands that run the engine, from outside: demo and run.

    engine_commands_test.py PROGRAM SOURCE_DIR
"""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cli_test
from cli_test import DEMO, PROGRAM, SOURCE, answer, run

SMALL = ("--requests", "6", "--max-tokens", "12", "--slots", "3", "--blocks", "12",
         "--suspend-every", "2", "--fault-every", "15")


def demo(*arguments, **options):
    return run("demo", *SMALL, *arguments, **options)


def figures(*arguments):
    done = demo("--json", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"", done.stderr
    return json.loads(done.stdout)


class OneLine(unittest.TestCase):
    """Whatever is refused is refused with one line."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def expect(self, done, code, *parts):
        error = done.stderr.decode()
        self.assertEqual(done.returncode, code, error)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("slackwater: "), error)
        for part in parts:
            self.assertIn(part, error)


class Demo(unittest.TestCase):
    def test_every_drafter_and_loop_gives_the_tokens_of_the_solo_loop(self):
        late = 0
        for drafter in ("none", "ngram", "mtp", "model"):
            for loop in ("plain", "overlap"):
                with self.subTest((drafter, loop)):
                    got = figures("--drafter", drafter, "--loop", loop)
                    self.assertEqual(got["differences"], 0)
                    self.assertEqual(got["certificate_failures"], 0)
                    self.assertEqual((got["drafter"], got["loop"]), (drafter, loop))
                    self.assertEqual(got["requests"], 6)
                    self.assertGreater(got["tokens"], 0)
                    self.assertGreater(got["suspends"], 0)
                    self.assertGreater(got["resumes"], 0)
                    self.assertGreater(sum(got["bytes_moved"].values()), 0)
                    self.assertEqual(got["drafts_proposed"] > 0, drafter != "none")
                    late += got["late_acceptances"]
        self.assertGreater(late, 0)

    def test_without_a_host_tier_requests_are_computed_again(self):
        got = figures("--host-bytes", "0")
        self.assertEqual((got["differences"], got["suspends"]), (0, 0))
        self.assertGreater(got["recomputed_tokens"], 0)
        self.assertEqual(got["bytes_moved"], {})

    def test_the_last_line_says_what_happened(self):
        done = demo("--temperature", "0", "--seed", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout.decode(),
            r"^requests 6 · tokens \d+ · suspends \d+ · resumes \d+ \(old slot \d+, new slot \d+\) "
            r"· late acceptances \d+ · rebalances \d+ · moved [\d.]+ MB · differences 0\n$")
        self.assertNotIn(b"\x1b", done.stderr)
        self.assertIn(b"6 of 6 requests done", done.stderr)

    def on_a_terminal(self, **environment):
        primary, secondary = pty.openpty()
        program = subprocess.Popen([PROGRAM, "demo", *SMALL, "--pace", "20"], cwd=SOURCE,
                                   stdin=subprocess.DEVNULL, stdout=secondary, stderr=secondary,
                                   env=dict(os.environ, TERM="xterm", **environment))
        os.close(secondary)
        shown = b""
        while True:
            try:
                part = os.read(primary, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(primary)
        self.assertEqual(program.wait(timeout=600), 0)
        return shown.decode()

    def test_a_terminal_sees_the_table_drawn_over_itself(self):
        shown = self.on_a_terminal(NO_COLOR="")
        for part in ("slot 0", "waiting", "device", "6 of 6 requests", "suspends"):
            self.assertIn(part, shown)
        self.assertRegex(shown, r"\x1b\[\d+F")
        self.assertRegex(shown, r"\x1b\[3\dm")
        self.assertTrue(shown.rstrip().endswith("differences 0"))

    def test_no_color_is_honoured(self):
        self.assertNotRegex(self.on_a_terminal(NO_COLOR="1"), r"\x1b\[\d*m")


class Bundles(OneLine):
    def save(self, *arguments):
        directory = self.folder / "bundle"
        done = demo("--save-bundle", directory, "--at-step", "6", "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        saved = json.loads(done.stdout)
        self.assertGreaterEqual(saved["step"], 6)
        self.assertGreater(saved["saved_requests"], 0)
        return directory, saved

    def test_another_process_goes_on_in_the_middle_of_a_round(self):
        for drafter in ("ngram", "mtp", "model"):
            with self.subTest(drafter):
                directory, saved = self.save("--drafter", drafter)
                got = figures("--drafter", drafter, "--load-bundle", directory)
                self.assertEqual(got["requests"], saved["saved_requests"])
                self.assertEqual(got["differences"], 0)
                shutil.rmtree(directory)

    def test_a_bundle_of_another_drafter(self):
        directory, _ = self.save("--drafter", "mtp")
        self.expect(demo("--drafter", "none", "--load-bundle", directory), 1)
        self.assertEqual(figures("--drafter", "mtp", "--load-bundle", directory)["differences"], 0)

    def test_a_flipped_bit(self):
        directory, _ = self.save("--drafter", "mtp")
        for name in sorted(path.name for path in directory.iterdir()):
            path = directory / name
            whole = path.read_bytes()
            damaged = bytearray(whole)
            damaged[len(damaged) // 2] ^= 1
            path.write_bytes(damaged)
            with self.subTest(name):
                self.expect(demo("--drafter", "mtp", "--load-bundle", directory), 1, "bundle")
            path.write_bytes(whole)
        self.assertEqual(figures("--drafter", "mtp", "--load-bundle", directory)["differences"], 0)

    def test_no_bundle_and_one_that_is_there(self):
        self.expect(demo("--load-bundle", self.folder / "nothing"), 1, "nothing")
        directory, _ = self.save()
        self.expect(demo("--save-bundle", directory, "--at-step", "6", "--json"), 1, "bundle")

    def test_a_step_that_never_comes(self):
        directory = self.folder / "late"
        done = demo("--save-bundle", directory, "--at-step", "100000", "--json")
        self.expect(done, 1, "--at-step", "100000")
        self.assertFalse(directory.exists())


class BadDemo(OneLine):
    def test_usage(self):
        for arguments, parts in (
                (["--slots", "0"], ["--slots", "0"]),
                (["--blocks", "0"], ["--blocks"]),
                (["--requests", "0"], ["--requests"]),
                (["--host-bytes", "-1"], ["--host-bytes"]),
                (["--drafter", "oracle"], ["oracle", "ngram", "mtp", "model"]),
                (["--loop", "endless"], ["endless", "overlap"]),
                (["--max-drafts", "16"], ["--max-drafts", "15"]),
                (["--temperature", "-1"], ["temperature", "-1"]),
                (["--at-step", "5"], ["--save-bundle"]),
                (["--save-bundle", "a", "--load-bundle", "b"], ["--load-bundle"]),
                (["--seed", "-1"], ["--seed"])):
            with self.subTest(arguments):
                self.expect(run("demo", *arguments), 2, *parts)

    def test_host_memory_that_holds_no_save(self):
        self.expect(demo("--host-bytes", "1000"), 1, "1000 bytes of host memory", "or 0")

    def test_a_request_that_can_never_fit(self):
        self.expect(run("demo", "--requests", "3", "--blocks", "2", "--json"), 1, "tokens",
                    "give more blocks")

    def test_a_draft_model_that_is_not_there(self):
        self.expect(demo("--drafter", "model", "--draft-model", "/nonexistent/draft"), 1,
                    "/nonexistent/draft")

    def test_a_draft_model_with_another_vocabulary(self):
        checkpoint = self.draft_with_fewer_tokens(16)
        self.expect(demo("--drafter", "model", "--draft-model", checkpoint), 1, "vocabulary")

    def draft_with_fewer_tokens(self, count):
        demo_directory, cli_test.DEMO = cli_test.DEMO, DEMO.parent / "demo-draft"
        try:
            checkpoint = cli_test.Checkpoint(self.folder)
        finally:
            cli_test.DEMO = demo_directory
        size = json.loads((checkpoint.directory / "config.json").read_text())["vocab_size"]
        body = bytearray()
        for name, tensor in checkpoint.header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            data = checkpoint.body[begin:end]
            if tensor["shape"][0] == size:
                data = data[:len(data) // size * (size - count)]
                tensor["shape"][0] = size - count
            tensor["data_offsets"] = [len(body), len(body) + len(data)]
            body += data
        checkpoint.body = body
        checkpoint.write()
        checkpoint.change_config(vocab_size=size - count, bos_token_id=1, eos_token_id=2,
                                 pad_token_id=3)
        return checkpoint.directory


class Batches(OneLine):
    def setUp(self):
        super().setUp()
        self.prompts = self.folder / "prompts.jsonl"
        self.output = self.folder / "answers.jsonl"

    def write(self, *lines):
        texts = (line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines)
        self.prompts.write_bytes(b"".join(
            (text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts))

    def batch(self, *arguments):
        return run("run", "--prompts", self.prompts, "--output", self.output, *arguments)

    def answers(self):
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def test_answers_are_those_of_generate(self):
        asked = [{"id": "noun", "prompt": "lighthouse (noun):", "max_tokens": 20},
                 {"prompt": "wander (verb):", "max_tokens": 20, "temperature": 0.8, "seed": 7,
                  "top_k": 40, "top_p": 0.9, "min_p": 0.01},
                 {"id": 9, "prompt": "And it came to pass", "max_tokens": 30, "stop": ["the"]}]
        self.write(*asked)
        done = self.batch("--tokens", "--slots", "2", "--blocks", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        got = {line["id"]: line for line in self.answers()}
        self.assertEqual(set(got), {"noun", 2, 9})
        for name, line in zip(("noun", 2, 9), asked):
            options = []
            for field in ("prompt", "max_tokens", "temperature", "seed", "top_k", "top_p", "min_p"):
                if field in line:
                    options += ["--" + field.replace("_", "-"), str(line[field])]
            for stop in line.get("stop", []):
                options += ["--stop", stop]
            alone = answer(*options)
            self.assertEqual(got[name]["tokens"], alone["tokens"])
            self.assertEqual(got[name]["text"], alone["text"])
            self.assertEqual(got[name]["finish_reason"], alone["finish_reason"])
            usage = got[name]["usage"]
            self.assertEqual(usage["prompt_tokens"], len(alone["prompt_tokens"]))
            self.assertEqual(usage["completion_tokens"], len(alone["tokens"]))

    def test_choices_tokens_and_logprobs(self):
        self.write({"id": "a", "prompt_tokens": [2048, 108, 730], "max_tokens": 5, "n": 3,
                    "temperature": 1, "logprobs": 2, "logit_bias": {"10": -5}})
        self.assertEqual(self.batch().returncode, 0)
        lines = self.answers()
        self.assertEqual(sorted(line["choice"] for line in lines), [0, 1, 2])
        for line in lines:
            self.assertEqual({len(entry["top"]) for entry in line["logprobs"]}, {2})
            self.assertNotIn("tokens", line)

    def test_a_line_that_is_wrong_does_not_stop_the_others(self):
        self.write({"id": "good", "prompt": "a", "max_tokens": 2}, "not json", "[]",
                   {"id": "good", "prompt": "b"}, {"prompt": "a", "colour": 1}, {"id": "none"},
                   {"prompt": "a", "prompt_tokens": [1]}, {"prompt": "a", "n": 0},
                   {"prompt": "a", "max_tokens": "many"}, {"prompt": "a", "temperature": -1},
                   {"prompt": "a", "max_tokens": 10**8}, {"prompt_tokens": [99999]},
                   {"prompt": "a", "stop": [""]}, {"prompt": "a", "seed": -1},
                   {"id": [], "prompt": ""}, b'{"prompt": "\xff"}', "",
                   {"prompt": "a", "max_tokens": 2})
        done = self.batch()
        self.assertEqual(done.returncode, 1)
        told = done.stderr.decode().splitlines()
        for number in (*range(2, 17),):
            lines = [line for line in told if f"prompts.jsonl:{number}: " in line]
            self.assertEqual(len(lines), 1, (number, told))
        self.assertIn("15 of 18 lines have no answer", told[-1])
        lines = self.answers()
        self.assertEqual(sorted(line["line"] for line in lines if "error" in line),
                         list(range(2, 17)))
        self.assertEqual({line["id"] for line in lines if "error" not in line}, {"good", 18})
        before = self.output.read_bytes()
        again = self.batch()
        self.assertEqual(again.returncode, 1)
        self.assertEqual(self.output.read_bytes(), before)

    def test_a_run_that_is_killed_goes_on_without_loss_or_repetition(self):
        count = 40
        self.write(*({"id": f"line {i}", "prompt": f"tale {i} (noun):", "max_tokens": 24,
                      "temperature": 0.7, "n": 1 + i % 2} for i in range(count)))
        kills = 0
        for _ in range(3):
            before = len(self.output.read_bytes()) if self.output.exists() else 0
            program = subprocess.Popen(
                [PROGRAM, "run", "--prompts", self.prompts, "--output", self.output,
                 "--slots", "4"],
                cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            until = time.monotonic() + 300
            while program.poll() is None and time.monotonic() < until:
                if self.output.exists() and len(self.output.read_bytes()) > before:
                    program.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.001)
            kills += program.wait(timeout=60) == -signal.SIGKILL
        self.assertGreater(kills, 0)
        with self.output.open("ab") as torn:
            torn.write(b'{"id":"line 39","choice":0,"te')
        done = self.batch("--slots", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        got = {(line["id"], line["choice"]): line["text"] for line in self.answers()}
        self.assertEqual(len(self.answers()), len(got))
        self.assertEqual(set(got), {(f"line {i}", choice) for i in range(count)
                                    for choice in range(1 + i % 2)})
        self.output.unlink()
        self.assertEqual(self.batch("--slots", "8", "--drafter", "none").returncode, 0)
        alone = {(line["id"], line["choice"]): line["text"] for line in self.answers()}
        self.assertEqual(alone, got)

    def test_an_output_of_something_else_is_left_alone(self):
        self.write({"prompt": "a", "max_tokens": 1})
        self.output.write_text("dear diary\n")
        self.expect(self.batch(), 1, "answers.jsonl:1", "--output")
        self.assertEqual(self.output.read_text(), "dear diary\n")

    def test_standard_output_is_the_default(self):
        self.write({"prompt": "a", "max_tokens": 1})
        done = run("run", "--prompts", self.prompts)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["id"], 1)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = run("run", "--prompts", self.prompts, stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr.decode())

    def test_bad_options(self):
        self.expect(run("run"), 2, "--prompts")
        self.expect(run("run", "--prompts", "/nonexistent/prompts"), 1, "/nonexistent/prompts")
        self.write({"prompt": "a"})
        self.expect(self.batch("--in-flight", "0"), 2, "--in-flight")
        self.expect(self.batch("--host-bytes", "7"), 1, "host memory")
        self.expect(run("run", "--prompts", self.prompts, "--output", "/nonexistent/out"), 1,
                    "/nonexistent/out")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
