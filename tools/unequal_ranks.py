#!/usr/bin/env python3
"""Two ranks with cores in the ratio 2 : 1: how long a step takes with even shards and with shard_weights=auto, next to what
it could take at best. Prints a table.

    tools/unequal_ranks.py PROGRAM [rounds=5] [steps=24] [period=10]

The slow rank has a quota of half a core, in periods of so many milliseconds (control groups of version 1; root). Both ranks have one
thread and a core of their own, and the groups come before everything else on the machine. A round runs one rank on a whole
core, and then every case; a step at best takes 1 / 1.5 of that one rank's. Model: demo/wan-tiny with a transformer as wide
as Wan 1.3B's, four layers, random weights, 256 x 256 x 17. The first step of a run does not count; of auto the table has all
steps after the first, and those behind the first change of shards. The columns behind the seconds are relative to a step at
best: median, least and most of the rounds' medians, and the mean of all steps.
"""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

GROUPS = pathlib.Path("/sys/fs/cgroup/cpu/zoetrope_unequal")
MOST_SHARES = 262144
KEYS = ["weights=random", "prompt=a cat", "guidance_scale=1", "height=256", "width=256", "num_frames=17", "threads=1",
        "output=clip.png"]
TRANSFORMER = {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 4}
STRATEGIES = ["ring", "ulysses"]
ENV = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
ENTER = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.execv(sys.argv[2], sys.argv[2:])"


def make_groups(period):
    if not (GROUPS.parent / "cpu.cfs_quota_us").is_file():
        sys.exit(f"unequal_ranks: {GROUPS.parent} is no control group of version 1 of the CPU controller; mount one there")
    for group in (GROUPS, GROUPS / "whole", GROUPS / "half"):
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(MOST_SHARES))
    (GROUPS / "half" / "cpu.cfs_period_us").write_text(str(period))
    (GROUPS / "half" / "cpu.cfs_quota_us").write_text(str(period // 2))


def remove_groups():
    for group in (GROUPS / "whole", GROUPS / "half", GROUPS):
        if group.is_dir():
            group.rmdir()


def make_model(folder):
    shutil.copytree(pathlib.Path(__file__).parent.parent / "demo" / "wan-tiny", folder)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | TRANSFORMER))
    return folder


def entering(group, command):
    return [sys.executable, "-c", ENTER, str(GROUPS / group / "cgroup.procs"), *command]


def run(command, cwd, steps):
    """Seconds of each step of rank 0, the shard weights of the summary, and the step from which shards had changed."""
    clip = cwd / "clip.png"  # a folder with a picture for each frame, or one picture
    if clip.is_dir():
        shutil.rmtree(clip)
    clip.unlink(missing_ok=True)
    result = subprocess.run(command, cwd=cwd, env=ENV, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        sys.exit(f"unequal_ranks: {' '.join(map(str, command))}: {result.stderr}")
    seconds, changed = {}, None
    for event in json.loads((cwd / "trace.json").read_text())["traceEvents"]:
        if event.get("pid", 0) != 0 or event.get("ph") != "X":
            continue
        if match := re.fullmatch(r"step (\d+) of \d+", event["name"]):
            seconds[int(match[1])] = (event["dur"] / 1e6, event["ts"])
        elif event["name"] == "change of shards" and (changed is None or event["ts"] < changed):
            changed = event["ts"]
    assert len(seconds) == steps, seconds
    weights = re.search(r"Shard weights (\S+)", result.stderr + result.stdout)
    behind = [s for n, (s, ts) in sorted(seconds.items()) if changed is not None and ts > changed]
    return [s for n, (s, _) in sorted(seconds.items()) if n > 1], weights[1] if weights else "even", behind


def row(name, rounds):
    """Of rounds: what a step takes at best, and the steps."""
    ratios = [statistics.median(steps) / ideal for ideal, steps in rounds]
    every = [s for _, steps in rounds for s in steps]
    mean = statistics.mean(every) / statistics.mean(ideal for ideal, _ in rounds)
    print(f"{name:28} {statistics.median(every):9.3f} {min(every):9.3f} {statistics.median(ratios):10.3f} {min(ratios):9.3f}"
          f" {max(ratios):9.3f} {mean:9.3f}")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    settings = {"rounds": "5", "steps": "24", "period": "10"} | dict(word.split("=", 1) for word in sys.argv[2:])
    rounds, steps = int(settings["rounds"]), int(settings["steps"])
    remove_groups()
    make_groups(1000 * int(settings["period"]))
    ideals, times, behind, found = [], {}, {}, {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            cwd = pathlib.Path(folder)
            model = make_model(cwd / "model")
            for _ in range(rounds):
                command = [program, "generate", model, *KEYS, "trace=trace.json"]
                one, _, _ = run(entering("whole", [*command, "num_inference_steps=4"]), cwd, 4)
                ideals.append(statistics.median(one) / 1.5)
                times.setdefault("one rank", []).append((ideals[-1], one))
                for strategy in STRATEGIES:
                    for weights, count in (("even", 4), ("auto", steps)):
                        keys = [*command, f"attention={strategy}", f"shard_weights={weights}", f"num_inference_steps={count}"]
                        ranks = [["-n", "1", *entering(group, keys)] for group in ("whole", "half")]
                        case = f"{strategy}, {weights}"
                        all_steps, used, changed = run(["mpirun", "--bind-to", "core", *ranks[0], ":", *ranks[1]], cwd, count)
                        times.setdefault(case, []).append((ideals[-1], all_steps))
                        if changed:
                            behind.setdefault(f"{case}, changed", []).append((ideals[-1], changed))
                        found.setdefault(case, []).append(used)
    finally:
        remove_groups()
    print(f"{rounds} rounds; a step at best {statistics.median(ideals):.3f} s")
    print(f"{'':28} {'step, s':>9} {'least':>9} {'x at best':>10} {'least':>9} {'most':>9} {'mean':>9}")
    for case, of in (times | behind).items():
        row(case, of)
    for case, used in found.items():
        changes = len(behind.get(f"{case}, changed", []))
        print(f"{case}: weights {' '.join(used)}; changed in {changes} of {rounds} rounds")


if __name__ == "__main__":
    main()
