#!/usr/bin/env python3
"""Random prompts through Python's ftfy and tokenizers, and through this project's text_tool; counts the differences.

    python3 tools/compare_text.py --tool build/release/bin/text_tool [--tokenizer FOLDER] [--count 1000] [--seed 0]

Needs Python 3.11 (its Unicode tables are those of the recorded reference), ftfy 6.3.1, tokenizers and regex. A quarter
each of the prompts is multilingual text decoded in the wrong encoding, HTML references, full-width, ligature and
control characters, and assigned code points of all planes. Exit status 0: no difference in cleaned text or ids.
"""

import argparse
import html
import html.entities
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import ftfy
import regex
import tokenizers

SENTENCES = [
    "A red cat runs across the market at dawn, cinematic lighting.",
    "The café’s “naïve” façade — 20 °C, £5 or €6…",
    "Größe, Übermut, Äpfel und Maß: während die Straße schläft",
    "L’été où la forêt brûlait, à l’œuvre déjà, ça va",
    "El niño pequeño comió una piña en España ¿verdad? ¡Sí!",
    "A avó não está à mesa; às vezes coração, àquela hora",
    "Perché l’università è così città più bella",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "Zażółć gęślą jaźń, proszę bardzo",
    "Árvíztűrő tükörfúrógép, őszi eső",
    "Pijamalı hasta yağız şoföre çabucak güvendi, İstanbul ılık",
    "Į kalną ėjo žmogus, šviesūs ąžuolai",
    "Glāžšķūņa rūķīši dzērumā čiepj",
    "Đâu phải là một con mèo nhỏ trên đường phố Hà Nội",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "Їжак і ґава їдять борщ; Србија, љубав, џеп",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, Άνοιξη",
    "זה כתב בעברית עם ניקוד שָׁלוֹם",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ، لماذا؟ ١٢٣",
    "यह एक सुंदर लाल बिल्ली है, क्षत्रिय",
    "নদীর তীরে একটি লাল বিড়াল",
    "ஒரு சிவப்பு பூனை ஓடுகிறது",
    "แมวสีแดงวิ่งผ่านตลาดตอนเช้า",
    "一只红色的猫在森林里奔跑，镜头缓慢向左移动。“好”",
    "赤い猫が市場を走り抜ける。カメラ、ｶﾀｶﾅ！",
    "빨간 고양이가 시장을 달린다, 각각",
    "Mañana 😀 🚀 ❤️ 👨‍👩‍👧 🇩🇪 👍🏽 ok",
    "(╯°□°)╯︵ ┻━┻ ▒▓█ ╔═╗ ½ × 3² = ±9 © ® ™ § ¶ µ",
    "½ cup – 3¼ “tbsp” •  item … ‹a› «b» „c‟ ‚d’",
    "Smørrebrød på Ærø, ålen å gå",
]

ENCODINGS = [
    "latin-1", "sloppy-windows-1252", "sloppy-windows-1251", "sloppy-windows-1250", "sloppy-windows-1253",
    "sloppy-windows-1254", "sloppy-windows-1257", "iso-8859-2", "macroman", "cp437", "cp1252", "cp1251", "koi8-r",
    "cp850", "iso-8859-15", "iso-8859-5",
]  # fmt: skip

WIDE = [chr(c) for c in range(0xFF01, 0xFFEF) if unicodedata.category(chr(c)) != "Cn"] + ["\u3000"]
LIGATURES = list("ĲĳŉǱǲǳǄǅǆǇǈǉǊǋǌﬀﬁﬂﬃﬄﬅﬆﬓﬡæœßſ")
CONTROLS = [chr(c) for c in range(0xA0) if unicodedata.category(chr(c)) == "Cc"] + list(
    "\u00ad\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u206a\u206f\ufeff\ufff9\ufffb\ufffc\ufffd"
)
QUOTES = list("“”‘’‚„‛‟ʼ‹›«»`´'\"…–—")
SPACES = list(" \t\n\r\x0b\x0c\u00a0\u1680\u2003\u2009\u202f\u205f\u3000") + ["\r\n", "  "]
MARKS = list("\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u0328\u0345\u20dd\u0901\u093c\u094d\u3099\u309a\u0323")
ESCAPES = ["\x1b[0m", "\x1b[31;1m", "\x1b[", "\x1b[12", "\x1b[;K", "\x1b]0m", "\x1b[٣m"]

# One list a plane, so that the small planes get their share.
PLANES = {}
for _code in range(0x110000):
    if unicodedata.category(chr(_code)) not in ("Cn", "Cs", "Co"):
        PLANES.setdefault(_code >> 16, []).append(chr(_code))
PLANES[15] = [chr(0xF0000), chr(0xF1234), chr(0xFFFFD)]
PLANES[16] = [chr(0x100000), chr(0x10ABCD), chr(0x10FFFD)]


def some_text(rng):
    text = rng.choice(SENTENCES)
    if rng.random() < 0.6:
        words = text.split(" ")
        begin = rng.randrange(len(words))
        text = " ".join(words[begin : begin + rng.randint(1, 6)])
    return text


