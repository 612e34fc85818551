#!/usr/bin/env python3
"""dtype=int8 and attention_dtype=int8 as users see them.

    int8_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    int8_test.py --list                the names
"""
import array
import functools
import json
import pathlib
import re
import shutil
import signal
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import files_in, generate, read_tensors, refused, run, run_script  # noqa: E402

TESTS = {}
INT8 = ["dtype=int8", "int8_layers=all", "deterministic=true"]


def test(function):
    TESTS[function.__name__] = function
    return function


def made(cwd, *words, model=None, processes=0):
    folder = pathlib.Path(cwd) / "run"
    folder.mkdir()
    command = [harness.PROGRAM, "generate", model or harness.MODEL, *harness.SMALL, "output=a.png", "dump=dump", *words]
    if processes:
        command = ["mpirun", "-n", str(processes), *command]
    result = run(command, folder, env=harness.MPI_ENV if processes else None)
    assert result.returncode == 0, result.stderr
    tensors = read_tensors(folder / "dump" / "run.safetensors")
    shutil.rmtree(folder)
    return tensors, result.stdout + result.stderr


def last_latents(tensors):
    steps = [int(name.split(".")[1]) for name in tensors if name.startswith("latents.") and name[8:].isdigit()]
    return array.array("f", tensors[f"latents.{max(steps)}"][2])


def first_velocity(cwd, *words, model=None):
    return array.array("f", made(cwd, "deterministic=true", *words, model=model)[0]["velocity.0"][2])


def distance(a, b):
    error = sum((x - y) ** 2 for x, y in zip(a, b))
    return (error / sum(y * y for y in b)) ** 0.5


@test
def ranks_and_ways_to_hold_weights_give_the_same_bits(cwd):
    one, said = made(cwd, *INT8)
    assert "bf16, 2 of 2 blocks multiply in int8" in said, said
    cache = "weight_cache=" + str(pathlib.Path(cwd) / "cache")
    ways = [["ranks=2", "data_parallelism=2"], ["ranks=2", "data_parallelism=1", "attention=ulysses"],
            ["ranks=4", "data_parallelism=2", "attention=ulysses"], ["weights_in_memory=as_stored"],
            ["weight_memory=0.001"], [cache], [cache], [cache, "weight_memory=0.001"]]
    for words in ways:
        assert made(cwd, *INT8, *words)[0] == one, words
    assert files_in(pathlib.Path(cwd) / "cache"), "no cache was written"
    if shutil.which("mpirun") is not None:
        for words in (["fsdp_parallelism=2"], ["data_parallelism=1"]):
            assert made(cwd, *INT8, "attention=ulysses", *words, processes=2)[0] == one, words


@test
def wide_layers_over_ranks_are_verified(cwd):
    """Layers of several groups, which are rotated, also where ranks share them."""
    model = harness.configs_only(cwd)
    path = model / "transformer/config.json"
    config = json.loads(path.read_text())
    config.update(num_layers=3, ffn_dim=1300, num_attention_heads=8, attention_head_dim=64)
    path.write_text(json.dumps(config))
    words = [*harness.SMALL, "weights=random", *INT8]
    for layout in (["ranks=1"], ["ranks=2", "data_parallelism=1", "tensor_parallelism=2"],
                   ["ranks=4", "data_parallelism=1", "tensor_parallelism=2", "attention=ring"]):
        result = run([harness.PROGRAM, "verify", model, *words, *layout], cwd)
        assert result.returncode == 0 and "Every value is inside its bound" in result.stdout, result.stdout + result.stderr
    one = made(cwd, *words[len(harness.SMALL):], model=model)[0]
    for layout in (["weight_memory=0.019"], ["ranks=2", "data_parallelism=1", "attention=ulysses"]):
        assert made(cwd, *words[len(harness.SMALL):], *layout, model=model)[0] == one, layout
    if shutil.which("mpirun") is not None:
        assert made(cwd, *words[len(harness.SMALL):], "attention=ulysses", "fsdp_parallelism=2", model=model,
                    processes=2)[0] == one


@test
def is_near_bf16_and_not_it(cwd):
    """Two blocks of small matrices: a product is off by 1 %, bf16 by up to 1.4 % at the end of a recorded run."""
    exact, bf16, int8 = (last_latents(made(cwd, "deterministic=true", *words)[0])
                         for words in (["dtype=float32"], ["dtype=bf16"], ["dtype=int8", "int8_layers=all"]))
    one_block = last_latents(made(cwd, "deterministic=true", "dtype=int8", "int8_layers=1")[0])
    assert 0 < distance(int8, bf16) and 0 < distance(one_block, bf16)
    assert distance(int8, exact) <= 3 * max(distance(bf16, exact), 0.01), (distance(int8, exact), distance(bf16, exact))
    assert one_block != int8


