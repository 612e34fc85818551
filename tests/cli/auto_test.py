#!/usr/bin/env python3
"""What `auto` does as a user meets it: the plan that is printed is the one that runs, profiles decide and keys win, ranks of an
MPI job take one decision, and what was predicted is next to what was measured.

    auto_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    auto_test.py --list                the names
"""
import json
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, SMALL, Skip, generate, refused, run, run_script, without_profiles  # noqa: E402

TESTS = {}
PROGRAM = None


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM
    PROGRAM = program
    harness.use(program, model)


def profile(bandwidth, latency, calibration=""):
    """Eight devices that differ in their links alone: GB/s and microseconds."""
    return ("description: for a test\ndevices: 8\nmemory: 80\nmemory_bandwidth: 100\nlayer_overhead: 0\n"
            "token_seconds: 0.3\nhost_read: 5\ndevices_per_host: 8\n" + calibration +
            "bf16: {peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5}\n"
            "float32: {peak: 0.1, gemm: 0.8, attention: 0.5, convolution: 0.5}\n"
            "links:\n"
            f"  - {{name: host, members: 8, kind: switch, bandwidth: {bandwidth}, latency: {latency}}}\n")


# Where compute is longer than each hop a ring is best, which hides them; where every message is late a gather, which waits
# for one; where links are narrow an exchange, which sends less; where they are both, the branches of guidance apart, which
# meet once a step.
CLOSE, LATE, NARROW, SLOW = profile(1000, 0.01), profile(1000, 3000), profile(0.001, 0), profile(0.001, 3000)
ALONE = ["guidance_scale=1", "output=a.gif"]
RING = "data 1 x context 4 (Ulysses 1 x ring 4"  # whichever way round
GATHER = "data 1 x context 4 (gather 4)"


def write(cwd, name, text):
    path = pathlib.Path(cwd) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def plan_of(result):
    """What the line "Plan: …" says before its figures, which must be what the line on the ranks says too."""
    assert result.returncode == 0, result.stderr
    plan = re.search(r"^Plan: (.*?); predicted [0-9.]+ [mµ]?s a step", result.stderr, re.M)
    assert plan, result.stderr
    assert f": {plan.group(1)}, " in re.search(r"^Ranks .*$", result.stderr, re.M).group(0), result.stderr
    return plan.group(1)


def attention(cwd, *arguments, **options):
    result = run([PROGRAM, "attention", "shape=1x64x4x16", "dtype=float32", "json=m.json", *arguments], cwd, **options)
    assert result.returncode == 0, result.stderr
    measured = json.loads((pathlib.Path(cwd) / "m.json").read_text())
    return (measured["ulysses"], measured["ring"], measured["gather"]), measured, result


@test
def a_run_says_its_plan_and_what_became_of_it(cwd):
    for ranks in (1, 2, 3):
        result = generate(cwd, "output=a.gif", f"ranks={ranks}", "summary=full")
        plan_of(result)
        assert "Planned with profile 'cpu'" in result.stderr and "nobody calibrated" in result.stderr, result.stderr
        assert ("; next best " in result.stderr) == (ranks > 1), result.stderr
        lines = result.stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("Prediction"))
        parts = [line.split("  ")[1] for line in lines[at + 1:at + 5]]
        assert parts[:3] == ["load", "text encoder", "denoise"], lines[at:]
        assert any(line.startswith("  Largest deviation: ") and "than predicted" in line for line in lines[at:]), lines


@test
def the_profile_decides(cwd):
    late, narrow, slow = write(cwd, "late.yml", LATE), write(cwd, "narrow.yml", NARROW), write(cwd, "slow.yml", SLOW)
    close = write(cwd, "close.yml", CLOSE)
    assert RING in plan_of(generate(cwd, *ALONE, "ranks=4", f"hardware={close}"))
    assert plan_of(generate(cwd, *ALONE, "ranks=4", f"hardware={late}")) == GATHER
    assert plan_of(generate(cwd, *ALONE, "ranks=4", f"hardware={narrow}")).startswith(
        "data 1 x context 4 (Ulysses 4 x ring 1")
    result = generate(cwd, "output=a.gif", "ranks=2", f"hardware={slow}")
    assert plan_of(result).startswith("data 2 x context 1"), result.stderr
    assert "Planned with profile 'slow'\n" in result.stderr, result.stderr


