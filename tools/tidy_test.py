#!/usr/bin/env python3
"""Tests of tools/tidy.py: each check finds a planted fault and leaves clean text alone."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cxx_scan  # noqa: E402  needs the line above
import tidy  # noqa: E402

TIDY = pathlib.Path(tidy.__file__)


def header(path, body):
    """A header with its guard and namespace."""
    guard = tidy.expected_guard(path)
    return f"#ifndef {guard}\n#define {guard}\n\n{body}\n\n#endif  // {guard}\n"


def function_of(lines, name="f"):
    """A function that takes exactly `lines` lines."""
    return f"void {name}() {{\n" + "  g();\n" * (lines - 2) + "}\n"


HEADER = "include/slackwater/storage/slots.h"
SOURCE = "src/storage/slots.cc"
KERNEL = "src/kernels/norm/norm.cc"

# A small tree that no check has anything to say about. Every planted fault is added to it.
CLEAN = {
    "CMakeLists.txt": "add_subdirectory(src/storage)\n",
    "cmake/SlackwaterOptions.cmake": "add_compile_options(-ffp-contract=off)\n",
    "src/storage/CMakeLists.txt": (
        "slackwater_room(storage SOURCES slots.cc)\n"
        "slackwater_room_tests(storage SOURCES slots_test.cc pool_test.cc)\n"),
    HEADER: header(HEADER, """\
#include <memory>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/device/arena.h"

namespace slackwater::storage {

// Places of a pool.
//
//   SlotTable table(4);
//   table.release(slot);
//
// Invariants:
//   I1  every slot is free or taken.
// Threads: one at a time.
// Errors: none.
template <class T>
class SlotTable final {
 public:
  SlotTable(int first, int second, int third, int fourth, int fifth);
  const T* data() const { return slots_.data(); }
  void bind(ExecutionContext& context, std::memory_order order);
  auto operator<=>(const SlotTable&) const = default;

 private:
  class Inner {
    int value_ = 1'000'000;
  };
  std::vector<T> slots_{};
};

// A plain pair needs no contract.
struct SlotRange {
  int begin = 0;
  int end = 0;
};

}  // namespace slackwater::storage"""),
    SOURCE: """\
#include "slackwater/storage/slots.h"

#include "storage/free_list.h"

namespace slackwater::storage {
namespace {

constexpr char kText[] = R"(unbalanced { " // not a comment)";

// The slots that
// delete them return one by one; a later call
// continues there, using what is left; see `run(x);` above.
SlotTable::SlotTable(int first, int second)
    : first_{first}, second_(second), third_{[] { return 3; }()} {
  if (first == '{') return;
  if (SLACKWATER_MUTANT(skip_release)) return;
}

}  // namespace
}  // namespace slackwater::storage
""",
    "src/storage/slots_test_support.h": header(
        "src/storage/slots_test_support.h", 'inline auto kFile = SLACKWATER_SOURCE_DIR "/a";'),
    "src/storage/slots_test.cc": 'const char* kRoot = SLACKWATER_SOURCE_DIR "/tests";\n',
    KERNEL: """\
#include <cmath>

#include <hwy/highway.h>

#include "slackwater/kernels/views.h"

float rms(float x) { return std::sqrt(std::fma(x, x, vector_math::exp(x))); }
auto low(V x, V y) { return hn::Min(x, y); }  // no NaN: both are integers
""" + function_of(200, "unrolled"),
    "src/storage/short.cc": "".join(function_of(30, f"short{i}") for i in range(20)),
    "src/kernels/norm/norm_test.cc": "float expected = std::exp(1.0f);\n",
    "src/kernels/CMakeLists.txt": "slackwater_room_tests(kernels SOURCES norm/norm_test.cc)\n",
    "src/cli/main.cc": '#include "slackwater/engine/engine.h"\n',
    "examples/embed.cc": '#include "slackwater/model/generate.h"\n',
    "tests/sim/sim_test.h": header("tests/sim/sim_test.h", '#include "storage/free_list.h"'),
    "src/cache/kinds/recurrent.cc": "bool f(bool is_recurrent) { if (is_recurrent) return 1; }\n",
    "src/storage/pool_test.cc": "TEST(Pool, Grows) {}\nTEST_F(Pool, ShrinksAtOnce) {}\n",
    "docs/conformance.md": (
        "**Starred cases: 3. With a test: 2. With a reason why there is none: 1**\n\n"
        "| theirs | ours | difference |\n|---|---|---|\n"
        "| ★ grow, ★ shrink | `Pool.Grows`, `.Shrinks…` in `src/storage` | |\n"
        "| ★ beams | none: `a.cc` | |\n"),
    "src/hybrid/setup.cc": "bool f() { return SLACKWATER_MUTANT(hybrid_unbound); }\n",
    "docs/replay.md": "| R17 | a bound | `Pool.Grows`, `.ShrinksAtOnce` | `hybrid_unbound` |\n",
    "docs/page.md": "Prose may be as wide as it likes and speak of FIXME. " * 4 + "\n",
}


