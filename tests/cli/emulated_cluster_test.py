#!/usr/bin/env python3
"""bench/emulated_cluster: what it refuses, its arithmetic against the program's own counters, a small run where namespaces
can be made, and that nothing outlives a run that fails, is interrupted, or is killed.

    emulated_cluster_test.py PROGRAM FOLDER NAME    runs one test (exit 77: skipped, with the reason)
    emulated_cluster_test.py --list                 the names
"""
import ctypes
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from harness import SLOWER, Skip, files_in, run, run_script, until  # noqa: E402

PROGRAM = FOLDER = KEEPER = None
TESTS = {}
PR_CAPBSET_DROP, CAP_NET_ADMIN = 24, 12
# The smallest that takes every path: a link rate, a calibration, each degree of two hosts with two ranks.
# 69 GFLOP in float32, which no matrix unit shortens: four ranks with two cores take a tenth of a second and more.
SMALL = ["shape=1x8192x4x64", "dtype=float32", "layouts=2x2", "ratios=1", "repeat=1", "tries=1", "core_share=0.45",
         "window=0.01"]
PATIENCE = 20 * SLOWER  # seconds for the kernel to take down a killed run


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, folder):
    global PROGRAM, FOLDER, KEEPER
    PROGRAM, FOLDER, KEEPER = program, pathlib.Path(folder), pathlib.Path(program).parent / "speed_keeper"
    sys.path.insert(0, folder)


def arguments(*words):
    return [sys.executable, FOLDER / "run.py", f"program={PROGRAM}", *words]


def place(cwd):
    """Folders of runs are made here, so that no other run's are looked at."""
    folder = pathlib.Path(cwd) / "temporary"
    folder.mkdir(exist_ok=True)
    return {"TMPDIR": str(folder)}


def refusal(cwd, *words, command=None, **options):
    result = run(command or arguments(*words), cwd, env=place(cwd), **options)
    lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) == 1, (result.returncode, result.stdout, result.stderr)
    assert lines[0].startswith("emulated_cluster: "), lines
    assert files_in(cwd) == ["temporary"], files_in(cwd)
    return lines[0]