@test
def the_faster_softmax_runs(cwd):
    """What a profile measured of both kernels decides, unless a key, a name or deterministic=true does."""
    fast = write(cwd, "fast.yml", NARROW.replace("attention: 0.5,", "attention: 0.5, fixed_max_gain: 1.9,"))
    large = ["shape=1x4096x4x64", "ranks=2", f"hardware={fast}"]
    for words, expected in (([], "fixed_max"), (["softmax=online"], "online"), (["attention=ulysses"], "online"),
                            (["deterministic=true"], "online")):
        _, measured, result = attention(cwd, *large, *words)
        assert measured["softmax"] == expected, (words, measured)
        assert ("fixed_max" in result.stdout + result.stderr) == (expected == "fixed_max"), result


@test
def keys_win(cwd):
    slow = write(cwd, "slow.yml", SLOW)
    result = generate(cwd, "output=a.gif", "ranks=4", f"hardware={slow}", "data_parallelism=1", "ulysses_shards=2",
                      "ring_direction=two_way", "ulysses_attention_chunks=2", "vae_parallel=2")
    assert plan_of(result) == "data 1 x context 4 (Ulysses 2 x ring 2, ring direction two_way, 2 head chunks)"
    assert "VAE on 2 ranks" in result.stderr and "next best" not in result.stderr, result.stderr
    late = write(cwd, "late.yml", LATE)
    assert plan_of(generate(cwd, *ALONE, "ranks=4", f"hardware={late}", "attention=ulysses")).startswith(
        "data 1 x context 4 (Ulysses 4")


@test
def deterministic_runs_are_planned_by_rule(cwd):
    for name, text in (("late", LATE), ("narrow", NARROW), ("slow", SLOW)):
        path = write(cwd, name + ".yml", text)
        result = generate(cwd, "output=a.gif", "ranks=4", f"hardware={path}", "deterministic=true")
        assert plan_of(result) == "data 1 x context 4 (Ulysses 4 x ring 1)", result.stderr
        chosen, _, _ = attention(cwd, "ranks=4", f"hardware={path}", "deterministic=true")
        assert chosen == (4, 1, 1), chosen


@test
def ranks_agree_with_one_rank_whatever_is_chosen(cwd):
    for text in (LATE, NARROW, SLOW):
        path = write(cwd, "any.yml", text)
        result = generate(cwd, "output=a.gif", "ranks=4", f"hardware={path}", "compare_one_rank=true")
        plan_of(result)
        line = [l for l in result.stdout.splitlines() if "relative L2" in l][0]
        assert float(line.split()[-1]) <= 1e-5, line


@test
def inspect_plans_what_generate_runs(cwd):
    for text in (LATE, NARROW):
        path = write(cwd, "any.yml", text)
        words = ["ranks=4", "guidance_scale=1", f"hardware={path}", "height=256", "width=256", "num_frames=49"]
        ran = generate(cwd, "output=a.gif", "summary=full", *words)
        plan_of(ran)
        said = run([PROGRAM, "inspect", harness.MODEL, *[w for w in SMALL if "=" in w and "prompt" not in w], *words], cwd)
        assert said.returncode == 0, said.stderr
        attention_bytes = re.search(r"denoise with transformer .*?attention ([0-9.]+ [MG]B)", said.stdout)
        printed = re.search(r"planned for denoise with transformer: .*?attention ([0-9.]+ [MG]B)", ran.stdout)
        assert attention_bytes and printed, (said.stdout, ran.stdout)
        assert attention_bytes.group(1) == printed.group(1), (said.stdout, ran.stdout)