def quantised_model(cwd, group):
    """The model with its blocks' matrices as int8, rotated in groups, and the values of these as float32."""
    folders = [pathlib.Path(cwd) / name for name in ("int8", "values")]
    for folder in folders:
        shutil.copytree(harness.MODEL, folder)
        for file in (folder / "transformer").glob("*.safetensors*"):
            file.unlink()
    tensors = {}
    for file in sorted((pathlib.Path(harness.MODEL) / "transformer").glob("*.safetensors")):
        tensors.update(read_tensors(file))
    stored, values = {}, {}
    for name, (dtype, shape, data) in tensors.items():
        if not (name.startswith("blocks.") and name.endswith(".weight") and len(shape) == 2):
            stored[name] = values[name] = (dtype, shape, data)
            continue
        assert dtype == "F32", dtype
        weights, columns, scales = array.array("f", data), shape[1], array.array("f")
        codes, plain = array.array("b"), array.array("f")
        for row in range(shape[0]):
            x = rotated(weights[row * columns:(row + 1) * columns], group)
            scales.append(max(map(abs, x)) / 127)
            q = [round(value / scales[-1]) for value in x]
            codes.extend(q)
            plain.extend(value * scales[-1] for value in rotated(q, group))
        stored[name] = ("I8", shape, codes.tobytes())
        stored[name[:-len("weight")] + "weight_scale"] = ("F32", [shape[0], 1], scales.tobytes())
        text = json.dumps({"format": "int8_tensorwise", **({"convrot": True, "convrot_groupsize": group} if group else {})})
        stored[name[:-len("weight")] + "comfy_quant"] = ("U8", [len(text)], text.encode())
        values[name] = ("F32", shape, plain.tobytes())
    for folder, of in zip(folders, (stored, values)):
        harness.write_tensors(folder / "transformer/diffusion_pytorch_model.safetensors", of)
    return folders


def rotated(x, group):
    """ConvRot, docs/spec/weights.md section 4.4: its own inverse."""
    x, step = list(x), 1
    while step < group:
        for i in range(len(x)):
            if i // step % 4 == 0:
                a, b, c, d = (x[i + j * step] for j in range(4))
                total = a + b + c + d
                for j, across in enumerate((d, c, b, a)):
                    x[i + j * step] = (total - 2 * across) / 2
        step *= 4
    return x


@test
def int8_files_are_multiplied_as_they_are(cwd):
    """Rounded once, in the file: nearer to the file's values than values that are rounded to int8 again. Without ConvRot
    they are rounded again, because activations would not be rotated."""
    for group in (0, 16):
        files, values = quantised_model(cwd, group)
        # Of the first velocity, because guidance and further steps add to what bf16 is off, which hides the difference.
        exact, direct, again, bf16 = (first_velocity(cwd, "guidance_scale=1", *words, model=model) for words, model in
                                      ((["dtype=float32"], values), (INT8, files), (INT8, values), (["dtype=bf16"], values)))
        errors = distance(direct, exact), distance(again, exact)
        assert errors[0] < 0.95 * errors[1] if group else errors[0] == errors[1], (group, errors)
        assert distance(direct, bf16) > 0
        latents = last_latents(made(cwd, *INT8, model=files)[0])
        cache = "weight_cache=" + str(pathlib.Path(cwd) / f"cache{group}")
        for words in ([cache], [cache], ["weight_memory=0.001"], ["ranks=2", "data_parallelism=1", "attention=ulysses"]):
            assert last_latents(made(cwd, *INT8, *words, model=files)[0]) == latents, words
        result = run([harness.PROGRAM, "verify", files, *harness.SMALL, *INT8, "ranks=2", "data_parallelism=1",
                      "tensor_parallelism=2"], cwd)
        assert result.returncode == 0, result.stdout + result.stderr
        for folder in (files, values):
            shutil.rmtree(folder)


def guided(norms, guidance):
    c, u, product = (norms[key] for key in ("conditional", "unconditional", "product"))
    return guidance ** 2 * c + (guidance - 1) ** 2 * u - 2 * guidance * (guidance - 1) * product


def error_of(at, norms, guidance):
    """Relative L2 of the velocity, guidance included."""
    return (guided(norms, guidance) / guided(at["velocity"], guidance)) ** 0.5


def apart_by(error):
    """Of that relative L2 with any guidance, where the velocity has the same branches."""
    return dict.fromkeys(("conditional", "unconditional", "product"), error ** 2)


