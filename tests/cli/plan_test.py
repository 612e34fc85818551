#!/usr/bin/env python3
"""`zoetrope plan` as a user runs it: rankings, what_if, files, and every kind of bad input.

    plan_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    plan_test.py --list                the names
"""
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import harness  # noqa: E402
from harness import MPI_ENV, files_in, generate, refused, run, run_script, sentence  # noqa: E402
from program_keys import words_of  # noqa: E402

PROGRAM = MODEL = None
TESTS = {}
LARGE = ["wan2.2_t2v_a14b", "height=720", "width=1280", "num_frames=81"]
VERDICTS = ("best", "tie", "slower", "does_not_fit", "illegal")


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, model
    harness.use(program, model)


def plan(cwd, *arguments, **options):
    return run([PROGRAM, "plan", *arguments], cwd, **options)


def answer(cwd, *arguments, code=0, env=None):
    """The JSON of a plan."""
    result = plan(cwd, *arguments, "json=plan.json", env=env)
    assert result.returncode == code, f"{result.returncode}\n{result.stdout}\n{result.stderr}"
    return json.loads((pathlib.Path(cwd) / "plan.json").read_text())


def candidates(document, ranks=None):
    for part in document["plans"]:
        if ranks in (None, part["ranks"]):
            return part["candidates"]
    raise AssertionError(ranks)


def best(document, ranks=None):
    first = candidates(document, ranks)[0]
    assert first["verdict"] == "best", first["reason"]
    return first


# ---- what is said ----

