#!/usr/bin/env python3
"""Holds what `attention=auto` chooses against every configuration that it chooses from, by measuring all of them.

    auto_against_all.py PROGRAM [--ranks 1,2,4] [--tokens 1024,8190,32760] [--dtypes bf16,float32] [--heads 12]
                        [--head-dim 128] [--rounds 5] [--duels 0] [--repeat 1] [--chunks 1,2,4,5,8] [--hardware NAME]
                        [--threads N] [--seed N] [--json FILE]

That is every legal Ulysses x ring, each ring direction, and the counts of head chunks that the planner looks at; other
counts, softmax and tiles are left as they are, as auto leaves them. --chunks 1,2 shortens it; what auto chooses beyond
that is measured all the same. Every configuration is a run of `zoetrope attention` of its own, and so is auto. Runs of one problem are interleaved in
rounds, in another order each time, so that a change of the machine's pace meets all of them; one during which the host of
a virtual machine took its CPUs away is made again. A configuration counts with
the median over rounds of the medians that the runs report. What auto chose is one of the configurations and so was measured
twice as often, under its own name and as its keys. Both count together in `behind`, which is 0 where auto chose the best;
`auto` and `as keys` stand for each alone, and what they differ by is what noise does to two measurements of the same work.

Where repeats differ by more than configurations do, the fastest of many is the one that met the least noise, not the best.
--duels N measures anew what auto chose beside the two others of the least times, in turns, N times; `behind` is then what
the choice takes beyond each of these in the same round, median over rounds, the worse of both, and 0 where it is faster.

Prints a table; --json writes every measurement. Exit code 1 where auto is more than 5 % behind the best of all.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 0.05  # what auto may be slower than the best
# Of the CPUs' time, that the host of a virtual machine takes away during a run: with more the run is made again, so often
# at most, and the least disturbed counts.
STOLEN, TRIES = 0.05, 5
CHUNKS = [1, 2, 4, 5, 8]  # head chunks that the planner looks at (src/planner/search_space.cpp)
DIRECTIONS = ("forward", "two_way", "open")
FEWEST_FOR_DIRECTIONS = 3  # ranks of a ring: two have one neighbour each, whichever way


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ranks", type=numbers, default=[1, 2, 4])
    parser.add_argument("--tokens", type=numbers, default=[1024, 8190, 32760])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bf16", "float32"])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--chunks", type=numbers, default=CHUNKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duels", type=int, default=0, help="rounds of what auto chose against the two best others")
    parser.add_argument("--repeat", type=int, default=1, help="timed repeats inside a run")
    parser.add_argument("--hardware", default="", help="profile for auto; unset: what was calibrated, else cpu")
    parser.add_argument("--threads", type=int, default=0, help="of the process; unset: all cores")
    parser.add_argument("--seed", type=int, default=0, help="of the order of runs")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def configurations(ranks, heads, chunks):
    """Each one with these head chunks, by name: the keys that make it. Head chunks hide an exchange, and do nothing without one."""
    found = {}
    for ulysses in (u for u in range(1, min(ranks, heads) + 1) if ranks % u == 0):
        ring = ranks // ulysses
        for direction in DIRECTIONS if ring >= FEWEST_FOR_DIRECTIONS else DIRECTIONS[:1]:
            for n in [c for c in chunks if c <= -(-heads // ulysses)] if ulysses > 1 else [1]:
                name = f"U{ulysses}R{ring}" + (f" {direction}" if direction != "forward" else "") + (
                    f" n{n}" if n > 1 else "")
                found[name] = [f"ulysses_shards={ulysses}", f"ring_direction={direction}",
                               f"ulysses_attention_chunks={n}"]
    return found


def name_of(result):
    """The configuration that a run reports, as configurations() names it."""
    direction = result["ring_direction"] if result["ring"] >= FEWEST_FOR_DIRECTIONS else "forward"
    n = result["head_chunks"]
    return f"U{result['ulysses']}R{result['ring']}" + (f" {direction}" if direction != "forward" else "") + (
        f" n{n}" if n > 1 else "")


def keys_of(result):
    return [f"ulysses_shards={result['ulysses']}", f"ring_direction={result['ring_direction']}",
            f"ulysses_attention_chunks={result['head_chunks']}"]


def stolen_seconds():
    """By the host, of all CPUs since the start; 0 where the system does not tell."""
    try:
        words = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(words[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def measure(options, folder, words):
    best = None
    for _ in range(TRIES):
        stolen, begin = stolen_seconds(), time.monotonic()
        result = measure_once(options, folder, words)
        share = (stolen_seconds() - stolen) / ((time.monotonic() - begin) * os.cpu_count())
        if best is None or share < best[0]:
            best = share, result
        if share <= STOLEN:
            break
    return {**best[1], "stolen": best[0]}


def measure_once(options, folder, words):
    path = pathlib.Path(folder) / "run.json"
    command = [options.program, "attention", f"json={path}", f"repeat={options.repeat}", *words]
    if options.threads:
        command.append(f"threads={options.threads}")
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
    return json.loads(path.read_text())


def duel(options, folder, order, jobs, runs, chosen):
    """Medians of what `chosen` takes beyond each of the two best others, by rounds that have nothing of the first runs in them."""
    least = {name: min(run["seconds_min"] for run in found) for name, found in runs.items() if name not in ("auto", chosen)}
    rivals = sorted(least, key=least.get)[:2]
    again = {name: [] for name in [chosen, *rivals]}
    for _ in range(options.duels if rivals else 0):
        for name in order.sample(sorted(again), len(again)):
            again[name].append(measure(options, folder, jobs[name])["seconds_median"])
    return again, {rival: statistics.median(mine / other for mine, other in zip(again[chosen], again[rival])) - 1
                   for rival in rivals if again[rival]}


def compare(options, folder, order, problem):
    """All configurations and auto on one problem: medians over rounds, and what auto chose."""
    shape = f"1x{problem['tokens']}x{options.heads}x{options.head_dim}"
    common = [f"shape={shape}", f"dtype={problem['dtype']}", f"ranks={problem['ranks']}"]
    jobs = {name: common + keys for name, keys in configurations(problem["ranks"], options.heads, options.chunks).items()}
    jobs["auto"] = common + (["hardware=" + options.hardware] if options.hardware else [])
    first = measure(options, folder, jobs["auto"])  # not counted: says what is chosen, to be measured as its keys too
    jobs.setdefault(name_of(first), common + keys_of(first))
    runs = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name in order.sample(sorted(jobs), len(jobs)):
            runs[name].append(measure(options, folder, jobs[name]))
    seconds = {name: statistics.median(run["seconds_median"] for run in found) for name, found in runs.items()}
    chosen = {name_of(run) for run in runs["auto"]}
    if len(chosen) != 1:
        sys.exit(f"auto did not choose the same in every round: {', '.join(sorted(chosen))}")
    auto = chosen.pop()
    tried = {name: value for name, value in seconds.items() if name != "auto"}
    best = min(tried, key=tried.get)
    same = [run["seconds_median"] for run in runs["auto"] + runs.get(auto, [])]
    behind = 0.0 if auto == best else statistics.median(same) / tried[best] - 1
    duels, beyond = duel(options, folder, order, jobs, runs, auto) if options.duels else ({}, {})
    if beyond:
        behind = max(0.0, *beyond.values())
    return {**problem, "shape": shape, "chosen": auto, "best": best, "auto_seconds": seconds["auto"],
            "chosen_seconds": tried.get(auto), "best_seconds": tried[best], "behind": behind,
            "duels": duels, "beyond": beyond,
            "slower": seconds["auto"] / tried[best] - 1,
            "chosen_slower": tried[auto] / tried[best] - 1 if auto in tried else None,
            "predicted_seconds": {name: found[0].get("predicted_seconds") for name, found in runs.items()},
            "stolen": {name: [run["stolen"] for run in found] for name, found in runs.items()},
            "seconds": {name: [run["seconds_median"] for run in found] for name, found in runs.items()}}


def row(result):
    def milliseconds(value):
        return "-" if value is None else f"{1e3 * value:.2f}"

    def percent(value):
        return "-" if value is None else f"{100 * value:+.1f} %"
    return (f"{result['ranks']:>5} {result['tokens']:>7} {result['dtype']:<8} {result['chosen']:<14} {result['best']:<14} "
            f"{milliseconds(result['auto_seconds']):>10} {milliseconds(result['best_seconds']):>10} "
            f"{percent(result['behind']):>8} {percent(result['slower']):>8} {percent(result['chosen_slower']):>9} "
            f"{milliseconds(result['predicted_seconds']['auto']):>10}")


def main():
    options = arguments()
    order = random.Random(options.seed)
    results = []
    print(f"{'ranks':>5} {'tokens':>7} {'dtype':<8} {'auto chose':<14} {'best of all':<14} {'auto, ms':>10} {'best, ms':>10} "
          f"{'behind':>8} {'auto':>8} {'as keys':>9} {'predicted':>10}", flush=True)
    with tempfile.TemporaryDirectory(prefix="zoetrope_auto_") as folder:
        for ranks in options.ranks:
            for tokens in options.tokens:
                for dtype in options.dtypes:
                    problem = {"ranks": ranks, "tokens": tokens, "dtype": dtype}
                    results.append(compare(options, folder, order, problem))
                    print(row(results[-1]), flush=True)
                    for rival, beyond in results[-1]["beyond"].items():
                        print(f"{'':>21} {results[-1]['chosen']} beside {rival}, {options.duels} duels: {100 * beyond:+.1f} %",
                              flush=True)
    worst = max(results, key=lambda result: result["behind"])
    print(f"Most behind: {100 * worst['behind']:+.1f} % ({worst['ranks']} ranks, {worst['tokens']} tokens, "
          f"{worst['dtype']}); at most {100 * LIMIT:.0f} % is wanted")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"limit": LIMIT, "rounds": options.rounds, "heads": options.heads,
                                                          "head_dim": options.head_dim, "results": results}, indent=1))
    return 1 if worst["behind"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
