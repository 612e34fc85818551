#!/usr/bin/env python3
"""What `zoetrope plan` says to people: how many runs at what price, what its verdict depends on, what to type, whose memory it
counts, and its page.

    plan_words_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    plan_words_test.py --list                the names
"""
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
import plan_test  # noqa: E402
import harness  # noqa: E402
from harness import generate, refused, run, run_script  # noqa: E402
from plan_test import LARGE, answer, best, candidates, plan, two_hosts  # noqa: E402

MODEL = None
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global MODEL
    MODEL = model
    plan_test.use(program, model)


# ---- files that keys name ----

@test
def a_file_that_is_named_counts_as_it_is_stored(cwd):
    size = ["hardware=cpu", "ranks=1", "height=32", "width=32", "num_frames=1", "weights_in_memory=as_stored"]
    made = run([harness.PROGRAM, "convert", f"{MODEL}/transformer", "out=q.gguf", "format=q8_0", "tensors=false"], cwd)
    assert made.returncode == 0, made.stderr

    def weights(*words):
        memory = answer(cwd, MODEL, *size, *words)["plans"][0]["candidates"][0]["memory"]
        return next(phase["items"]["weights"] for phase in memory if phase["phase"] == "denoise with transformer")
    # All converted takes less than the file of the model and three blocks, but more than the quantised file and these.
    assert weights("transformer=q.gguf") < weights()
    assert any("transformer=none.gguf: is not here" in note for note in answer(cwd, MODEL, *size, "transformer=none.gguf")["notes"])


@test
def spread_weights_of_threads_are_noted(cwd):
    notes = answer(cwd, MODEL, "hardware=cpu", "ranks=1,2", "fsdp_parallelism=-1", "height=32", "width=32", "num_frames=1")["notes"]
    assert [note for note in notes if "one copy of the weights" in note] == [
        "2 ranks: fsdp_parallelism=-1: the ranks of one process have one copy of the weights, whatever it says"], notes


# ---- several runs, prices ----

@test
def throughput_counts_all_runs_side_by_side(cwd):
    arguments = [*LARGE, "hardware=rtx4090_8", "ranks=1,8", "memory_limit=200", "objective=throughput"]
    result = plan(cwd, *arguments, "json=plan.json")
    assert result.returncode == 0, result.stderr
    alone, all_of_them = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"]
    for part in (alone, all_of_them):
        assert part["runs"] * part["ranks_per_run"] == part["ranks"], part["runs"]
        assert abs(part["videos_per_hour"] - part["runs"] * 3600 / part["seconds_per_video"]) < 1e-9 * part["videos_per_hour"]
        assert abs(part["device_seconds"] - part["ranks"] * 3600 / part["videos_per_hour"]) < 1e-9 * part["device_seconds"]
    assert all_of_them["runs"] > 1, all_of_them["runs"]
    ratio = all_of_them["videos_per_hour"] / alone["videos_per_hour"]
    assert abs(all_of_them["speed_up"] - ratio) < 1e-9 and abs(all_of_them["efficiency"] - ratio / 8) < 1e-9
    # A run alone on one device waits for nothing but files: eight of them share what their host reads.
    if all_of_them["ranks_per_run"] == 1:
        assert 0.95 < all_of_them["efficiency"] < 1 - 1e-9, all_of_them["efficiency"]
    runs = f"{all_of_them['runs']} runs of {all_of_them['ranks_per_run']} rank"
    for words in (runs, "side by side", "videos per hour", "videos/hour"):
        assert words in result.stdout, f"{words}\n{result.stdout}"