@test
def attention_of_its_own_is_planned_too(cwd):
    late, narrow = write(cwd, "late.yml", LATE), write(cwd, "narrow.yml", NARROW)
    close = write(cwd, "close.yml", CLOSE)
    chosen, measured, result = attention(cwd, "ranks=4", f"hardware={late}")
    assert chosen == (1, 1, 4), chosen
    assert measured["predicted_seconds"] > 0 and "Plan: gather 4;" in result.stdout, result.stdout
    assert "Strategy: gather 4, " in result.stdout, result.stdout
    assert "off the prediction" in result.stdout, result.stdout
    assert attention(cwd, "ranks=4", f"hardware={close}")[0] == (1, 4, 1)
    assert attention(cwd, "ranks=4", f"hardware={narrow}")[0] == (4, 1, 1)
    assert attention(cwd, "ranks=4", f"hardware={narrow}", "attention=ring")[0] == (1, 4, 1)
    assert attention(cwd, "ranks=4", f"hardware={narrow}", "attention=gather")[0] == (1, 1, 4)
    assert attention(cwd, "ranks=4", f"hardware={narrow}", "attention=flash")[0] == (1, 1, 4)
    # A key of Ulysses and ring leaves the gather out.
    assert attention(cwd, "ranks=4", f"hardware={late}", "ulysses_shards=1")[0] == (1, 4, 1)
    assert attention(cwd, "ranks=4", f"hardware={late}", "ulysses_shards=2")[0] == (2, 2, 1)
    # With keys of their own nothing is sent, and nothing is to be chosen.
    _, measured, result = attention(cwd, "ranks=4", f"hardware={late}", "kv=7")
    assert "predicted_seconds" not in measured and "Plan" not in result.stdout, result.stdout


@test
def a_profile_that_is_not_there(cwd):
    refused(cwd, generate(cwd, "output=a.gif", "hardware=h100_9"), "h100_9", "h100_8")
    refused(cwd, run([PROGRAM, "attention", "shape=1x8x2x8", "hardware=h100_9"], cwd), "h100_9", "h100_8")


@test
def a_profile_that_lacks_a_figure(cwd):
    write(cwd, "bad.yml", NARROW.replace("memory_bandwidth: 100\n", ""))
    refused(cwd, generate(cwd, "output=a.gif", "hardware=bad.yml"), "bad.yml", "memory_bandwidth", left=["bad.yml"])


@test
def more_ranks_than_devices(cwd):
    refused(cwd, generate(cwd, "output=a.gif", "ranks=32", "hardware=tpu_v7x_8"), "tpu_v7x_8", "8")


CALIBRATION = "calibration: {cpu: a CPU of another kind, hosts: 1, ranks: 8, threads: 1, date: 2026-01-02}\n"


@test
def without_configurations_the_rules_hold(cwd):
    alone = without_profiles(cwd)
    environment = {"XDG_CACHE_HOME": str(cwd)}
    words = [PROGRAM, "generate", harness.MODEL, *SMALL, "output=a.gif", "ranks=4", "data_parallelism=1"]
    result = run([*alone, *words], cwd, env=environment)
    assert result.returncode == 0, result.stderr
    assert "Plan: data 1 x context 4 (Ulysses 4 x ring 1), by rule" in result.stderr, result.stderr
    assert "nobody calibrated" in result.stderr and "Prediction" not in result.stdout, result.stderr
    late = write(cwd, "late.yml", LATE)
    assert plan_of(run([*alone, *words, "guidance_scale=1", f"hardware={late}"], cwd, env=environment)) == GATHER
    result = run([*alone, PROGRAM, "attention", "shape=1x64x4x16", "ranks=4", "json=m.json"], cwd, env=environment)
    assert result.returncode == 0 and "Plan: Ulysses 4 x ring 1, by rule" in result.stdout, result.stdout + result.stderr
    assert "predicted_seconds" not in json.loads((pathlib.Path(cwd) / "m.json").read_text())