def include(path):
    return f'#include "{path}"\n'


# Check -> trees with one fault each: (file, whole text), or several files.
PLANTED = {
    "room-include": [
        {"src/base/a.cc": include("slackwater/device/arena.h")},
        {"src/cache/a.cc": include("slackwater/kernels/views.h")},
        {"src/kernels/a.cc": include("slackwater/storage/slots.h")},
        {"src/model/a.cc": include("slackwater/cache/tree.h")},
        {"src/model/a.cc": "#include <slackwater/engine/engine.h>\n"},
        {"src/scheduler/a.cc": include("slackwater/model/generate.h")},
        {"src/server/a.cc": include("slackwater/cache/log_inspection.h")},
        {"src/cli/a.cc": include("slackwater/model/weights.h")},
        {"src/hybrid/a.cc": include("cache/tree_node.h")},
        {"src/storage/a.cc": include("free_list.h")},
        {"src/storage/a.cc": include("../cache/tree.h")},
        {"src/storage/a.cc": include("testing/oracle.h")},
        {"src/attic/a.cc": ""},
        {"examples/b.cc": include("storage/free_list.h")},
    ],
    "heavy-header": [
        {"include/slackwater/model/a.h": header(
            "include/slackwater/model/a.h", "#include <nlohmann/json.hpp>")},
    ],
    "vendor-api": [
        {"src/storage/a.cc": "#include <cuda_runtime.h>\n"},
        {"src/storage/a.cc": "void f() { cudaMemcpyAsync(a, b, 4); }\n"},
    ],
    "function-length": [
        {"src/storage/a.cc": function_of(71)},
        {"src/storage/a.cc": "namespace n {\nstruct S {\n" + function_of(71) + "};\n}\n"},
        {"src/storage/a.cc": "S::S()\n    : a_{1},\n" + "      b_{2},\n" * 67
                             + "      c_(3) {\n  auto f = [] { return '}'; };\n}\n"},
        # Only one branch of a conditional has a brace of its own.
        {"src/storage/a.cc": "#if A\nvoid f() {\n#else\nvoid f(int) {\n#endif\n"
                             + "  g();\n" * 70 + "}\n"},
    ],
    "function-p90": [
        {f"src/storage/{name}.cc": "".join(function_of(31, f"{name}{i}") for i in range(20))
         for name in "ab"},
    ],
    "parameters": [
        {"src/storage/a.cc": "void f(int a, int b, int c, int d, int e, int f) {}\n"},
        {"src/storage/a.h": header("src/storage/a.h", """\
struct S {
  S(int a, int b, int c, std::map<int, int> d, int e = f(1, 2), int g = 0);
};""")},
    ],
    "file-length": [
        {"src/storage/a.cc": "int a;\n" * 701},
        {"include/slackwater/base/a.h": header("include/slackwater/base/a.h", "int a;\n" * 350)},
    ],
    "columns": [
        {"src/storage/a.cc": "int " + "a" * 97 + ";\n"},
        {"scripts/a.sh": "true " + "a" * 100 + "\n"},
    ],
    "balance": [{"src/storage/a.cc": "namespace a {\n"}],
    "unregistered": [
        {"src/storage/lost_test.cc": "int a;\n"},
        {"src/storage/deep/slots_test.cc": "int a;\n"},
        {"src/storage/lost_fuzz.cc": "int a;\n"},
        {"src/storage/lost_bench.cc": "int a;\n",
         "src/storage/CMakeLists.txt": "# slots_test.cc, not: lost_bench.cc\nadd(slots_test.cc)\n"},
    ],
    "replay": [
        {"docs/replay.md": CLEAN["docs/replay.md"].replace(old, new)}
        for old, new in (("Pool.Grows", "Pool.Grow"), ("hybrid_unbound", "hybrid_bound"))
    ],
    "conformance": [
        {"docs/conformance.md": CLEAN["docs/conformance.md"].replace(old, new)}
        for old, new in (("Pool.Grows", "Pool.Grow"), ("`.Shrinks…`", "`.Shrinks`"),
                         ("Pool.Grows", "Tank.Grows"), ("★ beams", "beams"),
                         ("**Starred", "**Cases"))
    ],
    "kind-switch": [
        {"src/cache/a.cc": "void f() {\n  if (group.is_recurrent()) g();\n}\n"},
        {"src/cache/a.cc": "int f() {\n  return is_recurrent ? 1 : 2;\n}\n"},
        {"src/hybrid/a.cc": "void f() {\n  while (is_kda(layer) && x) g();\n}\n"},
        {"src/storage/a.cc": "void f() {\n  case GroupKind::kSliding: g();\n}\n"},
    ],
    "class-contract": [
        {"include/slackwater/base/a.h": header("include/slackwater/base/a.h", text)}
        for text in ("// Invariants: none. Threads: any.\nclass A {\n  int a_;\n};",
                     "// Errors: none.\n\nclass A {\n  int a_;\n};",
                     "// A.\nstruct A {\n private:\n  int a_;\n};")
    ],
    "bare-noun": [
        {"include/slackwater/base/a.h": header("include/slackwater/base/a.h", text)}
        for text in ("struct Cache {};", "enum class Handle { kA };", "using Context = int;",
                     "void f(void* data, int size);", "struct A {\n  int memory = 0;\n};",
                     "int manager();", "void f(const Page& info);", "std::span<int> data{};")
    ],
    "include-guard": [
        {"src/storage/a.h": "#pragma once\n"},
        {"src/storage/a.h": header("src/storage/b.h", "")},
        {"src/storage/a.h": header("src/storage/a.h", "").replace("  // ", " ")},
        {"src/storage/a.h": "int a;\n" + header("src/storage/a.h", "")},
        {"src/storage/slots.h": header(HEADER, "")},
    ],
    "mutant-name": [{"src/storage/a.cc": "bool a = SLACKWATER_MUTANT(SkipSave);\n"}],
    "source-dir": [
        {"src/storage/a.cc": "auto a = SLACKWATER_SOURCE_DIR;\n"},
        {"src/storage/a.cc": 'auto a = open("../shared/golden");\n'},
    ],
    "banned-operation": [
        {"src/kernels/a.cc": f"void f() {{\n  {text};\n}}\n"}
        for text in ("hn::SumOfLanes(d, v)", "hn::ReorderWidenMulAccumulate(d, a, b, c, e)",
                     "hn::ReduceSum(d, v)", "hn::ApproximateReciprocalSqrt(v)",
                     "hn::DemoteTo(dbf16, v)", "_mm256_rcp_ps(v)", "_mm512_dpbf16_ps(a, b, c)",
                     "hn::Min(a, b)", "hwy::HWY_NAMESPACE::Max(a, b)")
    ],
    "libm": [
        {"src/model/a.cc": f"void f() {{\n  {text};\n}}\n"}
        for text in ("std::exp(x)", "std::pow(x, 2)", "x = ::log(x)", "tanhf(x)",
                     "__builtin_expf(x)", "using std::log1p")
    ],
    "float-flags": [
        {"cmake/a.cmake": "add_compile_options(-march=" + "native)\n"},
        {"src/storage/a.cc": "#pragma GCC optimize(\"-ffast-" + "math\")\n"},
        {"cmake/a.cmake": "add_compile_options(-ffp-contract=" + "fast)\n"},
        {"cmake/SlackwaterOptions.cmake": "# -ffp-contract=off\n"},
    ],
    "todo": [
        {"src/storage/a.cc": "// TODO: later\n"},
        {"src/storage/a.cc": "// TODO(somebody): later\n"},
        {"cmake/a.cmake": "# FIXME\n"},
    ],
    "commented-code": [
        {"src/storage/a.cc": f"{text}\n"}
        for text in ("// return slots_[i].id;", "// release(slot);", "//if (a) { b(); }",
                     "// int count = 0;", "// slots_->clear();", "// #include <vector>", "// }",
                     "// std::vector<int> f(int a) {")
    ],
    "banner": [
        {"src/storage/a.cc": "// -----------------\n"},
        {"src/storage/a.cc": "///////////////////\n"},
        {"cmake/a.cmake": "# ==== options ====\n"},
    ],
    "machine-path": [{"docs/a.md": "see /" + "home/me/notes\n"}],
    "registry-host": [{"scripts/a.sh": "curl https://pypi" + ".org/simple\n"}],
    "answer": [
        {"src/storage/a.cc": "int a;  // tidy: allow(no-such-check): reason\n"},
        {"src/storage/a.cc": "void f(int a, int b, int c, int d, int e, int f) {}"
                             "  // tidy: allow(parameters)\n"},
        {"src/storage/a.cc": "int a;  // tidy: allow(columns): nothing is long here\n"},
    ],
}


