#!/usr/bin/env python3
"""Conversion of weight files: codes and values of every format bit by bit, names, what is kept, and what is refused.

    convert_test.py PROGRAM MODEL NAME    runs one test
    convert_test.py --list                the names
"""
import json
import math
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
import number_formats as formats  # noqa: E402
from harness import generate, read_tensors, refused, run, run_script, sentence, write_tensors  # noqa: E402

PROGRAM = MODEL = None
TESTS = {}
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
WEIGHTS = GOLDEN / "weights"
# Word, type of the codes, name in a layer's configuration.
SCALED = [("fp8_e4m3", "F8_E4M3", "float8_e4m3fn"), ("fp8_e5m2", "F8_E5M2", "float8_e5m2"), ("int8", "I8", "int8_tensorwise"),
          ("int8_rows", "I8", "int8_tensorwise")]
BLOCKS = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
PLAIN = ["f32", "f16", "bf16"]


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, pathlib.Path(model)
    harness.use(program, model)


def convert(cwd, file, out, format, *arguments):
    return run([PROGRAM, "convert", file, f"out={out}", f"format={format}", *arguments], cwd)


def converted(cwd, file, out, format, *arguments):
    result = convert(cwd, file, out, format, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def configs(cwd):
    """A folder with the config of the transformer in WEIGHTS/dit, whose rows are multiples of 32."""
    folder = pathlib.Path(cwd) / "configs" / "transformer"
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((WEIGHTS / "dit" / "case.json").read_text())
    (folder / "config.json").write_text(json.dumps({"_class_name": config["class"], **config["config"]}))
    return folder.parent


def source(cwd):
    """That transformer in float32: values of float16, each moved a little so that they are not, and what is special."""
    tensors = {}
    for number, (name, (dtype, shape, data)) in enumerate(read_tensors(WEIGHTS / "dit" / "comfy_fp16.safetensors").items()):
        values = [formats.f32(x * (1 + (31 * i + number) % 97 / 2 ** 17)) for i, x in enumerate(formats.plain_values(dtype, data))]
        tensors[name] = ("F32", shape, formats.f32_bytes(values))
    name = "blocks.1.ffn.0.weight"
    values = formats.plain_values("F32", tensors[name][2])
    values[:32] = [0.0] * 32
    values[32:64] = [0.25 * (i % 3 - 1) for i in range(32)]
    values[64:96] = [-0.0] * 31 + [1e-42]
    values[96:128] = [0.5] * 32
    tensors[name] = ("F32", tensors[name][1], formats.f32_bytes(values))
    file = pathlib.Path(cwd) / "source.safetensors"
    write_tensors(file, tensors)
    return file, {name: formats.plain_values("F32", data) for name, (_, _, data) in tensors.items()}


def is_quantised(name, shape):
    return name.startswith("blocks.") and name.endswith(".weight") and len(shape) == 2


def decoded(cwd, file, *arguments):
    """The tensors of a file as the program reads them, by converting to float32."""
    out = pathlib.Path(cwd) / "decoded.safetensors"
    assert "Every value is exact" in converted(cwd, file, out, "f32", f"model={configs(cwd)}", *arguments)
    return {name: data for name, (_, _, data) in read_tensors(out).items()}


def table(stdout):
    """{name: (relative L2 error, largest error)} of the printed table, and the line with the types."""
    rows = {}
    for line in stdout.splitlines()[1:]:
        words = line.split()
        if line.startswith(("Wrote", "note:")):
            break
        rows[words[0]] = (float(words[-2]), float(words[-1]), " ".join(words[1:-2]))
    return rows


def check_errors(row, values, stored):
    squares = sum((a - b) ** 2 for a, b in zip(values, stored))
    norm = math.sqrt(sum(a * a for a in values))
    relative, largest = math.sqrt(squares) / norm, max(abs(a - b) for a, b in zip(values, stored))
    assert abs(row[0] - relative) <= 0.006 * relative and abs(row[1] - largest) <= 0.006 * largest, (row, relative, largest)


def quantised_matrices(cwd, word):
    """Converts the source to a safetensors file. All but the matrices of the blocks must be as they were. Yields for each
    of these its values, its shape, the tensors of its layer by their endings, and check(values of the codes, what the
    table says of its type), which is of this matrix until the next."""
    file, values = source(cwd)
    out = pathlib.Path(cwd) / f"{word}.safetensors"
    rows = table(converted(cwd, file, out, word, f"model={configs(cwd)}"))
    shapes = {name: shape for name, (_, shape, _) in read_tensors(file).items()}
    written, read = read_tensors(out), decoded(cwd, out)
    of_layers = 0
    for name, expected in values.items():
        if not is_quantised(name, shapes[name]):
            assert written[name] == ("F32", shapes[name], formats.f32_bytes(expected)) and rows[name][:2] == (0, 0), name
            of_layers += 1
            continue

        def check(stored, types):
            assert read[name] == formats.f32_bytes(stored), name
            check_errors(rows[name], expected, stored)
            assert rows[name][2] == types, rows[name]

        base = name[:-len("weight")]
        layer = {ending: written[base + ending] for ending in ("weight", "weight_scale", "weight_scale_2", "comfy_quant")
                 if base + ending in written}
        of_layers += len(layer)
        yield expected, shapes[name], layer, check
    assert of_layers == len(written), list(written)


@test
def codes_with_a_scale_are_as_defined(cwd):
    for word, kind, layer_format in SCALED:
        count = 0
        for expected, shape, layer, check in quantised_matrices(cwd, word):
            count += 1
            columns = shape[1] if word == "int8_rows" else len(expected)
            parts = [formats.scaled_codes(kind, expected[i:i + columns]) for i in range(0, len(expected), columns)]
            assert layer["weight"] == (kind, shape, b"".join(codes for _, codes in parts))
            scales = [shape[0], 1] if word == "int8_rows" else [], formats.f32_bytes([scale for scale, _ in parts])
            assert layer["weight_scale"] == ("F32", *scales)
            assert json.loads(layer["comfy_quant"][2]) == {"format": layer_format} and len(layer) == 3
            by_row = " for each row" if word == "int8_rows" else ""
            check([x for scale, codes in parts for x in formats.scaled_values(kind, scale, codes)],
                  f"F32 -> {kind} with a scale{by_row}")
        assert count == 20, count


@test
def runs_of_mxfp8_are_as_defined(cwd):
    for expected, shape, layer, check in quantised_matrices(cwd, "mxfp8"):
        scales, codes = formats.mx_codes(expected, *shape)
        assert layer["weight"] == ("F8_E4M3", shape, codes)
        assert layer["weight_scale"][0] == "U8" and layer["weight_scale"][2] == scales
        assert json.loads(layer["comfy_quant"][2]) == {"format": "mxfp8"}
        check(formats.mx_values(scales, codes, shape[1]), "F32 -> mxfp8")


@test
def rotated_rows_are_as_defined(cwd):
    for expected, shape, layer, check in quantised_matrices(cwd, "int8_convrot"):
        columns = shape[1]
        parts = [formats.convrot_codes(expected[i:i + columns]) for i in range(0, len(expected), columns)]
        assert layer["weight"] == ("I8", shape, b"".join(codes for _, codes in parts))
        assert layer["weight_scale"] == ("F32", [shape[0], 1], formats.f32_bytes([scale for scale, _ in parts]))
        assert json.loads(layer["comfy_quant"][2]) == {
            "format": "int8_tensorwise", "convrot": True, "convrot_groupsize": formats.convrot_group(columns)}
        check([x for scale, codes in parts for x in formats.convrot_values(scale, codes)], "F32 -> int8_convrot")


@test
def halves_of_nvfp4_are_as_defined(cwd):
    for expected, shape, layer, check in quantised_matrices(cwd, "nvfp4"):
        second, scales, codes = formats.nv_codes(expected, *shape)
        assert layer["weight"] == ("U8", [shape[0], shape[1] // 2], codes)
        assert layer["weight_scale"] == ("F8_E4M3", [-(-shape[0] // 128) * 128, -(-shape[1] // 64) * 4], scales)
        assert layer["weight_scale_2"] == ("F32", [], formats.f32_bytes([second]))
        assert json.loads(layer["comfy_quant"][2]) == {"format": "nvfp4"}
        check(formats.nv_values(second, scales, codes, shape[1]), "F32 -> nvfp4")


@test
def blocks_of_gguf_are_as_defined(cwd):
    file, values = source(cwd)
    for word in BLOCKS:
        kind, out = word.upper(), pathlib.Path(cwd) / f"{word}.gguf"
        rows = table(converted(cwd, file, out, word, f"model={configs(cwd)}"))
        metadata, written = formats.read_gguf(out)
        assert metadata["general.architecture"] == "wan" and metadata["general.quantization_version"] == 2
        assert metadata["general.file_type"] == dict(q8_0=7, q5_1=9, q5_0=8, q4_1=3, q4_0=2)[word]
        read = decoded(cwd, out)
        assert set(written) == set(values)
        for name, expected in values.items():
            dtype, shape, data = written[name]
            if not is_quantised(name, shape):
                assert (dtype, data) == ("F32", formats.f32_bytes(expected)), name
                continue
            assert (dtype, data) == (kind, formats.block_codes(kind, expected)), name
            stored = formats.block_values(kind, data)
            assert read[name] == formats.f32_bytes(stored), name
            check_errors(rows[name], expected, stored)
        # Blocks are taken over as they are.
        again = pathlib.Path(cwd) / "again.gguf"
        assert "Every value is exact" in converted(cwd, out, again, word, f"model={configs(cwd)}")
        assert again.read_bytes() == out.read_bytes(), word


@test
def plain_types_are_rounded_once(cwd):
    file, values = source(cwd)
    original = {name: (shape, data) for name, (_, shape, data) in read_tensors(file).items()}
    float32 = ("time_embedding.", "norm3.", "modulation")  # which the transformer computes in float32
    for word in PLAIN:
        dtype, out = word.upper(), pathlib.Path(cwd) / f"{word}.safetensors"
        converted(cwd, file, out, word, f"model={configs(cwd)}")
        written = read_tensors(out)
        assert set(written) == set(values)
        for name, expected in values.items():
            kept = "F32" if any(part in name for part in float32) else dtype
            assert written[name] == (kept, original[name][0], formats.plain_bytes(kept, expected)), name
        # The same type again changes nothing; nor does GGUF in between.
        again, gguf = pathlib.Path(cwd) / "again.safetensors", pathlib.Path(cwd) / "again.gguf"
        for step, target in ((out, again), (out, gguf), (gguf, again)):
            stdout = converted(cwd, step, target, word, f"model={configs(cwd)}")
            assert "Every value is exact" in stdout, stdout
            if step == out and target == again:
                assert read_tensors(again) == written, word
        small = formats.read_gguf(gguf)[1]
        for name, (kind, shape, data) in small.items():
            few = len(shape) == 1 or math.prod(shape) <= 1024 or name.startswith("patch_embedding.")
            kept = "F32" if few or any(part in name for part in float32) else dtype
            assert kind == kept and shape == original[name][0], name


@test
def files_that_were_written_make_the_same_video(cwd):
    """A folder in both layouts; and every format makes the video of its decoded values."""
    cwd = pathlib.Path(cwd)
    folder = MODEL / "transformer"

    def latents(name, file):
        result = generate(cwd, f"transformer={file}", f"output={name}.png", f"dump={name}", "num_inference_steps=1", "num_frames=1")
        assert result.returncode == 0, result.stderr
        return (cwd / name / "run.safetensors").read_bytes()

    converted(cwd, folder, "original.safetensors", "f32", "layout=original")
    converted(cwd, folder, "kept.gguf", "f32")
    names = set(read_tensors(cwd / "original.safetensors"))
    assert "head.modulation" in names and "blocks.0.self_attn.q.weight" in names and not any("attn1" in n for n in names)
    assert latents("a", folder) == latents("b", cwd / "original.safetensors") == latents("c", cwd / "kept.gguf")
    stdout = converted(cwd, "original.safetensors", "hub.safetensors", "f32", "layout=diffusers", f"model={MODEL}", "tensors=false")
    assert len(stdout.splitlines()) == 2 and "Every value is exact" in stdout, stdout
    shards = {}
    for shard in folder.glob("*.safetensors"):
        shards.update(read_tensors(shard))
    assert read_tensors(cwd / "hub.safetensors") == shards
    for word in [word for word, _, _ in SCALED] + ["int8_convrot", "mxfp8", "nvfp4", *BLOCKS]:
        file = f"{word}.gguf" if word in BLOCKS else f"{word}.safetensors"
        # Rows of 48 are no blocks of 32: they stay as they are.
        rows = table(converted(cwd, "original.safetensors", file, word, f"model={MODEL}"))
        by_rows = word in BLOCKS or word == "mxfp8"
        assert (rows["blocks.0.self_attn.q.weight"][0] == 0) == by_rows and rows["blocks.0.ffn.2.weight"][0] > 0, word
        result = run([PROGRAM, "inspect", file, "check_values=true"], cwd)
        assert result.returncode == 0 and "a transformer; its tensors are those of none of the known models" in result.stdout, result.stderr
        assert "values are finite" in result.stdout and "not read" not in result.stdout, result.stdout
        converted(cwd, file, "values.safetensors", "f32", f"model={MODEL}")
        assert latents("d", cwd / file) == latents("e", cwd / "values.safetensors"), word


@test
def other_files_can_be_read(cwd):
    """K-quants, scales by rows and groups, int8 with ConvRot, nvfp4; a prefix stays with the names."""
    cwd = pathlib.Path(cwd)
    model = f"model={configs(cwd)}"
    for name in ("fp8_scaled_groups", "fp8_scaled_old", "int8_convrot", "nvfp4", "mxfp8", "comfy_bf16_prefix"):
        out = cwd / f"{name}.gguf"
        converted(cwd, WEIGHTS / "dit" / f"{name}.safetensors", out, "q8_0", model)
        assert formats.read_gguf(out)[1], name
    written = formats.read_gguf(cwd / "comfy_bf16_prefix.gguf")[1]
    assert all(name.startswith("model.diffusion_model.") for name in written), list(written)[:3]
    converted(cwd, WEIGHTS / "dit" / "comfy_bf16_prefix.safetensors", cwd / "bare.safetensors", "bf16", model, "layout=original")
    written = read_tensors(cwd / "bare.safetensors")
    before = read_tensors(WEIGHTS / "dit" / "comfy_bf16_prefix.safetensors")
    assert {name: data for name, (_, _, data) in written.items()} == {
        name.removeprefix("model.diffusion_model."): data for name, (_, _, data) in before.items()}
    # Of a file that holds several components, the transformer.
    write_tensors(cwd / "all.safetensors", {**before, "first_stage_model.conv1.bias": ("F32", [1], bytes(4))})
    stdout = converted(cwd, "all.safetensors", "bare2.safetensors", "bf16", model, "layout=original")
    assert "note: left out because they are not part of the transformer: 1 tensor\n" in stdout, stdout
    assert read_tensors(cwd / "bare2.safetensors") == written
    # A file that stores more than the matrices in fp8: only they are written so.
    converted(cwd, WEIGHTS / "dit" / "fp8_plain.safetensors", cwd / "fp8.safetensors", "fp8_e4m3", model)
    for name, (dtype, shape, _) in read_tensors(cwd / "fp8.safetensors").items():
        assert dtype != "F8_E4M3" or is_quantised(name.removeprefix("diffusion_model."), shape), name
    out = cwd / "k.safetensors"
    k_model = cwd / "k_configs" / "transformer"
    k_model.mkdir(parents=True)
    case = json.loads((WEIGHTS / "dit_k" / "case.json").read_text())
    (k_model / "config.json").write_text(json.dumps({"_class_name": case["class"], **case["config"]}))
    assert "Q6_K -> " in converted(cwd, WEIGHTS / "dit_k" / "k_mix.gguf", out, "fp8_e4m3", f"model={k_model.parent}")


@test
def text_encoders_and_vaes_are_converted_too(cwd):
    cwd = pathlib.Path(cwd)
    umt5 = WEIGHTS / "umt5"
    model = f"model={MODEL}"
    converted(cwd, umt5 / "comfy_fp16.safetensors", cwd / "t5.safetensors", "fp8_e4m3", model)
    before, written = read_tensors(umt5 / "comfy_fp16.safetensors"), read_tensors(cwd / "t5.safetensors")
    assert written["spiece_model"] == before["spiece_model"] and written["shared.weight"] == before["shared.weight"]
    assert written["encoder.block.0.layer.0.SelfAttention.q.weight"][0] == "F8_E4M3"
    # Into GGUF the tokenizer of safetensors cannot go; one that is there stays.
    stdout = converted(cwd, umt5 / "comfy_fp16.safetensors", cwd / "t5.gguf", "q8_0", model)
    assert "note: the tokenizer in " in stdout and "tokenizer=" in stdout, stdout
    assert formats.read_gguf(cwd / "t5.gguf")[0]["general.architecture"] == "t5encoder"
    stdout = converted(cwd, umt5 / "umt5_q8_0.gguf", cwd / "t5_q4.gguf", "q4_0", model)
    assert "note:" not in stdout, stdout
    assert "note: the tokenizer in " in converted(cwd, umt5 / "umt5_q8_0.gguf", cwd / "t5_bf16.safetensors", "bf16", model)
    for file, found in (("t5.safetensors", True), ("t5_q4.gguf", True), ("t5.gguf", False)):
        shutil.rmtree(cwd / "rest", ignore_errors=True)
        shutil.copytree(MODEL, cwd / "rest", ignore=lambda *_: ["tokenizer", "tokenizer.json"])
        result = generate(cwd, f"text_encoder={cwd / file}", "output=a.png", "num_inference_steps=1", "num_frames=1", model=cwd / "rest")
        assert (result.returncode == 0) == found, (file, result.stderr)
    stdout = converted(cwd, umt5 / "wan_bf16.safetensors", cwd / "hub.safetensors", "bf16", model, "layout=diffusers")
    assert "encoder.block.1.layer.1.DenseReluDense.wi_0.weight" in read_tensors(cwd / "hub.safetensors"), stdout
    converted(cwd, MODEL / "vae", cwd / "vae.safetensors", "f16", "layout=original")
    written = read_tensors(cwd / "vae.safetensors")
    assert written["decoder.middle.0.residual.0.gamma"][0] == "F16"
    result = generate(cwd, f"vae={cwd}/vae.safetensors", "output=b.png", "num_inference_steps=1", "num_frames=1")
    assert result.returncode == 0, result.stderr


@test
def a_tower_is_recognised_without_its_prefix(cwd):
    """As transformers 5 names the tensors of a CLIPVisionModel, and so does the file that is made of it."""
    model = GOLDEN / "pipelines" / "wan22_animate"
    converted(cwd, model / "image_encoder", "a.safetensors", "f32")
    result = run([PROGRAM, "inspect", "a.safetensors"], cwd)
    assert result.returncode == 0 and "image encoder" in result.stdout, result.stdout + result.stderr
    converted(cwd, "a.safetensors", "b.safetensors", "bf16", f"model={model}")


@test
def folders_are_those_of_the_hub(cwd):
    """Each component as one file with Wan's own names, and back into folders: the same model, which makes the same video."""
    cwd = pathlib.Path(cwd)
    shutil.copytree(MODEL, cwd / "model")
    for component in ("transformer", "text_encoder", "vae"):
        converted(cwd, MODEL / component, f"{component}.safetensors", "f32", "layout=original")
        shutil.rmtree(cwd / "model" / component)
        stdout = converted(cwd, f"{component}.safetensors", f"model/{component}/", "f32", f"model={MODEL}")
        assert "Every value is exact" in stdout, stdout
        before, after = ({name: tensor for file in (model / component).glob("*.safetensors") for name, tensor in
                          read_tensors(file).items()} for model in (MODEL, cwd / "model"))
        assert before == after, component
    result = run([PROGRAM, "inspect", "model"], cwd)
    assert result.returncode == 0 and "unexpected:" not in result.stdout, result.stdout
    dumps = []
    for name, model in (("a", MODEL), ("b", cwd / "model")):
        result = generate(cwd, f"output={name}.png", f"dump={name}", "num_inference_steps=1", "num_frames=1", model=model)
        assert result.returncode == 0, result.stderr
        dumps.append((cwd / name / "run.safetensors").read_bytes())
    assert dumps[0] == dumps[1]
    result = convert(cwd, MODEL / "vae", "model/vae/", "f16")
    assert result.returncode == 1 and "model/vae" in sentence(result), result.stderr
    # A config says the dtype by an older or a newer key.
    for key, folder in (("torch_dtype", "older"), ("dtype", "newer")):
        config = json.loads((MODEL / "text_encoder" / "config.json").read_text())
        shutil.copytree(MODEL / "text_encoder", cwd / folder)
        config = {name: value for name, value in config.items() if name not in ("dtype", "torch_dtype")}
        (cwd / folder / "config.json").write_text(json.dumps({**config, key: "float32"}))
        converted(cwd, folder, f"{folder}_bf16/", "bf16")
        written = json.loads((cwd / f"{folder}_bf16" / "config.json").read_text())
        assert {name: value for name, value in written.items() if name.endswith("dtype")} == {key: "bfloat16"}, written
    for format, layout, words in (("int8", "kept", "folders have no format int8"), ("f16", "original", "names of the hub")):
        result = convert(cwd, MODEL / "vae", "new/", format, f"layout={layout}")
        assert result.returncode == 1 and words in sentence(result) and not (cwd / "new").exists(), result.stderr


@test
def joined_tensors_stay_joined(cwd):
    """The image encoder's, which Wan's own file has as one matrix for q, k and v."""
    cwd = pathlib.Path(cwd)
    clip, model = WEIGHTS / "clip", f"model={GOLDEN / 'pipelines' / 'wan21_i2v'}"
    converted(cwd, clip / "wan_visual_fp16.safetensors", "kept.safetensors", "f16", model)
    before, after = read_tensors(clip / "wan_visual_fp16.safetensors"), read_tensors(cwd / "kept.safetensors")
    assert after and all(before[name] == tensor for name, tensor in after.items())
    result = convert(cwd, clip / "wan_visual_fp16.safetensors", "a.safetensors", "f16", model, "layout=diffusers")
    assert result.returncode == 1 and "is a part of a larger tensor" in sentence(result), result.stderr
    converted(cwd, clip / "clip_vision_h_fp16.safetensors", "b.safetensors", "f16", model, "layout=diffusers")


@test
def loading_what_was_written_is_measured(cwd):
    """`bench load` of a file: the bytes that it stores, and a forward that is right."""
    demo = pathlib.Path(__file__).resolve().parents[2] / "demo" / "wan-tiny"
    stored = {}
    for format, ending in (("bf16", "safetensors"), ("fp8_e4m3", "safetensors"), ("q8_0", "gguf")):
        file = f"{format}.{ending}"
        converted(cwd, demo / "transformer", file, format, "tensors=false")
        result = run([PROGRAM, "bench", "load", f"model={demo}", "weights=checkpoint", f"transformer={file}", "repeat=1",
                      "json=out.json"], cwd)
        assert result.returncode == 0, result.stderr
        first, on_use = json.loads((pathlib.Path(cwd) / "out.json").read_text())["load"]
        assert not first["note"] and first["rel_l2"] <= first["tolerance"] and on_use["seconds_min"] > 0, first
        stored[format] = first["bytes"]
    assert stored["fp8_e4m3"] < stored["q8_0"] < 0.7 * stored["bf16"], stored
    result = run([PROGRAM, "bench", "load", f"model={demo}", "weights=random", "transformer=bf16.safetensors"], cwd)
    assert result.returncode == 1 and "transformer" in sentence(result), result.stderr


@test
def what_cannot_be_converted_is_refused(cwd):
    (pathlib.Path(cwd) / "in").mkdir()
    file, _ = source(f"{cwd}/in")
    model = f"model={configs(f'{cwd}/in')}"

    def refuses(result, *words):
        refused(cwd, result, *words, left=("in",))

    refuses(convert(cwd, file, "a.gguf", "q4_k_m", model), "format=q4_k_m", "no exact definition", "q4_0")
    refuses(convert(cwd, file, "a.gguf", "iq4_nl", model), "format=iq4_nl", "no exact definition")
    refuses(convert(cwd, file, "a.gguf", "nvfp4", model), "GGUF files have no format nvfp4", "q8_0")
    refuses(convert(cwd, file, "a.safetensors", "fp9", model), "format=fp9", "no such format", "mxfp8")
    refuses(run([PROGRAM, "convert", file, "out=a.gguf"], cwd), "format: name the format")
    refuses(run([PROGRAM, "convert", file, "format=f16"], cwd), "out: name what to write")
    refuses(run([PROGRAM, "convert", "out=a.gguf", "format=f16"], cwd), "in: name")
    refuses(convert(cwd, file, "a.gguf", "f16", model, "b.gguf"), "takes one IN", "b.gguf")
    refuses(convert(cwd, file, "a.gguf", "mxfp8", model), "GGUF files have no format mxfp8", "q8_0")
    refuses(convert(cwd, file, "a.safetensors", "q8_0", model), "safetensors files have no format q8_0", "fp8_e4m3")
    refuses(convert(cwd, file, "a.bin", "f16", model), "out=a.bin", "must end in")
    refuses(convert(cwd, file, "a.safetensors", "f16"), "none of the known models", "model=")
    refuses(convert(cwd, file, "a.safetensors", "f16", model, "layuot=kept"), "unknown key 'layuot'", "'layout'")
    refuses(convert(cwd, MODEL, "a.safetensors", "f16"), "is a whole model", "transformer")
    refuses(convert(cwd, MODEL / "transformer", "a.safetensors", "f16", model), "leave the key out")
    refuses(convert(cwd, MODEL / "vae", "a.safetensors", "int8"), "format=int8", "no tensor that may be stored so", "f16")
    refuses(convert(cwd, MODEL / "scheduler", "a.safetensors", "f16"), "scheduler: holds no weights")
    refuses(convert(cwd, GOLDEN / "loras" / "original.safetensors", "a.safetensors", "f16"), "is a LoRA file")
    refuses(convert(cwd, "none.gguf", "a.safetensors", "f16"), "none.gguf")
    refuses(convert(cwd, file, "no/such/a.safetensors", "f16", model), "no/such")
    # The input survives, by whatever name it is given.
    before = file.read_bytes()
    refuses(convert(cwd, file, file, "f16", model), "source.safetensors")
    assert file.read_bytes() == before


@test
def damaged_values_are_refused(cwd):
    (pathlib.Path(cwd) / "in").mkdir()
    file, values = source(f"{cwd}/in")
    model = f"model={configs(f'{cwd}/in')}"
    name = "blocks.1.ffn.0.weight"
    for value, word, sentence_words in ((math.nan, "bf16", ["holds nan at element 5", "damaged"]),
                                        (math.inf, "int8", ["holds inf at element 5", "damaged"]),
                                        (-math.inf, "q4_1", ["holds -inf at element 5", "damaged"]),
                                        (1e6, "f16", ["holds 1000000 at element 5", "too large for f16", "bf16"]),
                                        (1e8, "q8_0", ["holds 100000000 at element 5", "too large for q8_0"]),
                                        (-1e6, "q4_1", ["holds -1000000 at element 5", "too large for q4_1"])):
        changed = list(values[name])
        changed[5] = value
        harness.rewrite(file, lambda tensors: tensors.update({name: ("F32", tensors[name][1], formats.f32_bytes(changed))}))
        ending = "gguf" if word in BLOCKS else "safetensors"
        refused(cwd, convert(cwd, file, f"a.{ending}", word, model), name, *sentence_words, left=("in",))
    whole = file.read_bytes()
    file.write_bytes(whole[:len(whole) // 2])
    refused(cwd, convert(cwd, file, "a.safetensors", "f16", model), "truncated", left=("in",))
    harness.write_tensors(file, {k: v for k, v in read_tensors(WEIGHTS / "dit" / "comfy_fp16.safetensors").items() if k != name})
    refused(cwd, convert(cwd, file, "a.safetensors", "f16", model), name, "is missing", left=("in",))


@test
def a_full_disk_leaves_nothing(cwd):
    """By the limit of a file's size, which writes meet as they meet a full disk."""
    (pathlib.Path(cwd) / "in").mkdir()
    file, _ = source(f"{cwd}/in")
    model = f"model={configs(f'{cwd}/in')}"
    for out, word in (("a.gguf", "f32"), ("a.safetensors", "int8")):
        result = run(["sh", "-c", f"ulimit -f 64; exec '{PROGRAM}' convert '{file}' out={out} format={word} '{model}'"], cwd)
        refused(cwd, result, out, left=("in",))


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
