#!/usr/bin/env python3
"""Checks what a tool can check of the project's own rules.

    tools/tidy.py              checks the working tree: file:line: [check] what is wrong
    tools/tidy.py --list       prints the checks
    tools/tidy.py --root DIR   checks another tree

A finding that is intended, or wrong, is answered where it stands, with the reason:

    // tidy: allow(function-length): a table of opcodes, one row a line

on the line itself or on the one before. An answer to nothing is a finding too.
"""

import argparse
import functools
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cxx_scan  # noqa: E402  needs the line above

MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 70
MAX_FUNCTION_LINES_P90 = 30
MAX_PARAMETERS = 5
MAX_SOURCE_LINES = 700
MAX_PUBLIC_HEADER_LINES = 350

# Who may include whom; itself and base go without saying.
ROOMS = {
    "base": set(),
    "device": set(),
    "storage": {"device"},
    "cache": {"device", "storage"},
    "kernels": {"device"},
    "hybrid": {"device", "storage", "cache", "kernels"},
    "scheduler": {"cache", "hybrid"},
    "model": {"device", "kernels"},
    "engine": {"device", "storage", "cache", "kernels", "hybrid", "scheduler", "model"},
    "planner": {"storage", "cache", "hybrid", "scheduler"},
    "server": {"engine", "planner"},
    "cli": {"engine", "planner"},
}
# Public headers beyond the table. The command line reaches the solo loop, which is the oracle of
# the engine and therefore stands beside it, not below it; with it come the types it is called with.
# An engine borrows its device: the program makes it.
ENTRIES = {"cli": {
    "model/generate.h", "model/measure.h", "model/model.h", "model/tokenizer.h",
    "kernels/execution_context.h", "kernels/sample.h", "kernels/target.h",
    "device/cpu_device.h", "cache/log_inspection.h"}}

# Rooms whose arithmetic ends in a token.
NUMERIC_ROOMS = {"kernels", "model", "hybrid", "engine"}

BARE_NOUNS = {"cache", "context", "memory", "manager", "data", "info", "handle"}

# Label by label, so that this file does not contain what it looks for.
REGISTRY_HOSTS = [
    ("deb", "debian", "org"), ("security", "debian", "org"), ("pypi", "org"),
    ("pythonhosted", "org"), ("registry", "npmjs", "org"), ("crates", "io"),
    ("proxy", "golang", "org"), ("huggingface", "co"), ("packages", "cloud", "google", "com"),
    ("nodesource", "com"), ("archive", "ubuntu", "com"),
]

LIBM = (
    "exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
    "acosh atanh erf erfc tgamma lgamma cbrt hypot").split()


@dataclass(frozen=True)
class Finding:
    """One fault. `line` is 1-based."""

    path: str
    line: int
    check: str
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.check}] {self.text}"


