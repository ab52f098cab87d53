#!/usr/bin/env python3
"""The program from outside: golden answers, and one clear line for every bad input.

    cli_test.py PROGRAM SOURCE_DIR

Exit codes of the program: 0 success, 1 failure, 2 wrong usage.
"""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv[1])
SOURCE = pathlib.Path(sys.argv[2])
DEMO = (SOURCE / "models/demo").resolve()


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


    def write_shards(self):
        """The same tensors in two files and an index."""
        names = sorted(name for name in self.header if name != "__metadata__")
        weight_map = {}
        for shard in (0, 1):
            header, body = {}, bytearray()
            for name in names[shard::2]:
                begin, end = self.header[name]["data_offsets"]
                header[name] = dict(self.header[name],
                                    data_offsets=[len(body), len(body) + end - begin])
                body += self.body[begin:end]
                weight_map[name] = f"model-{shard}.safetensors"
            text = json.dumps(header).encode()
            (self.directory / f"model-{shard}.safetensors").write_bytes(
                struct.pack("<Q", len(text)) + text + body)
        self.file.unlink()
        (self.directory / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map}))

    def convert(self, dtype, wanted=lambda name: True):
        """Stores the wanted bf16 tensors as F32, or as F16, which is exact for most values only."""
        body = bytearray()
        for name, tensor in self.header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            old = self.body[begin:end]
            new = old
            if tensor["dtype"] == "BF16" and wanted(name):
                new = bytearray(2 * len(old))
                new[2::4], new[3::4] = old[0::2], old[1::2]
                if dtype == "F16":
                    values = struct.unpack(f"<{len(old) // 2}f", new)
                    new = struct.pack(f"<{len(old) // 2}e", *values)
                tensor["dtype"] = dtype
            tensor["data_offsets"] = [len(body), len(body) + len(new)]
            body += new
        self.body = body

    def make_exact_in_f16(self, name):
        """Zeroes what F16 cannot hold: numbers below its smallest normal one."""
        begin, end = self.header[name]["data_offsets"]
        for i in range(begin, end, 2):
            exponent = struct.unpack("<H", self.body[i:i + 2])[0] >> 7 & 0xFF
            if exponent < 127 - 14:
                self.body[i:i + 2] = b"\0\0"


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


