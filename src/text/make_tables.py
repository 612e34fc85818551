"""Writes the character tables of the prompt cleaner: html_entities.inc, charmaps.inc, char_classes.inc.

Run once, with Python 3.11 and ftfy 6.3.1, when those tables change; the results are part of the sources. The facts come
from the Python standard library (html.entities, the single-byte codecs) and from ftfy (which characters hint at
mistaken encodings: ftfy.badness.MOJIBAKE_CATEGORIES, ftfy.chardata.UTF8_CLUES; Apache-2.0).
"""

import html.entities
import pathlib
import re
import sys

import ftfy
from ftfy import badness, chardata

FOLDER = pathlib.Path(__file__).parent
SOURCE = f"// Written by make_tables.py from Python {sys.version.split()[0]} and ftfy {ftfy.__version__}; do not edit.\n"


def u32(text):
    return 'U"' + "".join(f"\\U{ord(c):08X}" for c in text) + '"'


def write(name, lines):
    (FOLDER / name).write_text("// clang-format off\n" + SOURCE + "".join(line + "\n" for line in lines))


def entities():
    """{name without '&', expansion}, sorted by name; then the upper-case names that only ftfy knows."""
    lines = ["constexpr HtmlEntity kHtmlEntities[] = {"]
    lines += [f'{{"{name}", {u32(text)}}},' for name, text in sorted(html.entities.html5.items())]
    lines += ["};", "constexpr HtmlEntity kUpperCaseEntities[] = {"]
    extra = {name[1:]: text for name, text in chardata.HTML_ENTITIES.items() if name[1:] not in html.entities.html5}
    lines += [f'{{"{name}", {u32(text)}}},' for name, text in sorted(extra.items())]
    return lines + ["};"]


def charmaps():
    """What the bytes 0x80 to 0xFF mean in each encoding, in the order in which the encodings are tried."""
    lines = []
    for encoding in chardata.CHARMAP_ENCODINGS[1:]:
        text = bytes(range(0x80, 0x100)).decode(encoding)
        assert len(set(text)) == 128 and max(text) <= "\uffff" and min(text) >= "\x80"
        sloppy = encoding.startswith("sloppy")
        assert bytes([0x1A]).decode(encoding) == ("\ufffd" if sloppy else "\x1a")
        codes = [f"0x{ord(c):04X}" for c in text]
        lines.append(f'{{"{encoding}", {"true" if sloppy else "false"}, {{{{')
        lines += ["    " + ", ".join(codes[i : i + 16]) + "," for i in range(0, 128, 16)]
        lines.append("}}},")
    return ["constexpr Charmap kCharmaps[] = {"] + lines + ["};"]


def classes():
    """Code points to bit sets: the names of the bits, then {first, last, bits}."""
    named = dict(badness.MOJIBAKE_CATEGORIES) | chardata.UTF8_CLUES
    sets = {name: re.compile(f"[{members}]") for name, members in named.items()}
    lines = []
    for bit, name in enumerate(sets):
        camel = "".join(part.capitalize() for part in name.split("_"))
        lines.append(f"constexpr uint32_t k{camel} = 1U << {bit};")
    lines += ["constexpr CharClassRange kCharClasses[] = {"]
    rows = []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        bits = sum(1 << bit for bit, pattern in enumerate(sets.values()) if pattern.match(chr(code)))
        if not bits:
            continue
        if rows and rows[-1][1] == code - 1 and rows[-1][2] == bits:
            rows[-1][1] = code
        else:
            rows.append([code, code, bits])
    lines += [f"{{0x{first:04X}, 0x{last:04X}, 0x{bits:06X}}}," for first, last, bits in rows]
    return lines + ["};"]


write("html_entities.inc", entities())
write("charmaps.inc", charmaps())
write("char_classes.inc", classes())