class File:
    """One text file of the tree and where it stands. What is derived is computed once."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self.name = path.rsplit("/", 1)[-1]
        self.is_header = path.endswith(".h")
        self.is_cxx = self.is_header or path.endswith(".cc")
        self.is_public = self.is_header and path.startswith("include/")
        self.is_cmake = self.name == "CMakeLists.txt" or path.endswith(".cmake")
        self.is_script = path.endswith((".sh", ".py", "Makefile", ".ci/run"))
        self.is_prose = path.endswith(".md") or self.name == "LICENSE"
        self.is_check_code = path.startswith(("tests/", "testing/", "bench/")) or path.endswith(
            ("_test.cc", "_bench.cc", "_fuzz.cc", "test_support.h", "test_support.cc"))

    @functools.cached_property
    def scan(self):
        return cxx_scan.scan(self.text)

    @functools.cached_property
    def code_lines(self):
        """The lines with comments and literals blanked."""
        return self.scan.code.split("\n")

    @functools.cached_property
    def bare_lines(self):
        """The same without preprocessor lines."""
        return self.scan.bare.split("\n")

    @property
    def room(self):
        """The room the file belongs to, or None."""
        match = re.match(r"(?:src|include/slackwater)/([a-z_]+)/", self.path)
        return match.group(1) if match else None

    @property
    def in_kernels(self):
        return self.room == "kernels"


CHECKS = {}


def check(name, doc):
    """Registers a check: a function of the list of files that yields (file, line, text)."""

    def register(function):
        CHECKS[name] = (doc, function)
        return function

    return register


def cxx(files):
    return (file for file in files if file.is_cxx)


def grep(lines, pattern):
    """Yields (line number, match) of every line that the pattern matches."""
    pattern = re.compile(pattern)
    for number, line in enumerate(lines, 1):
        if match := pattern.search(line):
            yield number, match


# Rooms and includes


def includes_of(file):
    """Yields (line, path, quoted) of the includes; paths are literals, so the text is read."""
    for number, match in grep(file.lines, r'^\s*#\s*include\s*(["<])([^">]+)[">]'):
        yield number, match.group(2), match.group(1) == '"'


def include_fault(file, path):
    """Says why a file of a room may not include `path`, or None."""
    public = path.startswith("slackwater/")
    parts = (path.removeprefix("slackwater/") if public else path).split("/")
    target = parts[0]
    if target in ("tests", "testing", "bench"):
        return None if file.is_check_code else f"{target}/ is never part of a product"
    if target not in ROOMS:
        return f"'{path}' is in no room; write the full path, as \"room/name.h\""
    room = file.room
    if target == room:
        return None
    if not public:
        return f"{path} is private to {target}; include a header of include/slackwater/{target}/"
    allowed = ROOMS.get(room, set()) | {"base"}
    if target in allowed or "/".join(parts) in ENTRIES.get(room, ()):
        return None
    return f"{room} must not know {target}; it may include: {', '.join(sorted(allowed))}"


@check("room-include", "a room includes only the rooms below it, and no room's private headers")
def check_room_include(files):
    for file in cxx(files):
        if file.path.startswith(("src/", "include/")):
            if file.room not in ROOMS:
                yield file, 1, f"room '{file.room}' is not in the table of rooms"
                continue
            for line, path, quoted in includes_of(file):
                if quoted or path.startswith("slackwater/"):
                    if fault := include_fault(file, path):
                        yield file, line, fault
        elif file.path.startswith("examples/"):
            for line, path, quoted in includes_of(file):
                if quoted and not path.startswith("slackwater/"):
                    yield file, line, f"{path}: examples use the library as an outsider does"


@check("heavy-header",
       "public headers do not include Highway, nlohmann, CLI11, spdlog, OpenSSL or prometheus-cpp")
def check_heavy_header(files):
    for file in cxx(files):
        if file.is_public:
            for line, path, _ in includes_of(file):
                if re.match(r"(nlohmann|CLI|spdlog|hwy|openssl|prometheus)/|xxhash\.h|pcre2\.h",
                            path):
                    yield file, line, f"{path} costs every reader of this header seconds"


@check("vendor-api", "only the room device calls CUDA and other vendors' libraries")
def check_vendor_api(files):
    call = r"\b(cuda[A-Z]\w+|cu(Mem|Ctx|Stream|Device|Event|Launch|Module)\w*|hip[A-Z]\w+)\s*\("
    include = r"(cuda|hip|cublas|cudnn|nccl|rccl|cutlass|nvml)\w*(\.h|/)"
    for file in cxx(files):
        if file.room != "device":
            for line, path, _ in includes_of(file):
                if re.match(include, path):
                    yield file, line, f"{path} belongs to src/device/"
            for line, match in grep(file.bare_lines, call):
                yield file, line, f"{match.group(1)} belongs to src/device/"


# Sizes


@check("function-length", f"a function has at most {MAX_FUNCTION_LINES} lines (kernels excepted)")
def check_function_length(files):
    for file in cxx(files):
        for function in file.scan.functions if not file.in_kernels else ():
            if function.end is not None and function.length > MAX_FUNCTION_LINES:
                yield file, function.line, (
                    f"{function.name} has {function.length} lines, limit {MAX_FUNCTION_LINES}")


@check("function-p90", f"nine of ten functions have at most {MAX_FUNCTION_LINES_P90} lines")
def check_function_p90(files):
    sized = sorted(
        ((function.length, file, function) for file in cxx(files)
         for function in file.scan.functions if function.end is not None),
        key=lambda entry: entry[0])
    if not sized:
        return
    p90 = sized[(len(sized) * 9 + 9) // 10 - 1][0]
    if p90 <= MAX_FUNCTION_LINES_P90:
        return
    # Each of the longest would have to shrink; as many are named as it takes.
    excess = sum(length > MAX_FUNCTION_LINES_P90 for length, _, _ in sized) - len(sized) // 10
    for length, file, function in sized[-excess:]:
        yield file, function.line, (
            f"{function.name} has {length} lines; the p90 of {len(sized)} functions is {p90}, "
            f"limit {MAX_FUNCTION_LINES_P90}")


@check("parameters", f"a function has at most {MAX_PARAMETERS} parameters, then an options struct")
def check_parameters(files):
    for file in cxx(files):
        for function in file.scan.functions:
            # A declaration in a .cc repeats one in a header or is a definition further down.
            if len(function.parameters) > MAX_PARAMETERS and (
                    function.end is not None or file.is_header):
                yield file, function.line, (
                    f"{function.name} has {len(function.parameters)} parameters, "
                    f"limit {MAX_PARAMETERS}")


@check("file-length",
       f"at most {MAX_SOURCE_LINES} lines, {MAX_PUBLIC_HEADER_LINES} in public headers")
def check_file_length(files):
    for file in cxx(files):
        limit = MAX_PUBLIC_HEADER_LINES if file.is_public else MAX_SOURCE_LINES
        if len(file.lines) > limit:
            yield file, limit + 1, f"{len(file.lines)} lines, limit {limit}"


@check("columns", f"lines have at most {MAX_COLUMNS} columns")
def check_columns(files):
    for file in files:
        if file.is_cxx or file.is_cmake or file.is_script:
            for number, line in enumerate(file.lines, 1):
                if len(line) > MAX_COLUMNS:
                    yield file, number, f"{len(line)} columns, limit {MAX_COLUMNS}"


@check("balance", "braces balance, so that the other checks can read the file")
def check_balance(files):
    for file in cxx(files):
        if not file.scan.balanced:
            yield file, 1, "braces do not balance; give each #if branch complete ones"


# Structure


@check("unregistered", "every _test.cc, _fuzz.cc and _bench.cc is named in a CMakeLists.txt")
def check_unregistered(files):
    lists = {file.path.removesuffix("CMakeLists.txt"): re.sub(r"#.*", "", file.text)
             for file in files if file.name == "CMakeLists.txt"}
    for file in cxx(files):
        if not file.path.endswith(("_test.cc", "_fuzz.cc", "_bench.cc")):
            continue
        for folder, text in lists.items():
            if file.path.startswith(folder):
                name = re.escape(file.path.removeprefix(folder))
                if re.search(rf"(?<![\w./-]){name}(?![\w.-])", text):
                    break
        else:
            yield file, 1, "no CMakeLists.txt names this file: it is neither built nor run"


TEST_NAME = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
# `Suite.Name`, or `.Name` of the suite before; `Name…` stands for all that begin so.
CLAIMED_TEST = re.compile(r"`(\w*)\.([A-Z]\w+)(…?)`")
STARRED_COUNTS = re.compile(r"Starred cases: (\d+)\. With a test: (\d+)\. "
                            r"With a reason why there is none: (\d+)")


def starred_counts(lines):
    """(line, starred, those with a test, those with a reason) of a page of conformance."""
    line, with_test, without = 1, 0, 0
    for number, text in enumerate(lines, 1):
        if STARRED_COUNTS.search(text):
            line = number
        cells = text.split(" | ")
        if len(cells) > 1 and cells[1].startswith("none"):
            without += cells[0].count("★")
        elif len(cells) > 1:
            with_test += cells[0].count("★")
    return line, with_test + without, with_test, without


def missing_tests(page, files):
    """(line, test) of every test that a page names and that is not there."""
    tests = {match.groups() for file in cxx(files) for match in TEST_NAME.finditer(file.text)}
    for number, text in enumerate(page.lines, 1):
        suite = ""
        for match in CLAIMED_TEST.finditer(text):
            suite = match.group(1) or suite
            if not any(name == match.group(2) or match.group(3) and
                       name.startswith(match.group(2)) for of, name in tests if of == suite):
                yield number, f"{suite}.{match.group(2)}"


MUTANT_NAME = re.compile(r"\bSLACKWATER_MUTANT\((\w+)\)")
CLAIMED_MUTANT = re.compile(r"`(hybrid_\w+)`")


@check("replay", "docs/replay.md names tests and planted mutations that exist")
def check_replay(files):
    mutants = {name for file in cxx(files) for name in MUTANT_NAME.findall(file.text)}
    for file in (file for file in files if file.path == "docs/replay.md"):
        for number, test in missing_tests(file, files):
            yield file, number, f"there is no test {test}"
        for number, text in enumerate(file.lines, 1):
            for name in CLAIMED_MUTANT.findall(text):
                if name not in mutants:
                    yield file, number, f"nothing is planted as {name}"


@check("conformance", "docs/conformance.md names tests that exist, and counts its starred cases")
def check_conformance(files):
    for file in (file for file in files if file.path == "docs/conformance.md"):
        for number, test in missing_tests(file, files):
            yield file, number, f"there is no test {test}"
        line, *counts = starred_counts(file.lines)
        claimed = STARRED_COUNTS.search(file.text)
        if claimed is None or [int(count) for count in claimed.groups()] != counts:
            yield file, line, "it has {} starred cases, {} with a test, {} without".format(*counts)


@check("kind-switch", "differences between kinds of layer groups live in cache/kinds only")
def check_kind_switch(files):
    anywhere = r"\bis_(recurrent|sliding|sliding_window|full_attention)\w*"
    # What a layer computes is the business of model and kernels; where its pages live is not.
    above_model = r"\bis_(recurrent|sliding|sliding_window|full_attention|kda|mla|linear|ssm)\w*"
    for file in cxx(files):
        if not file.room or file.is_check_code or "/cache/kinds/" in f"/{file.path}":
            continue
        name = anywhere if file.room in ("model", "kernels") else above_model
        pattern = (rf"\b(?:if|while)\b.*{name}|{name}[^;]*\?(?!\?)|\s(?:&&|\|\|)\s.*{name}"
                   rf"|{name}.*\s(?:&&|\|\|)\s|\bcase\s+(?:\w+::)*GroupKind::")
        for line, _ in grep(file.bare_lines, pattern):
            yield file, line, "a branch on the kind of a layer group; add to the interface instead"


def comment_above(file, line):
    """The text of the `//` lines directly above a line."""
    text = []
    number = line - 1
    while number > 0 and file.lines[number - 1].lstrip().startswith("//"):
        text.append(file.lines[number - 1])
        number -= 1
    return "\n".join(reversed(text))


@check("class-contract", "a public class says Invariants:, Threads: and Errors: above itself")
def check_class_contract(files):
    for file in cxx(files):
        if not file.is_public:
            continue
        for found in file.scan.classes:
            # What derives keeps the contract of its interface; what is nested, its owner's.
            if not found.has_private or found.nested or found.derived:
                continue
            comment = comment_above(file, found.line)
            missing = [word for word in ("Invariants", "Threads", "Errors")
                       if f"{word}:" not in comment and f"{word} (" not in comment]
            if missing:
                yield file, found.line, f"{found.name} does not say {', '.join(missing)}"


def bare_noun_is_excepted(before, name, after):
    """The two exceptions: the containers' data(), and a variable whose type says which."""
    if name == "data" and after == "(":
        return True
    return bool(re.search(rf"[A-Z]\w*[a-z]{name.capitalize()}\s*[&*]*\s*$", before))