@test
def blocks_are_chosen_within_a_budget(cwd):
    """The errors that `zoetrope int8` prints and stores decide, for the model that they were measured of."""
    file = pathlib.Path(cwd) / "int8.json"
    said_no = functools.partial(refused, cwd, left=("int8.json", "configs"))
    measure = [harness.PROGRAM, "int8", harness.MODEL, "num_timesteps=2", f"int8_calibration={file}"]
    plots = pathlib.Path(cwd) / "plots"
    result = run([*measure, f"svg={plots}"], cwd)
    assert [p.name for p in plots.iterdir()] == ["int8-1.svg"], result.stderr
    plot = (plots / "int8-1.svg").read_text()
    assert plot.count('class="bar ') == 2 and "one block of the transformer in int8" in plot, plot
    shutil.rmtree(plots)
    assert result.returncode == 0 and "blocks that fit" in result.stdout, result.stdout + result.stderr
    (entry,) = json.loads(file.read_text())["transformers"]
    assert [at["timestep"] for at in entry["errors"]] == [525, 50]
    for at in entry["errors"]:
        assert abs(at["velocity"]["conditional"] - 1) < 1e-9 and len(at["blocks"]) == 2, at
        for guidance, most in ((1, 0.02), (5, 0.1)):
            rounding, everything = (error_of(at, at[key], guidance) for key in ("rounding", "all"))
            assert 0 < rounding < everything < most, (guidance, at)
            assert all(0 < error_of(at, block, guidance) < everything for block in at["blocks"]), (guidance, at)

    def of_one_block(guidance):
        """Predicted, of each block alone."""
        errors = []
        for i in (0, 1):
            of_timesteps = []
            for at in entry["errors"]:
                rounding, everything = (error_of(at, at[key], guidance) for key in ("rounding", "all"))
                blocks = [error_of(at, block, guidance) ** 2 for block in at["blocks"]]
                of_timesteps.append((rounding ** 2 + (everything ** 2 - rounding ** 2) * blocks[i] / sum(blocks)) ** 0.5)
            errors.append(max(of_timesteps))
        return errors

    chosen = ["dtype=int8", "int8_layers=auto", f"int8_calibration={file}"]
    errors = of_one_block(5)
    best = errors.index(min(errors))
    both = max(error_of(at, at["all"], 5) for at in entry["errors"]) * 1.01
    one, none = min(errors) * 1.01, min(errors) * 0.99
    assert one < both
    tensors, said = made(cwd, *chosen, f"budget={one}", "deterministic=true")
    assert f"1 of 2 blocks multiply in int8 ({best}; predicted" in said, said
    assert tensors == made(cwd, "dtype=int8", f"int8_layers={best}", "deterministic=true")[0]
    assert "2 of 2 blocks multiply in int8 (0-1; predicted" in made(cwd, *chosen, f"budget={both}")[1]
    result = generate(cwd, *chosen, f"budget={none}", "output=a.gif")
    said_no(result, f"budget={none}", "one block")
    least = result.stderr.split("of the transformer by ")[1].split()[0]
    assert "1 of 2 blocks multiply in int8" in made(cwd, *chosen, f"budget={least}")[1]
    # Guidance is what adds errors up, so without it a third of that budget is enough. Where none is set, a forward has 2 %.
    assert "1 of 2 blocks multiply in int8" in made(cwd, *chosen, f"budget={min(of_one_block(1)) * 1.01}",
                                                    "guidance_scale=1")[1]
    assert min(of_one_block(1)) < none / 3
    said_no(generate(cwd, *chosen, f"budget={one}", "guidance_scale=8", "output=a.gif"), "with guidance 8,")
    said = made(cwd, *chosen)[1]
    assert "2 of 2 blocks multiply in int8 (0-1; predicted" in said, said
    assert abs(float(said.split("; predicted ")[1].split(" %")[0]) / 100 - both / 1.01) < 0.002, said
    # What a run is off, at its first step and near its end, is what was predicted.
    sigmas = "flow_shift=1", "sigmas=1,0.8,0.6,0.4,0.2,0.05"
    bf16 = made(cwd, "dtype=bf16", *sigmas)[0]
    for step, sigma, at in ((0, 1, entry["errors"][0]), (5, 0.05, entry["errors"][1])):
        latents = pathlib.Path(cwd) / "latents.safetensors"
        harness.write_tensors(latents, {"latents.init": bf16[f"latents.{step - 1}" if step else "latents.init"]})
        alone = "flow_shift=1", f"sigmas={sigma}", f"latents={latents}"
        off = distance(first_velocity(cwd, *chosen, f"budget={both}", *alone),
                       first_velocity(cwd, "dtype=bf16", *alone))
        assert error_of(at, at["all"], 5) / 1.5 < off < 1.5 * error_of(at, at["all"], 5), (step, off, at)
        latents.unlink()
    # plan and inspect know the weights that were measured, and what a run writes needs no measurement.
    plan = run([harness.PROGRAM, "plan", harness.MODEL, *harness.SMALL[1:], *chosen, f"budget={one}", "ranks=1"], cwd)
    assert "blocks multiply in int8 (" in plan.stdout and f" int8_layers=auto budget={one} " in plan.stdout, plan.stdout + plan.stderr
    words = [*chosen, f"budget={one}", "deterministic=true", "certificate=c.json"]
    result = run([harness.PROGRAM, "verify", harness.MODEL, *harness.SMALL, *words], cwd)
    assert result.returncode == 0, result.stderr
    settings = json.loads((pathlib.Path(cwd) / "c.json").read_text())["settings"]
    assert settings["int8_layers"] == str(best) and not settings.get("int8_calibration") and not settings.get("budget"), settings
    file.rename(file.with_name("away.json"))
    result = run([harness.PROGRAM, "verify", harness.MODEL, "certificate=c.json"], cwd)
    assert result.returncode == 0, result.stderr
    file.with_name("away.json").rename(file)
    (pathlib.Path(cwd) / "c.json").unlink()
    for _ in range(2):  # the second is compared with the first
        words = ["cache=drift", "guidance_scale=5", "budget=0.5", "certificate=c.json"]
        result = run([harness.PROGRAM, "verify", harness.MODEL, *harness.SMALL, *words], cwd)
        assert result.returncode == 0, result.stderr
    (pathlib.Path(cwd) / "c.json").unlink()
    # What int8 leaves of a budget is the step cache's.
    cache = ["cache=drift", "guidance_scale=5"]
    spent = float(made(cwd, *chosen, f"budget={both}")[1].split("int8 (0-1; predicted ")[1].split(" %")[0]) / 100
    said = made(cwd, *chosen, "budget=0.5", *cache)[1]
    left = float(said.split("step cache drift, threshold ")[1].split()[0])
    assert abs(left - (0.25 - spent ** 2) ** 0.5) < 0.01, (left, spent, said)
    # Another model, broken and missing files, and keys that mean nothing.
    said_no(generate(cwd, *chosen, "layers=1", "output=a.gif"), "int8_layers=auto", "no errors of the transformer",
            "zoetrope int8")
    said_no(run([*measure, "height=32"], cwd), "height=32", "means nothing to int8")
    said_no(run([*measure, "guidance_scale_2=3"], cwd), "guidance_scale_2", "one expert")
    said_no(run([*measure, "dtype=bf16"], cwd), "dtype=bf16", "every block against bf16")
    said_no(run([*measure, "int8_layers=0"], cwd), "int8_layers=0", "every block against bf16")
    large = [harness.PROGRAM, "int8", "model=wan2.1_t2v_14b", "weights=random", "memory_limit=1"]
    said_no(run(large, cwd), "bf16 take 28.6 GB", "memory_limit is 1.00 GB", "weight_memory=")
    said_no(run([*measure[:-1], "int8_calibration=" + str(pathlib.Path(harness.MODEL) / "model_index.json")], cwd),
            "model_index.json", "name another file")
    file.write_text(file.read_text().replace("rounding", "x"))
    said_no(run(measure, cwd), "int8.json", "errors[0].rounding' is missing", "delete it")
    said_no(generate(cwd, *chosen[:2], "int8_calibration=none.json", "output=a.gif"), "none.json", "no such file")
    said_no(generate(cwd, "int8_calibration=none.json", "output=a.gif"), "int8_layers=auto")
    said_no(generate(cwd, "budget=0.1", "output=a.gif"), "budget=0.1", "nothing is chosen by it")
    said_no(generate(cwd, "dtype=int8", "int8_layers=all", "budget=0.1", *cache, "output=a.gif"), "int8_layers=all",
            "not known")
    said_no(generate(cwd, *chosen, "budget=0.5", "cache=sen", "output=a.gif"), "what cache=sen", "spends of it is not known", "cache=drift")
    said_no(generate(cwd, *chosen, "budget=0.5", "kv_exchange_dtype=int8", "output=a.gif"),
            "what kv_exchange_dtype=int8", "spends of it is not known")
    said_no(generate(cwd, *cache, "budget=0.5", "cache_threshold=0.1", "output=a.gif"), "decides what cache=drift", "leave out cache_threshold=0.1")