class Checkpoints(unittest.TestCase):
    """The same weights, stored in another way, give the same tokens."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkpoint = Checkpoint(folder.name)

    def answer(self):
        return answer("--model", self.checkpoint.directory, "--prompt", "wander (verb):",
                      "--max-tokens", "24")["tokens"]

    def test_shards(self):
        want = self.answer()
        self.checkpoint.write_shards()
        self.assertEqual(self.answer(), want)

    def test_every_tensor_in_f32(self):
        want = self.answer()
        self.checkpoint.convert("F32")
        self.checkpoint.write()
        self.assertEqual(self.answer(), want)

    def test_one_part_of_a_fused_matrix_in_f32(self):
        want = self.answer()
        self.checkpoint.convert("F32", lambda name: name.endswith("k_proj.weight"))
        self.checkpoint.write()
        self.assertEqual(self.answer(), want)

    def test_one_part_of_a_fused_matrix_in_f16(self):
        name = "model.layers.0.self_attn.q_proj.weight"
        self.checkpoint.make_exact_in_f16(name)
        self.checkpoint.write()
        want = self.answer()
        self.checkpoint.convert("F16", lambda tensor: tensor == name)
        self.checkpoint.write()
        self.assertEqual(self.answer(), want)


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

    def limit_memory(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        if run("--version", preexec_fn=limit).returncode != 0:
            self.skipTest("this build asks for more addresses than the limit")
        return limit

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

    def test_stop_texts_that_can_never_be_found(self):
        self.expect(generate("--prompt", "a", "--stop", b"a\xc3"), 2, "not UTF-8")
        self.expect(generate("--prompt", "a", "--stop", ""), 2, "empty")

    def test_numbers_are_read_whole_or_refused(self):
        for option, value in (("--seed", "-1"), ("--seed", "18446744073709551616"), ("--seed", ""),
                              ("--seed", "0x10"), ("--seed", "7 "), ("--temperature", ""),
                              ("--temperature", "warm"), ("--top-k", "1.5"),
                              ("--max-tokens", ""), ("--max-tokens", "1\n2")):
            with self.subTest((option, value)):
                self.expect(generate("--prompt", "a", option, value), 2, option)
        self.assertEqual(answer("--prompt", "a", "--max-tokens", "1", "--seed", "010")["seed"], 10)
        largest = 2**64 - 1
        self.assertEqual(answer("--prompt", "a", "--max-tokens", "1", "--seed",
                                str(largest))["seed"], largest)

    def test_a_target_that_cannot_run(self):
        environment = dict(os.environ, SLACKWATER_TARGET="mmx")
        self.expect(generate("--prompt", "a", env=environment), 2, "SLACKWATER_TARGET", "mmx",
                    "reference")

    def test_missing_directory(self):
        self.expect(generate("--model", "/nonexistent/model", "--prompt", "a"), 1,
                    "'/nonexistent/model' does not exist", "config.json")
        self.expect(generate("--model", "/dev/null", "--prompt", "a"), 1, "not a directory")
        self.expect(generate("--model", "/non\nexistent", "--prompt", "a"), 1, "/non\\x0aexistent")

    def test_missing_prompt_file(self):
        for name in ("/nonexistent/prompt", ""):
            self.expect(generate("--prompt-file", name), 1, f"'{name}'", "check its name")
        self.expect(generate("--prompt", "a", "--prompt-file", ""), 2, "--prompt-file")

    def test_a_prompt_file_without_end(self):
        done = generate("--prompt-file", "/dev/zero", preexec_fn=self.limit_memory())
        self.expect(done, 1, "out of memory")

    def test_more_memory_than_there_is(self):
        done = run("bench", "generate", "--sequences", "4096", "--prompt-tokens", "16384",
                   "--max-tokens", "16384", preexec_fn=self.limit_memory())
        self.expect(done, 1, "out of memory")

    def test_no_thread_left(self):
        def limit_threads():
            resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
            if os.getuid() == 0:  # whom no limit binds
                os.setuid(65534)
        try:
            done = generate("--prompt", "a", "--threads", "64", preexec_fn=limit_threads)
        except PermissionError:
            self.skipTest("the program cannot be run by nobody")
        self.expect(done, 1, "temporarily unavailable")

    def test_a_head_that_no_kernel_takes(self):
        checkpoint = Checkpoint(self.folder.name)
        checkpoint.change_config(head_dim=1056)
        self.expect(self.generate_from(checkpoint), 1, "linear_attn_config.head_dim", "1056",
                    "1024")

    def test_tensors_of_the_prediction_block(self):
        checkpoint = Checkpoint(self.folder.name)
        norm = checkpoint.header["model.layers.8.enorm.weight"]["data_offsets"][0]
        checkpoint.body[norm:norm + 2] = b"\xc0\x7f"
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.layers.8.enorm.weight", "nan")
        checkpoint.body[norm:norm + 2] = b"\x80\x3f"
        checkpoint.header["model.layers.8.eh_proj.weight"]["shape"].reverse()
        checkpoint.write()
        self.expect(self.generate_from(checkpoint), 1, "model.layers.8.eh_proj.weight")

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
        self.expect(self.generate_from(checkpoint), 1, "model.norm.weight", "incomplete")

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
        self.expect(self.generate_from(checkpoint), 1, "full_attn_layers", "3", "in one of them")

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

    def test_standard_error_that_cannot_be_written_changes_no_exit_code(self):
        def run_with(stderr, *arguments, **options):
            return subprocess.run([PROGRAM, "generate", *arguments], stdout=subprocess.DEVNULL,
                                  stderr=stderr, stdin=subprocess.DEVNULL, cwd=SOURCE, timeout=600,
                                  **options).returncode
        good, bad = ["--prompt", "a", "--max-tokens", "2"], ["--prompt", "a", "--temperature", "-1"]
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.assertEqual(run_with(full, *good), 0)
            self.assertEqual(run_with(full, *bad), 2)
        self.assertEqual(run_with(None, *good, preexec_fn=lambda: os.close(2)), 0)
        self.assertEqual(run_with(None, *bad, preexec_fn=lambda: os.close(2)), 2)

    def test_one_dead_pipe_for_both_streams(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([PROGRAM, "generate", "--prompt", "a", "--max-tokens", "2"],
                              stdout=writer, stderr=writer, stdin=subprocess.DEVNULL, cwd=SOURCE,
                              timeout=600)
        os.close(writer)
        self.assertEqual(done.returncode, 1)

    def test_a_path_that_is_not_utf8(self):
        link = os.fsencode(self.folder.name) + b"/m\xff"
        os.symlink(DEMO, link)
        done = run("bench", "generate", "--model", link, "--prompt-tokens", "4", "--max-tokens",
                   "2", "--repeat", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)


class Inspect(unittest.TestCase):
    """Logs that are none: the logs themselves are tested beside the cache."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name) / "calls"

    def tearDown(self):
        self.folder.cleanup()

    def expect(self, exit_code, *arguments, says):
        done = run("inspect", *arguments)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        self.assertIn(says, done.stderr.decode())

    def header(self, magic=b"SLKWLOG1", version=2, config=b"{}"):
        return struct.pack("<8sIIQQQQ", magic, version, 0, len(config), 48 + 8, 0, 0) + config

    def test_no_file_and_no_log(self):
        self.expect(1, self.log, says="cannot open the operation log")
        self.expect(1, self.folder.name, says="is no operation log")
        self.log.write_bytes(b"")
        self.expect(1, self.log, says="of 0 bytes is no operation log, or cut at its end")
        self.log.write_bytes(self.header(magic=b"GGUF\0\0\0\1"))
        self.expect(1, self.log, says="at offset 0 it says 'GGUF")

    def test_another_version(self):
        self.log.write_bytes(self.header(version=77))
        self.expect(1, self.log, says="has version 77 at offset 8; this program reads 2")

    def test_a_configuration_that_was_edited(self):
        self.log.write_bytes(self.header() + bytes(6))
        self.expect(1, self.log, says="has another configuration than was written at offset 48")

    def test_usage(self):
        self.expect(2, says="LOG is required")
        self.expect(2, self.log, "--at", "-1", says="--at")
        self.expect(2, self.log, "--at", "x", says="--at: Value x not in range 0 to")
        self.expect(2, self.log, "--explain", "1,x", says="'x' is no token")
        self.expect(2, self.log, "--explain", "9..3", says="'9..3' is no token, and no range")
        self.expect(2, self.log, "--explain", "0..2000000000", says="more than 16777216 tokens")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