def need_rights():
    import matrix
    import run as emulated
    if any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")):
        raise Skip("under a sanitizer the program leaves mpirun with reports of Open MPI's own leaks")
    options = matrix.parse_options([f"program={PROGRAM}"])
    try:
        emulated.check_rights(options, matrix.make_plan(options))
    except emulated.Refusal as reason:
        raise Skip(str(reason))
    if run(["mpirun", "-n", "1", PROGRAM, "--version"], "/", env={"OMPI_ALLOW_RUN_AS_ROOT": "1",
                                                                  "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}).returncode != 0:
        raise Skip("mpirun cannot start the program here")


# ---- what can be seen of a run from outside ----

def traces(cwd):
    """Everything that a run makes, by kind: processes that carry its mark, folders, control groups, links."""
    import cluster
    temporary = pathlib.Path(place(cwd)["TMPDIR"])
    folders = [path.name for path in temporary.iterdir()]
    found = {"folders": folders, "processes": [], "groups": []}
    mark = f"{cluster.MARK}={temporary}/".encode()
    for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes():
                found["processes"].append(int(entry.parent.name))
        except OSError:
            pass
    controller = cluster.cpu_controller()
    if controller is not None:
        known = set(folders) | RUNS.get(cwd, set())
        found["groups"] = [path.name for path in controller[0].glob(f"{cluster.GROUP_PREFIX}*") if path.name in known]
    links = json.loads(subprocess.run(["ip", "-json", "link"], stdout=subprocess.PIPE, check=True).stdout)
    found["links"] = [link["ifname"] for link in links if re.match(r"port\d|bridge$|link0|probe\d", link["ifname"])]
    return found


RUNS = {}  # names of the runs that a test has seen, by its folder


def nothing(found):
    return not any(found.values())


def start(cwd):
    """A run that has built its hosts and started ranks on them, as a process. Its ranks do nothing and do not end."""
    standing_still = pathlib.Path(cwd) / "bin" / "zoetrope"
    if not standing_still.exists():
        standing_still.parent.mkdir()
        standing_still.write_text("#!/bin/sh\nexec sleep 1000\n")
        standing_still.chmod(0o755)
        (standing_still.parent / KEEPER.name).symlink_to(KEEPER)
    job = subprocess.Popen([str(a) for a in arguments(*SMALL, f"program={standing_still}")], cwd=cwd, text=True,
                           env={**os.environ, **place(cwd)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = next((line for line in job.stdout if line.startswith("Built")), None)
    if line is None:
        raise AssertionError(job.communicate()[1])
    until(lambda: len(traces(cwd)["processes"]) > 5, f"no ranks: {traces(cwd)}", PATIENCE)
    found = traces(cwd)
    RUNS[cwd] = set(found["folders"])
    assert len(found["folders"]) == 1 and found["groups"] == found["folders"] and not found["links"], found
    return job


# ---- refusals ----

@test
def refuses_without_the_rights(cwd):
    def drop():
        if os.geteuid() == 0:
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_NET_ADMIN)
    result = subprocess.run([str(a) for a in arguments()], cwd=cwd, env={**os.environ, **place(cwd)}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=drop)
    missing = [tool for tool in ("ip", "tc", "mpirun") if f"'{tool}' is not installed" in result.stderr]
    if missing:
        raise Skip(f"{missing[0]} is not installed, and that is said first")
    assert result.returncode == 1 and "CAP_NET_ADMIN" in result.stderr and "root" in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert files_in(cwd) == ["temporary"], files_in(cwd)


@test
def refuses_without_the_tools(cwd):
    tools = pathlib.Path(cwd) / "temporary" / "tools"
    tools.mkdir(parents=True)
    result = run(arguments(), cwd, env={"PATH": str(tools)})
    assert result.returncode == 1 and "'ip' is not installed; it comes with iproute2" in result.stderr, result.stderr


@test
def refuses_bad_options(cwd):
    for words, expected in (
            (["shapes=1x2x3x4"], ["'shapes' is not a key", "did you mean shape"]),
            (["4x1"], ["'4x1' is not key=value"]),
            (["shape=1x8192x6"], ["shape=1x8192x6", "BxSxHxD"]),
            (["shape=1x0x6x128"], ["'0'", "whole number"]),
            (["shape=1x3x6x128"], ["3 tokens", "4 ranks"]),
            (["dtype=int8"], ["dtype=int8", "bf16, float32"]),
            (["layouts=2x2,3x1"], ["3 and 4 ranks"]),
            (["layouts=1x4"], ["one host"]),
            (["layouts=2x2x2"], ["hosts x ranks"]),
            (["ratios=0"], ["ratios=0"]),
            (["ratios=1,nan"], ["'nan'"]),
            (["ulysses=3"], ["3 is not legal", "1, 2, 4"]),
            (["shape=1x64x3x8", "ulysses=4"], ["4 is not legal", "1, 2"]),
            (["directions=back"], ["'back'", "two_way"]),
            (["core_share=2"], ["core_share=2"]),
            (["tries=0"], ["tries=0"]),
            (["window=0"], ["window=0"]),
            *(([f"{key}=1,1"], [f"{key}=1,1", "one number"]) for key in ("core_share", "repeat", "tries", "window")),
            (["program=/no/such/program"], ["/no/such/program", "zoetrope_program"]),
            (["program=/bin/true"], ["/bin/true", "speed_keeper", "core_share=none"])):
        line = refusal(cwd, *words)
        for word in expected:
            assert word in line, f"'{word}' is not in: {line}"


# ---- arithmetic ----

@test
def messages_are_those_that_the_program_sends(cwd):
    import traffic
    for tokens, heads, ulysses in itertools.product((64, 67), (4, 6, 7), (1, 2, 4)):
        problem = traffic.Problem(2, tokens, heads, 8, 4)
        expected = sum(size for _, _, size in traffic.messages(problem, ulysses, 4 // ulysses))
        result = run([PROGRAM, "attention", f"shape={problem.shape}", "dtype=float32", "ranks=4", "threads=4",
                      f"ulysses_shards={ulysses}", "softmax=online", "json=m.json"], cwd)
        assert result.returncode == 0, result.stderr
        sent = json.loads((pathlib.Path(cwd) / "m.json").read_text())["bytes_sent"]
        assert sent == expected, (problem, ulysses, sent, expected)


@test
def link_bytes_leave_out_what_stays_on_a_host(cwd):
    import traffic
    problem = traffic.Problem(1, 8192, 8, 128, 2)
    v = 8192 * 8 * 128 * 2 // 4  # of one tensor, a rank's part
    for (ulysses, ring, ranks_per_host), expected in {
            (1, 4, 1): 6 * v, (2, 2, 1): 4 * v, (4, 1, 1): 3 * v,     # each rank has a link of its own
            (1, 4, 2): 6 * v, (2, 2, 2): 4 * v, (4, 1, 2): 4 * v}.items():  # two share one; U2 stays inside
        assert set(traffic.link_bytes(problem, ulysses, ring, ranks_per_host)) == {(expected, expected)}
    # Six heads over four ranks: shares of 1, 2, 1 and 2.
    uneven = traffic.Problem(1, 4, 6, 1, 1)
    assert traffic.link_bytes(uneven, 4, 1, 1) == [(3 * 5 + 3, 9 + 5), (3 * 4 + 6, 18 + 4), (3 * 5 + 3, 9 + 5),
                                                   (3 * 4 + 6, 18 + 4)]


@test
def rates_are_the_ratios(cwd):
    import matrix
    import traffic
    plan = matrix.make_plan(matrix.parse_options(["ratios=0.3,1,3"]))
    for ratio in plan.ratios:
        rate = matrix.link_rate(plan, 2.0, ratio)
        assert abs(traffic.ring_bytes(plan.problem, 4) / rate / (2.0 * ratio) - 1) < 0.05, (ratio, rate)
        assert len(f"{rate * 8e-6:g}".replace(".", "").strip("0")) <= 2, rate
    assert list(plan.cells()) == [(1, 4, "forward"), (2, 2, "forward"), (4, 1, "forward")]
    both = matrix.make_plan(matrix.parse_options(["directions=forward,two_way"]))
    assert [cell for cell in both.cells() if cell[2] == "two_way"] == [(1, 4, "two_way")]


@test
def devices_share_cores_as_their_hosts_do(cwd):
    import matrix
    for (hosts, devices, count), (cores, most) in {
            (2, 2, 2): ([[0], [1]], 2), (4, 1, 2): ([[0], [0], [1], [1]], 2), (2, 2, 3): ([[0], [1]], 2),
            (2, 2, 4): ([[0, 1], [2, 3]], 1), (4, 1, 3): ([[0], [0], [1], [2]], 2), (2, 3, 4): ([[0, 1], [2, 3]], 2)}.items():
        layout = matrix.Layout(hosts, devices)
        assert (layout.cores(count), layout.devices_on_a_core(count)) == (cores, most), (layout, count)


def made_up(layout, ratio, ulysses, measured, predicted):
    import matrix
    return matrix.Cell(layout, ratio, 100.0, ulysses, 4 // ulysses, "forward", measured * 0.99, measured, predicted, 1.0)


@test
def the_best_and_the_errors_are_told(cwd):
    import matrix
    wins = [made_up("2x2", 1.0, 1, 1.5, 1.4), made_up("2x2", 1.0, 2, 1.0, 1.1), made_up("2x2", 1.0, 4, 2.0, 1.9)]
    close = [made_up("4x1", 1.0, 1, 1.00, 1.20), made_up("4x1", 1.0, 2, 1.03, 1.0), made_up("4x1", 1.0, 4, 1.5, 1.5)]
    wrong = [made_up("4x1", 3.0, 1, 1.0, 2.0), made_up("4x1", 3.0, 2, 1.5, 1.4), made_up("4x1", 3.0, 4, 1.6, 1.6)]
    found = [matrix.verdict(group) for group in (wins, close, wrong)]
    assert [v.found for v in found] == [True, True, False]
    assert [v.best_measured.ulysses for v in found] == [2, 1, 1]
    assert abs(found[0].spread - 2.0) < 1e-9 and abs(found[0].lead - 1.5) < 1e-9
    assert abs(wins[1].error - 0.1) < 1e-9
    text = matrix.table(wins + close + wrong)
    assert text.count("THE PREDICTION CHOOSES ANOTHER") == 1 and "measurement and prediction" in text, text
    summary = matrix.summary(wins + close + wrong)
    for words in ("in 7 of 9 cells", "+100.0%", "up to 2.00 times", "in 2 of 3", "wins: 2x2 at 1 (+50%)",
                  "within 5 % of the best other: 4x1 at 1 (-3%)", "loses: 4x1 at 3 (-33%)"):
        assert words in summary, (words, summary)


@test
def the_cpu_controller_is_given_back(cwd):
    """Version 2, on files that look like its own."""
    import cluster
    control = pathlib.Path(cwd) / "cgroup.subtree_control"
    control.write_text("memory pids\n")
    assert cluster.share_cpu(pathlib.Path(cwd), 2) and control.read_text() == "+cpu"
    cluster.unshare_cpu(pathlib.Path(cwd))
    assert control.read_text() == "-cpu"
    control.write_text("cpu memory\n")
    assert not cluster.share_cpu(pathlib.Path(cwd), 2) and control.read_text() == "cpu memory\n"


@test
def the_speed_keeper_gives_a_device_what_its_core_lacks(cwd):
    """Folders that look like control groups of version 1 and 2."""
    def keep(flops, most):
        groups = [pathlib.Path(cwd) / f"{flops}_{most}_{version}" for version in (1, 2)]
        for group, files in zip(groups, (["cpu.cfs_burst_us"], ["cpu.max", "cpu.max.burst"])):
            group.mkdir()
            for name in files:
                (group / name).write_text("")
        keeper = subprocess.Popen([KEEPER, "keep", "float32", str(flops), str(most), *map(str, groups)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        def report():
            keeper.stdin.write("report\n")
            keeper.stdin.flush()
            return [int(word) for word in keeper.stdout.readline().split()]
        report()
        end, looks, disturbed = time.monotonic() + PATIENCE, 0, 0
        while looks < 3:  # it goes on looking without being asked
            assert time.monotonic() < end, looks
            time.sleep(0.2)
            looks, disturbed = (sum(pair) for pair in zip((looks, disturbed), report()))
        keeper.stdin.close()
        assert keeper.wait(timeout=PATIENCE) == 0
        first, second = groups
        quotas = [[int((first / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")],
                  [int(word) for word in (second / "cpu.max").read_text().split()]]
        assert (first / "cpu.cfs_burst_us").read_text() == (second / "cpu.max.burst").read_text() == "1000"
        return quotas, disturbed / looks
    assert keep(1e18, 0.6) == ([[1500, 2500]] * 2, 1)  # more than any core makes: what there is, and that is said
    assert keep(1e18, 0.5) == ([[1250, 2500]] * 2, 1)
    (first, second), _ = keep(1e9, 0.9)
    assert first == second and first[0] == 1000 and 4000 < first[1] < 1000000, (first, second)


@test
def the_speed_keeper_refuses(cwd):
    for words, expected in ((["keep", "int8", "1e9", "0.5", cwd], "'int8' must be bf16 or float32"),
                            (["keep", "float32", "fast", "0.5", cwd], "'fast' must be a number"),
                            (["keep", "float32", "1e9", "0.5", f"{cwd}/none"], "cannot be written"),
                            (["measure", "float32", "-1"], "'-1' must be a number"),
                            (["measure"], "usage")):
        result = run([KEEPER, *words], cwd)
        assert result.returncode == 1 and expected in result.stderr, (words, result)
        assert len(result.stderr.splitlines()) == 1, result.stderr


# ---- with rights ----

@test
def a_small_run_measures_predicts_and_leaves_nothing(cwd):
    need_rights()
    profiles = pathlib.Path(cwd) / "profiles"
    result = run(arguments(*SMALL, "json=r.json", f"profiles={profiles}"), cwd, env=place(cwd))
    assert result.returncode == 0, result.stderr
    assert nothing(traces(cwd)), traces(cwd)
    report = json.loads((pathlib.Path(cwd) / "r.json").read_text())
    cells = report["cells"]
    assert [(c["ulysses"], c["ring"]) for c in cells] == [(1, 4), (2, 2), (4, 1)], cells
    for cell in cells:
        assert 0 < cell["seconds_min"] <= cell["seconds_median"] and cell["predicted"] > 0, cell
        assert cell["run"]["ranks"] == 4 and cell["link_mb"] > 0, cell
    for words in ("two ranks across hosts", "two ranks within a host", "Built 2x2: host0: 2 ranks on core", "predicted"):
        assert words in result.stdout, result.stdout
    assert [path.name for path in profiles.iterdir()] == ["emulated_2x2_1.yml"]


@test
def a_command_runs_on_every_host(cwd):
    need_rights()
    result = run([FOLDER / "command.py", "hosts=3", "mbit=500", "--", "sh", "-c", "cat /proc/sys/kernel/hostname"], cwd,
                 env=place(cwd))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == ["host0", "host1", "host2"], result.stdout
    for words, said in ((["--"], "the command is missing"), (["hosts=2", "true"], "the command is missing"),
                        (["rate=2", "--", "true"], "'rate=2'"),
                        (["hosts=2.5", "--", "true"], "'hosts=2.5'"), (["mbit=0", "--", "true"], "'mbit=0'"), (["--", "no_such_program"], "no such program"),
                        (["hosts=2", "--", "false"], "ended with 1")):
        result = run([FOLDER / "command.py", *words], cwd, env=place(cwd))
        assert result.returncode == 1 and said in result.stderr, (words, result.stderr)
    assert nothing(traces(cwd)), traces(cwd)


@test
def links_that_nobody_calibrated_are_measured(cwd):
    need_rights()
    for measure, words, said in (("", [], "were measured now"), ("no", [], "was not measured but is that of 'cpu'"),
                                 ("", ["hardware=cpu"], None)):
        result = run([FOLDER / "command.py", "hosts=2", "mbit=200", "--", PROGRAM, "attention", "shape=1x256x4x16",
                      "threads=1", *words], cwd,
                     env={**place(cwd), "ZOETROPE_MEASURE": measure, "XDG_CACHE_HOME": str(pathlib.Path(cwd) / "cache")})
        assert result.returncode == 0, result.stderr
        assert said in result.stdout if said else "measured now" not in result.stdout, (words, result.stdout)


@test
def a_failure_inside_is_one_sentence_and_leaves_nothing(cwd):
    need_rights()
    line = refusal(cwd, *SMALL, "program=/bin/false", "core_share=none")
    assert "/bin/false attention" in line, line
    assert nothing(traces(cwd)), traces(cwd)


@test
def a_run_too_short_to_count_is_refused(cwd):
    need_rights()
    line = refusal(cwd, "shape=1x64x4x8", "layouts=2x2", "ratios=1", "repeat=1")
    assert "shape=1x64x4x8" in line and "more tokens" in line, line
    assert nothing(traces(cwd)), traces(cwd)


@test
def an_interrupted_run_leaves_nothing(cwd):
    need_rights()
    for number in (signal.SIGINT, signal.SIGTERM):
        job = start(cwd)
        job.send_signal(number)
        _, errors = job.communicate(timeout=60 * SLOWER)
        assert job.returncode == 130 and f"ended by {number.name}" in errors, (job.returncode, errors)
        assert nothing(traces(cwd)), traces(cwd)


@test
def a_killed_run_ends_and_the_next_call_removes_the_rest(cwd):
    need_rights()
    job = start(cwd)
    job.kill()
    job.communicate()
    until(lambda: not traces(cwd)["processes"], f"processes outlive the killed run: {traces(cwd)}",
          PATIENCE)
    left = traces(cwd)
    assert not left["links"] and left["folders"] and left["groups"] == left["folders"], left
    result = run([sys.executable, FOLDER / "run.py", "clean"], cwd, env=place(cwd))
    assert result.returncode == 0 and result.stdout.count("Removed what a killed run left") == 1, result
    assert nothing(traces(cwd)), traces(cwd)


@test
def a_run_that_goes_on_is_no_leftover(cwd):
    need_rights()
    job = start(cwd)
    try:
        before = traces(cwd)["folders"]
        elsewhere = pathlib.Path(cwd) / "elsewhere"
        elsewhere.mkdir()
        for temporary in (place(cwd), {"TMPDIR": str(elsewhere)}):  # from there only its control group can be seen
            result = run([sys.executable, FOLDER / "run.py", "clean"], cwd, env=temporary)
            assert not any(name in result.stdout for name in before), result.stdout
            found = traces(cwd)
            assert found["folders"] == found["groups"] == before and job.poll() is None, found
    finally:
        job.terminate()
        job.communicate()
    assert nothing(traces(cwd)), traces(cwd)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