@test
def each_expert_spends_a_budget_for_its_guidance(cwd):
    file = pathlib.Path(cwd) / "int8.json"
    model = str(pathlib.Path(harness.MODEL).with_name("wan22_t2v"))
    refused(cwd, run([harness.PROGRAM, "int8", model, "boundary_ratio=0.04"], cwd), "leaves the transformer_2 nothing above timestep 50")
    homeless = {"env": {"HOME": "", "XDG_CACHE_HOME": ""}}
    refused(cwd, generate(cwd, "dtype=int8", "int8_layers=auto", "output=a.gif", **homeless), "neither XDG_CACHE_HOME nor HOME")
    result = run([harness.PROGRAM, "int8", model, "num_timesteps=1", f"int8_calibration={file}", "guidance_scale_2=1"], cwd)
    assert result.returncode == 0, result.stderr
    of_recipe = run([harness.PROGRAM, "int8", model, "num_timesteps=1", "int8_calibration=r.json", "recipe=lightning_4"], cwd)
    for said, wanted in ((result, ["with guidance 5", "without guidance"]), (of_recipe, ["without guidance"] * 2)):
        titles = [line.rsplit(", ", 1)[1] for line in said.stdout.splitlines() if line.startswith("transformer")]
        assert titles == wanted, said.stdout + said.stderr
    (pathlib.Path(cwd) / "r.json").unlink()
    document = json.loads(file.read_text())
    for expert in document["transformers"]:
        for block, error in zip(expert["errors"][0]["blocks"], (0.01, 0.03)):
            block.update(conditional=error ** 2, unconditional=error ** 2, product=0)
        expert["errors"][0].update(velocity=apart_by(1), rounding=apart_by(0),
                                   all={"conditional": 0.001, "unconditional": 0.001, "product": 0})
    file.write_text(json.dumps(document))
    words = ["dtype=int8", "int8_layers=auto", f"int8_calibration={file}", "guidance_scale=5"]
    for second, low in ((1, "2 of 2 blocks multiply in int8 (0-1;"), (5, "")):
        said = made(cwd, *words, "budget=0.07", f"guidance_scale_2={second}", model=model)[1]
        assert "1 of 2 blocks multiply in int8 (0; predicted 6.4 %" in said and low in said, said
    result = run([harness.PROGRAM, "generate", model, *harness.SMALL, *words, "budget=0.07", "guidance_scale_2=8",
                  "output=a.gif"], cwd)
    refused(cwd, result, "budget=0.07", "of the transformer_2 by 0.107 with guidance 8", left=["int8.json"])
    for expert in document["transformers"]:
        expert["errors"][0]["blocks"][0].update(apart_by(0.025))
    file.write_text(json.dumps(document))
    result = run([harness.PROGRAM, "generate", model, *harness.SMALL, *words, "output=a.gif"], cwd)
    refused(cwd, result, "no budget is set", "0.02 of one forward is too little", "with guidance 5", left=["int8.json"])
    document["zoetrope_int8"] = 2
    file.write_text(json.dumps(document))
    result = run([harness.PROGRAM, "generate", model, *harness.SMALL, *words, "output=a.gif"], cwd)
    refused(cwd, result, "or is of another version; measure them", left=["int8.json"])


