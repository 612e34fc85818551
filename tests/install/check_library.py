#!/usr/bin/env python3
"""Checks an installed library from outside, with nm and ldd.

    check_library.py without LIBRARY NAME…        no shared library that it loads has one of these names in its own
    check_library.py exports LIBRARY HEADERS      it exports what the public headers declare and nothing else
    check_library.py called LIBRARY PROGRAM…      every function that it exports is called by one of the programs
    check_library.py marked HEADERS               every function that a header declares without defining it is exported
    check_library.py --self-test COMPILER         plants a breach of every kind and expects each to be reported

Each prints a line per breach and exits 1 where there is one.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

MARK = "ZOETROPE_API"
EXPORTED = re.compile(r"^(?:(?:typeinfo|typeinfo name|vtable) for )?zoetrope::")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def without(library, names):
    for line in run("ldd", library).splitlines():
        loaded = line.split()[0]
        for name in names:
            if name in pathlib.Path(loaded).name.lower():
                yield f"{library} needs {loaded}"


def symbols(path, which):
    """(kind, mangled name) of what a shared object or a program defines or wants."""
    for line in run("nm", "-D", which, str(path)).splitlines():
        *_, kind, name = line.split()
        yield kind, name.split("@")[0]


def demangled(names):
    return dict(zip(names, run("c++filt", *names).splitlines())) if names else {}


def words_of(headers):
    return set(re.findall(r"\w+", "\n".join(code_of(path) for path in sorted(pathlib.Path(headers).glob("*.h")))))


def exports(library, headers):
    known = words_of(headers)
    names = demangled([name for _, name in symbols(library, "--defined-only")])
    if not names:
        yield f"{library} exports nothing"
    for name in names.values():
        if not EXPORTED.match(name):
            yield f"{library} exports {name}"
            continue
        # A public function, every part of its name: zoetrope::attention::plan(…)
        parts = re.findall(r"\w+", re.split(r"[(\[]", name.removeprefix("typeinfo name for ")
                                           .removeprefix("typeinfo for ").removeprefix("vtable for "))[0])
        unknown = [part for part in parts if part not in known]
        if unknown:
            yield f"{library} exports {name}, but no public header names '{unknown[0]}'"


def called(library, programs):
    # A constructor has several symbols of one name, of which a caller wants one.
    wanted = demangled([name for program in programs for _, name in symbols(program, "--undefined-only")])
    exported = demangled([name for kind, name in symbols(library, "--defined-only") if kind == "T"])
    for name in sorted(set(exported.values()) - set(wanted.values())):
        yield f"{library} exports {name}, which no program calls"


def code_of(path):
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def statements(text):
    """The declarations of a namespace or class, each with its body or ';'."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        if char in "({":
            depth += 1
        elif char in ")}":
            depth -= 1
        if depth == 0 and (char == ";" or (char == "}" and not re.match(r"\s*(;|,|\{)", text[at + 1:]))):
            yield re.sub(r"^\s*((public|private|protected)\s*:\s*)*", "", text[start:at + 1]).strip()
            start = at + 1


NAMESPACE = re.compile(r"namespace [\w:]* ?\{(.*)\}$", re.S)
CLASS = re.compile(r"(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(?P<mark>%s\s+)?(?P<name>\w+)[^;{]*\{(?P<body>.*)\}" % MARK, re.S)
FREE = re.compile(r"^(template|using|static_assert|friend|inline|constexpr|typedef|enum)\b")


def declares(statement):
    """Whether it is a function that is defined elsewhere."""
    head = statement.split("=")[0].split("{")[0]
    while "<" in head and head != (plain := re.sub(r"<[^<>]*>", "", head)):
        head = plain  # std::function<void(int)> is no function
    return (statement.endswith(";") and "(" in head and not FREE.match(statement)
            and not re.search(r"=\s*(0|default|delete)\s*;$", statement))


def unmarked(text, where):
    for statement in statements(text):
        namespace, record = NAMESPACE.match(statement), CLASS.match(statement)
        if namespace:
            yield from unmarked(namespace.group(1), where)
        elif record:
            if not record.group("mark") and any(declares(member) for member in statements(record.group("body"))):
                yield f"{where}: the members of {record.group('name')} are not exported; mark it {MARK}"
            for member in statements(record.group("body")):
                if declares(member.removeprefix("friend ")) and member.startswith("friend "):
                    yield f"{where}: no mark can export {member}; make it a member, or define it here"
        elif declares(statement) and not statement.startswith(MARK):
            yield f"{where}: not exported; mark it {MARK}: {' '.join(statement.split())}"


def marked(headers):
    for path in sorted(pathlib.Path(headers).glob("*.h")):
        yield from unmarked(code_of(path), path.name)


def self_test(compiler):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "good.h").write_text(
            f"#define {MARK} x\nnamespace zoetrope {{\n{MARK} void f(int a = g());\ninline int h() {{ return 1; }}\n"
            f"class {MARK} C {{\n public:\n  void m() const;\n}};\nstruct P {{\n  int x = 1;\n  int n() {{ return x; }}\n"
            "  std::function<void(std::vector<int>)> c;\n  virtual void v() = 0;\n};\n}\n")
        assert list(marked(folder)) == [], list(marked(folder))
        (folder / "bad.h").write_text("namespace zoetrope {\nstruct S {\n  int x = 1;\n  void m();\n  friend bool e(S);\n};\nvoid\n"
                                      "left_out(int);\n}\n")
        found = list(marked(folder))
        assert len(found) == 3 and "of S" in found[0] and "bool e(S)" in found[1] and "left_out" in found[2], found
        source, library, program = folder / "x.cpp", folder / "libx.so", folder / "program"
        source.write_text("#include <cstdlib>\nnamespace zoetrope { void f(int) {} void internal() {} }\nnamespace other { void f() {} }\n"
                          "void *read() { return std::malloc(1); }\n")
        run(compiler, "-shared", "-fPIC", "-o", str(library), str(source))
        found = list(exports(library, folder))
        for breach in ("zoetrope::internal()", "other::f()", "read()"):
            assert any(breach in line for line in found), (breach, found)
        assert not any("zoetrope::f" in line for line in found), found
        (folder / "main.cpp").write_text("namespace zoetrope { void f(int); }\nint main() { zoetrope::f(1); }\n")
        run(compiler, "-o", str(program), str(folder / "main.cpp"), str(library))
        found = list(called(library, [program]))
        assert any("internal" in line for line in found) and not any("zoetrope::f" in line for line in found), found
        assert list(without(program, ["libc.so"])) and not list(without(program, ["avcodec"]))
    print("every planted breach is reported")


def main(arguments):
    if arguments[0] == "--self-test":
        return self_test(arguments[1])
    check = {"without": lambda library, *names: without(library, names), "exports": exports, "marked": marked,
             "called": lambda library, *programs: called(library, programs)}[arguments[0]]
    breaches = list(check(*arguments[1:]))
    print("\n".join(breaches) or "as it should be")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