@test
def a_plan_says_what_to_use_and_why(cwd):
    result = plan(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8")
    assert result.returncode == 0, result.stderr
    for words in ("75600 tokens", "tpu_v7x_8", "GB of memory per device", "best", "Ulysses", "limited by", "video s", "step s",
                  "exchange", "ring", "per rank", "Why not", "% slower: ", "VAE over"):
        assert words in result.stdout, f"{words}\n{result.stdout}"
    assert not files_in(cwd), files_in(cwd)


@test
def every_candidate_is_in_the_json(cwd):
    document = answer(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8")
    assert document["hardware"] == "tpu_v7x_8" and document["tokens"] == 75600 and document["steps"] == 40
    found = candidates(document)
    order = [VERDICTS.index(c["verdict"]) for c in found]
    assert order == sorted(order), order
    splits = set()
    for c in found:
        assert c["verdict"] in VERDICTS and c["reason"], c
        if c["verdict"] == "illegal":
            continue
        assert c["data"] * c["ulysses"] * c["ring"] * c["gather"] * c["tensor"] == c["ranks"], c
        splits.add((c["tensor"], c["data"], c["ulysses"], c["ring"], c["gather"]))
        assert c["direction"] in words_of(PROGRAM, "generate", "ring_direction"), c
        assert c["softmax"] in words_of(PROGRAM, "generate", "softmax"), c
        assert c["head_chunks"] >= 1 and c["block_q"] in (4096, 8448, 9472) and 1 <= c["vae_ranks"] <= 8, c
        assert abs(sum(c["breakdown"].values()) - c["seconds_per_step"]) < 1e-6 * c["seconds_per_step"], c
        parts = [c[f"seconds_{name}"] for name in ("load", "text_encoder", "denoise", "vae")]
        assert abs(sum(parts) - c["seconds_total"]) < 1e-6 * c["seconds_total"], c
        phases = {phase["phase"]: phase["bytes"] for phase in c["memory"]}
        assert "denoise with transformer_2" in phases and "VAE decode" in phases, phases
        assert max(phases.values()) == c["bytes_per_rank"], c
        for phase in c["memory"]:
            assert sum(phase["items"].values()) == phase["bytes"], phase
    whole = {split[1:] for split in splits if split[0] == 1}
    assert whole == {(1, 1, 8, 1), (1, 2, 4, 1), (1, 4, 2, 1), (1, 8, 1, 1), (1, 1, 1, 8),
                     (2, 1, 4, 1), (2, 2, 2, 1), (2, 4, 1, 1), (2, 1, 1, 4)}, splits
    assert {split[0] for split in splits} == {1, 2, 4, 8}, splits
    assert found[0]["tensor"] == 1, found[0]


@test
def times_of_slower_ones_are_as_their_reasons_say(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_2x8", "ranks=16")
    first = best(document)
    checked = 0
    for c in candidates(document):
        found = re.match(r"([0-9.]+) % slower", c["reason"])
        if c["verdict"] != "slower" or not found:
            continue
        more = 100 * (c["value"] / first["value"] - 1)
        assert abs(more - float(found.group(1))) <= (0.06 if more < 9.9 else 0.6), c
        assert more > 100 * document["model_error"], c
        checked += 1
    assert checked > 3, checked
    for c in candidates(document):
        if c["verdict"] == "tie":
            assert c["value"] <= first["value"] * (1 + document["model_error"]) * (1 + 1e-9), c


@test
def any_number_of_ranks_has_a_plan(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=1,7,11,30")
    for part in document["plans"]:
        first = best(document, part["ranks"])
        assert first["data"] * first["ulysses"] * first["ring"] == part["ranks"], first
        assert 40 >= first["ulysses"], first
    # 7 shards of 40 heads are uneven, and legal.
    assert any(c["ulysses"] == 7 and c["verdict"] != "illegal" for c in candidates(document, 7))
    assert any("cannot be halved" in c["reason"] for c in candidates(document, 7))


@test
def several_ranks_make_a_scaling_curve(cwd):
    result = plan(cwd, *LARGE, "hardware=h100_8", "ranks=8,1,2,4,4", "json=plan.json")
    assert result.returncode == 0, result.stderr
    assert "Scaling" in result.stdout and "efficiency" in result.stdout
    parts = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"]
    assert [part["ranks"] for part in parts] == [1, 2, 4, 8]
    assert parts[0]["speed_up"] == 1 and parts[0]["efficiency"] == 1
    for before, after in zip(parts, parts[1:]):
        assert after["seconds_per_video"] < before["seconds_per_video"]
        assert abs(after["efficiency"] - after["speed_up"] / after["ranks"]) < 1e-9


@test
def of_a_thousand_ranks_the_pruned_are_bounds(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=1024")
    assert best(document)["ulysses"] <= 40
    bounds = [c for c in candidates(document) if not c.get("simulated", True)]
    assert bounds and all("at least" in c["reason"] or c["verdict"] == "does_not_fit" for c in bounds), bounds


@test
def a_file_of_generate_is_planned(cwd):
    """With its model, ranks and hardware; what only concerns running is checked and not used; the command line wins."""
    folder = pathlib.Path(cwd) / "files"
    folder.mkdir()
    (folder / "run.yml").write_text(
        f"model: {pathlib.Path(MODEL).resolve()}\nheight: 32\nwidth: 32\nnum_frames: 5\nnum_inference_steps: 2\nranks: 4\n"
        "hardware: h100_8\nattention: ulysses_ring\nseed: 7\noutput: a.gif\ntrace: run.json\nsummary: full\nfps: 8\n")
    whole = answer(cwd, "files/run.yml")
    assert whole["hardware"] == "h100_8" and [part["ranks"] for part in whole["plans"]] == [4], whole
    assert best(whole)["ulysses"] == best(whole)["ring"] == 2 and whole["steps"] == 2, best(whole)
    over = answer(cwd, "config=files/run.yml", "ranks=2,8", "hardware=tpu_v7x_8", "attention=auto", "num_inference_steps=3")
    assert over["hardware"] == "tpu_v7x_8" and [part["ranks"] for part in over["plans"]] == [2, 8] and over["steps"] == 3
    assert files_in(cwd) == ["files", "files/run.yml", "plan.json"], files_in(cwd)
    pathlib.Path(cwd, "plan.json").unlink()
    left = ("files",)
    refused(cwd, plan(cwd, "files/run.yml", "seed=3"), "seed: means nothing to plan", left=left)
    refused(cwd, plan(cwd, "files/run.yml", "summary=full"), "summary: means nothing to plan", left=left)
    refused(cwd, plan(cwd, "files/none.yml"), "files/none.yml", left=left)
    (folder / "bad.yml").write_text(f"model: {MODEL}\nsede: 7\n")
    refused(cwd, plan(cwd, "files/bad.yml"), "bad.yml line 2", "did you mean 'seed'", left=left)
    (folder / "bad.yml").write_text("height: 32\n")
    refused(cwd, plan(cwd, "files/bad.yml"), "files/bad.yml: names no model", "model=FOLDER", left=left)


@test
def a_file_with_many_videos_is_planned(cwd):
    """A batch's time is said as such and per video, and errors say where a value was given."""
    (pathlib.Path(cwd) / "run.yml").write_text(
        f"model: {pathlib.Path(MODEL).resolve()}\nheight: 32\nwidth: 32\nnum_frames: 5\nnum_inference_steps: 2\n"
        "hardware: h100_8\nranks: 2\nprompts: [a red cat, two dogs, a tree, a house]\nnegative_prompt: grey\n"
        "num_videos: 2\nbatch_size: 4\nlayers: 1\nseed: 7\noutput: a.gif\n")
    result = plan(cwd, "run.yml", "json=plan.json")
    assert result.returncode == 0, result.stderr
    document = json.loads((pathlib.Path(cwd) / "plan.json").read_text())
    part = document["plans"][0]
    whole = best(document)["seconds_total"] - best(document)["seconds_load"]
    assert document["batch_size"] == 4 and abs(part["seconds_per_video"] / (whole / 4) - 1) < 1e-9, part
    assert "2 ranks: a batch of 4 videos in " in result.stdout, result.stdout
    shown = next(line for line in result.stdout.splitlines() if line.startswith("  best  ")).split()[1]
    assert abs(float(shown) - whole / 4) < 6e-4, (shown, whole)
    assert "layers=1" in part["settings"] and "batch_size=4" in part["settings"], part["settings"]
    assert not any(word.startswith("num_videos=") for word in part["settings"]), part["settings"]  # there are prompts
    typed = answer(cwd, "run.yml", "prompts=default", "negative_prompt=", "num_videos=3", "batch_size=2")
    assert typed["plans"][0]["settings"][-2:] == ["num_videos=3", "batch_size=2"], typed["plans"][0]["settings"]
    (pathlib.Path(cwd) / "plan.json").unlink()
    (pathlib.Path(cwd) / "run.yml").write_text(
        f"model: {pathlib.Path(MODEL).resolve()}\nulysses_shards: 3\nattention: ulysses_ring\nhardware: h100_8\nlayers: 9\n")
    refused(cwd, plan(cwd, "run.yml"), "layers=9 (run.yml line 5): the model has", left=("run.yml",))
    refused(cwd, plan(cwd, "run.yml", "layers=1", "ranks=4"), "ulysses_shards=3 (run.yml line 2)", left=("run.yml",))


@test
def configurations_that_ship_are_planned_by_name_and_by_file(cwd):
    configs = pathlib.Path(__file__).resolve().parents[2] / "configs"
    by_name = answer(cwd, "wan2.1_t2v_1.3b", "hardware=h100_8", "ranks=4")
    assert answer(cwd, configs / "wan2.1_t2v_1.3b.yml", "hardware=h100_8", "ranks=4") == by_name
    demo = answer(cwd, configs / "demo.yml", "hardware=h100_8")
    assert [part["ranks"] for part in demo["plans"]] == [4] and best(demo)["ulysses"] == best(demo)["ring"] == 2, best(demo)


@test
def fewer_layers_are_planned_as_such(cwd):
    arguments = [*LARGE, "hardware=tpu_v7x_8", "ranks=8"]
    whole, cut = answer(cwd, *arguments), answer(cwd, *arguments, "layers=2")
    step = {name: best(document)["seconds_per_step"] for name, document in (("whole", whole), ("cut", cut))}
    assert 10 < step["whole"] / step["cut"] <= 20, step  # of 40; what is outside the layers stays
    assert "2 of 40 layers" in plan(cwd, *arguments, "layers=2").stdout
    result = plan(cwd, *arguments, "layers=41")
    assert result.returncode == 1 and "layers=41 (command line): the model has only 40" in result.stderr, result.stderr


@test
def a_checkpoint_folder_can_be_planned(cwd):
    document = answer(cwd, MODEL, "hardware=h100_8", "ranks=2", "height=32", "width=32", "num_frames=5")
    assert best(document)["seconds_total"] > 0


@test
def pictures_and_loras_are_planned_as_they_are_run(cwd):
    models = pathlib.Path(MODEL).parent
    picture = f"image={models}/wan21_i2v/inputs/image.png"
    small = ["hardware=h100_8", "ranks=2", "num_frames=5"]
    sized = answer(cwd, f"{models}/wan21_i2v", *small, picture, "max_area=2560")
    assert "48 x 32, 5 frames" in sized["title"], sized["title"]
    same = answer(cwd, f"{models}/wan21_i2v", *small, picture, "width=48", "height=32")
    assert candidates(sized) == candidates(same)
    (pathlib.Path(cwd) / "plan.json").unlink()
    lora = f"lora={models.parent}/loras/peft.safetensors"
    said = plan(cwd, MODEL, *small, "height=32", "width=32", f"{lora}:0.8")
    assert "peft.safetensors: strength 0.8, 20 tensors of transformer" in said.stdout, said.stdout + said.stderr
    for words, sentence in (([f"{models}/wan21_i2v", "max_area=2560"], "follows the shape of image"),
                            ([MODEL, picture], "takes a prompt alone"),
                            ([MODEL, lora.replace("lora=", "lora_high=")], "no two experts"),
                            ([MODEL, "lora=nowhere.safetensors"], "nowhere.safetensors"),
                            ([MODEL, "seed=3"], "seed: means nothing to plan"),
                            ([MODEL, "fps=8"], "fps: means nothing to plan")):
        refused(cwd, plan(cwd, *words, *small), sentence)


# ---- what changes the answer ----

@test
def what_if_changes_the_answer(cwd):
    arguments = [*LARGE, "hardware=h100_2x8", "ranks=16", "data_parallelism=1"]
    before = best(answer(cwd, *arguments))
    faster = answer(cwd, *arguments, "what_if.bf16.peak=x2")
    assert faster["what_if"] == {"bf16.peak": "x2"}
    assert best(faster)["seconds_per_step"] < 0.8 * before["seconds_per_step"]
    # With links between the nodes that are nearly absent, less must cross them.
    slow = best(answer(cwd, *arguments, "what_if.links.cluster.bandwidth=0.5"))
    assert slow["seconds_per_step"] > 1.2 * before["seconds_per_step"]
    same = [c for c in candidates(answer(cwd, *arguments, "what_if.links.cluster.bandwidth=0.5"))
            if (c["ulysses"], c["ring"]) == (16, 1)]
    assert same[0]["verdict"] == "slower", same[0]


@test
def fewer_devices_than_ranks_are_never_simulated(cwd):
    # A CPU's cluster grows with the ranks, whatever a figure says of it.
    for keys in (["ranks=4", "what_if.devices=2"], ["ranks=2", "what_if.links.host.members=1"]):
        result = plan(cwd, *LARGE, *keys, "hardware=cpu", "memory_limit=500")
        assert result.returncode == 0, f"{keys}\n{result.stdout}\n{result.stderr}"
    # Elsewhere they are refused.
    refused(cwd, plan(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8", "what_if.devices=4"), "4 devices, not 8")
    # Fewer ranks than those have their answer all the same.
    document = answer(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8,16")
    assert [part["ranks"] for part in document["plans"]] == [8], document["plans"]
    assert any("Not possible on 16 ranks" in n and "8 devices, not 16" in n for n in document["notes"]), document["notes"]


@test
def bounds_are_never_ties(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=512", "objective=throughput", "what_if.model_error=0.25")
    bounds = [c for c in candidates(document) if not c.get("simulated", True)]
    assert bounds and all(c["verdict"] in ("slower", "does_not_fit") for c in bounds), [c["verdict"] for c in bounds]


@test
def fixed_keys_restrict_the_search(cwd):
    document = answer(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8", "data_parallelism=1", "ulysses_shards=2",
                      "ring_direction=two_way", "softmax=fixed_max", "ulysses_attention_chunks=4", "vae_parallel=4")
    for c in candidates(document):
        if c["verdict"] == "illegal":
            continue
        assert (c["data"], c["ulysses"], c["ring"]) == (1, 2, 4), c
        assert (c["direction"], c["softmax"], c["head_chunks"], c["vae_ranks"]) == ("two_way", "fixed_max", 4, 4), c
    for name, expected in (("ulysses", (8, 1)), ("ring", (1, 8))):
        document = answer(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8", "data_parallelism=1", f"attention={name}")
        for c in candidates(document):
            if c["verdict"] != "illegal":
                assert (c["ulysses"], c["ring"], c["softmax"]) == (*expected, "online"), c
    # A named topology keeps its ranks, and two dimensions are two.
    document = answer(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=8", "attention=ulysses_ring", "softmax=fixed_max")
    found = {(c["data"], c["ulysses"], c["ring"], c["softmax"]) for c in candidates(document) if c["verdict"] != "illegal"}
    assert found == {(1, 2, 4, "fixed_max"), (1, 4, 2, "fixed_max")}, found
    # 64 ranks are more than the 40 heads: both branches are divided.
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=64", "attention=ulysses")
    assert {(c["data"], c["ulysses"]) for c in candidates(document) if c["verdict"] != "illegal"} == {(2, 32)}
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=1", "attention=cudnn_flash_te")
    assert "attention=cudnn_flash_te is computed as flash" in document["notes"], document["notes"]


@test
def deterministic_plans_are_those_of_deterministic_runs(cwd):
    # 40 heads: the largest divisor of the ranks that they allow.
    for ranks, expected in ((8, (1, 8, 1)), (13, (1, 13, 1)), (41, (1, 1, 41)), (48, (1, 24, 2))):
        document = answer(cwd, *LARGE, "hardware=h100_8x8", f"ranks={ranks}", "deterministic=true")
        for c in candidates(document):
            if c["verdict"] != "illegal":
                assert (c["data"], c["ulysses"], c["ring"]) == expected, c
                assert (c["direction"], c["head_chunks"]) == ("forward", 1), c


@test
def branches_are_dealt_out_alike_in_one_memory(cwd):
    # Of one memory the ring is ahead where times are the same, with the branches as the fastest has them.
    document = answer(cwd, "wan2.1_t2v_1.3b", "hardware=cpu", "ranks=4", "what_if.memory=x50")
    assert (best(document)["data"], best(document)["ring"]) == (2, 2), best(document)


@test
def the_objective_decides_how_many_ranks_a_run_has(cwd):
    arguments = [*LARGE, "hardware=rtx4090_8", "ranks=8", "memory_limit=200"]
    latency = best(answer(cwd, *arguments))
    assert latency["ranks"] == 8
    for objective in ("throughput", "cost"):
        document = answer(cwd, *arguments, f"objective={objective}")
        assert document["objective"] == objective
        first = best(document)
        assert first["ranks"] <= 8
        assert first["seconds_denoise"] * first["ranks"] <= 1.06 * 8 * latency["seconds_denoise"], first


@test
def a_limit_of_memory_is_kept(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=8", "memory_limit=45")
    assert document["plans"][0]["memory_limit_bytes"] == 45_000_000_000
    fitting = [c for c in candidates(document) if c["verdict"] in ("best", "tie", "slower")]
    assert fitting and all(c["bytes_per_rank"] <= 45_000_000_000 for c in fitting)


@test
def nothing_fits_names_the_least_hardware(cwd):
    few = [*LARGE, "hardware=rtx4090_8", "ranks=8", "dtype=float32"]
    result = plan(cwd, *few, "memory_limit=6", "json=plan.json")
    assert result.returncode == 1, result.stdout
    refused(cwd, result, "nothing fits into 6", "the least hardware that would", "GB", left=("plan.json",))
    part = json.loads((pathlib.Path(cwd) / "plan.json").read_text())["plans"][0]
    assert not part["fits"] and "GB" in part["least_that_fits"], part
    for c in part["candidates"]:
        assert c["verdict"] in ("does_not_fit", "illegal"), c
        assert c["verdict"] == "illegal" or ("needs" in c["reason"] and "more than" in c["reason"]), c
    # The memory that it names is enough.
    gigabytes = re.search(r"([0-9.]+) GB or more each", part["least_that_fits"])
    assert gigabytes, part["least_that_fits"]
    answer(cwd, *few, f"memory_limit={float(gigabytes.group(1)) + 0.1}")


@test
def the_least_hardware_of_deterministic_plans_is_enough(cwd):
    large = ["wan2.1_t2v_1.3b", "height=720", "width=1280", "num_frames=81", "hardware=h100_8x8", "memory_limit=8",
             "deterministic=true"]
    result = plan(cwd, *large, "ranks=1")
    named = re.search(r"the least hardware that would: (\d+) of these devices \(([0-9.]+ GB) each\)", sentence(result))
    assert named and named.group(1) == "2", result.stderr
    # As said, with the decoding shared as such a run shares it.
    enough = best(answer(cwd, *large, f"ranks={named.group(1)}"))
    assert enough["vae_ranks"] == 2 and f"{enough['bytes_per_rank'] / 1e9:.2f} GB" == named.group(2), (enough, named.group(2))
    # Ranks that the user gives to decoding are all that decode.
    result = plan(cwd, *large, "ranks=1", "vae_parallel=1")
    assert "never enough" in sentence(result), result.stderr


@test
def published_runs_are_compared_again(cwd):
    result = plan(cwd, "published=true")
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    errors = [float(re.search(r"\| ([+-][0-9.]+) % \|", row).group(1)) for row in rows[1:]]
    assert len([row for row in rows if "tpu_v7x_8" in row]) >= 5, result.stdout
    assert len(errors) > 10 and all(abs(error) < 15 for error in errors), errors
    refused(cwd, plan(cwd, *LARGE, "published=true"), "published=true takes no other key")
    refused(cwd, plan(cwd, "published=perhaps"), "published=perhaps")
    refused(cwd, plan(cwd, "publish=true", *LARGE, "hardware=h100_8"), "publish", "published")


def choices(cwd, hardware, ranks, *words):
    """(candidate, how much slower than the best) of a published run: one program, whose devices share the sequence."""
    document = answer(cwd, "wan2.2_t2v_a14b", "height=720", "width=1280", "num_frames=81", "num_inference_steps=40",
                      "text_encoder_dtype=bf16", "vae_dtype=bf16", f"hardware={hardware}", f"ranks={ranks}", *words)
    legal = [c for c in candidates(document) if c["verdict"] != "illegal"]
    return [(c, c["value"] / legal[0]["value"] - 1) for c in legal], document["model_error"]


@test
def published_statements_are_what_the_program_chooses(cwd):
    """Sentences published beside the runs (docs/spec/attention.md, section 10); docs/planner.md says which are not met."""
    plain = ["softmax=online", "ulysses_attention_chunks=1", "data_parallelism=1", "guidance_scale=1"]

    def slower(cases, ulysses, ring):
        return min(value for c, value in cases if (c["ulysses"], c["ring"]) == (ulysses, ring))

    # The hybrid is best at 4 and 16; at 8 all splits tie within the model's error.
    four, error = choices(cwd, "tpu_v7x_8", 4, *plain)
    assert slower(four, 2, 2) == 0 and slower(four, 4, 1) > error, four
    eight, _ = choices(cwd, "tpu_v7x_8", 8, *plain)
    assert max(slower(eight, *split) for split in ((8, 1), (4, 2), (2, 4), (1, 8))) <= error, eight
    open_eight, _ = choices(cwd, "tpu_v7x_8", 8, *plain[2:])
    assert slower(open_eight, 8, 1) == 0, open_eight
    sixteen, _ = choices(cwd, "tpu_v7x_16", 16, *plain)
    assert slower(sixteen, 8, 2) == 0 and slower(sixteen, 16, 1) > error, sixteen
    # The large tile is best up to rings of eight, of which links slow those of eight and more.
    exposed = {}
    for ranks, hardware, cases in ((4, "tpu_v7x_8", four), (8, "tpu_v7x_8", eight), (16, "tpu_v7x_16", sixteen)):
        best = {}
        for c, _ in cases:
            best.setdefault((c["ulysses"], c["ring"]), c)
        for (ulysses, ring), c in best.items():
            if 1 < ring <= 8:
                small, _ = choices(cwd, hardware, ranks, *plain, f"ulysses_shards={ulysses}", "flash_block_sizes={block_q: 4096}")
                large, _ = choices(cwd, hardware, ranks, *plain, f"ulysses_shards={ulysses}", "flash_block_sizes={block_q: 9472}")
                assert large[0][0]["seconds_per_step"] <= small[0][0]["seconds_per_step"] * (1 + error), (ulysses, ring)
            exposed[ranks, ring] = c["breakdown"]["exposed_ring"] / c["seconds_per_step"]
    assert min(exposed[16, 8], exposed[16, 16]) > 0.1 > max(exposed[16, 2], exposed[16, 4]), exposed
    # Head chunks gain about 3 %.
    whole, _ = choices(cwd, "tpu_v7x_8", 8, *plain, "attention=ulysses")
    pieces, _ = choices(cwd, "tpu_v7x_8", 8, "softmax=online", *plain[2:], "attention=ulysses", "ulysses_attention_chunks=2")
    gain = 1 - pieces[0][0]["seconds_per_step"] / whole[0][0]["seconds_per_step"]
    assert 0.015 < gain < 0.045, gain
    # Whole clips, 40 steps, decoded by one device; weights of the text encoder come as fast as the profile thinks possible.
    for name, denoise, clip in (("ulysses_ring", 109.8, 116.0), ("ulysses", 122.6, 126.9)):
        cases, _ = choices(cwd, "tpu_v7x_8", 8, *plain[:2], "data_parallelism=2", f"attention={name}", "vae_parallel=1",
                           "what_if.host_read=4", *(["flash_block_sizes={block_q: 8448}"] if name == "ulysses" else []))
        c = cases[0][0]
        assert abs(c["seconds_denoise"] / denoise - 1) < 0.03, c
        assert abs((c["seconds_total"] - c["seconds_load"]) / clip - 1) < 0.04, c


# ---- files ----

@test
def report_and_time_line_are_written(cwd):
    result = plan(cwd, *LARGE, "hardware=h100_8", "ranks=4,8", "report=plan.html", "trace=plan.trace.json", "json=plan.json")
    assert result.returncode == 0, result.stderr
    assert files_in(cwd) == ["plan.html", "plan.json", "plan.trace.json"], files_in(cwd)
    page = (pathlib.Path(cwd) / "plan.html").read_text()
    assert "<svg" in page and "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page
    events = json.loads((pathlib.Path(cwd) / "plan.trace.json").read_text())["traceEvents"]
    ranks = {event["pid"] for event in events if event.get("ph") == "X"}
    assert len(ranks) == 8, ranks


@test
def files_that_cannot_be_written_are_refused_before_planning(cwd):
    (pathlib.Path(cwd) / "there").mkdir()
    refused(cwd, plan(cwd, *LARGE, "hardware=h100_8", "ranks=8", "json=there"), "json=there is a folder", left=("there",))
    (pathlib.Path(cwd) / "there").rmdir()
    for key in ("json", "report", "trace"):
        refused(cwd, plan(cwd, *LARGE, "hardware=h100_8", "ranks=8", f"{key}=absent/plan"), key, "absent", "does not exist")


@test
def files_do_not_overwrite_one_another(cwd):
    good = [*LARGE, "hardware=h100_8", "ranks=8"]
    refused(cwd, plan(cwd, *good, "json=a.json", "report=./a.json"), "report=./a.json is the same file as json=a.json")
    profile = pathlib.Path(cwd) / "mine.yml"
    profile.write_text("devices: 1\n")
    refused(cwd, plan(cwd, *LARGE, "hardware=mine.yml", "json=mine.yml"), "json=mine.yml is the same file as hardware=mine.yml",
            left=("mine.yml",))
    assert profile.read_text() == "devices: 1\n"
    profile.unlink()
    nothing = plan(cwd, *good, "what_if.memory=1", "trace=a.trace")
    assert nothing.returncode == 1 and "trace=a.trace was not written: nothing fits" in nothing.stdout, nothing.stdout


# ---- bad input ----

@test
def words_that_are_wrong_are_refused(cwd):
    good = [*LARGE, "hardware=h100_8", "ranks=8"]
    refused(cwd, plan(cwd, "hardware=h100_8"), "one model")
    refused(cwd, plan(cwd, "wan2.1_t2v_14", "hardware=h100_8"), "wan2.1_t2v_14", "did you mean wan2.1_t2v_14b")
    refused(cwd, plan(cwd, *LARGE, "hardware=h100", "ranks=8"), "h100", "h100_8")
    refused(cwd, plan(cwd, *good, "objectiv=cost"), "objectiv", "objective")
    refused(cwd, plan(cwd, *good, "hight=480"), "hight", "height")
    refused(cwd, plan(cwd, *good, "objective=speed"), "objective=speed", "latency, throughput, cost")
    for ranks in ("0", "8,", "a", "-1", "1.5", "99999", "", "8,,16"):
        refused(cwd, plan(cwd, *LARGE, "hardware=h100_8", f"ranks={ranks}"), "from 1 to 4096")
    refused(cwd, plan(cwd, *good, "what_if.bf16.peek=1"), "bf16.peek", "bf16.peak")
    refused(cwd, plan(cwd, *good, "what_if.memory=-3"), "memory")
    refused(cwd, plan(cwd, *good, "what_if.memory"), "what_if.memory", "what_if.KEY=VALUE")
    refused(cwd, plan(cwd, *good, "what_if=3"), "'what_if=3' is not of the form what_if.KEY=VALUE")
    refused(cwd, plan(cwd, *good, "what_if.memory=1e30"), "memory", "1e30 is more than can be counted")
    refused(cwd, plan(cwd, *LARGE, "hardware=tpu_v7x_8", "ranks=16"), "8 devices, not 16")
    refused(cwd, plan(cwd, *good, "top=0"), "top=0", "1 to 1000")
    refused(cwd, plan(cwd, *good, "height=40"), "height=40", "32 and 48")
    refused(cwd, plan(cwd, *good, "num_frames=6"), "num_frames=6", "5 or 9")


@test
def fixed_values_that_cannot_be_are_refused_with_legal_ones(cwd):
    def words(*keys):
        return plan(cwd, *LARGE, "hardware=h100_8", *keys)
    refused(cwd, words("ranks=4", "ulysses_shards=3"), "ulysses_shards=3", "legal values: 1, 2, 4")
    refused(cwd, words("ranks=64", "ulysses_shards=64"), "ulysses_shards=64", "40 heads", "1, 2, 4, 8, 16, 32")
    refused(cwd, words("ranks=8", "ulysses_shards=0"), "ulysses_shards=0", "1, 2, 4, 8")
    refused(cwd, words("ranks=8", "ulysses_shards=99999999999"), "ulysses_shards=99999999999", "40 heads")
    refused(cwd, words("ranks=64", "attention=ulysses", "data_parallelism=1"), "ring=1 is not possible for 64 ranks", "2, 4")
    refused(cwd, words("ranks=7", "data_parallelism=2"), "data_parallelism=2", "7 ranks", "legal values: 1")
    refused(cwd, words("ranks=8", "data_parallelism=2", "guidance_scale=1"), "data_parallelism=2", "without guidance", "use 1")
    refused(cwd, words("ranks=8", "data_parallelism=3"), "data_parallelism=3", "1 or 2")
    for command in (words, lambda *keys: generate(cwd, *keys)):
        refused(cwd, command("ranks=4", "cache=cfg", "data_parallelism=2"), "data_parallelism=2", "with cache=cfg",
                "use data_parallelism=1")
        refused(cwd, command("ranks=4", "cache=cfg", "context_parallelism=2"), "context_parallelism=2", "of 4 ranks",
                "with cache=cfg", "use context_parallelism=4")
        refused(cwd, command("ranks=4", "guidance_scale=1", "shard_weights=3,1"),
                "shard_weights=3,1 (command line) has 2 numbers, but the context has 4 ranks")
    refused(cwd, words("ranks=8", "context_parallelism=3"), "context_parallelism=3", "4, 8")
    refused(cwd, words("ranks=8", "vae_parallel=9"), "vae_parallel=9", "from 1 to 8")
    refused(cwd, words("ranks=8", "vae_parallel=2", "vae_tiling=true"), "vae_parallel=2", "1")
    refused(cwd, words("ranks=8", "attention=rng"), "attention=rng", "ring")
    for name in ("flash", "gather"):
        refused(cwd, words("ranks=8", f"attention={name}", "ulysses_attention_chunks=2"), "ulysses_attention_chunks=2",
                "every rank gathers")
        refused(cwd, words("ranks=8", f"attention={name}", "ring_direction=open"), "ring_direction=open", "there is no ring")
    refused(cwd, words("ranks=8", "attention=ulysses_custom_fixed_m", "softmax=online"),
            "attention=ulysses_custom_fixed_m (command line) means softmax=fixed_max")
    for command in (words, lambda *keys: generate(cwd, "output=a.gif", *keys)):
        for ranks in (2, 3, 5):
            refused(cwd, command(f"ranks={ranks}", "attention=ulysses_ring"), f"a context of {ranks} ranks",
                    "use attention=ring or attention=ulysses")
        refused(cwd, command("ranks=4", "attention=ulysses_ring", "data_parallelism=2"), "a context of 2 ranks")
        for shards in (1, 4):
            refused(cwd, command("ranks=4", "attention=ulysses_ring", f"ulysses_shards={shards}"),
                    f"ulysses_shards={shards}", "is not possible with attention=ulysses_ring", "4 ranks: 2;")
    refused(cwd, words("ranks=8", "attention=ring", "ulysses_shards=2"), "attention=ring", "ulysses_shards")
    refused(cwd, words("ranks=8", "ring_direction=back"), "ring_direction=back", ", ".join(words_of(PROGRAM, "generate", "ring_direction")))
    refused(cwd, words("ranks=8", "ulysses_attention_chunks=0"), "ulysses_attention_chunks=0")
    refused(cwd, words("ranks=8", "fsdp_parallelism=3"), "fsdp_parallelism=3", "1, 2, 4, 8")


@test
def a_named_topology_binds_every_number_of_ranks(cwd):
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=1,2,4,8", "attention=ulysses_ring")
    assert [p["ranks"] for p in document["plans"]] == [4, 8], document["plans"]
    assert [n.split(":")[0] for n in document["notes"] if "Not possible" in n] == \
        ["Not possible on 1 rank", "Not possible on 2 ranks"], document["notes"]
    document = answer(cwd, *LARGE, "hardware=h100_8", "ranks=8", "attention=ulysses", "objective=throughput")
    assert {c["data"] for c in document["plans"][0]["candidates"] if c["verdict"] != "illegal"} == {1}, document


@test
def a_profile_with_a_bad_figure_is_refused(cwd):
    profile = pathlib.Path(cwd) / "mine.yml"
    profile.write_text("devices: 2\nmemory: 80\n")
    refused(cwd, plan(cwd, *LARGE, "hardware=mine.yml", "ranks=2"), "mine.yml", "memory_bandwidth", left=("mine.yml",))
    profile.write_text(two_hosts().replace("memory: 8\n", "memory: -8\n"))
    refused(cwd, plan(cwd, *LARGE, "hardware=mine.yml", "ranks=2"), "mine.yml", "memory", "-8", left=("mine.yml",))


def two_hosts():
    """As `mpirun zoetrope calibrate` leaves it: two ranks of a thread on each of two hosts, far apart."""
    return ("description: measured\ndevices: 4\nmemory: 8\nmemory_bandwidth: 10\nlayer_overhead: 40\ntoken_seconds: 8\n"
            "host_read: 1\ndevices_per_host: 2\n"
            "bf16: {peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5}\n"
            "float32: {peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5}\n"
            "links:\n  - {name: host, members: 2, kind: bus, bandwidth: 10, latency: 1, overlap: 0}\n"
            "  - {name: cluster, members: 2, kind: switch, bandwidth: 1, latency: 50}\n"
            "calibration: {cpu: another, hosts: 2, ranks: 4, threads: 1, date: 2026-01-02}\n")


@test
def under_mpirun_it_is_refused(cwd):
    result = run(["mpirun", "-n", "2", PROGRAM, "plan", *LARGE, "hardware=h100_8", "ranks=8"], cwd, env=MPI_ENV)
    refused(cwd, result, "without mpirun")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
