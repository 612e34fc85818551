#!/usr/bin/env python3
"""Weights as a user meets them: random ones, checkpoints of them, the cache on disk, and what is refused.

    weights_test.py PROGRAM MODEL NAME    runs one test
    weights_test.py --list                the names
"""
import json
import os
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import configs_only, copy_model, files_in, generate, latents, refused, run, run_script  # noqa: E402

PROGRAM = None
MODEL = None
TESTS = {}
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, pathlib.Path(model)
    harness.use(program, model)


def synthesize(cwd, *arguments):
    return run([PROGRAM, "synthesize", *arguments], cwd)


@test
def random_weights_need_configs_only(cwd):
    model = configs_only(cwd)
    assert "holds no weights" in generate(cwd, model=model).stderr or "tokenizer" in generate(cwd, model=model).stderr
    for name in ("one", "two"):
        result = generate(cwd, "weights=random", f"output={name}.png", f"dump={name}", model=model)
        assert result.returncode == 0, result.stderr
    assert latents(f"{cwd}/one") == latents(f"{cwd}/two")


@test
def synthesized_checkpoint_computes_what_random_weights_do(cwd):
    model = configs_only(cwd)
    result = synthesize(cwd, model, "out=made", "text_dtype=f32", "weights_seed=7")
    assert result.returncode == 0 and "Wrote made" in result.stdout, result.stderr
    assert "Write transformer: " in result.stderr and "GB/s" in result.stderr, result.stderr
    inspected = run([PROGRAM, "inspect", "made"], cwd)
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr
    for name, arguments, folder in (("random", ["weights=random", "weights_seed=7"], model),
                                    ("other", ["weights=random"], model), ("made_run", [], f"{cwd}/made")):
        result = generate(cwd, *arguments, f"output={name}.png", f"dump={name}", model=folder)
        assert result.returncode == 0, result.stderr
    assert latents(f"{cwd}/random") == latents(f"{cwd}/made_run") != latents(f"{cwd}/other")


@test
def fewer_layers_are_the_first_of_the_model(cwd):
    """By formula and from files alike, over ranks, and said before the run and after it."""
    model = configs_only(cwd)
    for out, layers in (("whole", []), ("short", ["layers=1"])):
        result = synthesize(cwd, model, f"out={out}", "text_dtype=f32", *layers)
        assert result.returncode == 0, result.stderr
    runs = {"formula": (model, "weights=random", "layers=1"), "first": (f"{cwd}/whole", "layers=1"),
            "short_run": (f"{cwd}/short",), "whole_run": (f"{cwd}/whole",),
            "ranks": (f"{cwd}/whole", "layers=1", "ranks=2", "attention=ring", "compare_one_rank=true")}
    for name, (folder, *arguments) in runs.items():
        result = generate(cwd, *arguments, f"output={name}.png", f"dump={name}", model=folder)
        assert result.returncode == 0, result.stderr
        cut = "layers=1" in arguments
        assert ("1 of 2 layers" in result.stderr) == cut, result.stderr
        assert ("the video is not the model's" in result.stdout) == cut, result.stdout
    assert float(re.search(r"one rank: relative L2 (\S+)", result.stdout).group(1)) <= 1e-5, result.stdout
    assert latents(f"{cwd}/formula") == latents(f"{cwd}/first") == latents(f"{cwd}/short_run")
    assert latents(f"{cwd}/first") != latents(f"{cwd}/whole_run")


@test
def a_cache_of_another_number_of_layers_is_never_used(cwd):
    for layers in (["layers=1"], [], ["layers=1"], []):
        cached(cwd, "cached", *layers)
        plain = generate(cwd, *layers, "output=plain.png", "dump=plain")
        assert plain.returncode == 0, plain.stderr
        assert latents(f"{cwd}/cached") == latents(f"{cwd}/plain"), layers
    assert len(list((pathlib.Path(cwd) / "cache").iterdir())) == 2, files_in(cwd)


