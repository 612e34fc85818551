#!/usr/bin/env python3
"""The program as a user runs it: what works.

    cli_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    cli_test.py --list                the names
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (PATIENCE, SMALL, Skip, copy_model, files_in, generate, read_tensors, refused, rewrite, run, run_script,
                     sentence)  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


@test
def version_and_help(cwd):
    assert run([harness.PROGRAM, "--version"], cwd).stdout.startswith("zoetrope ")
    text = run([harness.PROGRAM, "generate", "--help"], cwd)
    assert text.returncode == 0
    for key in ("prompt", "num_inference_steps", "ulysses_shards", "comm_timeout"):
        assert key in text.stdout, key
    assert run([harness.PROGRAM], cwd).returncode == 2
    assert run([harness.PROGRAM, "no_such_command"], cwd).returncode == 2


@test
def inspect_counts_a_whole_checkpoint(cwd):
    result = run([harness.PROGRAM, "inspect", harness.MODEL], cwd)
    assert result.returncode == 0, result.stderr
    assert "0 missing, 0 of wrong shape, 0 of unknown dtype, 0 unexpected" in result.stdout
    assert "text_encoder" in result.stdout and "WanPipeline" in result.stdout


@test
def inspect_names_what_is_missing(cwd):
    model = copy_model(cwd)
    rewrite(model / "vae" / "diffusion_pytorch_model.safetensors", lambda t: t.pop("decoder.conv_in.bias"))
    result = run([harness.PROGRAM, "inspect", model], cwd)
    assert result.returncode == 1
    assert "decoder.conv_in.bias" in result.stdout and "1 missing" in result.stdout


@test
def inspect_refuses_what_generate_refuses(cwd):
    """Weights of another dtype, a config that is not supported, too little memory."""
    model = copy_model(cwd)
    shard = next(p for p in sorted((model / "transformer").glob("*.safetensors")))
    name = next(iter(read_tensors(shard)))

    def to_integers(tensors):
        dtype, shape, data = tensors[name]
        tensors[name] = ("I16", shape, bytes(len(data) // 2))
    rewrite(shard, to_integers)
    inspected = run([harness.PROGRAM, "inspect", model], cwd)
    assert inspected.returncode == 1 and "1 of unknown dtype" in inspected.stdout, inspected.stdout + inspected.stderr
    for said in (inspected.stdout, sentence(generate(cwd, "output=a.gif", model=model))):
        assert f"'{name}'" in said and "is stored as I16, but F32" in said, said
    shutil.rmtree(model)
    copy_model(cwd)
    scheduler = model / "scheduler" / "scheduler_config.json"
    scheduler.write_text(scheduler.read_text().replace('"flow_prediction"', '"epsilon"'))
    refusals = [sentence(run([harness.PROGRAM, "inspect", model], cwd)),
                sentence(generate(cwd, "output=a.gif", model=model))]
    assert refusals[0] == refusals[1] and "prediction_type" in refusals[0], refusals
    result = run([harness.PROGRAM, "inspect", harness.MODEL, "height=32", "width=32", "memory_limit=0.001"], cwd)
    assert result.returncode == 1 and "refused here: memory" in result.stdout, result.stdout
    assert "refused here" in sentence(result)


@test
def deterministic_runs_have_the_same_bits_over_ranks(cwd):
    """Everything that is recorded on the way, the prompt's embeddings first, for every Ulysses degree and number of threads."""
    for dtype in ("float32", "bf16"):
        expected = None
        for degree, threads in ((1, 1), (1, 3), (2, 2), (4, 4)):
            result = generate(cwd, "output=a.gif", "dump=dump", "deterministic=true", f"dtype={dtype}", f"ranks={degree}",
                              f"text_encoder_dtype={dtype}", f"ulysses_shards={degree}", f"threads={threads}",
                              "data_parallelism=1", "prompt=a red cat walks slowly over the rooftops of a town at night")
            assert result.returncode == 0, result.stderr
            values = read_tensors(pathlib.Path(cwd) / "dump" / "run.safetensors")
            expected = expected or values
            different = [name for name in expected if values[name] != expected[name]]
            assert not different, f"{dtype}, Ulysses {degree}, {threads} threads: {different}"


@test
def what_is_cut_off_a_prompt_is_said(cwd):
    result = generate(cwd, "output=a.gif", "max_sequence_length=3", "prompt=a red cat on\x1b[31m a market")
    assert result.returncode == 0, result.stderr
    note = [line for line in result.stderr.splitlines() if line.startswith("Note: prompt ")]
    assert len(note) == 1 and "max_sequence_length=3" in note[0] and note[0].endswith("cat on a market'"), result.stderr
    assert "\x1b" not in result.stderr
    assert "Note: prompt " not in generate(cwd, "output=a.gif").stderr