@test
def a_price_says_where_it_comes_from(cwd):
    cost = [*LARGE, "hardware=h100_8", "ranks=8", "objective=cost"]
    unknown = plan(cwd, *cost)
    assert unknown.returncode == 0 and "Price     unknown: device-seconds are used instead" in unknown.stdout, unknown.stdout
    said = plan(cwd, *cost, "price=2.5", "json=plan.json")
    assert "Price     2.5 per device and hour, from price=" in said.stdout, said.stdout
    part = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"][0]
    assert abs(part["price"] - part["device_seconds"] * 2.5 / 3600) < 1e-9, part["price"]
    assert f"at {part['price']:.3g} per video" in said.stdout, said.stdout
    (pathlib.Path(cwd) / "mine.yml").write_text(two_hosts() + "price_per_hour: 2\n")
    own = plan(cwd, "wan2.1_t2v_1.3b", "num_frames=17", "hardware=mine.yml", "ranks=4")
    assert "Price     0.5 per device and hour, from price_per_hour of the profile" in own.stdout, own.stdout + own.stderr
    instead = plan(cwd, *cost, "what_if.price_per_hour=16")
    assert "Price     2 per device and hour, from what_if.price_per_hour" in instead.stdout, instead.stdout
    refused(cwd, plan(cwd, *cost, "price=1", "what_if.price_per_hour=16"), "keep one", left=("mine.yml", "plan.json"))
    refused(cwd, plan(cwd, *cost, "price=0"), "price=0", left=("mine.yml", "plan.json"))


# ---- what the verdict depends on ----

@test
def the_best_is_the_fastest_and_the_simpler_is_named(cwd):
    for hardware in ("tpu_v7x_8", "h100_8", "rtx4090_8"):
        result = plan(cwd, *LARGE, f"hardware={hardware}", "ranks=8", "memory_limit=200", "json=plan.json")
        document = json.loads((pathlib.Path(cwd) / "plan.json").read_text())
        first = best(document)
        legal = [c for c in candidates(document) if c["verdict"] != "illegal"]
        assert all(first["value"] <= c["value"] * (1 + 1e-9) for c in legal), first
        plain = [c for c in legal if c["verdict"] == "tie" and c["head_chunks"] == 1 and c["direction"] == "forward"
                 and c["softmax"] == "online"]
        if plain and first["head_chunks"] > 1:
            assert "Simpler: " in result.stdout, result.stdout


@test
def attention_in_int8_is_priced(cwd):
    words = ["wan2.1_t2v_1.3b", "height=480", "width=832", "num_frames=17", "hardware=cpu", "ranks=1", "memory_limit=200"]
    int8 = [*words, "attention_dtype=int8"]
    seconds = {gain: best(answer(cwd, *arguments, f"what_if.bf16.int8_attention_gain={gain}"))["seconds_per_step"]
               for gain, arguments in ((1, int8), (2, int8), (4, int8), (5, words))}
    assert seconds[5] == seconds[1], seconds  # means nothing where it is not asked for
    # What is saved of attention is 1/2, then 3/4 of it.
    saved = [seconds[1] - seconds[gain] for gain in (2, 4)]
    assert saved[0] > 0.1 * seconds[1] and abs(saved[1] / saved[0] - 1.5) < 1e-6, seconds


