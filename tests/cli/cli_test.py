#!/usr/bin/env python3
"""The program from outside: golden answers, and one clear line for every bad input.

    cli_test.py PROGRAM SOURCE_DIR

Exit codes of the program: 0 success, 1 failure, 2 wrong usage.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv[1])
SOURCE = pathlib.Path(sys.argv[2])
DEMO = SOURCE / "models/demo"


def run(*arguments, **options):
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([PROGRAM, *arguments], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          cwd=SOURCE, timeout=600, **options)


def generate(*arguments, **options):
    return run("generate", *arguments, **options)


def answer(*arguments):
    done = generate(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Checkpoint:
    """A copy of the demo model that a test can damage."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory) / "model"
        shutil.copytree(DEMO, self.directory)
        self.file = self.directory / "model.safetensors"
        data = self.file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        self.header = json.loads(data[8:8 + size])
        self.body = bytearray(data[8 + size:])

    def write(self, declared_size=None):
        header = json.dumps(self.header).encode()
        size = len(header) if declared_size is None else declared_size
        self.file.write_bytes(struct.pack("<Q", size) + header + self.body)

    def change_config(self, **fields):
        path = self.directory / "config.json"
        config = json.loads(path.read_text())
        for name, value in fields.items():
            if name in config["linear_attn_config"]:
                config["linear_attn_config"][name] = value
            else:
                config[name] = value
        path.write_text(json.dumps(config))