@test
def the_header_says_what_runs(cwd):
    degrees = ["output=a.gif", "ranks=4", "data_parallelism=1", "ulysses_shards=2", "attention=ulysses_ring"]
    assert "Ranks 4: data 1 x context 4 (Ulysses 2 x ring 2)" in generate(cwd, *degrees).stderr
    whole = generate(cwd, *degrees, "flash_min_seq_length=1000000").stderr
    assert "Ranks 4: data 1 x context 1 (Ulysses 1 x ring 1), each sequence whole on 4 ranks" in whole, whole
    assert "ring 2" not in whole, whole


@test
def generate_writes_each_kind_of_output(cwd):
    for output, expected in (("clip.mp4", ["clip.mp4"]), ("clip.gif", ["clip.gif"]),
                             ("frames/", ["frames"] + [f"frames/{i:04}.png" for i in range(5)])):
        result = generate(cwd, f"output={output}", "summary=full")
        assert result.returncode == 0, result.stderr
        assert files_in(cwd) == expected, files_in(cwd)
        for path in (pathlib.Path(cwd) / name for name in expected):
            assert path.is_dir() or path.stat().st_size > 100, path
        shutil.rmtree(cwd)
        os.mkdir(cwd)
    for phase in ("Load", "Prepare", "Inference", "Conditioning", "Denoise", "VAE decode", "host formatting"):
        assert phase in result.stdout, phase


@test
def metadata_stands_in_the_video(cwd):
    """All that makes the clip again: every key that is not at its default."""
    assert generate(cwd, "output=clip.mp4", "seed=77", "guidance_scale=3.25", "ranks=2").returncode == 0
    data = (pathlib.Path(cwd) / "clip.mp4").read_bytes()
    for text in (b"a red cat", b"77", b"wan21_t2v", b"zoetrope", b"guidance_scale", b"3.25", b"num_inference_steps",
                 b"height", b"num_frames", b"float32", b"ranks"):
        assert text in data, text
    for text in (b"flow_shift", b"clip.mp4"):
        assert text not in data, text


@test
def the_report_is_short_unless_it_is_asked_for(cwd):
    result = generate(cwd, "output=a.mp4")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) <= 10, result.stdout
    for number, words in enumerate(("Time ", "Memory ", "Prediction: largest deviation ", "Seed 0", "Wrote a.mp4")):
        assert lines[number].startswith(words), result.stdout
    assert lines[-1] == "Wrote a.mp4", result.stdout
    again = generate(cwd, "output=a.mp4", "summary=full")
    assert len(again.stdout.splitlines()) > 10 and "Wrote a.mp4, which replaces" in again.stdout, again.stdout
    none = generate(cwd, "output=b.mp4", "summary=none")
    assert none.returncode == 0 and none.stdout == "", none.stdout


@test
def a_seed_is_drawn_and_said(cwd):
    drawn = generate(cwd, "output=a.gif", "dump=drawn", "seed=-1", "ranks=2")
    assert drawn.returncode == 0, drawn.stderr
    seed = re.search(r"^Seed (\d+)$", drawn.stdout, re.MULTILINE).group(1)
    assert f"Seed {seed}, drawn" in drawn.stderr, drawn.stderr
    assert generate(cwd, "output=a.gif", "dump=again", f"seed={seed}", "ranks=2").returncode == 0
    assert generate(cwd, "output=a.gif", "dump=other", "seed=-1", "ranks=2").returncode == 0
    first, again, other = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("drawn", "again", "other"))
    assert first["latents.1"] == again["latents.1"] and first["latents.init"] != other["latents.init"]


@test
def one_thread_is_one(cwd):
    result = generate(cwd, "output=a.gif", "threads=1")
    assert ", 1 thread in this process" in result.stderr, result.stderr


@test
def folders_are_made_where_their_parents_are(cwd):
    for words in (["dump=new/folder"], ["output=new/folder/"]):
        refused(cwd, generate(cwd, *(["output=a.gif"] if "dump" in words[0] else []), *words), "new/folder")
    result = generate(cwd, "output=a.gif", "weight_cache=new/folder")
    assert result.returncode == 0 and "weight_cache: new/folder: cannot be made" in result.stderr, result.stderr
    assert files_in(cwd) == ["a.gif"], files_in(cwd)


