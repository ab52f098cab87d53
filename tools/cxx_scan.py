"""A small scanner of C++ text: enough structure for tools/tidy.py, no more.

It knows comments, string and character literals (raw strings and digit separators included),
preprocessor lines, namespaces, classes, functions and their parameters. It is no parser: what it
does not understand it skips, and a file whose braces do not balance yields nothing.
"""

import bisect
import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
      |(?P<raw>(?<![A-Za-z0-9_])(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
      |(?P<string>"(?:\\.|[^"\\\n])*")
      |(?P<char>(?<![A-Za-z0-9_])(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')""",
    re.S | re.X,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M)
STRUCTURE = re.compile(r"[{}();]")
ACCESS = re.compile(r"\s*(?:public|private|protected)\s*:(?!:)")
CLASS_HEAD = re.compile(r"^(?:typedef\s+)?(class|struct|union|enum)\b(?:\s+class|\s+struct)?")
MACRO = re.compile(r"[A-Z][A-Z0-9_]{3,}")
# What can stand before a parenthesis in a declaration without being the function's name.
NOT_A_NAME = {
    "alignas", "asm", "decltype", "explicit", "noexcept", "requires", "sizeof", "static_assert",
    "throw", "__attribute__", "auto", "bool", "char", "double", "float", "int", "long", "unsigned",
    "void", "if", "for", "while", "switch", "return", "catch", "co_return", "new", "delete",
}


@dataclass(frozen=True)
class Comment:
    """One comment token: where it starts, and its text with the slashes."""

    line: int
    text: str
    alone: bool  # nothing but space stands before it on its line


@dataclass(frozen=True)
class Function:
    """A function definition or, where `end` is None, a declaration."""

    name: str
    line: int
    end: int | None
    parameters: tuple

    @property
    def length(self):
        return self.end - self.line + 1


@dataclass(frozen=True)
class Class:
    """A class or struct definition."""

    keyword: str
    name: str
    line: int
    nested: bool
    derived: bool
    has_private: bool


@dataclass
class Scan:
    """What one file holds. `code` has the length of the text, with everything else blanked."""

    code: str = ""  # comments and literals blanked
    bare: str = ""  # preprocessor lines blanked too
    comments: list = field(default_factory=list)
    functions: list = field(default_factory=list)
    classes: list = field(default_factory=list)
    balanced: bool = True


def blank(text):
    """Spaces in place of every character but newlines."""
    return re.sub(r"[^\n]", " ", text)


def strip_literals(text):
    """Returns the code with comments and the insides of literals blanked, and the comments."""
    comments = []

    def replace(match):
        whole = match.group()
        if match.lastgroup == "comment" or match.group("comment"):
            comments.append((match.start(), whole))
            return blank(whole)
        quote = "'" if match.group("char") else '"'
        return quote + blank(whole[1:-1]) + quote

    return TOKEN.sub(replace, text), comments


def match_braces(code):
    """Maps the offset of every `{` to that of its `}`; None when they do not balance."""
    partner, stack = {}, []
    for match in re.finditer(r"[{}]", code):
        if match.group() == "{":
            stack.append(match.start())
        elif not stack:
            return None
        else:
            partner[stack.pop()] = match.start()
    return None if stack else partner


def drop_else_branches(code):
    """Blanks what stands between #else or #elif and its #endif."""
    out, depth, dropping = [], 0, None
    for line in code.split("\n"):
        directive = re.match(r"\s*#\s*(if|elif|else|endif)", line)
        word = directive.group(1) if directive else None
        if word == "if":
            depth += 1
        elif word in ("elif", "else") and dropping is None:
            dropping = depth
        elif word == "endif":
            if dropping == depth:
                dropping = None
            depth -= 1
        out.append(blank(line) if dropping is not None and not directive else line)
    return "\n".join(out)


def simplify(head):
    """A declaration without attributes, template arguments and operator symbols."""
    while True:
        access = ACCESS.match(head)
        if not access:
            break
        head = head[access.end():]
    head = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.S)
    head = re.sub(r"\boperator\s*\(\s*\)", "operator_call", head)
    head = re.sub(r"\boperator\s*(?:[^\s\w(]+|\"\"\s*\w+)", "operator_symbol", head)
    head = re.sub(r"\boperator\s+[\w:]+(?:\s*[*&]|\s*\[\s*\])*\s*(?=\()", "operator_word", head)
    head = head.replace("->", " ")
    previous = None
    while previous != head:
        previous = head
        head = re.sub(r"<[^<>;{}]*>", " ", head)
    return re.sub(r"\btemplate\b", " ", head).strip()


def split_top_level(text, separator=","):
    """Splits at separators that are inside no bracket."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return parts


def closing_parenthesis(text, opening):
    depth = 0
    for i in range(opening, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def find_parameter_list(head):
    """Returns (name, parameters, rest of the head) of a simplified declaration, or None."""
    position, fallback = 0, None
    while True:
        match = re.compile(r"([\w~:]+)\s*\(").search(head, position)
        if not match:
            return fallback
        name = match.group(1)
        close = closing_parenthesis(head, match.end() - 1)
        inside = head[match.end():close].strip()
        parameters = () if inside in ("", "void") else tuple(
            part.strip() for part in split_top_level(inside))
        found = (name, parameters, head[close + 1:])
        last = name.split("::")[-1]
        if last in NOT_A_NAME:
            position = close + 1
        elif MACRO.fullmatch(last):
            # A macro: annotation of what follows, or TEST(Suite, Name).
            fallback = fallback or found
            position = close + 1
        else:
            return found


def has_initializer(head):
    """True where a simplified head has an `=` outside brackets: a variable, not a function."""
    depth = 0
    for i, char in enumerate(head):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "=" and depth == 0:
            if head[i + 1:i + 2] != "=" and head[i - 1:i] not in tuple("=<>!+-*/%&|^"):
                return True
    return False


class Scanner:
    """One pass over a file's structure. Bodies of functions are skipped, not entered."""

    def __init__(self, text):
        self.scan = Scan()
        self.scan.code, comments = strip_literals(text)
        newlines = [i for i, char in enumerate(text) if char == "\n"]
        self.line_at = lambda offset: bisect.bisect_left(newlines, offset) + 1
        for offset, body in comments:
            before = text[text.rfind("\n", 0, offset) + 1:offset]
            self.scan.comments.append(Comment(self.line_at(offset), body, not before.strip()))
        self.scan.bare = DIRECTIVE.sub(lambda m: blank(m.group()), self.scan.code)
        self.walked = self.scan.bare
        self.partner = match_braces(self.walked)
        if self.partner is None:
            kept = drop_else_branches(self.scan.code)
            self.walked = DIRECTIVE.sub(lambda m: blank(m.group()), kept)
            self.partner = match_braces(self.walked)
        self.scan.balanced = self.partner is not None

    def run(self):
        if self.scan.balanced:
            self.walk()
        return self.scan

    def walk(self):
        code, position, head, parens, scopes = self.walked, 0, 0, 0, []
        while match := STRUCTURE.search(code, position):
            offset, char = match.start(), match.group()
            position = offset + 1
            if char == "(":
                parens += 1
            elif char == ")":
                parens -= 1
            elif char == "{" and parens > 0:
                position = self.partner[offset] + 1
            elif char == "{":
                entered = self.open_brace(head, offset, scopes)
                if entered == "initializer":
                    position = self.partner[offset] + 1
                elif entered == "body":
                    position = head = self.partner[offset] + 1
                else:
                    scopes.append(entered)
                    head = position
            elif char == "}":
                if scopes:
                    scopes.pop()
                head = position
            elif parens == 0:
                self.add_declaration(code[head:offset], head)
                head = position

    def start_line(self, head, raw):
        """The line of the first token of a declaration, access specifiers apart."""
        skipped = 0
        while access := ACCESS.match(raw, skipped):
            skipped = access.end()
        rest = raw[skipped:]
        return self.line_at(head + skipped + len(rest) - len(rest.lstrip()))

    def open_brace(self, head, offset, scopes):
        """Says what a `{` opens: `initializer`, `body`, `namespace` or `class`."""
        raw = self.walked[head:offset]
        text = simplify(raw)
        if re.match(r"(?:inline\s+)?namespace\b", text) or re.fullmatch(r'extern\s+"\s*"', text):
            return "namespace"
        bare = re.sub(r"\b(?:alignas|__attribute__|[A-Z][A-Z0-9_]+)\s*\([^()]*\)", " ", text)
        keyword = CLASS_HEAD.match(bare)
        if keyword and "(" not in bare and not has_initializer(bare):
            if keyword.group(1) == "enum":
                return "initializer"
            self.add_class(keyword, bare, raw, head, offset, scopes)
            return "class"
        if "(" not in text or has_initializer(text) or re.match(r"concept\b", text):
            return "initializer"
        found = find_parameter_list(text)
        if found is None:
            # Not understood. What follows the closing brace tells a value from a body.
            after = self.walked[self.partner[offset] + 1:].lstrip()[:1]
            return "initializer" if after in (";", ",", "") else "body"
        name, parameters, rest = found
        in_member_list = re.match(r"[^:]*(?<!:):(?!:)", rest) and "?" not in rest
        if in_member_list and re.search(r"[\w>]\s*$", raw):
            return "initializer"
        end = self.line_at(self.partner[offset])
        self.scan.functions.append(Function(name, self.start_line(head, raw), end, parameters))
        return "body"

    def add_class(self, keyword, bare, raw, head, offset, scopes):
        name, colon, _ = bare[keyword.end():].replace("::", "@@").partition(":")
        name = name.replace("@@", "::").replace("final", " ").split()
        body = self.walked[offset + 1:self.partner[offset]]
        # Access specifiers of nested classes do not count.
        while re.search(r"\{[^{}]*\}", body):
            body = re.sub(r"\{[^{}]*\}", "", body)
        is_class = keyword.group(1) == "class"
        has_private = is_class or bool(re.search(r"\b(?:private|protected)\s*:", body))
        self.scan.classes.append(Class(
            keyword.group(1), name[-1] if name else "", self.start_line(head, raw),
            "class" in scopes, bool(colon), has_private))

    def add_declaration(self, raw, head):
        text = simplify(raw)
        text = re.sub(r"=\s*(?:0|default|delete)\s*$", "", text)
        if "(" not in text or has_initializer(text):
            return
        if re.match(r"(?:using|typedef|friend\s+class|static_assert)\b", text):
            return
        found = find_parameter_list(text)
        if found and not MACRO.fullmatch(found[0]):
            self.scan.functions.append(
                Function(found[0], self.start_line(head, raw), None, found[1]))


def scan(text):
    """Scans the text of one C++ file."""
    return Scanner(text).run()
