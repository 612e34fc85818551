#!/usr/bin/env python3
"""`zoetrope tune` as a user runs it: what it remembers, that later runs use it and deterministic ones do not, searching on
first use, a block over ranks, and bad input.

    tune_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    tune_test.py --list          the names
"""
import fcntl
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
from harness import PATIENCE, refused, run, run_script  # noqa: E402

PROGRAM = None
MODEL = pathlib.Path(__file__).resolve().parents[2] / "demo" / "wan-tiny"
TESTS = {}
SHAPE = "shape=1x300x2x32"


def test(function):
    TESTS[function.__name__] = function
    return function


def zoetrope(cwd, *arguments):
    """Runs with a cache folder of its own."""
    return run([PROGRAM, *arguments], cwd, env={**os.environ, "XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")})


def cache_file(cwd):
    return pathlib.Path(cwd) / "cache" / "zoetrope" / "tiles.json"


def tiles(cwd):
    return json.loads(cache_file(cwd).read_text())["tiles"]


def tune(cwd, *arguments):
    result = zoetrope(cwd, "tune", SHAPE, "seconds=0", "threads=2", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def measured_run(cwd, *arguments):
    """What `attention` says of a run with the cache."""
    result = zoetrope(cwd, "attention", SHAPE, "threads=2", "reference=true", "json=m.json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads((pathlib.Path(cwd) / "m.json").read_text())


@test
def remembers_what_it_found(cwd):
    said = tune(cwd, "dtype=float32")
    assert "stored" in said and "built-in" in said, said
    (entry,) = tiles(cwd)
    assert entry["dtype"] == "F32" and entry["head_dim"] == 32 and entry["softmax"] == "online" and entry["keys"] == 256
    tune(cwd, "dtype=float32")
    assert len(tiles(cwd)) == 1
    tune(cwd, "dtype=bf16")
    tune(cwd, "dtype=float32", "softmax=fixed_max")
    tune(cwd, "dtype=float32", "kv=3000")
    assert len(tiles(cwd)) == 4
    listed = zoetrope(cwd, "tune", "list=true")
    assert listed.returncode == 0 and listed.stdout.count("fixed_max") == 1, listed.stdout
    assert not [p for p in cache_file(cwd).parent.iterdir() if p.name not in ("tiles.json", "tiles.json.lock")]


@test
def lists_nothing_at_first(cwd):
    listed = zoetrope(cwd, "tune", "list=true")
    assert listed.returncode == 0 and "nothing is stored yet" in listed.stdout
    assert not cache_file(cwd).exists()


@test
def another_file(cwd):
    tune(cwd, "cache=here.json")
    assert (pathlib.Path(cwd) / "here.json").exists() and not cache_file(cwd).exists()


@test
def attention_searches_on_first_use(cwd):
    measured = measured_run(cwd, "enable_tile_search=true", "dtype=float32")
    assert measured["rel_l2"] < 1e-5
    (entry,) = tiles(cwd)
    assert entry["head_dim"] == 32 and entry["dtype"] == "F32"
    before = cache_file(cwd).read_text()
    measured_run(cwd, "enable_tile_search=true", "dtype=float32")
    assert cache_file(cwd).read_text() == before
    # Ranks search one after another, and the first one's result serves all.
    measured_run(cwd, "enable_tile_search=true", "dtype=bf16", "ranks=2", "attention=ulysses")
    assert len(tiles(cwd)) == 2


def tune_block(cwd, *arguments):
    return zoetrope(cwd, "tune", "mode=block", f"model={MODEL}", "height=64", "width=96", "num_frames=5", "seconds=0",
                    "threads=2", "dtype=float32", *arguments)


@test
def a_block_is_timed_over_ranks_and_runs_use_what_won(cwd):
    for ranks, layout, options in ((1, "Ulysses 1 x ring 1", []), (2, "Ulysses 1 x ring 2", ["attention=ring"])):
        options += [f"ranks={ranks}"]
        result = tune_block(cwd, *options)
        assert result.returncode == 0, result.stderr
        said = result.stdout
        assert layout in said and "a block of 48 tokens" in said and "stored in" in said, said
        assert said.count("built-in") == 1 and said.count("  best of the kernel") == 1, said
        rows = [line.split() for line in said.splitlines() if line.endswith(" ms") or " ms  " in line]
        assert len(rows) > 3 and all(float(row[4]) > 0 for row in rows), said
        (stored,) = [row for row in rows if "stored" in row]
        agree = any(row == stored and "kernel" in row for row in rows)
        assert agree == ("kernel and block agree" in said) and agree != ("the kernel alone with" in said), said
        entry = tiles(cwd)[-1]
        assert [entry["block_q"], entry["block_kv"]] == [int(word) for word in stored[:2]], (entry, said)
        # A run of that size and layout finds the entry: it searches nothing, and adds none.
        before = cache_file(cwd).read_text()
        clip = zoetrope(cwd, "generate", MODEL, "weights=random", "height=64", "width=96", "num_frames=5", "threads=2",
                        "num_inference_steps=1", "dtype=float32", "enable_tile_search=true", "prompt=a cat",
                        f"output={ranks}.gif", *options)
        assert clip.returncode == 0, clip.stderr
        assert cache_file(cwd).read_text() == before
    assert len(tiles(cwd)) == 2  # of 48 keys, and of 24


@test
def bad_input_of_a_block(cwd):
    size = ["height=64", "width=96", "num_frames=5"]
    for arguments, words in (
            (["mode=blocks"], ["mode=blocks", "kernel, block"]),
            (["mode=block"], ["height, width and num_frames"]),
            (["mode=block", *size[:2]], ["height, width and num_frames"]),
            (["mode=block", *size, "shape=1x300x2x32"], ["shape=1x300x2x32", "mode=block"]),
            (["height=64"], ["height=64", "mode=kernel"]),
            (["attention=ring"], ["attention=ring", "mode=kernel"]),
            (["mode=block", "height=40", *size[1:], f"model={MODEL}"], ["height=40"]),
            (["mode=block", *size, "model=wan9"], ["wan9"]),
            (["mode=block", *size, f"model={MODEL}", "ranks=3", "ulysses_shards=2"], ["ulysses_shards=2"]),
            (["mode=block", *size, f"model={MODEL}", "ranks=64", "attention=ring", "threads=1"], ["48 tokens", "64 ranks"]),
            (["mode=block", *size, f"model={MODEL}", "implementation=scalar"], ["scalar", "no tiles"])):
        result = zoetrope(cwd, "tune", *arguments)
        refused(cwd, result, *words, left=[p.name for p in pathlib.Path(cwd).iterdir() if p.name == "cache"])


@test
def says_whom_it_waits_for(cwd):
    cache_file(cwd).parent.mkdir(parents=True)
    with open(f"{cache_file(cwd)}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        tuning = subprocess.Popen([PROGRAM, "tune", SHAPE, "seconds=0", "threads=1", "implementation=auto"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                                  env={**os.environ, "XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")})
        said = tuning.stderr.readline()
        assert "waiting for process 4711" in said, said
        assert not cache_file(cwd).exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
    tuning.communicate(timeout=PATIENCE)
    assert tuning.returncode == 0 and len(tiles(cwd)) == 1
    assert int(pathlib.Path(f"{cache_file(cwd)}.lock").read_text()) == tuning.pid


@test
def remembered_sizes_are_used_unless_deterministic(cwd):
    """A cache that cannot be read shows who reads it: every run but deterministic ones and those with sizes of their own."""
    tune(cwd)
    cache_file(cwd).write_text("{")
    said = zoetrope(cwd, "attention", SHAPE)
    assert said.returncode == 1 and "delete it" in said.stderr and str(cache_file(cwd)) in said.stderr, said.stderr
    for option in ("deterministic=true", "flash_block_sizes={block_q: 64, block_kv: 64}"):
        assert zoetrope(cwd, "attention", SHAPE, option).returncode == 0


@test
def bad_input(cwd):
    for arguments, words in (
            (["shape=1x300x2"], ["shape"]),
            (["shape=1x0x2x32"], ["shape"]),
            (["dtype=int8"], ["dtype", "bf16"]),
            (["softmax=exact"], ["softmax", "fixed_max"]),
            (["implementation=abacus"], ["abacus", "avx2"]),
            (["implementation=scalar", "seconds=0"], ["scalar", "no tiles"]),
            (["cache=/proc/nothing/tiles.json"], ["/proc/nothing"]),
            (["shap=1"], ["shap", "shape"])):
        result = zoetrope(cwd, "tune", *arguments)
        refused(cwd, result, *words, left=[p.name for p in pathlib.Path(cwd).iterdir() if p.name == "cache"])
    both = zoetrope(cwd, "attention", SHAPE, "enable_tile_search=true", "deterministic=true")
    assert both.returncode == 1 and "deterministic" in both.stderr and "enable_tile_search" in both.stderr, both.stderr


def use(program):
    global PROGRAM
    PROGRAM = program


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
