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


def memory_maps(name, file):
    """(PID, text of `file` in /proc) of each process that writes `name`."""
    for process in pathlib.Path("/proc").iterdir():
        try:
            if name in (process / "cmdline").read_text() and "mpirun" not in (process / "comm").read_text():
                yield process.name, (process / file).read_text()
        except (OSError, NotADirectoryError):
            continue


def shared_copies(name):
    """Of each process that maps packed weights in common: their inode and size, what of them it has mapped, and its
    share of that; kB."""
    found = {}
    for process, text in memory_maps(name, "smaps"):
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if "/memfd:zoetrope weights" in line:
                sizes = [next(int(entry.split()[1]) for entry in lines[at:] if entry.startswith(key))
                         for key in ("Size:", "Rss:", "Pss:")]
                found[process] = (line.split()[4], *sizes)
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
        end = time.monotonic() + harness.PATIENCE / 2
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
        assert job.wait(harness.PATIENCE / 2) != 0
    finally:
        job.kill()
        job.wait()
    end = time.monotonic() + 120 * harness.SLOWER
    while shared_copies(output) and time.monotonic() < end:
        time.sleep(0.05)
    assert not shared_copies(output)


@test
def processes_of_a_host_keep_one_decoder(cwd):
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun")
    model = configs_only(cwd)
    path = model / "vae/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_dim": 48}))
    words = ["generate", model, *harness.SMALL, "weights=random", "height=64", "vae_parallel=3", "deterministic=true"]
    made = []
    for command in ([PROGRAM, *words, "ranks=3"], ["mpirun", "-n", "3", PROGRAM, *words]):
        folder = pathlib.Path(cwd) / "run"
        folder.mkdir()
        result = run([*command, "output=a.png", "dump=dump"], folder, env=harness.MPI_ENV)
        assert result.returncode == 0, result.stderr
        made.append((folder / "dump/run.safetensors").read_bytes())
        shutil.rmtree(folder)
    assert made[0] == made[1]
    # Decoding so many frames takes longer than this test waits.
    output = f"{pathlib.Path(cwd).name}.png"
    job = subprocess.Popen(["mpirun", "-n", "3", PROGRAM, *words, "num_frames=4093", "num_inference_steps=1",
                            "guidance_scale=1", f"output={output}"], cwd=cwd, env={**os.environ, **harness.MPI_ENV},
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        decoders = []
        end = time.monotonic() + harness.PATIENCE / 2
        while len(decoders) < 3 and time.monotonic() < end and job.poll() is None:
            # Of more than the transformer's, in kB.
            decoders = [copy for copy in shared_copies(output).values() if copy[1] > 40_000]
            time.sleep(0.02)
        assert len(decoders) == 3 and len({inode for inode, *_ in decoders}) == 1, decoders
    finally:
        job.terminate()  # which mpirun passes on
        job.wait()


def anonymous_kilobytes(name):
    """Of each process that writes `name`."""
    return {process: int(re.search(r"Anonymous: +([0-9]+) kB", text).group(1))
            for process, text in memory_maps(name, "smaps_rollup") if "Anonymous:" in text}


@test
def ranks_share_the_blocks(cwd):
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun")
    deep = deep_model(cwd, 8)
    golden = pathlib.Path(harness.MODEL)
    experts, lora = golden.parent / "wan22_t2v", golden.parent.parent / "loras/original.safetensors"
    for model, ranks, shards, *words in (
            (deep, 2, -1, "weights=random"), (deep, 3, 3, "weights=random", "dtype=bf16"),
            (deep, 4, 2, "weights=random"), (deep, 7, 7, "weights=random"),
            (deep, 2, 2, "weights=random", "num_videos=2", "keep_weights=all"),
            (deep, 2, 2, "weights=random", "num_inference_steps=6", "cache=cfg"),
            (experts, 3, 3, "num_inference_steps=4"), (golden, 3, 3, f"lora={lora}", "dtype=bf16")):
        made = []
        for name, command in (("threads", [PROGRAM, "generate", model, *harness.SMALL, *words, f"ranks={ranks}"]),
                              ("processes", ["mpirun", "-n", str(ranks), PROGRAM, "generate", model, *harness.SMALL,
                                             *words, f"fsdp_parallelism={shards}"])):
            folder = pathlib.Path(cwd) / name
            folder.mkdir()
            dump = [] if "num_videos=2" in words else ["dump=dump"]
            result = run([*command, "attention=ring", "deterministic=true", "output=a.png", *dump], folder,
                         env=harness.MPI_ENV)
            assert result.returncode == 0, result.stderr
            over = f"weights over {ranks if shards == -1 else shards}"
            assert (over in result.stdout + result.stderr) == (name == "processes"), result.stderr
            made.append(latents(str(folder / "dump")) if dump else None)  # two videos have no dump
            shutil.rmtree(folder)
        assert made[0] == made[1], words
    note = generate(cwd, "weights=random", "output=a.png", "ranks=2", "fsdp_parallelism=2", model=deep)
    assert "the ranks of one process have one copy" in note.stdout + note.stderr, note.stderr


@test
def ranks_share_the_layers(cwd):
    """However a rank has its part of the weights, and whether ranks are threads or processes: the same bits."""
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun")
    golden = pathlib.Path(harness.MODEL)
    experts, lora = golden.parent / "wan22_t2v", golden.parent.parent / "loras/original.safetensors"
    for model, ranks, tensor, *words in (
            (experts, 4, 2, "num_inference_steps=4", "data_parallelism=1"), (golden, 2, 2, f"lora={lora}", "dtype=bf16"),
            (golden, 4, 4, "num_videos=2", "keep_weights=all")):
        made = []
        processes, threads = ["mpirun", "-n", str(ranks), PROGRAM], [PROGRAM]
        for command, *more in (
                (threads, f"ranks={ranks}"), (processes,), (processes, "weights_in_memory=as_stored"),
                (processes, "weight_cache=cache"), (processes, "weight_cache=cache", "weight_memory=0.001"),
                (threads, f"ranks={ranks}", "weight_cache=cache"),
                *([(processes, "fsdp_parallelism=2")] if ranks > tensor else [])):
            dump = [] if "num_videos=2" in words else ["dump=dump"]
            result = run([*command, "generate", model, *harness.SMALL, *words, *more, f"tensor_parallelism={tensor}",
                          "attention=ring", "deterministic=true", "output=a.png", *dump], cwd, env=harness.MPI_ENV)
            assert result.returncode == 0, (more, result.stderr)
            assert f"tensor {tensor}" in result.stdout + result.stderr, result.stderr
            if dump:
                made.append(latents(f"{cwd}/dump"))
                shutil.rmtree(pathlib.Path(cwd) / "dump")
        assert all(one == made[0] for one in made), words
        parts = [f for f in (pathlib.Path(cwd) / "cache").iterdir() if f"of{tensor}-" in f.name]
        assert len(parts) == tensor * (2 if model == experts else 1), parts
        shutil.rmtree(pathlib.Path(cwd) / "cache")


@test
def a_rank_has_its_part_and_two_blocks(cwd):
    if shutil.which("mpirun") is None:
        raise harness.Skip("no mpirun")
    layers, ranks = 32, 4
    model = deep_model(cwd, layers)
    words = [w for w in harness.SMALL if not str(w).startswith("num_inference_steps")]
    output = f"{pathlib.Path(cwd).name}.png"

    def anonymous(processes, *more):
        """The most that a process has while it computes, kB."""
        command = ["mpirun", "-n", str(processes), PROGRAM, "generate", model, *words, "num_inference_steps=1000",
                   "weights=random", "attention=ring", f"output={output}", *more]
        said = pathlib.Path(cwd) / "said"
        with open(said, "wb") as out:
            job = subprocess.Popen(command, cwd=cwd, env={**os.environ, **harness.MPI_ENV}, stdout=out, stderr=out)
        try:
            end = time.monotonic() + 120 * harness.SLOWER
            while b"step 1 of" not in said.read_bytes() and time.monotonic() < end and job.poll() is None:
                time.sleep(0.02)
            samples = [anonymous_kilobytes(output) for _ in range(20)]
            assert all(len(sample) == processes for sample in samples), said.read_text()
            return max(max(sample.values()) for sample in samples)
        finally:
            job.terminate()
            job.wait()

    d, ffn = 512, 2048
    block = (4 * d * d + 2 * d * d + 2 * d * ffn) * 4 / 1024  # kB, without the keys
    all_blocks = layers * (block + 2 * d * d * 4 / 1024)
    saved = anonymous(1) - anonymous(ranks, f"fsdp_parallelism={ranks}")
    # Ranks compute with less of everything; processes of MPI have buffers of their own.
    assert saved > 0.95 * (all_blocks * (1 - 1 / ranks) - 2 * block), (saved, all_blocks, block)


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
    limit = needed - 0.03
    text, streamed = made("streamed", f"memory_limit={limit:.3f}", "summary=full")
    found = re.search(r"Memory is short.*weight_memory=([0-9.]+)\)", text)
    assert found and 0 < float(found.group(1)) < needed, text
    assert streamed == whole
    # Before the run, and next to each of its measured peaks, stands the plan of what is run.
    planned = re.findall(r"Memory ([0-9.]+) (GB|MB) planned", text) + re.findall(r"planned ([0-9.]+) (GB|MB)\b", text)
    assert len(planned) > 2, text
    assert all(float(number) * {"GB": 1, "MB": 1e-3}[unit] <= limit + 0.005 for number, unit in planned), (limit, text)


def short_for_two_experts(cwd):
    """A model whose experts fit one at a time but not both, with the limit that makes it so."""
    models = pathlib.Path(harness.MODEL).parent
    model = deep_model(cwd, 40)
    first = model / "transformer/config.json"
    (model / "transformer_2").mkdir()
    shutil.copy(first, model / "transformer_2/config.json")
    shutil.copy(models / "wan22_t2v/model_index.json", model / "model_index.json")

    def needed(keep):
        return memory_asked(generate(cwd, "weights=random", "output=a.png", f"keep_weights={keep}", "memory_limit=0.01",
                                     model=model).stderr)
    one, two = needed("none"), needed("all")
    assert two > 1.5 * one, (one, two)
    return model, f"memory_limit={(one + two) / 2:.3f}"


def memory_asked(text):
    return float(re.search(r"needs ([0-9.]+) GB", text).group(1))


# What is kept from one video to the next costs every step nothing: it goes before weights that each step needs.
@test
def several_videos_keep_what_fits(cwd):
    model, limit = short_for_two_experts(cwd)
    words = ["weights=random", "num_videos=2", "seed=1", "summary=full"]
    whole = generate(cwd, *words, "output=whole.png", "dump=whole", model=model)
    assert whole.returncode == 0 and "keep_weights" not in whole.stdout + whole.stderr, whole.stderr
    result = generate(cwd, *words, "output=less.png", "dump=less", limit, model=model)
    text = result.stdout + result.stderr
    assert result.returncode == 0 and "several videos keep: keep_weights=none" in text, text
    assert "weight_memory=" not in text, text
    dumps = sorted(pathlib.Path(cwd).glob("whole*/run.safetensors"))
    assert len(dumps) == 2, dumps
    for dump in dumps:
        assert dump.read_bytes() == pathlib.Path(str(dump).replace("whole", "less")).read_bytes(), dump
    short = generate(cwd, *words, "output=a.png", "memory_limit=0.1", model=model)
    assert short.returncode == 1 and "this run needs" in short.stderr, short.stderr
    assert "several videos keep" not in short.stderr, short.stderr
    # What a key says is done: then steps read weights.
    kept = generate(cwd, *words, "output=kept.png", "keep_weights=all", limit, model=model)
    assert kept.returncode == 0 and "Memory is short: " in kept.stderr, kept.stderr
    # As it is said before.
    for command in ("inspect", "plan"):
        small = [word for word in harness.SMALL if not word.startswith("prompt")]
        said = run([PROGRAM, command, model, *small, "weights=random", "num_videos=2", limit,
                    *(["ranks=1"] if command == "plan" else [])], cwd)
        assert said.returncode == 0 and "keep_weights=none" in said.stdout, said.stdout + said.stderr
        assert "weight_memory=" not in said.stdout, said.stdout


@test
def several_videos_keep_what_fits_without_a_profile(cwd):
    model, limit = short_for_two_experts(cwd)
    result = run([*harness.without_profiles(cwd), PROGRAM, "generate", model, *harness.SMALL, "weights=random", "num_videos=2",
                  "output=a.png", limit], cwd, env={"XDG_CACHE_HOME": str(cwd)})
    text = result.stdout + result.stderr
    assert result.returncode == 0 and ", by rule" in text and "several videos keep: keep_weights=none" in text, text
    assert "weight_memory=" not in text, text


# Processes of one host would keep the weights once; a host of its own has all of them.
@test
def several_videos_of_several_hosts_keep_what_fits(cwd):
    model, limit = short_for_two_experts(cwd)
    words = [PROGRAM, "generate", model, *harness.SMALL, "weights=random", "num_videos=2", "output=a.png", limit,
             "threads=1", "fsdp_parallelism=1", "tensor_parallelism=1", "hardware=cpu"]
    result = harness.run_on_hosts(["left", "right"], words, cwd, harness.MPI_ENV)
    text = result.stdout + result.stderr
    assert result.returncode == 0 and "several videos keep: keep_weights=none" in text, text
    assert "weight_memory=" not in text, text


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
    for other in ("weight_memory=0.05", "weights_in_memory=as_stored", "weight_cache=c"):
        refused(cwd, run_with("ranks=2", "fsdp_parallelism=2", other), "fsdp_parallelism=2", other.split("=")[0],
                "leave one of them out", left=("configs",))
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