@test
def a_distilled_model_runs_its_own_few_steps_without_guidance(cwd):
    result = generate(cwd, "output=a.gif", "dump=one", "sigmas=1,0.75,0.5,0.25", "guidance_scale=1", "flow_shift=5")
    assert result.returncode == 0, result.stderr
    assert "4 steps, guidance off" in result.stderr and "4 denoising steps, as sigmas says" in result.stderr
    yaml = pathlib.Path(cwd) / "run.yml"
    yaml.write_text(f"model: {harness.MODEL}\ntimesteps: [1000, 750, 500, 250]\nguidance_scale: 1\nflow_shift: 5\n")
    assert run([harness.PROGRAM, "generate", yaml, *SMALL, "output=b.gif", "dump=two"], cwd).returncode == 0
    one, two = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("one", "two"))
    assert one["latents.3"] == two["latents.3"] and "latents.4" not in one


@test
def a_log_has_a_line_of_progress_per_tenth(cwd):
    result = generate(cwd, "output=a.gif", "num_inference_steps=30")
    assert result.returncode == 0, result.stderr
    steps = [int(step) for step in re.findall(r"^Denoise: step (\d+) of 30,", result.stderr, re.MULTILINE)]
    # A slow machine may add one every ten seconds.
    assert steps == sorted(set(steps)) and set(steps) >= {1, *range(3, 31, 3)}, steps


def slow_profile(cwd):
    """Of a machine that takes 100 s for a layer."""
    slow = pathlib.Path(cwd) / "slow.yml"
    profile = (pathlib.Path(__file__).resolve().parents[2] / "configs" / "hardware" / "cpu.yml").read_text()
    slow.write_text(re.sub(r"^layer_overhead: *[0-9.]+", "layer_overhead: 1e8", profile, flags=re.MULTILINE))
    return slow


@test
def a_run_says_its_predicted_total_at_the_start(cwd):
    result = generate(cwd, "output=a.gif")
    total = re.search(r"^Predicted [0-9.]+ [mµ]?s in all: load .*, text encoder .*, denoise .*, VAE decode .*$", result.stderr,
                      re.MULTILINE)
    assert total and total.start() < result.stderr.index("Denoise: step 1"), result.stderr
    made = generate(cwd, "weights=random", "output=a.gif")  # which reads nothing
    assert re.search(r"^Predicted .* in all: text encoder ", made.stderr, re.MULTILINE), made.stderr


@test
def the_predicted_total_has_the_comparison_with_one_rank(cwd):
    """On a machine where a layer takes a rank 100 s; one that has the threads of two takes half."""
    slow = slow_profile(cwd)
    result = generate(cwd, "output=a.gif", f"hardware={slow}", "num_inference_steps=40", "ranks=2",
                      "data_parallelism=1", "compare_one_rank=true")
    denoise, again = re.search(r"^Predicted .* denoise ([0-9]+) h .* denoise on one rank ([0-9]+) h ", result.stderr,
                               re.MULTILINE).groups()
    assert int(denoise) == 2 * int(again) > 0, result.stderr


@test
def an_hour_is_said_in_hours(cwd):
    result = generate(cwd, "output=a.gif", f"hardware={slow_profile(cwd)}", "num_inference_steps=40")
    assert result.returncode == 0, result.stderr
    said = re.search(r"^Predicted (.*) in all", result.stderr, re.MULTILINE).group(1)
    assert re.fullmatch(r"[0-9]+ h [0-9]+ min", said), result.stderr
    assert "e+" not in result.stderr, result.stderr