@test
def a_verdict_that_rests_on_an_assumed_figure_says_so(cwd):
    arguments = [*LARGE, "hardware=h100_8", "ranks=16"]
    document = answer(cwd, *arguments)
    doubts = {doubt["figure"]: doubt for doubt in document["plans"][0]["doubts"]}
    gain = doubts["bf16.fixed_max_gain"]
    assert (gain["assumed"], gain["instead"]) == ("1", "1.1") and "fixed_max" in gain["configuration"], gain
    # With that figure it is so.
    changed = best(answer(cwd, *arguments, "what_if.bf16.fixed_max_gain=1.1"))
    assert changed["softmax"] == "fixed_max", changed
    said = plan(cwd, *arguments).stdout
    assert "bf16.fixed_max_gain is assumed to be 1: with 1.1, data 2" in said, said
    # A figure that somebody gave is assumed no longer.
    given = answer(cwd, *arguments, "what_if.bf16.fixed_max_gain=1")
    assert "bf16.fixed_max_gain" not in [doubt["figure"] for doubt in given["plans"][0]["doubts"]]
    # Verdicts of the others hang on figures too: here the fixed part of a layer, which was fitted on another machine.
    splits = {(c["ulysses"], c["ring"], c["head_chunks"], c["direction"]): c for c in candidates(
        answer(cwd, *arguments, "what_if.layer_overhead=100")) if c["verdict"] in ("tie", "slower") and c["data"] == 1}
    hanging = [c for c in candidates(document) if "layer_overhead at 100 microseconds, which is assumed" in c["reason"]]
    assert hanging, [c["reason"] for c in candidates(document)]
    for c in hanging:
        then = splits[c["ulysses"], c["ring"], c["head_chunks"], c["direction"]]
        assert {c["verdict"], then["verdict"]} == {"tie", "slower"}, (c, then)
    # What was fitted on its own machine leaves nothing in doubt.
    sure = plan(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8").stdout
    assert "It stays the best with each of the profile's 6 assumed figures" in sure, sure


@test
def more_ranks_than_the_machine_has_are_said(cwd):
    result = plan(cwd, *LARGE, "hardware=h100_8", "ranks=8,16", "json=plan.json")
    note = "16 ranks are more than the 8 devices of h100_8: planned for 2 groups of 8 devices joined by 'cluster' (48.5 GB/s"
    assert note in result.stdout and "InfiniBand" in result.stdout, result.stdout
    notes = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["notes"]
    assert len(notes) == 1 and note in notes[0], notes
    assert answer(cwd, *LARGE, "hardware=h100_8", "ranks=8")["notes"] == []
    single = plan(cwd, *LARGE, "hardware=rtx4090_8", "ranks=16", "memory_limit=200").stdout
    assert "planned for 16 devices joined by 'host' (25 GB/s per port), where the profile has 8 devices" in single, single


@test
def unknown_hardware_names_the_profiles_there_are(cwd):
    result = plan(cwd, *LARGE, "hardware=a100_8", "ranks=8")
    refused(cwd, result, "a100_8", "there are: cpu, gb200_nvl72, h100_2x8, h100_8, h100_8x8, h200_8, rtx4090_8")
    assert "did you mean" not in result.stderr, result.stderr


# ---- what to type ----

def split_of(candidate):
    return [candidate[key] for key in ("ranks", "data", "ulysses", "ring", "gather", "tensor", "direction", "head_chunks",
                                       "softmax", "vae_ranks")]


@test
def settings_make_the_run_that_was_planned(cwd):
    for arguments in ([*LARGE, "hardware=tpu_v7x_8", "ranks=8"], [*LARGE, "hardware=h100_8", "ranks=3"],
                      [*LARGE, "hardware=h100_8", "ranks=1", "guidance_scale=1"],
                      [*LARGE, "hardware=h100_8", "ranks=8", "objective=throughput"],
                      ["wan2.1_t2v_1.3b", "hardware=h100_8", "ranks=2", "batch_size=4", "layers=2"],
                      ["wan2.1_t2v_1.3b", "hardware=cpu", "ranks=4", "what_if.memory=x50"],
                      ["wan2.1_t2v_1.3b", "hardware=cpu", "what_if.memory=x50", "flash_block_sizes={block_kv: 128}"]):
        result = plan(cwd, *arguments, "json=plan.json")
        document = json.loads((pathlib.Path(cwd) / "plan.json").read_text())
        settings = document["plans"][0]["settings"]
        typed = next(line for line in result.stdout.splitlines() if line.startswith("  zoetrope generate "))
        assert f"zoetrope generate  {settings[0]} data_parallelism=" in typed, result.stdout
        rest = [word for word in arguments if not word.startswith(("ranks=", "objective="))]
        again = best(answer(cwd, *rest, *settings))
        assert split_of(again) == split_of(best(document)), (again, settings)
        assert again["block_q"] == best(document)["block_q"]
        assert again["seconds_per_step"] == best(document)["seconds_per_step"]
        for word in ("batch_size=4", "layers=2", "flash_block_sizes={block_kv: 128}"):
            assert (word in settings) == (word in arguments) == (word in typed), (typed, settings)


@test
def runs_are_started_as_they_were_planned(cwd):
    (pathlib.Path(cwd) / "host.yml").write_text(one_host())
    words = ["wan2.1_t2v_1.3b", "num_frames=17", "hardware=host.yml", "ranks=4", "memory_limit=200"]
    for keys, typed in (([], "zoetrope generate  ranks=4 "),
                        (["ranks_per_process=1"], "mpirun -n 4 zoetrope generate  ranks=4 "),
                        (["ranks_per_process=1", "threads=3"], "mpirun -n 4 zoetrope generate  ranks=4 "),
                        (["ranks_per_process=1", "threads=3", "objective=throughput"], "zoetrope generate  ranks=1 ")):
        said = plan(cwd, *words, *keys).stdout
        line = said.partition("To type")[2].splitlines()[1]
        assert line.startswith("  " + typed), said
        assert line.endswith(" threads=3") == ("threads=3" in keys), said
    refused(cwd, plan(cwd, *words, "ranks_per_process=2"), "one rank or all of them; give 1 or 4", left=["host.yml"])


@test
def a_batch_of_more_videos_than_there_are_is_refused_as_in_generate(cwd):
    refused(cwd, plan(cwd, *LARGE, "hardware=h100_8", "ranks=8", "num_videos=3", "batch_size=4"), "batch_size=4",
            "there are 3 videos to make")
    (pathlib.Path(cwd) / "a.yml").write_text("model: wan2.1_t2v_1.3b\nprompts: [a, b]\nbatch_size: 8\n")
    refused(cwd, plan(cwd, "a.yml", "hardware=h100_8", "ranks=8"), "batch_size", "there are 2 videos to make", left=("a.yml",))


@test
def tables_of_the_best_that_ship_are_what_the_planner_says(cwd):
    root = pathlib.Path(__file__).resolve().parents[2]
    tool = [sys.executable, root / "tools" / "best_tables.py", plan_test.PROGRAM]
    result = run([*tool, "--compare"], cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    for file in (root / "configs").glob("*.yml"):
        assert re.findall(r"^  (\w+): ", file.read_text(), re.M) == ["hardware", "2", "4", "8", "16"], file
    text = (root / "configs" / "wan2.1_t2v_1.3b.yml").read_text()
    (pathlib.Path(cwd) / "a.yml").write_text("model: wan2.1_t2v_1.3b\n" + text.replace("{block_q:", "{block_q:1"))
    result = run([*tool, "--compare", "a.yml"], cwd)
    assert result.returncode == 1 and result.stdout.count("is now") >= 4, result.stdout
    (pathlib.Path(cwd) / "a.yml").write_text((pathlib.Path(cwd) / "a.yml").read_text() + "seed: 77\n")
    assert run([*tool, "a.yml"], cwd).returncode == 0 and run([*tool, "--compare", "a.yml"], cwd).returncode == 0
    assert (pathlib.Path(cwd) / "a.yml").read_text().endswith("seed: 77\n"), "keys behind the table stay"
    command = re.search(r"^# zoetrope plan (.*)$", (root / "configs" / "wan2.1_t2v_1.3b.yml").read_text(), re.M).group(1)
    document = answer(cwd, *command.split())
    assert [part["ranks"] for part in document["plans"]] == [2, 4, 8, 16], document["plans"]
    (pathlib.Path(cwd) / "plan.json").unlink()
    (pathlib.Path(cwd) / "a.yml").write_text("model: wan2.1_t2v_1.3b\nbest: {hardware: h100_8, 2: seed=1}\n")
    refused(cwd, plan(cwd, "a.yml"), "a.yml line 2", "best=", "'seed=1' does not say how ranks are used", left=("a.yml",))
    refused(cwd, generate(cwd, "a.yml"), "a.yml line 2", "best=", left=("a.yml",))


@test
def generate_takes_the_settings(cwd):
    size = ["height=64", "width=48", "num_frames=5"]
    steps = ["num_inference_steps=1"]
    document = answer(cwd, MODEL, *size, *steps, "hardware=cpu", "ranks=4")
    first = best(document)
    # Nothing is left for the planner: with a profile that wants something else the same runs.
    result = generate(cwd, *size, *steps, "prompt=x", "output=x.png", "threads=1", "dtype=float32",
                      *document["plans"][0]["settings"])
    assert result.returncode == 0, result.stderr
    context = first["ulysses"] * first["ring"] * first["gather"]
    degrees = f"gather {context}" if first["gather"] > 1 else f"Ulysses {first['ulysses']} x ring {first['ring']}"
    layout = f"data {first['data']} x context {context} ({degrees}"
    assert layout in result.stdout + result.stderr, f"{layout}\n{result.stdout}\n{result.stderr}"


@test
def other_systems_have_their_flags(cwd):
    def systems(*keys):
        document = answer(cwd, *LARGE, *keys)
        return document["plans"][0]["other_systems"]
    both = systems("hardware=h100_8", "ranks=8", "data_parallelism=2", "ulysses_shards=2", "ring_direction=forward",
                   "ulysses_attention_chunks=1", "softmax=online")
    assert not both["diffusers"]["possible"] and "guidance branches" in both["diffusers"]["note"], both
    assert not both["xDiT"]["possible"] and "image-to-video" in both["xDiT"]["note"], both
    assert both["SGLang"]["flags"] == "--num-gpus 8 --ulysses-degree 2 --ring-degree 2 --enable-cfg-parallel", both
    assert both["MaxDiffusion"]["flags"] == (
        "attention=ulysses_ring ici_data_parallelism=2 ici_fsdp_parallelism=1 ici_context_parallelism=4 "
        "ici_tensor_parallelism=1 per_device_batch_size=0.125 ulysses_shards=2"), both
    one = systems("hardware=h100_8", "ranks=8", "guidance_scale=1", "ulysses_shards=4")
    assert "ContextParallelConfig(ulysses_degree=4, ring_degree=2)" in one["diffusers"]["flags"], one
    assert "--ulysses_degree 4 --ring_degree 2" in one["xDiT"]["flags"] and "cfg" not in one["xDiT"]["flags"], one
    picture = answer(cwd, "wan2.2_i2v_a14b", "height=720", "width=1280", "num_frames=81", "hardware=h100_8", "ranks=8",
                     "data_parallelism=2")["plans"][0]["other_systems"]
    assert "--use_cfg_parallel" in picture["xDiT"]["flags"], picture
    uneven = systems("hardware=h100_8", "ranks=7", "guidance_scale=1", "ulysses_shards=7")
    assert "ulysses_anything=True" in uneven["diffusers"]["flags"], uneven
    for name in ("xDiT", "SGLang", "MaxDiffusion"):
        assert "40 heads are not a multiple of 7" in uneven[name]["note"] and not uneven[name]["possible"], uneven
    fixed = systems("hardware=tpu_v7x_8", "ranks=8", "ulysses_shards=2", "data_parallelism=2", "softmax=fixed_max",
                    "ulysses_attention_chunks=2", "ring_direction=forward")["MaxDiffusion"]["flags"]
    assert "attention=ulysses_ring_custom_fixed_m" in fixed and "ulysses_attention_chunks=2" in fixed, fixed
    gathered = systems("hardware=h100_8", "ranks=8", "guidance_scale=1", "attention=gather")
    assert "ring_degree=8" in gathered["diffusers"]["flags"] and "gathers" in gathered["diffusers"]["note"], gathered
    for name in ("xDiT", "SGLang"):
        assert not gathered[name]["possible"] and "gathers" in gathered[name]["note"], gathered
    assert gathered["MaxDiffusion"]["flags"].startswith(
        "attention=flash ici_data_parallelism=1 ici_fsdp_parallelism=1 ici_context_parallelism=8 "), gathered
    said = plan(cwd, *LARGE, "hardware=h100_8", "ranks=8").stdout
    assert "diffusers          not possible there: it does not split the guidance branches" in said, said
    # They do not run on what a rank of a CPU is.
    cpu = answer(cwd, "wan2.1_t2v_1.3b", "num_frames=17", "hardware=cpu", "ranks=2", "what_if.memory=x50")
    assert cpu["plans"][0]["other_systems"] == {}, cpu["plans"][0]["other_systems"]


# ---- memory ----

def one_host():
    """One of those of two_hosts()."""
    return two_hosts().replace("devices: 4", "devices: 2").replace(
        "  - {name: cluster, members: 2, kind: switch, bandwidth: 1, latency: 50}\n", "").replace(
        "hosts: 2, ranks: 4", "hosts: 1, ranks: 2")


@test
def layers_are_divided_where_weights_do_not_fit(cwd):
    keys = [*LARGE, "hardware=rtx4090_8", "ranks=2"]
    document = answer(cwd, *keys)
    part, first = document["plans"][0], best(document)
    assert first["tensor"] == 2 and first["breakdown"]["tensor"] > 0, first
    whole = [c for c in part["candidates"] if c["tensor"] == 1 and c["verdict"] != "illegal"]
    assert whole and all(c["verdict"] == "does_not_fit" for c in whole), whole
    assert "tensor_parallelism=2" in part["settings"], part["settings"]
    systems = part["other_systems"]
    assert "ici_context_parallelism=1 ici_tensor_parallelism=2 " in systems["MaxDiffusion"]["flags"], systems
    assert systems["SGLang"]["flags"] == "--num-gpus 2 --ulysses-degree 1 --ring-degree 1 --tp-size 2", systems
    for name, why in (("diffusers", "divides the sequence alone"), ("xDiT", "does not divide the layers")):
        assert not systems[name]["possible"] and why in systems[name]["note"], systems
    assert "sums over tensor ranks" in page_of(cwd, *keys)


@test
def runs_side_by_side_share_no_weights(cwd):
    (pathlib.Path(cwd) / "host.yml").write_text(one_host())
    words = ["wan2.1_t2v_1.3b", "num_frames=17", "height=480", "width=832", "hardware=host.yml", "ranks_per_process=1",
             "memory_limit=200", "data_parallelism=1"]

    def weights_of_a_run(*keys):
        memory = next(c["memory"] for c in candidates(answer(cwd, *words, *keys)) if c["ranks"] == 1)
        return next(phase["items"]["weights"] for phase in memory if phase["phase"] == "denoise with transformer")
    assert weights_of_a_run("ranks=4", "objective=throughput") == weights_of_a_run("ranks=1")


@test
def several_videos_keep_their_weights(cwd):
    def peak(*keys):
        return candidates(answer(cwd, *LARGE, "hardware=h100_8", "ranks=1", *keys))[0]["bytes_per_rank"]
    kept = peak("num_videos=2", "keep_weights=all")
    assert peak("num_videos=2") == kept > peak("num_videos=2", "keep_weights=none"), kept


@test
def memory_is_counted_per_process_or_per_rank_and_says_which(cwd):
    few = ["wan2.1_t2v_14b", "hardware=cpu", "ranks=4", "memory_limit=6", "weights_in_memory=bf16", "json=plan.json"]
    for keys, who in (([], "a process of 4 ranks needs "), (["ranks_per_process=1"], "a rank needs ")):
        result = plan(cwd, *few, *keys)
        assert result.returncode == 1 and who in result.stdout, result.stdout
        part = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"][0]
        for c in part["candidates"]:
            if c["verdict"] == "illegal":
                continue
            needed = max(phase["bytes"] for phase in c["memory"])
            assert abs(needed - c["bytes_per_rank"] * c["ranks_per_process"]) <= c["ranks_per_process"], c
            # Total and parts as they are printed.
            total, parts = re.search(r"needs ([0-9.]+) GB, .* \((.*)\)", c["reason"]).groups()
            found = [float(value) for value in re.findall(r"([0-9.]+) GB", parts)]
            assert abs(sum(found) - float(total)) < 0.005 * float(total) + 0.05, c["reason"]


@test
def processes_are_planned_with_what_processes_measured(cwd):
    cache = pathlib.Path(cwd) / "zoetrope"
    cache.mkdir()
    (cache / "hardware.yml").write_text(one_host())
    (cache / "hardware-1x2.yml").write_text(one_host())
    for key, file in ((), "hardware.yml"), (["ranks_per_process=1"], "hardware-1x2.yml"):
        said = plan(cwd, "wan2.1_t2v_1.3b", "num_frames=17", "ranks=2", *key, env={"XDG_CACHE_HOME": str(cwd)}).stdout
        assert f"zoetrope/{file}, measured" in said, said


@test
def a_limit_of_memory_is_one_of_a_process_as_in_generate(cwd):
    def limits(*words):
        small = [MODEL, "height=32", "width=32", "num_frames=5", "ranks=1,4"]
        document = answer(cwd, *small, *words, env={"XDG_CACHE_HOME": str(cwd)})
        return [part["memory_limit_bytes"] for part in document["plans"]]
    assert limits("hardware=cpu", "memory_limit=16") == [16_000_000_000, 4_000_000_000]
    assert limits("hardware=cpu", "memory_limit=16", "ranks_per_process=1") == [16_000_000_000] * 2
    assert limits("hardware=h100_8", "memory_limit=45") == [45_000_000_000] * 2
    # A named machine may be planned beyond its memory, this one not.
    assert limits("hardware=cpu", "memory_limit=1000000") == [1_000_000_000_000_000, 250_000_000_000_000]
    assert max(limits("memory_limit=1000000")) < 100_000_000_000_000
    assert limits("memory_limit=2") == [2_000_000_000, 500_000_000]
    refused(cwd, plan(cwd, *LARGE, "memory_limit=16", "what_if.memory=x2"), "memory_limit and what_if.memory", "keep one",
            left=("plan.json",))


@test
def what_several_videos_and_a_comparison_need_is_counted(cwd):
    def peak(*words):
        small = ["wan2.1_t2v_1.3b", "height=480", "width=832", "num_frames=17", "hardware=h100_8", "ranks=1"]
        return best(answer(cwd, *small, *words))["bytes_per_rank"]
    (pathlib.Path(cwd) / "prompts.txt").write_text("a red cat\na dog\n")
    several = peak("prompts=prompts.txt")
    assert several == peak("num_videos=2") > peak()
    assert peak("prompts=prompts.txt", "grid=all.mp4") == several + 2 * 17 * 480 * 832 * 3
    # Four processes share the weights, which the one that computes again has alone.
    words = ["wan2.1_t2v_14b", "height=480", "width=832", "num_frames=17", "hardware=cpu", "ranks=4", "ranks_per_process=1",
             "fsdp_parallelism=4", "weights_in_memory=bf16", "memory_limit=20"]
    answer(cwd, *words)
    refused(cwd, plan(cwd, *words, "compare_one_rank=true"), "compare_one_rank", "on one rank", "this run needs",
            left=("plan.json", "prompts.txt"))


@test
def a_prompt_may_be_in_a_file(cwd):
    def encoding(prompt):
        document = answer(cwd, MODEL, "height=32", "width=32", "num_frames=5", "hardware=h100_8", "ranks=1",
                          f"prompt={prompt}")
        return next(phase["bytes"] for phase in best(document)["memory"] if phase["phase"] == "text encoder")
    text = "a red cat " * 40
    (pathlib.Path(cwd) / "cat.txt").write_text(text)
    assert encoding("@cat.txt") == encoding(text) > encoding("a red cat")
    (pathlib.Path(cwd) / "plan.json").unlink()
    refused(cwd, plan(cwd, MODEL, "prompt=@dog.txt"), "dog.txt", left=("cat.txt",))


# ---- the page ----

def page_of(cwd, *arguments):
    plan(cwd, *arguments, "report=plan.html")
    return (pathlib.Path(cwd) / "plan.html").read_text()


@test
def the_page_shows_all_of_it(cwd):
    page = page_of(cwd, *LARGE, "hardware=h100_8", "ranks=8", "what_if.memory=31.2")
    # Names of rows are not broken, in words, and sentences may break.
    assert re.search(r'<span class="name">data 2 x context 4 \(Ulysses [^<]* VAE over \d+</span>', page)
    assert "does_not_fit" not in page and ">does not fit</td>" in page
    assert re.search(r'<td class="p" data-heading="why">[^<]{60,}</td>', page)
    assert "zoetrope generate: ranks=8 data_parallelism=2 " in page and "SGLang: --num-gpus 8 " in page
    # Attention has one colour wherever it is drawn.
    slots = set(re.findall(r'class="bar s(\d)"[^>]*title="[^"]*, attention[:, ]', page))
    assert slots == {"0"}, slots
    legends = set(re.findall(r'class="bar s(\d)"[^>]*/></svg>attention</li>', page))
    assert legends == {"0"}, legends
    assert "@media (max-width:700px)" in page


@test
def the_page_shows_what_does_not_fit(cwd):
    page = page_of(cwd, *LARGE, "hardware=rtx4090_8", "ranks=8", "dtype=float32", "memory_limit=6")
    assert page.count("Nothing fits; the least hardware that would: ") == 1
    assert "The least hardware that would do" not in page
    assert "Memory of a rank, phase by phase, of what needs least: " in page and "limit 6 GB" in page


@test
def ranks_of_calibrated_hosts_stand_where_they_were_measured(cwd):
    (pathlib.Path(cwd) / "cluster.yml").write_text(two_hosts())
    small = ["wan2.1_t2v_1.3b", "height=480", "width=832", "num_frames=17", "hardware=cluster.yml", "guidance_scale=1"]
    fast = answer(cwd, *small, "ranks=2,4")
    slow = answer(cwd, *small, "ranks=2,4", "what_if.links.cluster.bandwidth=0.0001")
    # Four ranks need both hosts and what lies between; two are those of one.
    assert best(slow, 4)["seconds_per_step"] > 1.5 * best(fast, 4)["seconds_per_step"]
    assert best(slow, 2)["seconds_per_step"] == best(fast, 2)["seconds_per_step"]
    # Neither cores nor threads of this machine say what theirs take.
    (pathlib.Path(cwd) / "cluster.yml").write_text(two_hosts().replace("threads: 1", "threads: 1000"))
    many = answer(cwd, *small, "ranks=1,4")
    one, four = (best(many, ranks)["breakdown"]["linear"] for ranks in (1, 4))
    # One of four ranks has half of its host's cores, and one alone all of them.
    assert abs(one / four / 2 - 1) < 0.1, (one, four)
    half = best(answer(cwd, *small, "ranks=4", "threads=500"))["breakdown"]["linear"]
    assert abs(half / four / 2 - 1) < 0.01, (half, four)
    # A host is shared by two ranks in either case, and what four of them hold is not that of threads of one process.
    assert [part["memory_limit_bytes"] for part in fast["plans"]] == [8_000_000_000] * 2


@test
def every_number_of_ranks_has_its_part_of_a_host(cwd):
    (pathlib.Path(cwd) / "host.yml").write_text(one_host())
    small = ["wan2.1_t2v_1.3b", "height=480", "width=832", "num_frames=17", "hardware=host.yml", "ranks=1,2,4"]
    limits = [part["memory_limit_bytes"] for part in answer(cwd, *small)["plans"]]
    assert limits == [16_000_000_000, 8_000_000_000, 4_000_000_000], limits
    said = plan(cwd, *small).stdout
    assert "16.0 GB of 1, 8.00 GB of 2, 4.00 GB of 4" in said, said


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