@check("bare-noun", "public names are not just cache, context, memory, manager, data, info, handle")
def check_bare_noun(files):
    nouns = "|".join(sorted(BARE_NOUNS))
    declared_type = re.compile(
        rf"\b(?:class|struct|union|enum|using|concept)\s+(?:class\s+|struct\s+)?({nouns})\b", re.I)
    # A declaration: a type, or its `*`, `&` or `>`, stands before the name. With `::` behind it, it
    # is a namespace's.
    declared_name = re.compile(
        rf"((?<![.>:\w])\w+|(?<!-)>|[*&])\s*\b({nouns})\b(?!::)\s*([,;)=({{\[:]|$)")
    for file in cxx(files):
        if not file.is_public:
            continue
        for number, line in enumerate(file.bare_lines, 1):
            for match in declared_type.finditer(line):
                yield file, number, f"type {match.group(1)}: say which"
            for match in declared_name.finditer(line):
                before, name, after = match.groups()
                if before in ("return", "delete", "throw", "new", "else", "operator"):
                    continue
                if bare_noun_is_excepted(line[:match.start(2)], name, after):
                    continue
                yield file, number, f"{name}: say which"


def expected_guard(path):
    inner = path.removeprefix("include/").removeprefix("src/")
    inner = inner.removeprefix("slackwater/")
    return "SLACKWATER_" + re.sub(r"[^A-Z0-9]", "_", inner.upper()) + "_"


