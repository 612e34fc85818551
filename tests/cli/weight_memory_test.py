#!/usr/bin/env python3
"""How much of a transformer's weights is in memory: all, a part, as they are stored, and once for all processes of a
host. The video is the same.

    weight_memory_test.py PROGRAM MODEL NAME    runs one test
    weight_memory_test.py --list                the names
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import configs_only, generate, latents, refused, run, run_script  # noqa: E402

PROGRAM = None
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM
    PROGRAM = program
    harness.use(program, model)


def deep_model(cwd, layers):
    """The model's configs with more blocks, of which only some are to be in memory."""
    model = configs_only(cwd)
    path = model / "transformer/config.json"
    config = json.loads(path.read_text())
    config.update(num_layers=layers, ffn_dim=2048, num_attention_heads=8, attention_head_dim=64)
    path.write_text(json.dumps(config))
    return model


def shared_copies(name):
    """Of each process that maps packed weights in common: their inode and size, what of them it has mapped, and its
    share of that; kB."""
    found = {}
    for process in pathlib.Path("/proc").iterdir():
        try:
            if name not in (process / "cmdline").read_text() or "mpirun" in (process / "comm").read_text():
                continue
            lines = (process / "smaps").read_text().splitlines()
        except (OSError, NotADirectoryError):
            continue
        for at, line in enumerate(lines):
            if "/memfd:zoetrope weights" in line:
                sizes = [next(int(entry.split()[1]) for entry in lines[at:] if entry.startswith(key))
                         for key in ("Size:", "Rss:", "Pss:")]
                found[process.name] = (line.split()[4], *sizes)
    return found


@test
def processes_of_a_host_keep_one_copy(cwd):
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun")
    model = deep_model(cwd, 8)
    words = [model, *harness.SMALL, "weights=random"]
    whole = generate(cwd, "weights=random", "output=whole.png", "dump=whole", "ranks=3", model=model)
    assert whole.returncode == 0, whole.stderr
    result = run(["mpirun", "-n", "3", PROGRAM, "generate", *words, "output=a.png", "dump=shared"], cwd,
                 env=harness.MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert latents(f"{cwd}/shared") == latents(f"{cwd}/whole")
    endless = [w for w in words if not str(w).startswith("num_inference_steps")] + ["num_inference_steps=1000"]
    output = f"{pathlib.Path(cwd).name}.png"
    job = subprocess.Popen(["mpirun", "-n", "3", PROGRAM, "generate", *endless, f"output={output}"], cwd=cwd,
                           env={**os.environ, **harness.MPI_ENV}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # Every process computes with all of them. Before that shares change while they are read, one after another.
        copies, whole_in_all = {}, False
        end = time.monotonic() + 60 * harness.SLOWER
        while not whole_in_all and time.monotonic() < end and job.poll() is None:
            copies = shared_copies(output)
            whole_in_all = len(copies) == 3 and all(mapped > 0.98 * size for _, size, mapped, _ in copies.values())
            time.sleep(0.02)
        assert whole_in_all, copies
        copies = shared_copies(output)
        assert len({inode for inode, *_ in copies.values()}) == 1, copies
        (size,) = {size for _, size, *_ in copies.values()}
        assert size > 70_000, copies  # kB, of the blocks
        assert sum(share for *_, share in copies.values()) < 1.05 * size, copies
        os.kill(int(next(iter(copies))), signal.SIGKILL)
        assert job.wait(60 * harness.SLOWER) != 0
    finally:
        job.kill()
        job.wait()
    end = time.monotonic() + 30
    while shared_copies(output) and time.monotonic() < end:
        time.sleep(0.05)
    assert not shared_copies(output)


@test
def short_memory_streams_by_itself(cwd):
    model = deep_model(cwd, 40)

    def made(name, *words):
        result = generate(cwd, "weights=random", f"output={name}.png", f"dump={name}", *words, model=model)
        assert result.returncode == 0, result.stderr
        return result.stderr + result.stdout, latents(f"{cwd}/{name}")

    def refusal(*words):
        return generate(cwd, "weights=random", "output=a.png", *words, model=model).stderr

    text, whole = made("whole")
    assert "Memory is short" not in text, text
    needed = float(re.search(r"needs ([0-9.]+) GB", refusal("memory_limit=0.01")).group(1))
    limit = f"memory_limit={needed - 0.005:.3f}"
    text, streamed = made("streamed", limit)
    found = re.search(r"Memory is short.*weight_memory=([0-9.]+)\)", text)
    assert found and 0 < float(found.group(1)) < needed, text
    assert streamed == whole


@test
def streams_without_room_are_refused(cwd):
    model = deep_model(cwd, 8)

    def run_with(*words):
        return generate(cwd, "weights=random", "output=a.gif", *words, model=model)

    refused(cwd, run_with("weights_in_memory=as_stored", "weight_memory=0.05"), "as_stored", "leave one of them out",
            left=("configs",))
    refused(cwd, run_with("weights_in_memory=as_stored", "weight_cache=c"), "as_stored", "weight_cache",
            left=("configs",))
    refused(cwd, run_with("weights_in_memory=bf16", "weight_memory=0.05"), "bf16", left=("configs",))
    refused(cwd, run_with("weights_in_memory=bf16", "dtype=float32"), "float32", "auto", left=("configs",))
    refused(cwd, run_with("weight_cache=c", "weight_memory=0"), "weight_memory", "0", left=("configs",))
    result = run_with("weight_cache=c", "weight_memory=0.002")
    refused(cwd, result, "weight_memory=0.002", "too small", "two blocks", left=("configs", "c"))
    # What it asks for is enough, and nearly all of it is needed.
    least = float(re.search(r"at least ([0-9.]+) GB", result.stderr).group(1))
    assert run_with("weight_cache=c", f"weight_memory={least}").returncode == 0
    result = run_with("weight_cache=c", f"weight_memory={least - 0.001:.3f}")
    refused(cwd, result, "too small", left=("configs", "c", "a.gif"))
    result = run_with("weight_memory=0.002")
    refused(cwd, result, "too small", left=("configs", "c", "a.gif"))
    more = float(re.search(r"at least ([0-9.]+) GB", result.stderr).group(1))
    assert more > least  # tensors are packed from somewhere
    assert run_with(f"weight_memory={more}").returncode == 0


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