def findings_of(tree):
    return tidy.run_checks([tidy.File(path, text) for path, text in sorted(tree.items())])


class TidyTest(unittest.TestCase):
    maxDiff = None

    def test_clean_tree_has_no_finding(self):
        self.assertEqual([str(finding) for finding in findings_of(CLEAN)], [])

    def test_each_planted_fault_is_found_by_its_check_alone(self):
        for name, trees in PLANTED.items():
            for tree in trees:
                with self.subTest(check=name, tree=str(tree)[:200]):
                    found = findings_of(CLEAN | tree)
                    self.assertEqual({finding.check for finding in found}, {name},
                                     [str(finding) for finding in found])
                    self.assertLessEqual({finding.path for finding in found}, set(CLEAN | tree))

    def test_every_check_of_the_list_has_a_planted_fault(self):
        listed = subprocess.run([sys.executable, str(TIDY), "--list"], check=True, text=True,
                                capture_output=True).stdout
        names = {line.split()[0] for line in listed.splitlines()}
        self.assertEqual(names, set(PLANTED))
        self.assertEqual([line for line in listed.splitlines() if len(line.split()) < 4], [])

    def test_findings_point_at_the_line(self):
        tree = CLEAN | {"src/storage/a.cc": "int a;\n\n// TODO: later\n"}
        self.assertEqual([(f.path, f.line) for f in findings_of(tree)], [("src/storage/a.cc", 3)])

    def test_an_answer_with_a_reason_covers_its_line_and_the_next(self):
        function = "void f(int a, int b, int c, int d, int e, int f) {}"
        answer = "// tidy: allow(parameters): given"
        for text in (f"{answer}\n{function}\n", f"{function}  {answer}\n"):
            self.assertEqual(findings_of(CLEAN | {"src/storage/a.cc": text}), [])
        far = f"{answer}\n\n{function}\n"
        self.assertEqual({f.check for f in findings_of(CLEAN | {"src/storage/a.cc": far})},
                         {"parameters", "answer"})

    def test_entries_beyond_the_table_are_allowed(self):
        for room, entries in tidy.ENTRIES.items():
            for entry in entries:
                tree = CLEAN | {f"src/{room}/a.cc": include(f"slackwater/{entry}")}
                self.assertEqual(findings_of(tree), [])

    def test_the_table_of_rooms_has_no_cycle(self):
        above = {room: set(below) for room, below in tidy.ROOMS.items()}
        while above:
            leaves = {room for room, below in above.items() if not below & set(above)}
            self.assertTrue(leaves, f"a cycle among {sorted(above)}")
            above = {room: below for room, below in above.items() if room not in leaves}

    def test_exit_status_follows_the_findings(self):
        for fault, status in (("", 0), ("// TODO: later\n", 1)):
            with tempfile.TemporaryDirectory() as folder:
                for path, text in (CLEAN | {"src/storage/a.cc": fault}).items():
                    full = pathlib.Path(folder, path)
                    full.parent.mkdir(parents=True, exist_ok=True)
                    full.write_text(text)
                pathlib.Path(folder, "model.bin").write_bytes(b"\0" * 200)
                run = subprocess.run([sys.executable, str(TIDY), "--root", folder],
                                     capture_output=True, text=True, check=False)
                self.assertEqual(run.returncode, status, run.stdout + run.stderr)