@test
def a_stale_calibration_is_used_with_a_warning(cwd):
    write(cwd, "cache/zoetrope/hardware.yml", profile(1000, 3000, CALIBRATION))
    environment = {"XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")}
    result = generate(cwd, *ALONE, "ranks=4", env=environment)
    assert plan_of(result) == GATHER, result.stderr
    for words in ("hardware.yml", "warning", "a CPU of another kind", "zoetrope calibrate"):
        assert words in result.stderr, (words, result.stderr)


@test
def a_calibration_that_cannot_be_read_is_said_and_left(cwd):
    write(cwd, "cache/zoetrope/hardware.yml", "devices: many\n")
    result = generate(cwd, "output=a.gif", "ranks=2", env={"XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")})
    plan_of(result)
    assert "profile 'cpu'" in result.stderr and "cannot be used" in result.stderr, result.stderr


def first_use(cwd):
    """An environment that lets the program measure, with a cache folder of its own."""
    return {"XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache"), "ZOETROPE_MEASURE": ""}


def remembered(cwd):
    return sorted((pathlib.Path(cwd) / "cache" / "zoetrope").glob("*"))


@test
def a_toy_measures_nothing(cwd):
    # Nor does anything that plans no more than that: it would take longer than the run.
    result = generate(cwd, "output=a.gif", "ranks=2", env=first_use(cwd))
    plan_of(result)
    assert "profile 'cpu'" in result.stderr, result.stderr
    run([PROGRAM, "inspect", harness.MODEL, "ranks=2", *[w for w in SMALL if "prompt" not in w]], cwd, env=first_use(cwd))
    attention(cwd, "ranks=2", env=first_use(cwd))
    assert not remembered(cwd), remembered(cwd)


@test
def a_plan_of_this_machine_measures_it_once(cwd):
    plan = [PROGRAM, "plan", "wan2.1_t2v_1.3b"]

    def planned(measures):
        result = run(plan, cwd, env=first_use(cwd))
        if "was not measured: " in result.stdout:
            raise Skip("others use this machine")
        assert "measured on first use" in result.stdout, result.stdout + result.stderr
        assert ("measured just now" in result.stdout) == measures, result.stdout

    planned(True)
    file, = remembered(cwd)
    figures = json.loads(file.read_text())
    assert figures["measurements"] == 1 and figures["key"]["cores"] >= 1, figures
    # As on an idle machine: a busy one is measured again.
    figures["figures"]["core_share"] = 1
    file.write_text(json.dumps(figures))
    planned(False)
    # A toy uses what is there.
    assert "measured on first use" in generate(cwd, "output=a.gif", env=first_use(cwd)).stderr
    file.write_text(file.read_text()[:100])
    planned(True)
    assert remembered(cwd) == [file], remembered(cwd)


@test
def measuring_can_be_forbidden(cwd):
    plan = [PROGRAM, "plan", "wan2.1_t2v_1.3b"]
    environment = first_use(cwd)
    result = run(plan, cwd, env={**environment, "ZOETROPE_MEASURE": "no"})
    assert "first use" not in result.stdout and not remembered(cwd), result.stdout
    refused(cwd, run(plan, cwd, env={**environment, "ZOETROPE_MEASURE": "maybe"}), "ZOETROPE_MEASURE=maybe", "'no'")


@test
def ranks_of_a_job_take_one_decision(cwd):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    # Each of two processes finds another calibration; alone the first would choose a gather, the second Ulysses.
    command = ["mpirun"]
    for name, text in (("a", (1000, 3000)), ("b", (0.001, 0))):
        write(cwd, f"{name}/zoetrope/hardware-1x4.yml", profile(*text, CALIBRATION))
        if len(command) > 1:
            command.append(":")
        command += ["-n", "2", "-x", f"XDG_CACHE_HOME={pathlib.Path(cwd) / name}", PROGRAM, "generate", harness.MODEL,
                    *SMALL, *ALONE, "threads=1"]
    result = run(command, cwd, env=MPI_ENV)
    assert plan_of(result) == GATHER, result.stderr
    assert "hardware-1x4.yml" in result.stderr, result.stderr


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
