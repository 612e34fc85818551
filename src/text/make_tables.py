"""Writes html_entities.inc, the table of HTML's character references, from Python's standard library (html.entities).

Run once, when that table changes; the result is part of the sources.
"""

import html.entities
import pathlib
import sys

lines = ["// clang-format off", f"// Written by make_tables.py from Python {sys.version.split()[0]}; do not edit."]
lines += ["constexpr HtmlEntity kHtmlEntities[] = {"]
for name, text in sorted(html.entities.html5.items()):
    lines.append(f'{{"{name}", u"' + "".join(f"\\U{ord(c):08X}" for c in text) + '"},')
lines += ["};"]
(pathlib.Path(__file__).parent / "html_entities.inc").write_text("".join(line + "\n" for line in lines))