class Answers(unittest.TestCase):
    def test_every_golden_case(self):
        cases = json.loads((SOURCE / "tests/golden/demo.json").read_text())["cases"]
        self.assertEqual(len(cases), 10)
        for case in cases:
            with self.subTest(case["name"]):
                got = answer("--prompt", case["prompt"], "--max-tokens", str(len(case["tokens"])))
                self.assertEqual(got["prompt_tokens"], case["prompt_tokens"])
                self.assertEqual(got["tokens"], case["tokens"])
                self.assertEqual(got["text"], case["text"])
                self.assertEqual(got["finish_reason"], "length")

    def test_a_drawn_seed_is_reported_and_gives_the_same_tokens_again(self):
        options = ["--prompt", "wander (verb):", "--temperature", "1", "--max-tokens", "16"]
        first = answer(*options)
        again = answer(*options, "--seed", str(first["seed"]))
        self.assertEqual(again["tokens"], first["tokens"])

    def test_text_goes_to_standard_output_and_speed_to_standard_error(self):
        done = generate("--prompt", "lighthouse (noun):", "--max-tokens", "16")
        self.assertEqual(done.returncode, 0)
        self.assertIn("a small pale", done.stdout.decode())
        self.assertIn("tokens/s", done.stderr.decode())
        self.assertNotIn("tokens/s", done.stdout.decode())

    def test_a_prompt_file_of_any_bytes(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\xff\xfe broken \xe2\x82 bytes\x00")
            file.flush()
            got = answer("--prompt-file", file.name, "--max-tokens", "4")
            self.assertEqual(len(got["tokens"]), 4)

    def test_invalid_utf8_on_the_command_line(self):
        done = generate("--prompt", b"caf\xe9 \xff", "--max-tokens", "4", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_stop_text_ends_the_answer(self):
        got = answer("--prompt", "lighthouse (noun):", "--max-tokens", "48", "--stop", " pale")
        self.assertEqual(got["text"], " a small")
        self.assertEqual(got["finish_reason"], "stop")

    def test_bench_prints_one_json_line(self):
        done = run("bench", "generate", "--prompt-tokens", "40", "--max-tokens", "4",
                   "--sequences", "3", "--repeat", "2", "--threads", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(b"\n"), 1)
        line = json.loads(done.stdout)
        for field in ("prompt_tokens_per_s", "generated_tokens_per_s"):
            spread = line[field]
            self.assertLessEqual(0, spread["min"])
            self.assertLessEqual(spread["min"], spread["median"])
            self.assertLessEqual(spread["median"], spread["max"])

    def test_help_and_version(self):
        for arguments in (["--help"], ["--version"], ["generate", "--help"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 0)
            self.assertIn("slackwater", done.stdout.decode().lower())


class BadInput(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def expect(self, done, code, *parts):
        error = done.stderr.decode()
        self.assertEqual(done.returncode, code, error)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("slackwater: "), error)
        for part in parts:
            self.assertIn(part, error)

    def generate_from(self, checkpoint):
        return generate("--model", checkpoint.directory, "--prompt", "a", "--max-tokens", "1")

    def test_usage(self):
        for arguments, parts in (
                (["--prompt", "a", "--temperature", "-1"], ["temperature", "-1"]),
                (["--prompt", "a", "--top-p", "0"], ["top_p"]),
                (["--prompt", "a", "--top-k", "-3"], ["top_k", "-3"]),
                (["--prompt", "a", "--min-p", "1.5"], ["min_p", "1.5"]),
                (["--prompt", "a", "--max-tokens", "-1"], ["--max-tokens", "-1"]),
                (["--prompt", "a", "--chunk", "0"], ["--chunk"]),
                (["--prompt", "a", "--threads", "0"], ["--threads"]),
                (["--prompt", "a", "--target", "mmx"], ["mmx", "reference"]),
                (["--prompt", "a", "--no-such-option"], ["--no-such-option"]),
                (["--prompt", "a", "--prompt-file", "b"], ["--prompt"]),
                ([], ["--prompt"])):
            with self.subTest(arguments):
                self.expect(generate(*arguments), 2, *parts)
        self.expect(run(), 2)
        self.expect(run("no-such-command"), 2)

    def test_stop_text_that_is_not_utf8(self):
        self.expect(generate("--prompt", "a", "--stop", b"a\xc3"), 1, "not UTF-8")

    def test_missing_directory(self):
        self.expect(generate("--model", "/nonexistent/model", "--prompt", "a"), 1,
                    "/nonexistent/model")

    def test_missing_prompt_file(self):
        self.expect(generate("--prompt-file", "/nonexistent/prompt"), 1, "/nonexistent/prompt")

    def test_truncated_tensors(self):
        checkpoint = Checkpoint(self.folder.name)
        del checkpoint.body[-1000:]
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.safetensors")

    def test_overlapping_tensors(self):
        checkpoint = Checkpoint(self.folder.name)
        first, second = "model.norm.weight", "model.layers.0.input_layernorm.weight"
        checkpoint.header[first]["data_offsets"] = checkpoint.header[second]["data_offsets"]
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.safetensors", "weight")

    def test_header_of_two_to_the_63_bytes(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.write(declared_size=2**63)
        self.expect(self.generate_from(checkpoint), 1, "model.safetensors", str(2**63))

    def test_unknown_dtype(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.header["model.norm.weight"]["dtype"] = "Q7"
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.norm.weight", "Q7")

    def test_missing_tensor(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.header["model.other.weight"] = checkpoint.header.pop("model.norm.weight")
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.norm.weight")

    def test_tensor_of_another_shape(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.header["model.layers.0.self_attn.q_proj.weight"]["shape"] = [192, 256]
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "q_proj", "[192, 256]", "[256, 192]")

    def test_tensor_that_the_configuration_does_not_know(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.change_config(num_nextn_predict_layers=0)
        self.expect(self.generate_from(checkpoint), 1, "model.layers.8.")

    def test_weights_that_are_not_numbers(self):
        checkpoint = Checkpoint(self.folder.name)
        begin = checkpoint.header["model.layers.3.self_attn.o_proj.weight"]["data_offsets"][0]
        checkpoint.body[begin + 20:begin + 22] = b"\xc0\x7f"
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.layers.3.self_attn.o_proj.weight",
                    "nan", "element 10")

    def test_layer_lists_that_overlap(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.change_config(full_attn_layers=[3, 4, 8])
        self.expect(self.generate_from(checkpoint), 1, "full_attn_layers", "3")

    def test_vocabulary_that_does_not_match(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.change_config(vocab_size=2040, bos_token_id=1, eos_token_id=2, pad_token_id=3)
        self.expect(self.generate_from(checkpoint), 1, "2040")

    def test_prompt_longer_than_the_limit(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.change_config(model_max_length=8)
        done = generate("--model", checkpoint.directory, "--prompt", "a b c d e f g h i j")
        self.expect(done, 1, "8")

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = generate("--prompt", "a", "--max-tokens", "2", stdout=full)
        self.expect(done, 1, "standard output")

    def test_standard_output_that_is_closed(self):
        done = generate("--prompt", "a", "--max-tokens", "2", stdout=None,
                        preexec_fn=lambda: os.close(1))
        self.expect(done, 1, "standard output")

    def test_reader_that_went_away(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = generate("--prompt", "a", "--max-tokens", "2", stdout=writer)
        os.close(writer)
        self.expect(done, 1, "standard output")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
