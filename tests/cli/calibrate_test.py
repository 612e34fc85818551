#!/usr/bin/env python3
"""`zoetrope calibrate` as a user runs it: the profile it writes and where, under mpirun too, and bad input. What it measures
is the machine's business; here windows are short, and figures are looked at for order of magnitude and sense alone.

    calibrate_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    calibrate_test.py --list          the names
"""
import os
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
from harness import MPI_ENV, Skip, refused, run, run_on_hosts, run_script  # noqa: E402

PROGRAM = None
TESTS = {}
SHORT = ["seconds=0.002", "threads=1"]


def test(function):
    TESTS[function.__name__] = function
    return function


def environment(cwd):
    """With a cache folder of its own."""
    return {"XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")}


def calibrate(cwd, *arguments):
    return run([PROGRAM, "calibrate", *arguments], cwd, env=environment(cwd))


def calibrate_ranks(cwd, ranks, *arguments):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    return run(["mpirun", "-n", str(ranks), PROGRAM, "calibrate", *arguments], cwd, env={**MPI_ENV, **environment(cwd)})


def calibrate_hosts(cwd, hosts, *arguments, of_last=":"):
    return run_on_hosts(hosts, [PROGRAM, "calibrate", *arguments], cwd, {**MPI_ENV, **environment(cwd)}, of_last=of_last)


def figures(text):
    """The profile as {"bf16.peak": "0.5", "links.host.members": "2", …}: what is needed here of YAML."""
    found, section, level = {}, "", ""
    for line in text.splitlines():
        match = re.match(r"^(\s*)(- )?([a-z_0-9]+):\s*(.*?)\s*(#.*)?$", line)
        if not match:
            continue
        indent, dash, key, value, _ = match.groups()
        value = value.strip('"')
        if not indent and not dash:
            section, level = (f"{key}.", "") if not value else ("", "")
        if key == "name":
            level = f"{value}."
        if value:
            found[f"{section}{level if section == 'links.' else ''}{key}"] = value
    return found


def points(curve):
    return {float(x): float(y) for x, y in re.findall(r"([\d.e+]+): ([\d.e+-]+)", curve)}


def check_profile(text, ranks):
    profile = figures(text)
    assert profile["devices"] == str(ranks) and profile["devices_per_host"] == str(ranks), profile
    for dtype in ("bf16", "float32"):
        assert 1e-4 < float(profile[f"{dtype}.peak"]) < 1e3, profile
        for curve in ("gemm", "attention"):
            assert points(profile[f"{dtype}.{curve}"]), profile
            assert all(0 < y <= 1 for y in points(profile[f"{dtype}.{curve}"]).values()), profile
    for key in ("bf16.int8_gain", "bf16.int8_attention_gain", "memory", "memory_bandwidth", "token_seconds",
                "layer_overhead", "host_read"):
        assert float(profile[key]) > 0, key
    assert profile["links.host.members"] == str(ranks) and profile["links.host.kind"] == "bus", profile
    assert float(profile["links.host.bandwidth"]) > 0 and 0 <= float(profile["links.host.overlap"]) <= 1
    assert profile["calibration.ranks"] == str(ranks) and profile["calibration.hosts"] == "1"
    return profile


def nothing_left(cwd, *allowed):
    left = [p.name for p in pathlib.Path(cwd).iterdir() if p.name not in allowed]
    assert not left, left


@test
def writes_where_runs_look(cwd):
    result = calibrate(cwd, "ranks=2", *SHORT)
    assert result.returncode == 0, result.stderr
    folder = pathlib.Path(cwd) / "cache" / "zoetrope"
    assert [p.name for p in folder.iterdir()] == ["hardware.yml"]
    text = (folder / "hardware.yml").read_text()
    profile = check_profile(text, 2)
    # Of the same registers or better ones. Other programs may take most of a core while either is measured.
    assert float(profile["bf16.peak"]) >= 0.1 * float(profile["float32.peak"])
    assert text.count("#") > 10, "figures without a word on how they were measured"
    # The table has what the file has, and a check of it.
    for word in ("bf16.peak", "float32.gemm", "memory_bandwidth", "links.host.bandwidth", "predicted", "hardware.yml"):
        assert word in result.stdout, word
    assert "Ulysses 2" in result.stdout and "ring 2" in result.stdout
    nothing_left(cwd, "cache")


