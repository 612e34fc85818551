#!/usr/bin/env python3
"""Compares the choice of `attention=auto` with every configuration that it chooses from, by measuring all of them.

    auto_against_all.py PROGRAM [--ranks 1,2,4] [--tokens 1024,8190,32760] [--dtypes bf16,float32] [--heads 12]
                        [--head-dim 128] [--rounds 5] [--repeat 1] [--turn SECONDS] [--chunks 1,2,4,5,8]
                        [--hardware NAME] [--threads N] [--seed N] [--json FILE]

These are all legal Ulysses x ring splits, ring directions, and numbers of head chunks that the planner considers; softmax
and tiles are the defaults, as with auto. --chunks 1,2 shortens it; auto's choice is measured in any case. Every
configuration is a separate run of `zoetrope attention`, and so is auto. Runs of one problem are interleaved in rounds, in a
different order each time, so that a change of the machine's speed affects all of them; a run during which the host of a
virtual machine took its CPUs away is repeated. The result of a configuration is the median over rounds of the medians that
the runs report. Auto's choice is one of the configurations, so it is measured twice as often, as auto and by its keys. Both
together give `behind`, which is 0 where auto chose the best; `auto` and `as keys` are the separate results, and their
difference is the measurement noise.

Where the machine's speed changes within a run, consecutive runs show those changes more than the configurations.
--turn SECONDS starts all runs of a round at once and lets them run in turns, the others stopped (SIGSTOP). The time of a
repeat is the part of it in its run's turns; the median over all runs of the n-th repeat is the speed at that time, by which
each is corrected, and the result of a configuration is the median of its corrected repeats. All turns together must be
short compared with changes of speed, and a turn long compared with the cost of refilling the caches: 0.2 worked. Repeats
that take many turns are accurate alone; of those that take one or two a hundred are needed. Runs that are not equally fast
drift apart, so --repeat should be small where repeats are long. This needs the memory of all runs.

Prints a table; --json writes every measurement, `repeats` as it was and `seconds` as it counts. Exit code 1 where auto is
more than 5 % behind the best of all.
"""
import argparse
import json
import math
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from program_keys import words_of

LIMIT = 0.05  # by which auto may be slower than the best
# The share of CPU time that the host of a virtual machine may take away during a run: with more the run is repeated, at
# most TRIES times, and the least disturbed one counts.
STOLEN, TRIES = 0.05, 5
CHUNKS = [1, 2, 4, 5, 8]  # head chunks that the planner considers (src/planner/search_space.cpp)
FEWEST_FOR_DIRECTIONS = 3  # ranks of a ring: of two each has only one neighbour, in any direction


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
    parser.add_argument("--repeat", type=int, default=1, help="timed repeats inside a run")
    parser.add_argument("--turn", type=float, default=0, help="seconds of a turn; unset: one run after the other")
    parser.add_argument("--hardware", default="", help="profile for auto; unset: what was calibrated, else cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of the process; unset: all cores")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of runs")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if not 0 <= options.turn < math.inf:
        parser.error("--turn must be a number of seconds above 0, as 0.2")
    if options.rounds < 1 or options.repeat < 1:
        parser.error("--rounds and --repeat must be 1 or more")
    if shutil.which(options.program) is None:
        parser.error(f"{options.program} is not a program that can be run")
    if options.json and not pathlib.Path(options.json).absolute().parent.is_dir():
        parser.error(f"--json {options.json}: its folder does not exist")
    return options