@test
def layers_that_the_model_has_not_are_refused(cwd):
    for layers, words in (("3", ["the model has only 2"]), ("0", ["1 to 1000"]), ("-1", ["1 to 1000"])):
        refused(cwd, generate(cwd, f"layers={layers}", "output=a.gif"), f"layers={layers}", *words)


@test
def synthesize_refuses_with_a_sentence(cwd):
    model = configs_only(cwd)
    (pathlib.Path(cwd) / "there").mkdir()
    for arguments, words in (((model, "out=there"), ("there: exists already",)),
                             ((model,), ("out: name the folder",)),
                             ((model, "out=new", "layers=99"), ("layers=99", "the model has only 2")),
                             ((model, "out=new", "dtype=f16"), ("dtype", "float32", "bf16")),
                             ((model, "out=new", "components=clip"), ("'clip'", "transformer")),
                             (("wan2.1_t2v_1.4b", "out=new"), ("wan2.1_t2v_1.4b", "wan2.1_t2v_14b")),
                             ((model, "out=no/new"), ("there is no folder no",))):
        refused(cwd, synthesize(cwd, *arguments), *words, left=("configs", "there"))


@test
def published_configs_are_known_by_name(cwd):
    result = synthesize(cwd, "wan2.2_t2v_a14b", "out=made", "components=tokenizer")
    assert result.returncode == 0, result.stderr
    assert json.loads((pathlib.Path(cwd) / "made/model_index.json").read_text())["boundary_ratio"] == 0.875
    assert "made/tokenizer/tokenizer.json" in files_in(cwd)


def cached(cwd, name, *arguments):
    result = generate(cwd, "weight_cache=cache", f"output={name}.png", f"dump={name}", *arguments)
    assert result.returncode == 0, result.stderr
    return result


@test
def second_start_uses_the_cache(cwd):
    cached(cwd, "one")
    (file,) = (pathlib.Path(cwd) / "cache").iterdir()
    stamp = file.stat()
    result = cached(cwd, "two")
    assert "weight_cache" not in result.stderr, result.stderr
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns), "it was written again"
    assert latents(f"{cwd}/one") == latents(f"{cwd}/two")
    cached(cwd, "ranks", "ranks=2")
    assert file.stat().st_ino == stamp.st_ino


@test
def damaged_caches_are_said_and_remade(cwd):
    cached(cwd, "one")
    (file,) = (pathlib.Path(cwd) / "cache").iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    for damaged, words in ((whole[:middle], "bytes instead of"),
                           (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:], "is damaged"),
                           (b"", "is cut off")):
        file.write_bytes(damaged)
        result = cached(cwd, "again")
        assert words in result.stderr and "converted again" in result.stderr, result.stderr
        assert file.read_bytes() == whole
        assert latents(f"{cwd}/one") == latents(f"{cwd}/again")


@test
def cache_of_other_weights_is_remade(cwd):
    model = pathlib.Path(cwd) / "model"
    shutil.copytree(MODEL, model)
    cached(cwd, "one", f"model={model}")
    for file in (model / "transformer").glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-2] ^= 0x01  # in the last tensor, which stays finite
        file.write_bytes(data)
    result = cached(cwd, "two", f"model={model}")
    assert "was made from other weights" in result.stderr, result.stderr
    plain = generate(cwd, f"model={model}", "output=plain.png", "dump=plain")
    assert plain.returncode == 0, plain.stderr
    assert latents(f"{cwd}/two") == latents(f"{cwd}/plain") != latents(f"{cwd}/one")
    assert len(list((pathlib.Path(cwd) / "cache").iterdir())) == 1


@test
def files_of_a_transformer_have_caches_of_their_own(cwd):
    """Another file of the same model, as of another quantisation, does not take the place of the first one's cache."""
    cwd = pathlib.Path(cwd)
    files = [cwd / "wan_bf16.safetensors", cwd / "other" / "wan_fp8.safetensors", cwd / "other" / "wan_bf16.safetensors"]
    (cwd / "other").mkdir()
    for file in files:
        in_original_names(MODEL / "transformer", file)
    for count, file in enumerate(files, 1):
        assert "converted again" not in cached(cwd, "first", f"transformer={file}").stderr
        assert len(list((cwd / "cache").iterdir())) == count, files_in(cwd)
    stamps = {path: path.stat().st_mtime_ns for path in (cwd / "cache").iterdir()}
    for file in files:
        assert "weight_cache" not in cached(cwd, "second", f"transformer={file}").stderr
    assert stamps == {path: path.stat().st_mtime_ns for path in (cwd / "cache").iterdir()}


