#!/usr/bin/env python3
"""The tables `best:` of configs/: what the planner finds best for each number of ranks of a hardware profile.

    best_tables.py PROGRAM [CONFIG.yml…]            writes them again; without files those of configs/
    best_tables.py PROGRAM --compare [CONFIG.yml…]  names each line that the planner sees differently; exit code 1
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
HARDWARE = "tpu_v7x_16"  # of the published runs
RANKS = (2, 4, 8, 16)
MARK = "# The best use of the ranks"


def words(candidate):
    """A candidate of the plan's JSON for people."""
    c = candidate
    split = f"gather {c['gather']}" if c["gather"] > 1 else f"Ulysses {c['ulysses']} x ring {c['ring']}"
    parts = [f"data {c['data']} x {split}"]
    if c["ring"] > 1:
        parts.append(c["direction"])
    if c["head_chunks"] > 1:
        parts.append(f"{c['head_chunks']} head chunks")
    parts += [f"{c['softmax']}", f"tiles of {c['block_q']}", f"VAE over {c['vae_ranks']}"]
    return ", ".join(parts)


def table(program, config):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        subprocess.run([program, "plan", config, f"hardware={HARDWARE}", "ranks=" + ",".join(map(str, RANKS)), "attention=auto",
                        "ulysses_shards=default", f"json={path}"], check=True, stdout=subprocess.DEVNULL)
        document = json.loads(path.read_text())
    stem = pathlib.Path(config).stem
    name = stem if (CONFIGS / stem).is_dir() else f"configs/{pathlib.Path(config).name}"
    comments = [f"{MARK}, by tools/best_tables.py:",
                f"# zoetrope plan {name} hardware={HARDWARE} ranks={','.join(map(str, RANKS))} attention=auto ulysses_shards=default"]
    rows = ["best:", f"  hardware: {HARDWARE}"]
    for part in document["plans"]:
        best = part["candidates"][0]
        if best["verdict"] != "best":
            comments.append(f"# {part['ranks']:>3}: does not fit")
            continue
        seconds = f"{part['seconds_per_video']:.3g} s per video"
        comments.append(f"# {part['ranks']:>3}: {words(best)}: {seconds}")
        settings = [word.replace(": ", ":") for word in part["settings"] if not word.startswith("ranks=")]
        rows.append(f"  {part['ranks']}: {' '.join(settings)}")
    return "\n".join(comments + rows) + "\n"


def divided(text):
    """What is before the table, the table, and what is behind it."""
    found = re.search(rf"^{re.escape(MARK)}.*\n(?:#.*\n)*best:\n(?:[ \t]+.*(?:\n|$))*", text, re.M)
    if not found:
        return text.rstrip("\n") + "\n", "", ""
    return text[:found.start()], found.group(), text[found.end():]


def main():
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(__doc__)
    program, compares = arguments[0], "--compare" in arguments
    files = [pathlib.Path(word) for word in arguments[1:] if word != "--compare"] or sorted(CONFIGS.glob("*.yml"))
    differs = False
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        tables = list(pool.map(lambda file: table(program, file), files))
    for file, wanted in zip(files, tables):
        text = file.read_text()
        before, table_there, behind = divided(text)
        if compares:
            old, new = table_there.splitlines(), wanted.splitlines()
            for i in range(max(len(old), len(new))):
                pair = [lines[i] if i < len(lines) else "nothing" for lines in (old, new)]
                if pair[0] != pair[1]:
                    differs = True
                    print(f"{file}: '{pair[0]}' is now '{pair[1]}'")
        else:
            file.write_text(before + wanted + behind)
    sys.exit(1 if differs else 0)


if __name__ == "__main__":
    main()