@test
def a_run_within_a_budget_is_verified(cwd):
    """Also where the time of one rank is predicted first, and a certificate is checked with blocks that are named."""
    file = pathlib.Path(cwd) / "int8.json"
    assert run([harness.PROGRAM, "int8", harness.MODEL, "num_timesteps=1", f"int8_calibration={file}"], cwd).returncode == 0
    verify = [harness.PROGRAM, "verify", harness.MODEL, f"int8_calibration={file}", "attention_dtype=int8", "budget=0.5"]
    for words in (["dtype=int8", "int8_layers=auto"], ["dtype=bf16"]):
        result = run([*verify, *harness.SMALL, "hardware=h100_8", *words], cwd)
        assert result.returncode == 0 and "Every value is inside its bound" in result.stdout, result.stdout + result.stderr
    words = [harness.PROGRAM, "verify", harness.MODEL, "certificate=c.json"]
    result = run([*words, *harness.SMALL, "dtype=int8", "int8_layers=1", "cache=drift", "cache_threshold=0.05"], cwd)
    assert result.returncode == 0, result.stderr
    result = run([*words, "int8_layers=1"], cwd)
    assert result.returncode == 0, result.stderr


@test
def bounds_are_those_of_an_expert_s_own_blocks(cwd):
    model = str(pathlib.Path(harness.MODEL).with_name("wan22_t2v"))
    result = run([harness.PROGRAM, "verify", model, *harness.SMALL, "num_inference_steps=4", "dtype=int8", "int8_layers=0/all",
                  "certificate=c.json"], cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads((pathlib.Path(cwd) / "c.json").read_text())
    of = {"transformer": set(), "transformer_2": set()}
    for value in document["float64"]["worst"]:
        if value["tensor"].startswith("block.1."):
            of[value["place"].split(", ")[1]].add(value["bound"])
    assert of["transformer"] | of["transformer_2"], document["float64"]["worst"]
    assert all(bound < 0.05 for bound in of["transformer"]), of
    assert all(bound > 0.05 for bound in of["transformer_2"]), of


@test
def steps_that_nothing_was_measured_for_are_counted(cwd):
    file = pathlib.Path(cwd) / "int8.json"
    model = str(pathlib.Path(harness.MODEL).with_name("wan22_t2v"))
    assert run([harness.PROGRAM, "int8", model, f"int8_calibration={file}"], cwd).returncode == 0
    words = ["dtype=int8", "int8_layers=auto", f"int8_calibration={file}", "budget=0.5", "num_inference_steps=10"]
    said = made(cwd, *words, model=model)[1]
    assert "predicted" in said and "nearer" not in said, said
    said = made(cwd, *words, "boundary_ratio=0.5", model=model)[1]
    assert re.search(r"per step; [1-9]\d* steps? nearer to the video than was measured, with larger errors: repeat `zoe", said), said
    said = made(cwd, *words, "flow_shift=0.1", model=model)[1]
    assert re.search(r"per step; [1-9]\d* steps? nearer to the video than was measured, with larger errors\)", said), said


@test
def random_weights_of_two_experts_are_apart(cwd):
    """Their configs are the same, and their values are not."""
    file = pathlib.Path(cwd) / "int8.json"
    shutil.copytree(pathlib.Path(harness.MODEL).with_name("wan22_t2v"), pathlib.Path(cwd) / "model",
                    ignore=shutil.ignore_patterns("*.safetensors"))
    result = run([harness.PROGRAM, "int8", "model", "weights=random", "num_timesteps=1", f"int8_calibration={file}"], cwd)
    assert result.returncode == 0, result.stderr
    assert len({expert["weights"] for expert in json.loads(file.read_text())["transformers"]}) == 2


@test
def a_journal_holds_what_a_budget_chose(cwd):
    file = pathlib.Path(cwd) / "int8.json"
    assert run([harness.PROGRAM, "int8", harness.MODEL, "num_timesteps=1", f"int8_calibration={file}"], cwd).returncode == 0
    words = [harness.PROGRAM, "generate", harness.MODEL, *harness.SMALL, "seed=5", "num_inference_steps=200", "dtype=int8",
             "int8_layers=auto", f"int8_calibration={file}", "budget=0.5", "cache=drift", "cache_threshold=0.1",
             "cache_threshold=default"]
    assert run([*words, "output=whole.gif"], cwd).returncode == 0
    with harness.Paused(cwd, [*words, "output=rest.gif", "journal=j"]) as paused:
        paused.until("Denoise: step 20 of")
        paused.send(signal.SIGKILL)
        assert paused.release().returncode == -signal.SIGKILL
    file.unlink()
    refused(cwd, run([harness.PROGRAM, "generate", "resume=j", "budget=0.4"], cwd), "budget=0.4",
            "holds what budget=0.5 chose", left=files_in(cwd))
    result = run([*words, "resume=j", "output=rest.gif"], cwd)  # said again
    assert result.returncode == 0 and "Goes on after step" in result.stderr, result.stderr
    whole, rest = ((pathlib.Path(cwd) / name).read_bytes() for name in ("whole.gif", "rest.gif"))
    assert whole == rest


@test
def attention_is_part_of_a_budget(cwd):
    """What int8 attention does to the velocity is spent before blocks and caches, by the heads that leave room for them."""
    file = pathlib.Path(cwd) / "int8.json"
    said_no = functools.partial(refused, cwd, left=("int8.json",))
    result = run([harness.PROGRAM, "int8", harness.MODEL, "num_timesteps=1", f"int8_calibration={file}"], cwd)
    assert result.returncode == 0 and "\n attention " in result.stdout, result.stdout + result.stderr
    document = json.loads(file.read_text())
    (at,) = document["transformers"][0]["errors"]
    limits = document["transformers"][0]["attention_limits"]
    assert limits[0] == 0.05 and len(at["attention"]) == len(limits) > 2, at
    assert 0 < error_of(at, at["attention"][0], 5) < 0.1, at
    at.update(velocity=apart_by(1), blocks=[apart_by(0.01), apart_by(0.02)], all=apart_by(0.05 ** 0.5 / 10),
              rounding=apart_by(0), attention=[apart_by(0.03)] * len(limits))
    file.write_text(json.dumps(document))
    blocks = ["dtype=int8", "int8_layers=auto", f"int8_calibration={file}"]
    for budget, alone, beside in ((0.025, "2 of 2", None), (0.0325, "2 of 2", "1 of 2"), (0.04, "2 of 2", "2 of 2")):
        assert f"{alone} blocks multiply in int8" in made(cwd, *blocks, f"budget={budget}")[1], budget
        words = [*blocks, f"budget={budget}", "attention_dtype=int8"]
        if beside:
            said = made(cwd, *words)[1]
            assert f"{beside} blocks multiply in int8" in said, (budget, said)
            assert f"attention in int8 up to {100 * limits[-1]:.3g} % a head" in said, "of equal errors the smallest limit"
        else:
            said_no(generate(cwd, *words, "output=a.gif"), "one block", "and attention in int8", "0.0317")
    # Fewer heads, where all of them leave no room for a block. No head at all is no choice.
    all_heads, said = made(cwd, "dtype=int8", "int8_layers=0", "deterministic=true", "attention_dtype=int8")
    largest = float(said.split("of heads, off by ")[1].split(" %")[0]) / 100
    limits[1:] = [round(share * largest, 6) for share in (0.9, 0.8, 0.02, 0.01)][:len(limits) - 1]
    at["attention"][1:] = map(apart_by, [0.028, 0.02] + [0] * (len(limits) - 3))
    file.write_text(json.dumps(document))
    words = [*blocks, "attention_dtype=int8", "deterministic=true"]
    made_with = []
    for budget, limit in ((0.04, limits[0]), (0.03, limits[1]), (0.025, limits[2])):
        tensors, said = made(cwd, *words, f"budget={budget}")
        assert f"attention in int8 up to {100 * limit:.3g} % a head" in said, (budget, said)
        made_with.append(tensors)
        assert tensors == made(cwd, "dtype=int8", "int8_layers=0" + ("-1" if budget == 0.04 else ""), "deterministic=true",
                               "attention_dtype=int8", f"attention_int8_limit={limit}")[0]
    assert made_with[1] != all_heads
    said_no(generate(cwd, *words, "budget=0.02", "output=a.gif"), "one block", "and attention in int8", "0.0224")
    for limit in (0.02, 0.05):
        said_no(generate(cwd, *words, "budget=0.04", f"attention_int8_limit={limit}", "output=a.gif"),
                f"attention_int8_limit={limit}", "budget= chooses it")
    at["attention"] = [apart_by(0.03)] * len(limits)
    file.write_text(json.dumps(document))
    # A cache gets what is left, also in bf16.
    words = ["dtype=bf16", "attention_dtype=int8", f"int8_calibration={file}", "cache=drift", "guidance_scale=5"]
    said = made(cwd, *words, "budget=0.05")[1]
    assert f"attention in int8 up to {100 * limits[-1]:.3g} % a head (predicted 3 % off bf16 per step)" in said and "step cache drift, threshold 0.04" in said, said
    said_no(generate(cwd, *words, "budget=0.02", "output=a.gif"), "alone changes the velocity", "by 0.0301 ", "out")
    said_no(generate(cwd, *words[1:], "dtype=float32", "budget=0.05", "output=a.gif"), "computed in float32")
    said_no(generate(cwd, *words[:3], "budget=0.02", "output=a.gif"), "alone changes the velocity")
    assert "(predicted 3 % off bf16 per step)" in made(cwd, *words[:3], "budget=0.0301")[1]
    document["transformers"][0]["attention_limits"] = at["attention"] = []
    file.write_text(json.dumps(document))
    said_no(generate(cwd, *words, "budget=0.05", "output=a.gif"), "has no error of it", "zoetrope int8")
    # Experts share a limit.
    experts = str(pathlib.Path(harness.MODEL).with_name("wan22_t2v"))
    result = run([harness.PROGRAM, "int8", experts, "num_timesteps=1", f"int8_calibration={file}"], cwd)
    assert result.returncode == 0, result.stderr
    document = json.loads(file.read_text())
    document["transformers"][-1]["attention_limits"][-1] *= 0.5
    file.write_text(json.dumps(document))
    result = run([harness.PROGRAM, "generate", experts, *harness.SMALL, *words[:3], "budget=0.5", "output=a.gif"], cwd)
    said_no(result, "at other limits than", "zoetrope int8")


@test
def ranks_that_chose_otherwise_are_refused(cwd):
    """Each process reads a file of its own: another choice is another model."""
    if shutil.which("mpirun") is None:
        raise harness.Skip("mpirun is not installed")
    file = pathlib.Path(cwd) / "int8.json"
    result = run([harness.PROGRAM, "int8", harness.MODEL, "num_timesteps=1", f"int8_calibration={file}"], cwd)
    assert result.returncode == 0, result.stderr
    words = json.loads(file.read_text())
    for rank, errors in enumerate(([0.001, 0.5], [0.5, 0.001])):
        words["transformers"][0]["errors"][0].update(velocity=apart_by(1), blocks=list(map(apart_by, errors)),
                                                     all=apart_by(0.5), rounding=apart_by(0))
        folder = pathlib.Path(cwd) / f"cache{rank}" / "zoetrope"
        folder.mkdir(parents=True)
        (folder / "int8.json").write_text(json.dumps(words))
    script = pathlib.Path(cwd) / "rank.sh"
    script.write_text(f'XDG_CACHE_HOME={cwd}/cache$OMPI_COMM_WORLD_RANK exec "$@"\n')
    result = run(["mpirun", "-n", "2", "sh", script, harness.PROGRAM, "generate", harness.MODEL, *harness.SMALL,
                  "dtype=int8", "int8_layers=auto", "output=a.png"], cwd, env=harness.MPI_ENV)
    assert result.returncode != 0, result.stdout
    assert "rank 1 has int8_layers=1 where rank 0 has int8_layers=0" in result.stderr, result.stderr


@test
def experts_are_priced_by_their_own_blocks(cwd):
    def seconds(layers):
        result = run([harness.PROGRAM, "plan", "wan2.2_t2v_a14b", "ranks=1", "hardware=cpu", "json=p.json", "dtype=int8",
                      f"int8_layers={layers}", "what_if.bf16.int8_gain=2"], cwd)
        assert result.returncode == 0 and "no bf16.int8_gain" not in result.stdout, result.stderr + result.stdout
        return json.loads((pathlib.Path(cwd) / "p.json").read_text())["plans"][0]["candidates"][0]["seconds_per_step"]

    one, every = seconds("0"), seconds("all")
    assert every < seconds("0/all") < one and every < seconds("all/0") < one


@test
def bad_words_are_refused(cwd):
    for layers, *words in (("2", "'2'", "blocks 0 to 1"), ("1-", "'1-'"), ("0,,1", "''"), ("-1", "'-1'"), ("1-0", "'1-0'"),
                           ("most", "'most'"), ("", "''"), ("inner", "none of them", "set all")):
        refused(cwd, generate(cwd, "dtype=int8", f"int8_layers={layers}", "output=a.gif"), "int8_layers", *words)
    refused(cwd, generate(cwd, "int8_layers=all", "output=a.gif"), "int8_layers=all", "dtype=int8")
    refused(cwd, generate(cwd, "text_encoder_dtype=int8", "output=a.gif"), "text_encoder_dtype", "bf16, float32")
    refused(cwd, generate(cwd, "vae_dtype=int8", "output=a.gif"), "vae_dtype", "bf16, float32")
    # Two blocks of int8 fit where two of bf16 do not.
    short = [harness.PROGRAM, "plan", "wan2.1_t2v_14b", "ranks=1", "weight_memory=2.2"]
    assert run([*short, "dtype=int8", "int8_layers=all"], cwd).returncode == 0
    refused(cwd, run(short, cwd), "weight_memory=2.2", "at least")
    assert "cpu has no bf16.int8_gain" in run([*short, "hardware=cpu", "dtype=int8", "int8_layers=all"], cwd).stdout
    plan = run([harness.PROGRAM, "plan", "wan2.1_t2v_1.3b", "dtype=int8", "int8_layers=1-40"], cwd)
    refused(cwd, plan, "'1-40'", "blocks 0 to 29", "0-29")


# ---- attention_dtype ----

ATTENTION = ["dtype=bf16", "attention_dtype=int8", "deterministic=true"]


@test
def ranks_that_share_heads_have_the_same_attention_in_int8(cwd):
    one, said = made(cwd, *ATTENTION)
    assert "\nAttention in int8: 100 % of heads, off by " in said, said
    for words in (["ranks=2", "data_parallelism=1", "attention=ulysses"], ["ranks=2", "data_parallelism=2"]):
        other, said = made(cwd, *ATTENTION, *words, "compare_one_rank=true")
        assert other == one and "Attention in int8: 100 % of heads" in said, (words, said)
        assert "Latents against one rank: relative L2 0\n" in said, (words, said)
    if shutil.which("mpirun") is not None:
        assert made(cwd, *ATTENTION, "attention=ulysses", "data_parallelism=1", processes=2)[0] == one


@test
def attention_in_int8_is_verified_over_ranks(cwd):
    for dtype in ("bf16", "int8"):
        words = [f"dtype={dtype}", "attention_dtype=int8", *(["int8_layers=all"] if dtype == "int8" else [])]
        for layout in (["ranks=1"], ["ranks=3", "data_parallelism=1", "attention=ring"],
                       ["ranks=4", "data_parallelism=1", "attention=ulysses_ring_custom_fixed_m"]):
            result = run([harness.PROGRAM, "verify", harness.MODEL, *harness.SMALL, *words, *layout], cwd)
            assert result.returncode == 0 and "Every value is inside its bound" in result.stdout, \
                result.stdout + result.stderr


@test
def attention_in_int8_is_near_bf16_and_not_it(cwd):
    exact, bf16, int8 = (last_latents(made(cwd, "deterministic=true", *words)[0])
                         for words in (["dtype=float32"], ["dtype=bf16"], ["dtype=bf16", "attention_dtype=int8"]))
    assert 0 < distance(int8, bf16)
    assert distance(int8, exact) <= 3 * max(distance(bf16, exact), 0.01), (distance(int8, exact), distance(bf16, exact))


@test
def heads_beyond_a_limit_stay_bf16(cwd):
    bf16, _ = made(cwd, "dtype=bf16", "deterministic=true")
    none, said = made(cwd, *ATTENTION, "attention_int8_limit=0.0001")
    assert none == bf16 and "Attention in int8: 0 % of heads" in said, said
    largest = float(made(cwd, *ATTENTION)[1].split("of heads, off by ")[1].split(" %")[0]) / 100
    some, said = made(cwd, *ATTENTION, f"attention_int8_limit={0.9 * largest}")
    share = float(said.split("Attention in int8: ")[1].split(" %")[0])
    assert 0 < share < 100 and some != bf16, said


@test
def attention_in_int8_is_refused_in_float32(cwd):
    refused(cwd, generate(cwd, "dtype=float32", "attention_dtype=int8", "output=a.gif"), "attention_dtype=int8", "float32")
    refused(cwd, generate(cwd, "attention_dtype=fp8", "output=a.gif"), "attention_dtype", "as_computed, int8")
    refused(cwd, generate(cwd, "attention_int8_limit=0.02", "output=a.gif"), "attention_int8_limit", "attention_dtype=int8")
    refused(cwd, generate(cwd, *ATTENTION, "attention_int8_limit=0", "output=a.gif"), "attention_int8_limit=0")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