def pixels_of(png):
    """The compressed pixels, without the settings of the file."""
    data, at, pixels = png.read_bytes(), 8, b""
    while at < len(data):
        size, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        pixels += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    return pixels


@test
def weights_replaced_in_place_with_their_times_kept_are_never_mixed(cwd):
    model = pathlib.Path(cwd) / "model"
    shutil.copytree(MODEL, model)
    cached(cwd, "one", f"model={model}")
    for file in (model / "transformer").glob("*.safetensors"):
        before = file.stat()
        data = bytearray(file.read_bytes())
        for at in range(8 + int.from_bytes(data[:8], "little") + 3, len(data), 4):
            data[at] ^= 0x80  # the sign of every float
        with file.open("r+b") as out:
            out.write(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    result = cached(cwd, "two", f"model={model}")
    assert "was made from other weights" in result.stderr and "converted again" in result.stderr, result.stderr
    plain = generate(cwd, f"model={model}", "output=plain.png", "dump=plain")
    assert plain.returncode == 0, plain.stderr
    assert latents(f"{cwd}/two") == latents(f"{cwd}/plain") != latents(f"{cwd}/one")
    frames = {name: [pixels_of(file) for file in sorted(pathlib.Path(cwd).glob(f"{name}-*.png"))]
              for name in ("two", "plain")}
    assert len(frames["two"]) > 1 and frames["two"] == frames["plain"]


@test
def the_cache_of_random_weights_is_that_of_their_seed(cwd):
    for seed, again in ((1, False), (2, True), (2, False)):
        said = cached(cwd, "cached", "weights=random", f"weights_seed={seed}").stderr
        assert ("was made from other weights" in said) == again, said
        plain = generate(cwd, "weights=random", f"weights_seed={seed}", "output=plain.png", "dump=plain")
        assert plain.returncode == 0, plain.stderr
        assert latents(f"{cwd}/cached") == latents(f"{cwd}/plain")


@test
def a_seed_of_weights_that_are_read_is_refused(cwd):
    refused(cwd, generate(cwd, "weights_seed=3", "output=a.gif"), "weights_seed=3", "weights=random")
    refused(cwd, generate(cwd, "weights=random", "weights_seed=-1", "output=a.gif"), "weights_seed=-1", "0 is the least")
    refused(cwd, run([PROGRAM, "bench", "text", f"model={MODEL}", "weights=checkpoint", "weights_seed=3"], cwd),
            "weights_seed=3", "weights=random")


@test
def cache_that_cannot_be_written_is_said(cwd):
    (pathlib.Path(cwd) / "cache").write_text("a file")
    assert "goes on without it" in cached(cwd, "one").stderr



@test
def inspect_says_what_a_single_file_holds(cwd):
    """Types, metadata, and which model it is of."""
    def inspect(*words):
        return run([PROGRAM, "inspect", *words], cwd)
    blocks = GOLDEN / "weights" / "blocks" / "blocks.gguf"
    result = inspect(blocks)
    for words in ("GGUF 3, 14 tensors (1 BF16, 1 F16, 1 IQ4_NL", "1 Q6_K", "general.architecture = wan"):
        assert words in result.stdout, result.stdout
    assert "is not a component of a Wan model" in harness.sentence(result)
    shard = next((MODEL / "vae").glob("*.safetensors"))
    result = inspect(shard)
    assert ": safetensors, " in result.stdout and "parameters" in result.stdout, result.stdout
    assert result.returncode == 0 and "a VAE; its tensors are those of none of the known models" in result.stdout, result.stdout
    result = inspect(shard, f"model={MODEL}")
    assert result.returncode == 0 and f"a VAE of {MODEL}\n" in result.stdout, result.stderr
    assert "expected [" in harness.sentence(inspect(shard, f"model={GOLDEN / 'pipelines' / 'wan22_ti2v'}"))
    assert "unknown key 'height'" in harness.sentence(inspect(shard, "height=64"))
    assert " values are finite" in inspect(shard, "check_values=true").stdout
    result = inspect(blocks.parents[1] / "bad" / "scale_nan.gguf", "check_values=true")
    assert "holds a NaN or an infinite value or scale" in harness.sentence(result), result.stderr
    result = inspect(blocks.parents[1] / "bad" / "good.gguf", "check_values=true")
    assert "  64 values are finite\n" in result.stdout, result.stdout
    result = inspect(GOLDEN / "loras" / "original.safetensors")
    assert result.returncode == 0 and "a LoRA file: pass it with lora=" in result.stdout, result.stdout
    module = "diffusion_model.blocks.0.self_attn.q"
    for names in ((f"{module}.lokr_w1", f"{module}.lokr_w2"), (f"{module}.hada_w1_a", f"{module}.hada_w1_b"),
                  (f"{module}.dora_scale",), ("lycoris_blocks_0_self_attn_q.weight",), (f"{module}.lora.up.weight",)):
        harness.write_tensors(pathlib.Path(cwd) / "l.safetensors", {name: ("F32", [1, 1], bytes(4)) for name in names})
        assert "a LoRA file: pass it with lora=" in inspect("l.safetensors").stdout, names
    damaged = pathlib.Path(cwd) / "cut.gguf"
    damaged.write_bytes(blocks.read_bytes()[:2000])
    result = inspect(damaged)
    assert "download it again" in harness.sentence(result) and result.stdout == "", result.stdout


@test
def a_config_that_asks_for_less_than_there_is_is_refused(cwd):
    """It would run a part of the model: another video, and no word of it."""
    for component, change in (("transformer", {"cross_attn_norm": False}), ("text_encoder", {"num_layers": 1})):
        model = copy_model(cwd)
        config = model / component / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        result = generate(cwd, model=model)
        assert result.returncode == 1 and "tensors that the config of this folder does not ask for" in result.stderr
        result = run([PROGRAM, "inspect", model], cwd)
        assert result.returncode == 1 and "unexpected: " in result.stdout, result.stdout
        shutil.rmtree(model)


def in_original_names(folder, file, vae=None):
    """The transformer of `folder` as one file in the layout of ComfyUI; with the VAE of a folder, both."""
    levels = (("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
              ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
              ("condition_embedder.time_proj", "time_projection.1"),
              ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
              ("condition_embedder.text_embedder.linear_2", "text_embedding.2"), ("attn1", "self_attn"),
              ("attn2", "cross_attn"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o"),
              ("norm2", "norm3"), ("ffn.net.0.proj", "ffn.0"), ("ffn.net.2", "ffn.2"), ("proj_out", "head.head"))
    header, data = {}, b""
    for shard in sorted(folder.glob("*.safetensors")):
        content = shard.read_bytes()
        length = int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            name = "head.modulation" if name == "scale_shift_table" else name.replace("scale_shift_table", "modulation")
            for hub, original in levels:
                name = f".{name}.".replace(f".{hub}.", f".{original}.").strip(".")
            entry["data_offsets"] = [len(data), len(data) + end - begin]
            header["model.diffusion_model." + name] = entry
            data += content[8 + length + begin:8 + length + end]
    for shard in vae.glob("*.safetensors") if vae else []:
        content = shard.read_bytes()
        length = int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:8 + length]).items():
            if name != "__metadata__":
                entry["data_offsets"] = [offset + len(data) for offset in entry["data_offsets"]]
                header["vae." + name] = entry
        data += content[8 + length:]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


@test
def single_files_make_the_same_video(cwd):
    """A transformer in ComfyUI's layout beside a folder without one; over ranks too."""
    cwd = pathlib.Path(cwd)
    single = cwd / "wan_comfy.safetensors"
    in_original_names(MODEL / "transformer", single)
    all_in_one = cwd / "all_in_one.safetensors"
    in_original_names(MODEL / "transformer", all_in_one, vae=MODEL / "vae")
    rest = cwd / "rest"
    shutil.copytree(MODEL, rest)
    for weights in (rest / "transformer").glob("diffusion_pytorch_model*"):
        weights.unlink()
    for name, model, arguments in (("folder", MODEL, []), ("file", rest, [f"transformer={single}"]),
                                   ("ranks", rest, [f"transformer={single}", "ranks=2"]),
                                   ("both", rest, [f"transformer={all_in_one}", f"vae={all_in_one}"])):
        result = generate(cwd, *arguments, f"output={name}.gif", f"dump={name}", "dtype=f32", model=model)
        assert result.returncode == 0, result.stderr
        said = re.findall(r"Weights (\w+) (\S+): (.*)", result.stderr)
        expected = [argument.split("=")[0] for argument in arguments if "safetensors" in argument]
        assert [component for component, _, _ in said] == expected, result.stderr
        for component, file, text in said:
            prefix, names = {"transformer": ("model.diffusion_model.", "Wan's own code"),
                             "vae": ("vae.", "the hub's folders")}[component]
            others = r"; tensors not read: \d+ of other components" if name == "both" else ""
            assert re.fullmatch(rf"names of {names} behind '{prefix}'; \d+ F32{others}", text), text
    assert latents(cwd / "folder") == latents(cwd / "file") == latents(cwd / "both")
    assert (cwd / "folder.gif").read_bytes() == (cwd / "both.gif").read_bytes()
    # Only the transformer's own tensors are planned for.
    tensors = harness.read_tensors(all_in_one)
    harness.write_tensors(all_in_one, {
        **tensors, "text_encoders.x": ("U8", [64 << 20], bytes(64 << 20)),
        "clip_vision.vision_model.embeddings.class_embedding": ("F32", [4], bytes(16))})
    planned = []
    for file in (single, all_in_one):
        result = generate(cwd, f"transformer={file}", "weights_in_memory=as_stored", "output=a.png", model=rest)
        assert result.returncode == 0, result.stderr
        planned.append(float(re.search(r"Memory ([0-9.]+) MB planned", result.stderr)[1]))
    assert abs(planned[1] - planned[0]) < 8, planned  # what a process has anyway differs by a few
    result = run([PROGRAM, "inspect", all_in_one], cwd)
    assert "a transformer" in result.stdout, result.stdout
    # A path in a YAML file may be beside that file.
    (cwd / "runs").mkdir()
    single.rename(cwd / "runs" / single.name)
    (cwd / "runs" / "fox.yml").write_text(f"transformer: {single.name}\n")
    result = generate(cwd, "runs/fox.yml", "output=yaml.png", "dump=yaml", "dtype=f32", model=rest)
    assert result.returncode == 0, result.stderr
    assert latents(cwd / "folder") == latents(cwd / "yaml")
    said = harness.sentence(generate(cwd, "output=a.gif", model=rest))
    assert "transformer: holds no weights" in said and "name their file as transformer=FILE" in said, said


@test
def blocks_may_have_files_of_their_own(cwd):
    """LightX2V's folder: original names, a file for each block and one for the rest, an index, no config."""
    cwd = pathlib.Path(cwd)
    in_original_names(MODEL / "transformer", cwd / "single.safetensors")
    files, index = {}, {}
    for name, tensor in harness.read_tensors(cwd / "single.safetensors").items():
        name = name.removeprefix("model.diffusion_model.")
        block = re.match(r"blocks\.(\d+)\.", name)
        index[name] = f"block_{block[1]}.safetensors" if block else "non_block.safetensors"
        files.setdefault(index[name], {})[name] = tensor
    folder = cwd / "split"
    folder.mkdir()
    for file, tensors in files.items():
        harness.write_tensors(folder / file, tensors)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for name, words in (("whole", []), ("blocks", ["transformer=split"])):
        result = generate(cwd, *words, f"output={name}.gif", f"dump={name}")
        assert result.returncode == 0, result.stderr
    assert "Weights transformer split: names of Wan's own code; " in result.stderr, result.stderr
    assert latents(cwd / "whole") == latents(cwd / "blocks")
    result = run([PROGRAM, "inspect", "split", "check_values=true"], cwd)
    assert result.returncode == 0 and "split: safetensors in 3 files, 69 tensors (69 F32)" in result.stdout, result.stdout + result.stderr
    assert "values are finite" in result.stdout, result.stdout
    result = run([PROGRAM, "convert", "split", "out=one.safetensors", "format=f32", f"model={MODEL}"], cwd)
    assert result.returncode == 0 and "Every value is exact" in result.stdout, result.stderr
    assert harness.read_tensors(cwd / "one.safetensors") == {name: t for tensors in files.values() for name, t in tensors.items()}
    (folder / "block_1.safetensors").unlink()
    for command in (["inspect", "split"], ["convert", "split", "out=a.gguf", "format=f16"]):
        assert "shard 'block_1.safetensors' is missing" in harness.sentence(run([PROGRAM, *command], cwd)), command


@test
def a_components_folder_has_its_own_config(cwd):
    """It gives the latents of a model with that folder, not those of the model's own values."""
    model = copy_model(cwd)
    config = model / "transformer/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eps": 0.25, "num_attention_heads": 2, "attention_head_dim": 24}))
    made = {}
    for name, words, folder in (("plain", [], MODEL), ("whole", [], model), ("named", [f"transformer={model}/transformer"], MODEL)):
        result = generate(cwd, *words, f"output={name}.png", f"dump={name}", model=folder)
        assert result.returncode == 0, result.stderr
        made[name] = latents(pathlib.Path(cwd) / name)
    assert made["whole"] == made["named"] != made["plain"]


