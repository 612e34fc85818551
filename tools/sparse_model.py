"""Weight files of the published sizes without weights: header, names, shapes and types are as other programs write them,
and the values are a hole in the file, which takes no space. For questions that are answered before a value is read.

Names and shapes are the program's own, of `zoetrope synthesize`. What every block has is written once by that and repeated
here.
"""
import json
import math
import pathlib
import shutil
import struct
import subprocess

# Of the formats that the table has, in its order; the last two are GGUF.
FORMATS = ("bf16", "fp8", "Q8_0", "Q4_K_M")
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
# Types of GGUF: number, values of a block, bytes of a block.
BLOCKS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
GGUF_TEXT, GGUF_ALIGNMENT = 8, 32


def shapes_in(folder):
    """{name: shape} of the safetensors files in a folder."""
    shapes = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        shapes.update({name: entry["shape"] for name, entry in header.items() if name != "__metadata__"})
    return shapes


def repeated(shapes, prefix, count):
    """With block 0 of `prefix` as each of `count` blocks, of which only the first has an input projection."""
    first = f"{prefix}.0."
    result = {name: shape for name, shape in shapes.items() if not name.startswith(prefix + ".")}
    for block in range(count):
        for name, shape in shapes.items():
            if name.startswith(first) and not (block > 0 and name.startswith(first + "proj_in.")):
                result[f"{prefix}.{block}.{name[len(first):]}"] = shape
    return result


def text_encoder_shapes(config):
    """umT5. Its table of words alone would be two gigabytes to synthesize."""
    d, inner, heads = config["d_model"], config["d_kv"] * config["num_heads"], config["num_heads"]
    block = {f"layer.0.SelfAttention.{name}.weight": [inner, d] for name in "qkv"}
    block.update({f"layer.1.DenseReluDense.{name}.weight": [config["d_ff"], d] for name in ("wi_0", "wi_1")})
    block.update({f"layer.{i}.layer_norm.weight": [d] for i in (0, 1)})
    block["layer.0.SelfAttention.o.weight"] = [d, inner]
    block["layer.1.DenseReluDense.wo.weight"] = [d, config["d_ff"]]
    block["layer.0.SelfAttention.relative_attention_bias.weight"] = [config["relative_attention_num_buckets"], heads]
    shapes = {"shared.weight": [config["vocab_size"], d], "encoder.final_layer_norm.weight": [d]}
    shapes.update({f"encoder.block.0.{name}": shape for name, shape in block.items()})
    return repeated(shapes, "encoder.block", config["num_layers"])


def model_shapes(program, configs, folder):
    """{component: {name: shape}} of the model whose configs lie in `configs`; `folder` is used and removed."""
    config = json.loads((configs / "transformer/config.json").read_text())
    layers = config.get("inject_face_latents_blocks") or 1  # the fewest that a model may have
    components = ["transformer", "vae"] + (["image_encoder"] if config.get("image_dim") else [])
    command = [program, "synthesize", configs, f"out={folder}", f"layers={layers}", "dtype=bf16",
               "components=" + ",".join(components)]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shapes = {name: shapes_in(pathlib.Path(folder) / name) for name in components}
    shutil.rmtree(folder)
    # No run needs it, and not every class of image encoders has it.
    shapes.get("image_encoder", {}).pop("visual_projection.weight", None)
    transformer = repeated(shapes["transformer"], "blocks", config["num_layers"])
    transformer = repeated(transformer, "vace_blocks", len(config.get("vace_layers") or ()))
    shapes["transformer"] = repeated(transformer, "face_adapter", config["num_layers"] // layers if layers > 1 else 0)
    shapes["text_encoder"] = text_encoder_shapes(json.loads((configs / "text_encoder/config.json").read_text()))
    return shapes


def of_block(name, shape):
    """Whether a format for matrices is used: embeddings, norms, modulation and the head keep theirs."""
    return "blocks." in name and len(shape) == 2


def write_safetensors(path, shapes, format="bf16"):
    header, scales, end = {}, [], 0

    def add(name, dtype, shape):
        nonlocal end
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        return begin

    for name, shape in shapes.items():
        scaled = format == "fp8" and of_block(name, shape)
        add(name, "F8_E4M3" if scaled else "BF16", shape)
        if scaled:
            scales.append(add(name.removesuffix("weight") + "weight_scale", "F32", []))
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin = file.tell()
        for at in scales:
            file.seek(begin + at)
            file.write(struct.pack("<f", 1))
        file.truncate(begin + end)


def gguf_type(name, shape, format):
    """As city96's converter chooses (docs/spec/weights.md, 5.3)."""
    if len(shape) != 2:
        return "F32"
    if not of_block(name, shape):
        return "F16"
    if format == "Q4_K_M":
        return "Q6_K" if ".to_v." in name or ".ffn.net.2." in name else "Q4_K"
    return format


def write_gguf(path, shapes, format):
    def text(word):
        return struct.pack("<Q", len(word)) + word.encode()

    infos, end = b"", 0
    for name, shape in shapes.items():
        number, values, size = BLOCKS[gguf_type(name, shape, format)]
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", number, end)
        end += math.prod(shape) // values * size
        end += -end % GGUF_ALIGNMENT
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), 1))
        file.write(text("general.architecture") + struct.pack("<I", GGUF_TEXT) + text("wan") + infos)
        file.truncate(file.tell() + -file.tell() % GGUF_ALIGNMENT + end)


def write_transformer(folder, shapes, format):
    """The path of the file."""
    path = pathlib.Path(folder) / (f"{format}.safetensors" if format in ("bf16", "fp8") else f"{format}.gguf")
    if path.suffix == ".gguf":
        write_gguf(path, shapes, format)
    else:
        write_safetensors(path, shapes, format)
    return path
