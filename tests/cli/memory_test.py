#!/usr/bin/env python3
"""Memory as a user meets it: what `inspect` says of a model that is not there, runs that are refused before anything is read,
and that what is offered instead is accepted.

    memory_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    memory_test.py --list                the names
"""
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, PATIENCE, SMALL, Skip, generate, mpirun, refused, run, run_script, unreported  # noqa: E402

PROGRAM = None
TESTS = {}
# Names of configs/ and the parameters of a transformer.
PUBLISHED_PARAMETERS = {
    "wan2.1_t2v_1.3b": 1418996800, "wan2.1_t2v_14b": 14288491584, "wan2.1_i2v_14b_480p": 16394878784,
    "wan2.1_i2v_14b_720p": 16394878784, "wan2.1_flf2v_14b_720p": 16395536704, "wan2.1_vace_1.3b": 2153972032,
    "wan2.1_vace_14b": 17337592896, "wan2.2_t2v_a14b": 14288491584, "wan2.2_i2v_a14b": 14288901184,
    "wan2.2_vace_fun_a14b": 17337592896, "wan2.2_ti2v_5b": 4999787712, "wan2.2_animate_14b": 17274816884}
PUBLISHED = tuple(PUBLISHED_PARAMETERS)
VAE_21, VAE_22, TEXT_ENCODER, IMAGE_ENCODER = "126892531", "704688668", "5680910336", "632076800"


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM
    PROGRAM = program
    harness.use(program, model)


def inspect(cwd, *arguments, **options):
    """What it prints; its exit code says whether generate would run."""
    result = run([PROGRAM, "inspect", *arguments], cwd, **options)
    assert result.returncode == (1 if "refused here" in result.stdout else 0), result.stdout + result.stderr
    return result.stdout


def gigabytes(number, unit):
    return float(number) * {"GB": 1, "MB": 1e-3}[unit]


def peak_of(text):
    found = re.search(r"([0-9.]+) (GB|MB)  peak:", text)
    assert found, text
    return gigabytes(*found.groups())


# ---- inspect ----

@test
def pictures_and_loras_are_planned_as_they_are_run(cwd):
    models = pathlib.Path(harness.MODEL).parent
    picture = f"image={models}/wan21_i2v/inputs/image.png"
    sized = inspect(cwd, f"{models}/wan21_i2v", "num_frames=5", picture, "max_area=2560")
    assert "Memory for 48 x 32, 5 frames" in sized, sized
    same = inspect(cwd, f"{models}/wan21_i2v", "num_frames=5", picture, "width=48", "height=32")
    # What the machine has to give, behind it, changes.
    assert sized.partition("available")[0] == same.partition("available")[0], (sized, same)
    small = [w for w in SMALL if w.partition("=")[0] in ("height", "width", "num_frames", "dtype")]
    lora = f"{models.parent}/loras/peft.safetensors"
    plain, merged = inspect(cwd, harness.MODEL, *small), inspect(cwd, harness.MODEL, *small, f"lora={lora}:0.8")
    assert f"LoRA {lora}: strength 0.8, 20 tensors of transformer, ranks 2 to 4" in merged, merged
    phase = re.compile(r"load transformer .*")
    assert phase.search(plain).group() != phase.search(merged).group(), (plain, merged)
    for words, sentence in (([f"{models}/wan21_i2v", "max_area=2560"], "follows the shape of image"),
                            ([harness.MODEL, picture], "takes a prompt alone"),
                            ([harness.MODEL, f"lora_low={lora}"], "no two experts"),
                            ([harness.MODEL, "seed=3"], "seed: means nothing to inspect"),
                            ([harness.MODEL, "trace=t.json"], "trace: means nothing to inspect"),
                            ([harness.MODEL, "model=other"], "model=other: "),
                            ([f"model={harness.MODEL}", "model=other"], "one checkpoint folder"),
                            ([harness.MODEL, "model=other", "model=another"], "one checkpoint folder")):
        refused(cwd, run([PROGRAM, "inspect", *words], cwd), sentence)