def comfy_folder(folder):
    """The files of the model in ComfyUI's folders."""
    for name in ("unet", "text_encoders", "vae"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    in_original_names(MODEL / "transformer", folder / "unet" / "wan.safetensors")
    tensors = {}
    for shard in sorted((MODEL / "text_encoder").glob("*.safetensors")):
        tensors.update(harness.read_tensors(shard))
    harness.write_tensors(folder / "text_encoders" / "umt5.safetensors", tensors)
    shutil.copy(next((MODEL / "vae").glob("*.safetensors")), folder / "vae" / "wan_vae.safetensors")
    shutil.copy(GOLDEN / "weights" / "vae22" / "wan2.2_vae.safetensors", folder / "vae")


@test
def components_are_found_in_a_comfyui_folder(cwd):
    cwd = pathlib.Path(cwd)
    configs = configs_only(cwd)
    shutil.copytree(MODEL / "tokenizer", configs / "tokenizer")
    comfy_folder(cwd / "models")
    shutil.copytree(configs, cwd / "both")
    comfy_folder(cwd / "both")
    shutil.copy(cwd / "models/unet/wan.safetensors", cwd / "elsewhere.safetensors")

    def made(name, model, *words):
        result = generate(cwd, f"output={name}.png", f"dump={name}", *words, model=model)
        assert result.returncode == 0, result.stderr
        return latents(cwd / name)

    folder = made("folder", MODEL)
    assert folder == made("named", configs, "transformer=models/unet/wan.safetensors")
    assert folder == made("found", cwd / "both")
    assert folder == made("bare", cwd / "both", "transformer=wan.safetensors", "vae=wan_vae.safetensors")
    result = generate(cwd, "transformer=elsewhere.safetensors", "output=a.gif", model=configs)
    assert "text_encoder: holds no weights" in harness.sentence(result), result.stderr

    def inspect(*words):
        return run([PROGRAM, "inspect", "both", *words, *harness.SMALL], cwd)

    result = inspect()
    assert result.returncode == 0, result.stdout + result.stderr
    for file in ("both/unet/wan.safetensors", "both/text_encoders/umt5.safetensors", "both/vae/wan_vae.safetensors"):
        assert file in result.stdout, result.stdout
    result = run([PROGRAM, "plan", "both/", "hardware=h100_8", "ranks=2", *harness.SMALL], cwd)
    assert result.returncode == 0 and "Model     both" in result.stdout, result.stdout + result.stderr
    assert run([PROGRAM, "inspect", "both", "weights=random", *harness.SMALL], cwd).returncode == 0
    # Two that fit, and none: one sentence of both commands.
    shutil.copy(cwd / "both/vae/wan_vae.safetensors", cwd / "both/vae/again.safetensors")
    for words, change in ((["several files fit the vae", "vae/again.safetensors, vae/wan_vae.safetensors", "choose one with vae="],
                           lambda: (cwd / "both/vae/again.safetensors").unlink()),
                          (["unet/b.safetensors, unet/wan.safetensors", "choose one with transformer="],
                           lambda: (cwd / "both/unet/b.safetensors").unlink()),
                          (["text_encoders/ or clip/ holds no text_encoder of this model", "text_encoder=FILE"],
                           lambda: None)):
        if "unet" in words[0]:
            shutil.copy(cwd / "both/unet/wan.safetensors", cwd / "both/unet/b.safetensors")
        if "text_encoders" in words[0]:
            (cwd / "both/text_encoders/umt5.safetensors").unlink()
        for result in (generate(cwd, "output=a.gif", model="both"), inspect()):
            for word in words:
                assert word in harness.sentence(result), result.stderr
        change()
    # A folder without configs is one of the known models, which these files are not.
    for result in (generate(cwd, "output=a.gif", model="models"), run([PROGRAM, "inspect", "models"], cwd)):
        assert "none of the known models" in harness.sentence(result), result.stderr
    assert not (cwd / "a.gif").exists()


@test
def a_merge_of_two_experts_runs_with_configs_of_one(cwd):
    cwd, experts = pathlib.Path(cwd), GOLDEN / "pipelines" / "wan22_i2v"
    shutil.copytree(experts, cwd / "model", ignore=lambda *_: ["transformer_2"])
    index = json.loads((cwd / "model/model_index.json").read_text())
    del index["transformer_2"], index["boundary_ratio"]
    (cwd / "model/model_index.json").write_text(json.dumps(index))
    in_original_names(cwd / "model/transformer", cwd / "merge.safetensors")
    for file in (cwd / "model/transformer").glob("diffusion_pytorch_model*"):
        file.unlink()
    result = generate(cwd, "transformer=merge.safetensors", f"image={experts}/inputs/image.png", "output=a.png", model=cwd / "model")
    assert result.returncode == 0, result.stderr


@test
def files_of_the_wrong_component_or_model_are_refused(cwd):
    files = GOLDEN / "weights"
    for key, file, words in (("vae", "umt5/comfy_fp16.safetensors", ["is a text encoder", "a VAE is needed"]),
                             ("transformer", "lora/musubi_fp16.safetensors", ["is a LoRA file", "lora="]),
                             ("transformer", "dit_i2v/i2v.safetensors", ["has shape [32, 36", "expected [48, 16"]),
                             ("transformer", "dit/comfy_fp16.safetensors", ["has shape [64, 16", "expected [48, 16"]),
                             ("transformer", "bad/arch_other.gguf", ["architecture"]),
                             ("transformer_2", "dit/comfy_fp16.safetensors", ["no such component"]),
                             ("text_encoder", "bad/data_cut.gguf", ["data_cut.gguf"])):
        refused(cwd, generate(cwd, f"{key}={files / file}", "output=a.gif"), *words)
    tensors = harness.read_tensors(files / "dit_vace" / "vace.safetensors")
    module = pathlib.Path(cwd) / "module.safetensors"
    harness.write_tensors(module, {name: tensor for name, tensor in tensors.items() if "vace_" in name})
    refused(cwd, generate(cwd, f"transformer={module}", "output=a.gif"), "VACE module without its model", left=(module.name,))
    module.unlink()
    refused(cwd, run([PROGRAM, "generate", f"transformer={files}/dit/comfy_fp16.safetensors", "prompt=a fox"], cwd),
            "none of the known models", "model=")
    os.mkdir(f"{cwd}/files")
    for name in ("a_high_noise", "wan_HIGH.v2", "b-low-noise"):
        shutil.copy(files / "dit" / "comfy_fp16.safetensors", f"{cwd}/files/{name}.safetensors")
    high, other, low = (f"{cwd}/files/{name}.safetensors" for name in ("a_high_noise", "wan_HIGH.v2", "b-low-noise"))
    for first, second, words in ((low, high, "low noise by its name"), (high, other, "high noise by its name"),
                                 (high, high, "the same file")):
        refused(cwd, generate(cwd, f"transformer={first}", f"transformer_2={second}", "output=a.gif"), words, left=("files",))
    shutil.rmtree(f"{cwd}/files")
    refused(cwd, generate(cwd, f"vae={files}/vae21/wan2.1_vae.safetensors", "weights=random", "output=a.gif"),
            "weights=random", "leave it out")


@test
def the_tokenizer_may_be_in_the_text_encoders_file(cwd):
    model = configs_only(cwd)
    shutil.copytree(MODEL / "transformer", model / "transformer", dirs_exist_ok=True)
    shutil.copytree(MODEL / "vae", model / "vae", dirs_exist_ok=True)
    umt5 = GOLDEN / "weights" / "umt5"
    result = generate(cwd, f"text_encoder={umt5}/comfy_fp16.safetensors", "output=one.png", "dump=one", model=model)
    assert result.returncode == 0, result.stderr
    # All of the file is read.
    assert re.search(r"Weights text_encoder \S+comfy_fp16.safetensors: names of the hub's folders; [^;]*\n", result.stderr), result.stderr
    # As ComfyUI writes a checkpoint of all components.
    tensors = harness.read_tensors(umt5 / "comfy_fp16.safetensors")
    harness.write_tensors(pathlib.Path(cwd) / "all.safetensors", {
        ("text_encoders." if name == "spiece_model" else "text_encoders.umt5xxl.transformer.") + name: tensor
        for name, tensor in tensors.items()})
    result = generate(cwd, "text_encoder=all.safetensors", "output=all.png", "dump=all", model=model)
    assert result.returncode == 0, result.stderr
    assert latents(f"{cwd}/one") == latents(f"{cwd}/all")
    result = generate(cwd, f"text_encoder={umt5}/umt5_q8_0.gguf", "output=three.png", model=model)
    assert result.returncode == 0, result.stderr
    result = generate(cwd, f"text_encoder={umt5}/wan_bf16.safetensors", "output=a.gif", model=model)
    for words in ("holds no tokenizer", "tokenizer=FILE"):
        assert words in harness.sentence(result), result.stderr


@test
def a_tokenizer_of_another_model_is_refused(cwd):
    """Of fewer ids than the text encoder has rows; one of the same number gives what the model's own does."""
    spiece = GOLDEN / "pipelines" / "wan22_t2v" / "tokenizer" / "spiece.model"
    for name, words in (("own", []), ("named", [f"tokenizer={spiece}"])):
        result = generate(cwd, *words, f"output={name}.png", f"dump={name}", model=spiece.parents[1])
        assert result.returncode == 0, result.stderr
    assert latents(f"{cwd}/own") == latents(f"{cwd}/named")
    result = generate(cwd, f"tokenizer={spiece}", "output=a.gif")
    for words in (f"tokenizer={spiece} ", "has 340 ids, but the text encoder's embedding 1024 rows", "google/umt5-xxl"):
        assert words in harness.sentence(result), result.stderr
    stand_in = pathlib.Path(__file__).resolve().parents[2] / "configs" / "tokenizer" / "tokenizer.json"
    assert "of another model" in harness.sentence(generate(cwd, f"tokenizer={stand_in}", "output=a.gif"))
    model = harness.copy_model(cwd)
    shutil.rmtree(model / "tokenizer")
    shutil.copytree(spiece.parent, model / "tokenizer")
    result = generate(cwd, "output=a.gif", model=model)
    for words in (f"{model}/tokenizer: has 344 ids", "1024 rows", "tokenizer=FILE"):
        assert words in harness.sentence(result), result.stderr


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