@check("include-guard", "headers are guarded by SLACKWATER_<ROOM>_<NAME>_H_, each guard used once")
def check_include_guard(files):
    seen = {}
    for file in cxx(files):
        if not file.is_header:
            continue
        guard = expected_guard(file.path)
        if guard in seen:
            yield file, 1, f"{seen[guard]} has the same guard {guard}; rename one of the files"
        seen[guard] = file.path
        # The second form is that of headers which Highway includes once per target.
        opened = re.search(
            rf"^#ifndef {guard}\n#define {guard}$|"
            rf"^#if defined\({guard}\) == defined\(HWY_TARGET_TOGGLE\)$", file.text, re.M)
        before = file.scan.code[:opened.start()].strip() if opened else "code"
        if before or not re.search(r"^#endif", file.text, re.M):
            yield file, 1, f"the guard is not {guard}"
        elif opened.group().startswith("#ifndef") and not file.text.rstrip().endswith(
                f"#endif  // {guard}"):
            yield file, len(file.lines), f"the last line is not `#endif  // {guard}`"


@check("mutant-name", "SLACKWATER_MUTANT(name): the name is snake_case")
def check_mutant_name(files):
    for file in cxx(files):
        for line, match in grep(file.bare_lines, r"\bSLACKWATER_MUTANT\s*\(([^)]*)\)"):
            if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", match.group(1).strip()):
                yield file, line, f"mutant '{match.group(1)}' is not snake_case"