class ScannerTest(unittest.TestCase):
    def test_functions_of_every_shape(self):
        found = cxx_scan.scan("""\
template <class T, int N = (3)>
[[nodiscard]] auto make(std::map<int, std::pair<T, int>> a, int b = g(1, 2)) -> Result<T> {
  auto f = [&](int x) { return x; };
  for (int i = 0; i < 3; ++i) { f(i); }
}
struct S : Base {
  explicit S(int a) noexcept : Base{a}, b_{1, 2}, c_(3) {}
  bool operator()(int a, int b) const { return a < b; }
  bool operator<(const S& s) const { return false; }
  explicit operator bool() const { return true; }
  std::function<void(int, int)> callback_{nullptr};
  static constexpr int kTable[] = {1, 2, 3};
  int count_{0};
};
const auto kNames = std::to_array({"{", "}"});
extern "C" int entry(const char* text) { return *text == '"'; }
void operator delete[](void* p) noexcept { std::free(p); }
TEST(Suite, Name) { EXPECT_EQ(1'000, 1000); }
""")
        self.assertTrue(found.balanced)
        self.assertEqual(
            [(f.name, f.line, f.end, len(f.parameters)) for f in found.functions],
            [("make", 1, 5, 2), ("S", 7, 7, 1), ("operator_call", 8, 8, 2),
             ("operator_symbol", 9, 9, 1), ("operator_word", 10, 10, 0), ("entry", 16, 16, 1),
             ("operator_word", 17, 17, 1), ("TEST", 18, 18, 2)])
        self.assertEqual([(c.name, c.derived, c.has_private) for c in found.classes],
                         [("S", True, False)])

    def test_comments_and_literals_are_told_apart(self):
        text = 'auto a = "// no"; // yes\nauto b = R"x(/* no */ )")x"; /* yes { */\nint c = 1\'0;\n'
        found = cxx_scan.scan(text)
        self.assertEqual([comment.text for comment in found.comments], ["// yes", "/* yes { */"])
        self.assertEqual(len(found.code), len(text))
        self.assertNotIn("no", found.code)
        self.assertTrue(found.balanced)


if __name__ == "__main__":
    unittest.main()
