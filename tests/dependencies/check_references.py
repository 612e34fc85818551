#!/usr/bin/env python3
"""Checks that what comments and documents refer to exists: files, headings of links, sections of specifications.

    check_references.py ROOT          exit 1 and a line per reference that leads nowhere
    check_references.py --self-test   plants one of every kind and expects each to be reported
"""
import pathlib
import re
import sys
import tempfile

CODE = ("include", "src", "cli", "server", "bench", "problems", "examples", "tests", "tools", "configs", "cmake")
CODE_SUFFIXES = {".h", ".cpp", ".inc", ".py", ".sh", ".cmake", ".yml", ".txt"}
RECORDED = "tests/golden/"
NUMBER = r"\d+(?:\.\d+)?"
SECTIONS = re.compile(rf"\b([a-z-]+)\.md,? (?:sections? )?({NUMBER}(?:(?:,? and | to |, ){NUMBER})*)\b")
LINE_OF_COMMENT = re.compile(r"\n *(?://|#) ?")  # a reference may go on in the next line
DOCUMENT = re.compile(r"\bdocs/[\w/-]+\.md\b")
LINK = re.compile(r"\]\(([^)\s]*[./#][^)\s]*)\)")
CODE_SPAN = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)


def anchors(text):
    """Headings as a link names them: lower case, hyphens for spaces, punctuation left out."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def sections(text):
    return set(re.findall(r"^#+ +(\d+(?:\.\d+)?)\.? ", text, re.M))


def code_files(root):
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and path.suffix in CODE_SUFFIXES and not name.startswith(RECORDED):
                yield path


def dangling(root):
    root = pathlib.Path(root)
    specifications = {path.stem: sections(path.read_text()) for path in (root / "docs/spec").glob("*.md")}
    own = pathlib.Path(__file__).name
    for path in code_files(root):
        if path.name == own:
            continue
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        for name, listed in SECTIONS.findall(LINE_OF_COMMENT.sub(" ", text)):
            if name not in specifications:
                yield f"{where}: {name}.md {listed}: docs/spec has no {name}.md"
                continue
            for section in re.findall(NUMBER, listed):
                if section not in specifications[name]:
                    yield f"{where}: {name}.md {listed}: docs/spec/{name}.md has no section {section}"
        for document in DOCUMENT.findall(text):
            if not (root / document).is_file():
                yield f"{where}: {document} does not exist"
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(root)
        for link in LINK.findall(CODE_SPAN.sub("", text)):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = path if not file else path.parent / file
            if not target.exists():
                yield f"{where}: link to {link}: no such file"
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield f"{where}: link to {link}: no such heading"


    yield from dangling_capabilities(root)


def dangling_capabilities(root):
    """Of docs/mission.md: files that a capability names, and tests, which a name or a text of tests must hold."""
    mission = root / "docs/mission.md"
    if not mission.is_file():
        return
    tests = "\n".join(f"{path.stem}\n{path.read_text(encoding='utf-8')}" for path in code_files(root)
                      if "test" in path.as_posix() or path.name == "CMakeLists.txt")
    for row in re.findall(r"^\|(.*)\|$", mission.read_text(encoding="utf-8"), re.M)[2:]:
        cells = row.split("|")
        for name in re.findall(r"`([^`]+)`", cells[-1]):
            if name not in tests:
                yield f"docs/mission.md: {cells[0].strip()}: no test is named {name}"
        for name in re.findall(r"`([\w./-]+/[\w./-]*)`", cells[1]):
            if not (root / name).exists():
                yield f"docs/mission.md: {cells[0].strip()}: {name} does not exist"


def self_test():
    files = {
        "tests/x_test.py": "",
        "docs/spec/wan.md": "# Wan\n## 2. Model\n### 2.4 Block\n",
        "docs/guide.md": "# A guide: what's in it\n```\n[no link](nowhere.md)\n```\n",
        "README.md": "[guide](docs/guide.md#a-guide-whats-in-it) [self](#top)\n# Top\n[web](https://example.org)\n",
        "src/good.cpp": "// wan.md section 2.4, wan.md 2 and docs/guide.md; wan.md\n// sections 2 and 2.4\n",
        "tests/golden/x.txt": "wan.md section 9\n",
    }
    planted = {
        "src/section.cpp": "// wan.md section 2.5\n",
        "src/specification.h": "// none.md section 1\n",
        "src/several.h": "// wan.md sections 2.4 and 2.6\n",
        "src/next_line.h": "// as in wan.md\n// section 2.5\n",
        "tests/document.py": "# docs/none.md\n",
        "docs/file.md": "[gone](gone.md)\n",
        "docs/heading.md": "[heading](guide.md#nothing)\n",
        "docs/own.md": "[heading](#nothing)\n",
        "docs/mission.md": "| a | here | test |\n|---|---|---|\n| x | `src/good.cpp` | `x_test` |\n"
                           "| y | `src/gone.cpp` | `y_test` |\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**files, **planted}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = list(dangling(folder))
    for name in planted:
        assert any(line.startswith(name + ":") for line in found), f"not reported: {name}"
    assert sum(line.startswith("docs/mission.md: y:") for line in found) == 2, found  # and the first row is not
    for line in found:
        assert line.split(":")[0] in planted, f"reported without reason: {line}"
    print(f"{len(planted)} planted references reported")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        lines = list(dangling(sys.argv[1]))
        print("\n".join(lines) or "every reference leads somewhere")
        sys.exit(1 if lines else 0)