@check("source-dir", "only tests read SLACKWATER_SOURCE_DIR or folders beside the repository")
def check_source_dir(files):
    for file in cxx(files):
        if file.is_check_code:
            continue
        for line, _ in grep(file.code_lines, r"\bSLACKWATER_SOURCE_DIR\b"):
            yield file, line, "a product does not know where its source lay"
        for line, match in grep(file.lines, r'"(?:[^"]*/)?shared/'):
            yield file, line, f"{match.group()}...: nothing outside the repository exists"


# Numerics


@check("banned-operation", "no Highway or intrinsic operation whose order or rounding is not ours")
def check_banned_operation(files):
    banned = (r"\b(ReorderWidenMulAccumulate|ReorderDemote2To|WidenMulPairwiseAdd|SumOfLanes"
              r"|SumsOf\w+|ReduceSum|ReduceM(?:in|ax)|M(?:in|ax)OfLanes|ApproximateReciprocal\w*"
              r"|DemoteTo\s*\([^;]*(?:bf16|bfloat16|BF16)[^;]*|_mm\w*_rcp\w*|_mm\w*_rsqrt\w*"
              r"|_mm\w*_dpbf16\w*|_mm\w*_cvtne\w*pbh|_mm\w*_reduce_add\w*|_tile_\w+)")
    for file in cxx(files):
        if file.is_check_code:
            continue
        for line, match in grep(file.bare_lines, banned):
            yield file, line, f"{match.group(1).split('(')[0].strip()}: its bits are not ours"
        for line, match in grep(file.bare_lines, r"\b(?:hn|HWY_NAMESPACE)::(Min|Max)\s*\("):
            if "// no NaN:" not in file.lines[line - 1]:
                yield file, line, (
                    f"{match.group(1)} of what may be NaN; say `// no NaN: why` on this line")