@test
def progress_moves_inside_a_step_on_a_terminal(cwd):
    try:
        master, slave = os.openpty()
    except OSError as error:
        raise Skip(f"there are no terminals here: {error}") from error
    process = subprocess.Popen([harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=a.gif"], cwd=cwd,
                               stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    seen = b""
    try:
        while part := os.read(master, 1 << 16):
            seen += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait(timeout=PATIENCE) == 0, seen
    assert b"0/2, layer 1/2  " in seen and b" per step, " in seen, seen


@test
def magcache_reuses_the_steps_that_the_published_curve_says(cwd):
    result = generate(cwd, "output=a.gif", "num_inference_steps=50", "cache=mag", "cache_ratios=wan2.1_t2v_14b")
    assert result.returncode == 0, result.stderr
    pattern = "CCCCCCCCCC..C..C..C..C..C..C..C..C..C..C..C.C.C.CC".replace(".", "r")
    assert f"MagCache reused {pattern.count('r')} of 50 steps ({pattern})" in result.stdout, result.stdout


CACHES = {"mag": ["cache_ratios=wan2.2_t2v_a14b"], "tea": ["cache_coefficients=1,0", "cache_threshold=2"],
          "sen": ["cache_threshold=1"], "cfg": [], "drift": ["cache_threshold=0.3"]}


@test
def every_cache_states_what_it_saved_and_how_far_it_is_off(cwd):
    for cache, words in CACHES.items():
        result = generate(cwd, "output=a.gif", "num_inference_steps=15", f"cache={cache}", "cache_compare=true", *words)
        assert result.returncode == 0, result.stderr
        line = [l for l in result.stdout.splitlines() if l.startswith("Step cache: ")][0]
        assert "of 15 steps" in line and "s saved" in line, line
        off = [l for l in result.stdout.splitlines() if " against no cache: relative L2" in l]  # velocity, latents
        assert len(off) == 2 and float(off[0].split()[-1]) > 0 and 0 < float(off[1].split()[-1]) < 1, off


@test
def a_cache_that_reuses_nothing_changes_nothing(cwd):
    def latents(name, *words):
        result = generate(cwd, "output=a.gif", f"dump={name}", "num_inference_steps=6", *words)
        assert result.returncode == 0, result.stderr
        return read_tensors(pathlib.Path(cwd) / name / "run.safetensors")["latents.5"][2]
    plain = latents("none")
    for cache, words in CACHES.items():
        nothing = ["cache_interval=1"] if cache == "cfg" else ["cache_threshold=0"]
        assert latents(cache, f"cache={cache}", *words, *nothing) == plain, cache


@test
def a_comparison_opens_its_output_before_it_computes(cwd):
    for words in (["output=nowhere/clip.mp4"], ["output=clip.mp4", "dump=/proc/zoetrope"]):
        result = generate(cwd, "cache=sen", "cache_compare=true", *words)
        refused(cwd, result, "nowhere" if "nowhere" in words[0] else "dump=/proc/zoetrope")
        assert "Denoising without the step cache" not in result.stderr, result.stderr


def spans(path):
    """How often each span was recorded, those of all ranks."""
    return collections.Counter(e["name"] for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X")


@test
def the_trace_of_a_comparison_is_that_of_the_run_with_the_cache(cwd):
    found = []
    for name, words in (("plain", []), ("compared", ["cache_compare=true"])):
        result = generate(cwd, "output=a.gif", f"trace={name}.json", "ranks=2", "num_inference_steps=6", "cache=sen",
                          "cache_threshold=1", *words)
        assert result.returncode == 0, result.stderr
        found.append(spans(pathlib.Path(cwd) / f"{name}.json"))
    for span in ("patch embedding", "text encoder", "self-attention"):
        assert found[0][span] == found[1][span] > 0, (span, found)


@test
def every_solver_can_be_chosen(cwd):
    latents = set()
    for scheduler in ("unipc", "flow_match_euler", "dpmpp"):
        assert generate(cwd, "output=a.gif", f"dump={scheduler}", f"scheduler={scheduler}").returncode == 0
        latents.add(read_tensors(pathlib.Path(cwd) / scheduler / "run.safetensors")["latents.1"][2])
    assert len(latents) == 3


@test
def one_seed_gives_one_video_on_any_number_of_ranks(cwd):
    result = generate(cwd, "output=a.gif", "ranks=4", "attention=ulysses_ring", "ulysses_shards=2",
                      "data_parallelism=1", "compare_one_rank=true")
    assert result.returncode == 0, result.stderr
    line = [l for l in result.stdout.splitlines() if "relative L2" in l][0]
    assert float(line.split()[-1]) <= 1e-5, line


@test
def injected_latents_and_dump_make_a_run_repeat(cwd):
    assert generate(cwd, "output=a.gif", "dump=one", "seed=5").returncode == 0
    assert generate(cwd, "output=b.gif", "dump=two", "seed=6", "latents=one/run.safetensors").returncode == 0
    one, two = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("one", "two"))
    assert {"latents.init", "latents.1", "velocity.0", "frames", "prompt_embeds"} <= set(one), sorted(one)
    assert one["latents.1"] == two["latents.1"] and one["frames"] == two["frames"]


@test
def a_trace_is_json(cwd):
    assert generate(cwd, "output=a.gif", "trace=t.json", "ranks=2").returncode == 0
    assert json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]


@test
def a_trace_has_phases_steps_branches_blocks_and_arrows(cwd):
    words = ["output=a.gif", "ranks=4", "attention=ulysses_ring", "ulysses_shards=2", "data_parallelism=1"]
    assert generate(cwd, *words, "trace=t.json").returncode == 0
    trace = json.loads((pathlib.Path(cwd) / "t.json").read_text())
    events = trace["traceEvents"]
    found = collections.Counter((e["name"], e["pid"]) for e in events if e["ph"] == "X" and e["tid"] == 0)
    for rank in range(4):
        for name, times in (("phase: text encoder", 1), ("phase: load and prepare", 1), ("phase: denoise", 1),
                            ("step 1 of 2", 1), ("step 2 of 2", 1), ("branches: conditional, unconditional", 2),
                            ("block 0", 2), ("block 1", 2)):
            assert found[name, rank] == times, (name, rank, found[name, rank])
    assert found["phase: VAE decode", 0] == 1
    # An arrow begins and ends on a transfer, of two ranks.
    ends = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    assert ends["s"] and ends["s"].keys() == ends["f"].keys()
    transfers = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            transfers[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for number, begin in ends["s"].items():
        end = ends["f"][number]
        assert begin["pid"] != end["pid"] and begin["ts"] <= end["ts"], (begin, end)
        for e in (begin, end):
            assert any(a - 0.01 <= e["ts"] <= b + 0.01 for a, b in transfers[e["pid"], e["tid"]]), e
    pairs = {(ends["s"][n]["pid"], ends["f"][n]["pid"]) for n in ends["s"]}
    assert {(0, 1), (1, 0)} <= pairs, pairs
    # What was recorded, to be typed again.
    other = trace["otherData"]
    assert other["version"].startswith("zoetrope "), other
    assert "Ulysses 2 x ring 2" in other["plan"] and "'prompt=a red cat'" in other["command"], other
    again = run(["sh", "-c", other["command"].replace("zoetrope", harness.PROGRAM, 1) + " trace=again.json"], cwd)
    assert again.returncode == 0, again.stderr


DEMO = pathlib.Path(__file__).resolve().parents[2] / "configs" / "demo.yml"


@test
def the_demo_runs_ulysses_and_a_ring_with_both_branches(cwd):
    result = run([harness.PROGRAM, "generate", DEMO, "prompts=default", "prompt=a red ball", "num_inference_steps=2",
                  "output=a.gif", "trace=t.json", "summary=full"], cwd)
    assert result.returncode == 0, result.stderr
    assert "Ranks 4: data 1 x context 4 (Ulysses 2 x ring 2" in result.stderr, result.stderr
    assert result.stdout.startswith("Timing of attention=ulysses_ring, data 1 x context 4 (Ulysses 2 x ring 2"), result.stdout
    found = spans(pathlib.Path(cwd) / "t.json")
    assert found["ring hop"] > 0 and found["ulysses exchange"] > 0, found
    assert found["branches: conditional, unconditional"] == 2 * 4, found


@test
def gather_and_flash_over_ranks_gather(cwd):
    for name, keys, layout in (("gather", [], "data 1 x context 3 (gather 3)"),
                               ("flash", ["guidance_scale=1"], "data 1 x context 3 (gather 3)"),
                               ("flash", ["data_parallelism=2", "ranks=4"], "data 2 x context 2 (gather 2)")):
        result = generate(cwd, "output=a.gif", "ranks=3", f"attention={name}", *keys, "compare_one_rank=true", "trace=t.json",
                          "summary=full")
        assert result.returncode == 0, result.stderr
        assert f": {layout}, " in result.stderr and f"Timing of attention={name}, {layout}" in result.stdout, result.stdout
        line = [l for l in result.stdout.splitlines() if "relative L2" in l][0]
        assert float(line.split()[-1]) <= 1e-5, line
        found = spans(pathlib.Path(cwd) / "t.json")
        assert found["key gather"] > 0 and not found["ring hop"] and not found["ulysses exchange"], found


@test
def a_named_topology_keeps_its_ranks(cwd):
    for name, expected in (("ring", "Ulysses 1 x ring 2"), ("ulysses_custom", "Ulysses 2 x ring 1")):
        result = generate(cwd, "output=a.gif", "ranks=2", f"attention={name}")
        assert f"Ranks 2: data 1 x context 2 ({expected}" in result.stderr, result.stderr
    result = generate(cwd, "output=a.gif", "ranks=2", "attention=tokamax_flash")
    assert "Ranks 2: data 2 x context 1 " in result.stderr, result.stderr
    assert result.stderr.count("Note: attention=tokamax_flash is computed as flash\n") == 1, result.stderr


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
