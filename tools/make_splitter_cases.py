#!/usr/bin/env python3
"""Writes random texts, cut by the split pattern as Kimi's tokenizer was trained with it.

    tools/make_splitter_cases.py           writes the cases that are kept with the tests
    tools/make_splitter_cases.py --count 100000 --seed 7 --out FILE      writes others

    SLACKWATER_SPLITTER_CASES=FILE build/relassert/src/model/slackwater_model_test \\
        --gtest_filter='Splitter.CutsAsTheTrainingPattern*'

compares the splitter with other cases. Each line is one text, a JSON list of its pieces.

The pattern uses class intersections, which the module `regex` (pip install regex) knows and PCRE2
does not; src/model/splitter.cc says how it is written there. The two come with different versions
of Unicode, so the texts have only characters of Unicode 3.2 that kept their category since, and
some of its later ones by name.
"""

import argparse
import json
import pathlib
import random
import sys
import unicodedata

import regex

# `pat_str` of tokenization_kimi.py in the repository of Kimi-Linear-48B-A3B-Instruct.
NOT_HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
NOT_HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TRAINING_PATTERN = regex.compile("|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + NOT_HAN_UPPER + "*" + NOT_HAN_LOWER + "+" + CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?" + NOT_HAN_UPPER + "+" + NOT_HAN_LOWER + "*" + CONTRACTION,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]), regex.V1)

# What the pattern names, and what engines have been seen to differ in: letters whose case folds to
# ASCII, white space past ASCII, characters that belong to Han by one of two properties only.
FRAGMENTS = [
    "'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'lL", "'d", "'x", "\u2019s", "'\u017f",
    "\u017f", "\u212a", "\r\n", "\n\n", "   ", " \n ", "\u0085", "\u00a0", "\u180e", "\u2028",
    "\u3000", "\u3001", "\u3002", "\u3005", "\u3007", "\u303b", "\u30fc", "\u302a", "\u2e80",
    "\u3006Aa", "\u302aA", "\u01c5", "\u200b", "\ufeff", "e\u0301", "\u0e01\u0e33", "12345",
]


def characters_by_kind():
    """Pools to draw from: one for each general category, and Han apart from the rest."""
    before = unicodedata.ucd_3_2_0
    of_category = {name: regex.compile(r"\p{%s}" % name) for name in (
        "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co"
    ).split()}
    han = regex.compile(r"\p{Han}")
    pools = {}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = before.category(character)
        if category not in of_category or not of_category[category].match(character):
            continue
        kind = "Han" if han.match(character) else category
        pools.setdefault(kind, []).append(character)
    return [pools[kind] for kind in sorted(pools)]


def draw(rng, items):
    return items[int(rng.random() * len(items))]


def random_text(rng, pools, ascii_pools):
    """A few runs of one kind of character each, most of them ASCII as in most text."""
    text = []
    for _ in range(1 + int(rng.random() * 8)):
        chance = rng.random()
        if chance < 0.2:
            text.append(draw(rng, FRAGMENTS))
            continue
        pool = draw(rng, ascii_pools if chance < 0.6 else pools)
        text.extend(draw(rng, pool) for _ in range(1 + int(rng.random() * rng.random() * 6)))
    return "".join(text)


def pieces_of(text):
    pieces = TRAINING_PATTERN.findall(text)
    assert "".join(pieces) == text, ascii(text)
    return pieces


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="Writes random texts and their pieces.")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path,
                        default=root / "tests/data/tokenizer/splitter_cases.jsonl")
    arguments = parser.parse_args()

    rng = random.Random(arguments.seed)
    pools = characters_by_kind()
    ascii_pools = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789",
                   "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", " ", " ", "\r\n\t \v\f"]
    with arguments.out.open("w", encoding="utf-8", newline="\n") as out:
        for _ in range(arguments.count):
            pieces = pieces_of(random_text(rng, pools, ascii_pools))
            out.write(json.dumps(pieces, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