@check("libm", "no libm function on the way to a token; std::fma and std::sqrt are exact")
def check_libm(files):
    names = "|".join(LIBM)
    pattern = (rf"\bstd::({names})[fl]?\b(?!::)|(?<![\w:])::({names})[fl]?\s*\("
               rf"|(?<![\w:.>])({names})f\s*\(|\b__builtin_({names})[fl]?\b")
    for file in cxx(files):
        if file.room in NUMERIC_ROOMS and not file.is_check_code:
            for line, match in grep(file.bare_lines, pattern):
                yield file, line, f"{match.group().strip(' (')} differs between machines"


@check("float-flags", "no flag that lets a compiler change results or tie them to one machine")
def check_float_flags(files):
    flags = (r"-march=nativ[e]|-mtune=nativ[e]|-ffast-mat[h]|-Ofas[t]|-funsafe-mat[h]\w*|"
             r"-fassociative-mat[h]|-freciprocal-mat[h]|-ffp-contract=(?:fas[t]|o[n]\b)|"
             r"FP_CONTRACT\s+O[N]|fast_mat[h]")
    for file in files:
        if not file.is_prose:
            for line, match in grep(file.lines, flags):
                yield file, line, f"{match.group()} changes results"
    build_files = [file for file in files if file.is_cmake]
    if build_files and not any(re.search(r"^[^#\n]*-ffp-contract=off", file.text, re.M)
                               for file in build_files):
        yield build_files[0], 1, "-ffp-contract=off is in no build file: g++ fuses without it"


# Words


@check("todo", "a TODO names its condition: TODO(when ...); FIXME and XXX are not left behind")
def check_todo(files):
    words = r"\b(TODO|FIXME|XXX)\b(\((?:when|until|once) [^)]{8,}\))?"
    for file in files:
        if file.is_prose or file.path.startswith("tools/tidy"):
            continue
        for line, match in grep(file.lines, words):
            if match.group(1) != "TODO" or not match.group(2):
                yield file, line, f"{match.group(1)} without a checkable condition"


# What prose does not have: a bracket or a dot that touches words on both sides, or an operator.
CODE_MARK = r"(?:\w[(\[]|\w\.\w|->|::|\s[-+*/|&]?=\s|[=!<>]=)"
COMMENTED_CODE = re.compile(
    r"//\s?(?:"
    r"(?:if|for|while|switch)\s*\(.*[;{}]"
    rf"|(?:return|auto|const|static|constexpr|delete|using|throw)\b.*{CODE_MARK}.*;"
    r"|(?:return|break|continue|delete|throw)(?:\s+[\w*&-]+)?;"
    r"|#\s*(?:include|define|if|endif)\b.*"
    r"|[\w.>:\[\]*-]+(?:<[\w:, ]*>)?\(.*\);"
    r"|[\w.>:\[\]*&-]+(?:\s+[\w*&]+)?\s*[-+*/|&]?=\s.*;"
    r"|[\w:]+(?:<[\w:, ]*>)?[&*]*\s+\w+\s*(?:\(.*\)\s*)?\{"
    r"|\}(?:\s*else\s*\{)?;?"
    r")\s*$")


