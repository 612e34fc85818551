#!/usr/bin/env python3
"""What a step cache is said to cost, against the dumps of runs with it and without.

    cache_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    cache_test.py --list                the names
"""
import array
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import generate, interrupt, read_tensors, run, run_script  # noqa: E402

TESTS = {}
STEPS = 15
CACHE = ["cache=tea", "cache_coefficients=1,0", "cache_threshold=2", "cache_compare=true"]
WORDS = ["output=a.gif", f"num_inference_steps={STEPS}", "deterministic=true"]


def test(function):
    TESTS[function.__name__] = function
    return function


def dumped(cwd, name, *words):
    result = generate(cwd, *WORDS, f"dump={name}", *words)
    assert result.returncode == 0, result.stderr
    return read_tensors(pathlib.Path(cwd) / name / "run.safetensors"), result.stdout


def distance(a, b, stride=1):
    a, b = (array.array("f", tensor[2])[::stride] for tensor in (a, b))
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) ** 0.5


def said(text, what):
    (line,) = (line for line in text.splitlines() if line.startswith(f"{what} against no cache"))
    return float(line.split()[-1])


@test
def distances_are_those_of_the_dumps(cwd):
    plain, _ = dumped(cwd, "plain")
    cached, text = dumped(cwd, "cached", *CACHE)
    velocities = [distance(cached[f"velocity.{i}"], plain[f"velocity.{i}"], 8) for i in range(STEPS)]
    latents = distance(cached[f"latents.{STEPS - 1}"], plain[f"latents.{STEPS - 1}"])
    for what, expected in (("Velocity of a step", max(velocities)), ("Latents", latents)):
        assert abs(said(text, what) / expected - 1) < 0.006, (what, text, expected)  # three digits


@test
def the_run_without_the_cache_is_predicted_too(cwd):
    """It is part of the total, and not of what the run with the cache is compared with."""
    def predictions(*words):
        result = generate(cwd, *WORDS, *CACHE[:3], "hardware=cpu", "summary=full", *words)
        assert result.returncode == 0, result.stderr
        value, unit = re.search(r"^Predicted .* in all: .*denoise ([0-9.]+) ([mµ]?s)", result.stderr, re.M).groups()
        (table,) = re.findall(r"^  denoise +([0-9.]+ s) .* a step ([0-9.]+ s)", result.stdout, re.M)
        return float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit], table
    alone, table = predictions()
    both, with_comparison = predictions(CACHE[3])
    assert abs(both / alone - 2) < 0.05, (alone, both)
    assert table == with_comparison


@test
def the_drift_cache_says_how_far_reuse_is_off(cwd):
    """Of one reused step: by less than the step after it, and that by at most twice as much as by then time has gone."""
    plain, _ = dumped(cwd, "plain")
    cached, text = dumped(cwd, "cached", "cache=drift", "cache_threshold=0.3", "cache_max_skips=1")
    first = text.split("steps (")[1].split(")")[0].index("r")  # until then latents are those of the run without a cache
    off = distance(cached[f"velocity.{first}"], plain[f"velocity.{first}"])
    (line,) = (line for line in text.splitlines() if line.startswith("Velocity of steps after reused ones"))
    said = float(line.split("relative L2 of ")[1].split()[0])
    assert 0 < off <= said <= 4 * off, (off, line, text)
    assert distance(cached[f"velocity.{first - 1}"], plain[f"velocity.{first - 1}"]) == 0


@test
def a_resumed_run_speaks_of_no_step_that_it_did_not_see(cwd):
    words = ["output=a.gif", "num_inference_steps=200", *CACHE[:2], "cache_threshold=0", "journal=j"]
    assert interrupt(cwd, "Denoise: step 20 of", *words).returncode != 0
    result = run([harness.PROGRAM, "generate", "resume=j", "cache_compare=true"], cwd)
    assert result.returncode == 0 and "Goes on after step " in result.stderr, result.stderr
    assert "Latents against no cache" in result.stdout, result.stdout
    assert "Velocity of a step against no cache" not in result.stdout, result.stdout
    assert "at the rate of the computed ones" in result.stdout, result.stdout  # the rest took less time than a whole run


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