def mistake(rng, text):
    """Encodes to UTF-8 (or CESU-8) and decodes as something else, losing some bytes as programs do."""
    data = text.encode("utf-8")
    if rng.random() < 0.1:
        utf16 = text.encode("utf-16-be")
        units = [int.from_bytes(utf16[i : i + 2], "big") for i in range(0, len(utf16), 2)]
        data = b"".join(chr(u).encode("utf-8", "surrogatepass") for u in units)
    if rng.random() < 0.2:
        data = data.replace(b"\xa0", b" ")
    if rng.random() < 0.05:
        data = data[rng.randint(0, 1) : len(data) - rng.randint(0, 2)]
    if rng.random() < 0.05:
        data = data.replace(b"\x00", b"\xc0\x80") + rng.choice([b"\xc0\x80", b"\xc0", b"\xc0\n", b"\xed\xa0\x80\xed\xb0\n"])
    encoding = rng.choice(ENCODINGS)
    errors = rng.choice(["strict", "replace", "ignore"])
    try:
        result = data.decode(encoding, errors)
    except UnicodeDecodeError:
        result = data.decode("latin-1")
    if rng.random() < 0.1:
        result = result.replace("\ufffd", "?")
    return result


def mojibake(rng):
    parts = []
    for _ in range(rng.randint(1, 3)):
        text = some_text(rng)
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 2, 3])):
            text = mistake(rng, text)
        parts.append(text)
    return rng.choice([" ", "", "\n", ", "]).join(parts)


def one_entity(rng):
    kind = rng.randrange(9)
    name = rng.choice(list(html.entities.html5))
    if kind < 3:
        return "&" + name
    if kind == 3:
        return "&" + name.rstrip(";") + rng.choice(["", "x", ";", ";;", " ", "=1"])
    if kind == 4:
        return "&" + rng.choice([name.upper(), name.lower(), name.title()])
    if kind == 5:
        code = rng.choice([rng.randrange(0x300), rng.randrange(0x110000), rng.randrange(0x120000), 0xD800, 59, 38, 60])
        return rng.choice(["&#{};", "&#{}", "&#x{:x};", "&#X{:X};", "&#x{:X}", "&#0{};"]).format(code)
    if kind == 6:
        return "&amp;" * rng.randint(1, 2) + rng.choice(["lt;", "eacute;", "#39;", "amp;quot;", "nbsp;", "#x201c;"])
    if kind == 7:
        return rng.choice(["&", "&;", "&#", "&#;", "&#x;", "&notanentity;", "&ampere", "& amp;", "&lt", "&#12ab;", "&#xg1;"])
    return "&" + "".join(rng.choice("abcXYZ019;#é") for _ in range(rng.randint(1, 36)))


def entities(rng):
    parts = []
    for _ in range(rng.randint(1, 6)):
        parts.append(rng.choice([one_entity, one_entity, lambda r: some_text(r)[:12]])(rng))
        if rng.random() < 0.05:
            parts.append(rng.choice(["<b>", "<", ">", "\n"]))
    return rng.choice(["", " "]).join(parts)


def typography(rng):
    pools = [WIDE, LIGATURES, CONTROLS, QUOTES, SPACES, MARKS, ESCAPES, ["</s>", "<pad>", "<extra_id_0>", "▁"]]
    parts = []
    for _ in range(rng.randint(1, 14)):
        pool = rng.choice(pools + [None, None])
        parts.append(some_text(rng)[: rng.randint(1, 8)] if pool is None else rng.choice(pool))
    return "".join(parts)


def code_points(rng):
    parts = []
    for _ in range(rng.randint(1, 24)):
        plane = rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 14, 15, 16])
        chars = PLANES.get(plane) or PLANES[0]
        start = rng.randrange(len(chars))
        parts.extend(chars[start : start + rng.choice([1, 1, 1, 2, 3])])
        if rng.random() < 0.15:
            parts.append(rng.choice([" ", "a", "é"] + MARKS))
    return "".join(parts)


def reference_clean(text):
    """As diffusers cleans prompts (pipelines/wan: prompt_clean)."""
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    return regex.sub(r"\s+", " ", text).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--tool", default=root / "build/release/bin/text_tool")
    parser.add_argument("--tokenizer", default=root / "tests/golden/pipelines/wan21_t2v/tokenizer")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=5)
    options = parser.parse_args()

    rng = random.Random(options.seed)
    kinds = [mojibake, entities, typography, code_points]
    prompts = [(kinds[i % 4].__name__, kinds[i % 4](rng)) for i in range(options.count)]

    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(options.tokenizer) / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    lines = "".join(json.dumps(text) + "\n" for _, text in prompts)
    run = subprocess.run([options.tool, options.tokenizer], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    results = [json.loads(line) for line in run.stdout.split("\n") if line]
    if len(results) != len(prompts):
        sys.exit(f"{options.tool} answered {len(results)} of {len(prompts)} prompts")

    differences = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    changed = shown = 0
    for (kind, text), ours in zip(prompts, results):
        clean = reference_clean(text)
        changed += clean != text
        theirs = {"clean": clean, "ids": tokenizer.encode(clean).ids, "ids_raw": tokenizer.encode(text).ids}
        wrong = [key for key in theirs if theirs[key] != ours[key]]
        if not wrong:
            continue
        differences[kind] += 1
        if shown < options.examples:
            shown += 1
            print(f"{kind}: {ascii(text)}")
            for key in wrong:
                print(f"  {key}: reference {ascii(theirs[key])}\n  {' ' * len(key)}  ours      {ascii(ours[key])}")
    total = sum(differences.values())
    details = ", ".join(f"{kind} {count}" for kind, count in differences.items())
    print(f"seed {options.seed}: {total} differences in {len(prompts)} prompts ({details}); cleaning changed {changed}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