@test
def several_videos_keep_their_weights(cwd):
    assert "weights kept between runs" not in inspect(cwd, "wan2.1_t2v_1.3b")
    assert "weights kept between runs" in inspect(cwd, "wan2.1_t2v_1.3b", "num_videos=2")
    (pathlib.Path(cwd) / "prompts.txt").write_text("a red cat\na dog\n")
    assert "weights kept between runs" in inspect(cwd, "wan2.1_t2v_1.3b", "prompts=prompts.txt", "grid=all.gif")


@test
def a_comparison_with_one_rank_is_planned(cwd):
    small = [w for w in SMALL if w.partition("=")[0] in ("height", "width", "num_frames", "dtype")]
    assert "on one rank" not in inspect(cwd, harness.MODEL, *small, "ranks=2")
    alone = peak_of(inspect(cwd, harness.MODEL, *small))
    said = inspect(cwd, harness.MODEL, *small, "ranks=2", "compare_one_rank=true")
    again = re.search(r"on one rank, to compare +([0-9.]+) (GB|MB): ", said)
    assert again and gigabytes(*again.groups()) == alone, (said, alone)


def no_weights_were_made():
    """Those of the smallest published model take 2.8 GB."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert most < 1e9, f"a run had {most} bytes"


@test
def every_published_model_is_described_without_its_weights(cwd):
    for name, parameters in PUBLISHED_PARAMETERS.items():
        text = inspect(cwd, name)
        assert str(parameters) in text and TEXT_ENCODER in text, text
        assert (VAE_22 if "ti2v" in name else VAE_21) in text, text
        assert (IMAGE_ENCODER in text) == ("2.1_i2v" in name or "flf2v" in name), text
        assert ("transformer_2" in text) == name.endswith("_a14b"), text
        for phase in ("text encoder", "load transformer", "denoise with transformer", "VAE decode"):
            assert phase in text, phase
        assert "available" in text and ("admitted here" in text or "refused here" in text), text
    no_weights_were_made()


@test
def the_planned_peak_follows_size_and_dtype(cwd):
    def peak(*keys):
        return peak_of(inspect(cwd, "wan2.1_t2v_1.3b", "height=480", "width=832", "vae_tiling=true", *keys))
    base = peak("num_frames=17")
    assert peak("num_frames=81") > base
    assert peak("num_frames=17", "dtype=float32") > 1.8 * base
    assert peak("num_frames=17", "height=720", "width=1280") > base


@test
def inspect_takes_no_yaml_file(cwd):
    refused(cwd, run([harness.PROGRAM, "inspect", "run.yml"], cwd), "run.yml", "`zoetrope plan` takes YAML files")


@test
def inspect_refuses_sizes_that_the_model_cannot_make(cwd):
    refused(cwd, run([PROGRAM, "inspect", PUBLISHED[0], "height=40"], cwd), "height=40", "32 and 48")
    refused(cwd, run([PROGRAM, "inspect", PUBLISHED[0], "num_frames=6"], cwd), "num_frames=6", "5 or 9")
    refused(cwd, run([PROGRAM, "inspect", PUBLISHED[0], "hight=480"], cwd), "hight", "height")
    refused(cwd, run([PROGRAM, "inspect", "wan2.1_t2v_13b"], cwd), "wan2.1_t2v_1.3b")
    refused(cwd, run([PROGRAM, "inspect"], cwd), "one checkpoint folder")


@test
def inspect_says_whether_a_limit_is_enough(cwd):
    text = inspect(cwd, PUBLISHED[0], "memory_limit=1")
    assert "refused here" in text and "because of memory_limit" in text, text


# The text says what to change; with it the model fits.
@test
def what_is_offered_is_admitted(cwd):
    arguments = [PUBLISHED[0], "height=480", "width=832", "num_frames=81", "dtype=float32"]
    limit = f"memory_limit={0.35 * peak_of(inspect(cwd, *arguments)):.3f}"
    text = inspect(cwd, *arguments, limit)
    ways = text.split("what would fit: ")[1].splitlines()[0].split(", or ")
    assert ways, text
    tried = 0
    for way in ways:
        keys = way.split(" (")[0].split()
        if not all("=" in key for key in keys):
            continue
        again = inspect(cwd, *arguments, limit, *keys)
        assert "admitted here" in again, f"{way}\n{again}"
        tried += 1
    assert tried >= 2, ways


# Where all of a transformer does not fit, a part does.
@test
def weights_are_streamed_where_memory_is_short(cwd):
    arguments = [PUBLISHED[0], "height=480", "width=832", "num_frames=81", "vae_tiling=true"]
    limit = f"memory_limit={0.8 * peak_of(inspect(cwd, *arguments)):.3f}"
    text = inspect(cwd, *arguments, limit)
    assert "admitted here" in text and re.search(r"  weight_memory=[0-9.]+: ", text), text
    text = inspect(cwd, *arguments, limit, "weights_in_memory=bf16")
    assert "refused here" in text and "weights_in_memory=auto (" in text, text
    stored = peak_of(inspect(cwd, *arguments, "weights_in_memory=as_stored"))
    assert stored > peak_of(inspect(cwd, *arguments, "weight_memory=0.5")), stored


@test
def sizes_beyond_everything_are_only_too_much(cwd):
    text = inspect(cwd, "wan2.1_t2v_14b", "height=16384", "width=16384", "num_frames=4093", "dtype=float32")
    assert peak_of(text) > 10000, text
    assert "-" not in "".join(re.findall(r"[-0-9.]+ [GM]B", text)), text
    assert "refused here" in text, text


# ---- generate ----

@test
def too_little_memory_is_refused_before_loading(cwd):
    result = run([PROGRAM, "generate", f"model={PUBLISHED[0]}", "weights=random", "prompt=x", "memory_limit=2"], cwd)
    refused(cwd, result, "this run needs", "in phase", "weights", "2.00 GB are available, because of memory_limit")
    assert "Denoise" not in result.stdout
    no_weights_were_made()


@test
def a_limit_that_is_enough_changes_nothing(cwd):
    result = generate(cwd, "output=a.gif", "memory_limit=2", "summary=full")
    assert result.returncode == 0, result.stderr
    for words in ("Memory, peak resident", "text encoder", "planned for denoise with transformer", "VAE"):
        assert words in result.stdout, result.stdout


@test
def mpi_processes_give_up_together(cwd):
    result = run(mpirun((3, ["output=a.gif", "memory_limit=0.001"])), cwd, env=MPI_ENV)
    refused(cwd, result, "this run needs", "because of memory_limit")


@test
def mpi_inspect_has_the_ranks_of_the_job(cwd):
    words = [word if word != "generate" else "inspect" for word in mpirun((2, []))]
    words = [word for word in words if "=" not in word or word.startswith(("height=", "width=", "num_frames="))]
    said = run(words, cwd, env=MPI_ENV)
    assert said.returncode == 0 and "2 ranks, each a process" in said.stdout, said.stdout + said.stderr
    refused(cwd, run([*words, "ranks=3"], cwd, env=MPI_ENV), "ranks=3 (command line): this job has 2 ranks")


@test
def mpi_names_the_largest_process(cwd):
    result = run(mpirun((2, ["output=a.gif", "summary=full"])), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert "largest of 2 processes" in result.stdout, result.stdout


@test
def the_limit_of_the_address_space_counts(cwd):
    if {"ASAN_OPTIONS", "TSAN_OPTIONS"} & set(os.environ):
        raise Skip("sanitizers need address space of their own")

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (int(2.5e9), int(2.5e9)))
    result = unreported(subprocess.run(
        [PROGRAM, "generate", f"model={PUBLISHED[0]}", "weights=random", "prompt=x"], cwd=cwd, preexec_fn=limit, text=True,
        timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    refused(cwd, result, "this run needs", "because of the limit of the address space (ulimit -v)")


# A control group of our own, below the one that we are in; where the machine lets us make one.
def own_group():
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit = pathlib.Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, limit = pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/") / f"zoetrope_test_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            return group, limit
        group.rmdir()
    raise Skip("no control group for memory can be made here")


@test
def the_limit_of_a_control_group_counts(cwd):
    group, limit = own_group()
    try:
        try:
            (group / limit).write_text("2000000000")
        except OSError as error:
            raise Skip(f"{limit} cannot be set here: {error}")

        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()))
        result = unreported(subprocess.run(
            [PROGRAM, "generate", f"model={PUBLISHED[0]}", "weights=random", "prompt=x"], cwd=cwd, preexec_fn=enter,
            text=True, timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        refused(cwd, result, "this run needs", f"because of {limit} of control group", group.name)
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:  # until the kernel has let the process go
                time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