@test
def one_rank_and_one_dtype(cwd):
    result = calibrate(cwd, "ranks=1", "dtype=float32", "output=mine.yml", *SHORT)
    assert result.returncode == 0, result.stderr
    text = (pathlib.Path(cwd) / "mine.yml").read_text()
    profile = check_profile(text, 1)
    assert profile["bf16.gemm"] == profile["float32.gemm"] and "not measured" in text
    nothing_left(cwd, "mine.yml")


@test
def replaces_the_last_one(cwd):
    mine = pathlib.Path(cwd) / "mine.yml"
    mine.write_text("not a profile")
    result = calibrate(cwd, "ranks=1", "dtype=float32", "output=mine.yml", *SHORT)
    assert result.returncode == 0, result.stderr
    check_profile(mine.read_text(), 1)


@test
def under_mpirun(cwd):
    result = calibrate_ranks(cwd, 2, *SHORT)
    assert result.returncode == 0, result.stderr
    folder = pathlib.Path(cwd) / "cache" / "zoetrope"
    assert [p.name for p in folder.iterdir()] == ["hardware-1x2.yml"], list(folder.iterdir())
    check_profile((folder / "hardware-1x2.yml").read_text(), 2)
    assert result.stdout.count("bf16.peak ") == 1, "more than one rank speaks"


@test
def two_hosts(cwd):
    result = calibrate_hosts(cwd, ["left", "left", "right", "right"], "dtype=float32", *SHORT)
    assert result.returncode == 0, result.stderr
    profile = figures((pathlib.Path(cwd) / "cache" / "zoetrope" / "hardware-2x2.yml").read_text())
    assert profile["devices"] == "4" and profile["devices_per_host"] == "2" and profile["calibration.hosts"] == "2"
    assert profile["links.host.members"] == "2" and profile["links.host.kind"] == "bus"
    assert profile["links.cluster.members"] == "2" and profile["links.cluster.kind"] == "switch"
    assert float(profile["links.cluster.bandwidth"]) > 0 and float(profile["links.cluster.latency"]) > 0


@test
def one_rank_on_each_host(cwd):
    of_last = ":" if "ASAN_OPTIONS" in os.environ else "ulimit -v 6000000"
    result = calibrate_hosts(cwd, ["left", "right"], "dtype=float32", "output=mine.yml", *SHORT, of_last=of_last)
    assert result.returncode == 0, result.stderr
    profile = figures((pathlib.Path(cwd) / "mine.yml").read_text())
    assert profile["links.cluster.members"] == "2" and "links.host.members" not in profile, profile
    assert of_last == ":" or float(profile["memory"]) <= 6.144, profile  # of the host with the least


@test
def hosts_that_are_not_alike_are_refused(cwd):
    uneven = calibrate_hosts(cwd, ["left", "left", "right"], *SHORT)
    refused(cwd, uneven, "left has 2 ranks", "right has 1")
    by_turns = calibrate_hosts(cwd, ["left", "right", "left", "right"], *SHORT)
    refused(cwd, by_turns, "ranks 0 and 2", "--map-by slot")


@test
def refuses_other_ranks_under_mpirun(cwd):
    result = calibrate_ranks(cwd, 2, "ranks=3", *SHORT)
    assert result.returncode != 0 and "ranks=3" in result.stderr and "2 ranks" in result.stderr, result.stderr
    nothing_left(cwd)


@test
def bad_input(cwd):
    (pathlib.Path(cwd) / "folder").mkdir()
    for arguments, words in (
            (["output=nowhere/mine.yml"], ["nowhere"]),
            (["output=folder"], ["folder"]),
            (["ranks=0"], ["ranks"]),
            (["threads=4000"], ["threads=4000", "is the most"]),
            (["seconds=0"], ["seconds"]),
            (["dtype=int8"], ["dtype", "bf16"]),
            (["rank=2"], ["rank", "ranks"])):
        refused(cwd, calibrate(cwd, *arguments), *words, left=["folder"])
    nowhere = run([PROGRAM, "calibrate"], cwd, env={"HOME": "", "XDG_CACHE_HOME": ""})
    refused(cwd, nowhere, "output=FILE", left=["folder"])


def use(program):
    global PROGRAM
    PROGRAM = program


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