@check("commented-code", "code is deleted, not commented out (examples are indented further)")
def check_commented_code(files):
    for file in cxx(files):
        for comment in file.scan.comments:
            if comment.alone and COMMENTED_CODE.match(comment.text):
                yield file, comment.line, "code in a comment; delete it, or indent an example"


@check("banner", "comments are sentences, not rulers")
def check_banner(files):
    ruler = r"^\s*(?://+|/\*+|#+|\*)\s*([-=*#/~_+])\1{3,}"
    for file in files:
        if file.is_cxx or file.is_cmake or file.is_script:
            for line, match in grep(file.lines, ruler):
                yield file, line, "a banner; headings go into sentences or files of their own"


@check("machine-path", "no absolute path of somebody's machine")
def check_machine_path(files):
    for file in files:
        for line, match in grep(file.lines, r"(?<![\w.$}{)-])/(?:work|home|root|Users)/"):
            yield file, line, f"{match.group()} exists on one machine only"


@check("registry-host", "no host name of a package registry: machines know their own mirrors")
def check_registry_host(files):
    pattern = r"\b(?:" + "|".join(r"\.".join(labels) for labels in REGISTRY_HOSTS) + r")\b"
    for file in files:
        for line, match in grep(file.lines, pattern):
            yield file, line, match.group()


# Answers


ANSWER = re.compile(r"tidy: allow\(([\w-]+)\)(: *\S.*)?")


def answers_of(file):
    """Yields (line, check, reason given) of the answers in a file, but not in prose about them."""
    if file.is_prose or file.path.startswith("tools/tidy"):
        return
    for line, match in grep(file.lines, ANSWER):
        yield line, match.group(1), bool(match.group(2))


@check("answer", "`tidy: allow(check): reason` names a known check, a reason and a real finding")
def check_answer(files):
    for file in files:
        for line, name, reason in answers_of(file):
            if name not in CHECKS:
                yield file, line, f"there is no check '{name}'"
            elif not reason:
                yield file, line, f"allow({name}) gives no reason"


def run_checks(files):
    """All findings that no answer covers, in order of place."""
    findings, unused = [], {}
    for file in files:
        for line, name, _ in answers_of(file):
            unused[(file.path, line, name)] = True
    for name, (_, function) in CHECKS.items():
        for file, line, text in function(files):
            covering = [(file.path, at, name) for at in (line, line - 1)
                        if (file.path, at, name) in unused]
            for key in covering:
                unused[key] = False
            if not covering:
                findings.append(Finding(file.path, line, name, text))
    for (path, line, name), is_unused in unused.items():
        if is_unused and name in CHECKS:
            findings.append(Finding(path, line, "answer", f"allow({name}) answers no finding"))
    return sorted(findings, key=lambda finding: (finding.path, finding.line, finding.check))


# The tree


def list_paths(root):
    """Paths of the working tree, ignored ones apart."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return sorted(path for path in set(listed.stdout.split("\0")) if path)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")
                  if path.is_file() and path.relative_to(root).parts[0] != "build")


def read_tree(root):
    """The text files under a root; what holds a zero byte or no UTF-8 is no text."""
    files = []
    for path in list_paths(root):
        full = root / path
        if not full.is_file() or full.is_symlink():
            continue
        content = full.read_bytes()
        if b"\0" in content[:4096]:
            continue
        try:
            files.append(File(path, content.decode()))
        except UnicodeDecodeError:
            continue
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the checks and stop")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    if options.list:
        width = max(map(len, CHECKS))
        for name, (doc, _) in sorted(CHECKS.items()):
            print(f"{name:{width}}  {doc}")
        return 0
    files = read_tree(options.root.resolve())
    findings = run_checks(files)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(findings)} findings in {len(files)} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