def configurations(ranks, heads, chunks, directions):
    """{name: keys} of each configuration. Head chunks hide an exchange, and have no effect without one."""
    found = {}
    for ulysses in (u for u in range(1, min(ranks, heads) + 1) if ranks % u == 0):
        ring = ranks // ulysses
        for direction in directions if ring >= FEWEST_FOR_DIRECTIONS else directions[:1]:
            for n in [c for c in chunks if c <= -(-heads // ulysses)] if ulysses > 1 else [1]:
                name = f"U{ulysses}R{ring}" + (f" {direction}" if direction != "forward" else "") + (
                    f" n{n}" if n > 1 else "")
                found[name] = [f"ulysses_shards={ulysses}", f"ring_direction={direction}",
                               f"ulysses_attention_chunks={n}"]
    if ranks > 1:
        found[f"G{ranks}"] = ["attention=gather"]
    return found


def name_of(result):
    """The configuration that a run reports, as configurations() names it."""
    if result["gather"] > 1:
        return f"G{result['gather']}"
    direction = result["ring_direction"] if result["ring"] >= FEWEST_FOR_DIRECTIONS else "forward"
    n = result["head_chunks"]
    return f"U{result['ulysses']}R{result['ring']}" + (f" {direction}" if direction != "forward" else "") + (
        f" n{n}" if n > 1 else "")


def keys_of(result):
    if result["gather"] > 1:
        return ["attention=gather"]
    return [f"ulysses_shards={result['ulysses']}", f"ring_direction={result['ring_direction']}",
            f"ulysses_attention_chunks={result['head_chunks']}"]


def stolen_seconds():
    """Taken by the host from all CPUs since the start; 0 where the system does not report it."""
    try:
        words = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(words[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def command_of(options, folder, name, words):
    """One run, and where its results will be."""
    path = pathlib.Path(folder) / f"{name.replace(' ', '_')}.json"
    command = [options.program, "attention", f"json={path}", f"repeat={options.repeat}", *words]
    return command + ([f"threads={options.threads}"] if options.threads else []), path


def measure(options, folder, name, words):
    """By itself; the least disturbed of its tries."""
    best = None
    for _ in range(TRIES):
        stolen, begin = stolen_seconds(), time.monotonic()
        command, path = command_of(options, folder, name, words)
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}: {result.stderr.strip()}")
        share = (stolen_seconds() - stolen) / ((time.monotonic() - begin) * os.cpu_count())
        if best is None or share < best["stolen"]:
            best = {**json.loads(path.read_text()), "stolen": share}
        if share <= STOLEN:
            break
    return {**best, "repeats": [best["seconds_median"]]}


def stop(process):
    """Returns when none of its threads runs any more; it may have ended instead."""
    os.kill(process.pid, signal.SIGSTOP)  # send_signal() would take up its end, and nothing be left to wait for
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def take_turns(processes, seconds):
    """Until all have ended, or one has failed. Returns when each had its turns, in seconds of the monotonic clock."""
    turns = {name: [] for name in processes}
    running = dict(processes)
    while running:
        for name, process in list(running.items()):
            begin = time.monotonic()
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(seconds)
            stop(process)
            turns[name].append((begin, time.monotonic()))
            if process.poll() is not None:
                del running[name]
            if process.returncode:
                return turns
    return turns


def repeats_within(trace, turns):
    """Seconds of each timed repeat that lie in the turns: from the first rank's begin to the last one's end."""
    zero = 1e-9 * int(trace["otherData"]["ts_zero_ns"])
    ranks = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["name"] == "attention":
            begin = zero + 1e-6 * event["ts"]
            ranks.setdefault(event["pid"], []).append((begin, begin + 1e-6 * event["dur"]))
    found = []
    for spans in zip(*(sorted(spans) for spans in ranks.values()), strict=True):
        first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
        found.append(sum(max(0.0, min(last, end) - max(first, begin)) for begin, end in turns))
    return found


def measure_in_turns(options, folder, names, jobs):
    """All at once."""
    commands, processes = {}, {}
    try:
        for name in names:
            commands[name] = command_of(options, folder, name, jobs[name])
            command, path = commands[name]
            with open(path.with_suffix(".err"), "w", encoding="utf-8") as errors:
                processes[name] = subprocess.Popen([*command, f"trace={path.with_suffix('.trace')}"], start_new_session=True,
                                                   stdout=subprocess.DEVNULL, stderr=errors)
            stop(processes[name])
        turns = take_turns(processes, options.turn)
    finally:
        ended = {name: process.returncode for name, process in processes.items()}
        for process in processes.values():
            process.kill()
        for process in processes.values():
            process.wait()
    results = {}
    for name, code in ended.items():
        command, path = commands[name]
        if code:
            sys.exit(f"{' '.join(command)}: ended with {code}. {path.with_suffix('.err').read_text().strip()}")
    for name, (_, path) in commands.items():
        repeats = repeats_within(json.loads(path.with_suffix(".trace").read_text()), turns[name])
        results[name] = {**json.loads(path.read_text()), "repeats": repeats, "stolen": None}
    return results


def corrected(runs):
    """Of each configuration all repeats of all rounds, divided by the median of all at the same repeat of the same round."""
    met = {name: [seconds for run in found for seconds in run["repeats"]] for name, found in runs.items()}
    medians = [statistics.median(times) for times in zip(*met.values(), strict=True)]
    usual = statistics.median(medians)
    return {name: [seconds * usual / now for seconds, now in zip(times, medians)] for name, times in met.items()}


def round_of(options, folder, order, jobs):
    """Each once, in another order each time."""
    names = order.sample(sorted(jobs), len(jobs))
    if options.turn:
        return measure_in_turns(options, folder, names, jobs)
    return {name: measure(options, folder, name, jobs[name]) for name in names}


def compare(options, folder, order, problem):
    """All configurations and auto on one problem: medians over rounds, and what auto chose."""
    shape = f"1x{problem['tokens']}x{options.heads}x{options.head_dim}"
    common = [f"shape={shape}", f"dtype={problem['dtype']}", f"ranks={problem['ranks']}"]
    directions = words_of(options.program, "attention", "ring_direction")
    jobs = {name: common + keys for name, keys in
            configurations(problem["ranks"], options.heads, options.chunks, directions).items()}
    jobs["auto"] = common + (["hardware=" + options.hardware] if options.hardware else [])
    first = measure(options, folder, "auto", jobs["auto"])  # not counted: says what is chosen, to be measured as its keys too
    jobs.setdefault(name_of(first), common + keys_of(first))
    rounds = [round_of(options, folder, order, jobs) for _ in range(options.rounds)]
    runs = {name: [done[name] for done in rounds] for name in jobs}
    chosen = {name_of(run) for run in [first, *runs["auto"]]}
    if len(chosen) != 1:
        sys.exit(f"auto did not choose the same in every round: {', '.join(sorted(chosen))}")
    auto = chosen.pop()
    seconds = corrected(runs) if options.turn else {
        name: [run["seconds_median"] for run in found] for name, found in runs.items()}
    tried = {name: statistics.median(found) for name, found in seconds.items() if name != "auto"}
    best = min(tried, key=tried.get)
    behind = 0.0 if auto == best else statistics.median(seconds["auto"] + seconds[auto]) / tried[best] - 1
    as_auto = statistics.median(seconds["auto"])
    return {**problem, "shape": shape, "chosen": auto, "best": best, "auto_seconds": as_auto,
            "chosen_seconds": tried[auto], "best_seconds": tried[best], "behind": behind,
            "slower": as_auto / tried[best] - 1, "chosen_slower": tried[auto] / tried[best] - 1,
            "predicted_seconds": {name: found[0].get("predicted_seconds") for name, found in runs.items()},
            "stolen": {name: [run["stolen"] for run in found] for name, found in runs.items()},
            "repeats": {name: [run["repeats"] for run in found] for name, found in runs.items()}, "seconds": seconds}


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
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, lambda number, _: sys.exit(f"ended by signal {number}"))  # nobody is left standing still
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
    worst = max(results, key=lambda result: result["behind"])
    print(f"Most behind: {100 * worst['behind']:+.1f} % ({worst['ranks']} ranks, {worst['tokens']} tokens, "
          f"{worst['dtype']}); at most {100 * LIMIT:.0f} % is wanted")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"limit": LIMIT, "rounds": options.rounds, "heads": options.heads,
                                                          "head_dim": options.head_dim, "results": results}, indent=1))
    return 1 if worst["behind"] > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
