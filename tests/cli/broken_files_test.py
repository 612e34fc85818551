#!/usr/bin/env python3
"""Checkpoints that are broken, file by file: each gets one clear sentence and leaves nothing behind.

    broken_files_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    broken_files_test.py --list                the names
"""
import json
import os
import random
import shutil
import struct
import sys
import time

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MANY_STEPS, SMALL, Paused, copy_model, generate, refused, rewrite, run_script  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


VAE = "vae/diffusion_pytorch_model.safetensors"


def refused_file(name, words, change, target=VAE):
    """`change(path)` breaks one file of a copy of the model."""
    def body(cwd):
        model = copy_model(cwd)
        change(model / target)
        refused(cwd, generate(cwd, "output=clip.mp4", model=model), *words, left=["model"])
    body.__name__ = name
    test(body)


def with_header(edit):
    """Replaces the header by what `edit(dict, bytes of data)` returns: text or dict."""
    def change(path):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        made = edit(json.loads(data[8:8 + size]), data[8 + size:])
        text = made if isinstance(made, bytes) else json.dumps(made).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return change


def edit_entry(**fields):
    def edit(header, _):
        header["decoder.conv_in.bias"].update(fields)
        return header
    return with_header(edit)


def duplicate(header, _):
    entry = json.dumps(header["decoder.conv_in.bias"])
    return (json.dumps(header)[:-1] + f', "decoder.conv_in.bias": {entry}}}').encode()


def overlap(header, _):
    header["decoder.conv_in.bias"]["data_offsets"] = [
        o + 4 for o in header["decoder.conv_in.bias"]["data_offsets"]]
    return header


refused_file("safetensors_missing", ["vae"], lambda p: p.unlink())
refused_file("safetensors_empty", [VAE], lambda p: p.write_bytes(b""))
refused_file("safetensors_truncated", [VAE], lambda p: p.write_bytes(p.read_bytes()[:-100]))
refused_file("safetensors_with_bytes_left_over", [VAE], lambda p: p.write_bytes(p.read_bytes() + b"xxxx"))
refused_file("safetensors_header_of_2_to_63", [VAE],
             lambda p: p.write_bytes(struct.pack("<Q", 1 << 63) + p.read_bytes()[8:]))
refused_file("safetensors_header_past_the_end", [VAE],
             lambda p: p.write_bytes(struct.pack("<Q", 1 << 30) + p.read_bytes()[8:]))
refused_file("safetensors_header_not_json", [VAE], with_header(lambda h, d: b"{not json"))
refused_file("safetensors_header_nested_deeply", [VAE], with_header(lambda h, d: b'{"a":' * 100000 + b"1" + b"}" * 100000))
refused_file("safetensors_offsets_past_the_end", [VAE, "decoder.conv_in.bias"], edit_entry(data_offsets=[0, 1 << 40]))
refused_file("safetensors_offsets_reversed", [VAE, "decoder.conv_in.bias"], edit_entry(data_offsets=[100, 52]))
refused_file("safetensors_shape_overflows", [VAE, "decoder.conv_in.bias"], edit_entry(shape=[1 << 40, 1 << 40]))
refused_file("safetensors_unknown_dtype", [VAE, "decoder.conv_in.bias", "F33"], edit_entry(dtype="F33"))
refused_file("safetensors_duplicate_name", [VAE, "decoder.conv_in.bias"], with_header(duplicate))
refused_file("safetensors_overlap", [VAE], with_header(overlap))
refused_file("a_tensor_is_missing", ["decoder.conv_in.bias", "missing"],
             lambda p: rewrite(p, lambda t: t.pop("decoder.conv_in.bias")))
refused_file("a_tensor_has_the_wrong_shape", ["decoder.conv_in.bias", "[6, 2]", "[12]"],
             lambda p: rewrite(p, lambda t: t.update({"decoder.conv_in.bias": (
                 "F32", [6, 2], t["decoder.conv_in.bias"][2])})))


@test
def a_file_that_is_cut_off_while_it_is_read(cwd):
    """At any moment: between steps the size tells, within one only the page that is missing."""
    model = copy_model(cwd)
    file = model / "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
    whole = file.read_bytes()
    for _ in range(12):
        with Paused(cwd, [harness.PROGRAM, "generate", model, *SMALL, *MANY_STEPS, "weights_in_memory=as_stored",
                          "output=clip.mp4"]) as paused:
            paused.until("Denoise: step")
            time.sleep(random.random() * 0.01)
            os.truncate(file, 4096)
            result = paused.release()
        refused(cwd, result, file.name, "start", left=["model"])
        file.write_bytes(whole)


def edit_json(change):
    def body(path):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
    return body


INDEX = "transformer/diffusion_pytorch_model.safetensors.index.json"


def all_shards(name):
    return edit_json(lambda v: v["weight_map"].update({k: name for k in list(v["weight_map"])[:1]}))


refused_file("an_index_names_an_absent_shard", ["absent.safetensors"], all_shards("absent.safetensors"), INDEX)
refused_file("an_index_climbs_out_of_the_folder", ["../../x.safetensors"], all_shards("../../x.safetensors"), INDEX)
refused_file("an_index_with_an_absolute_path", ["/x.safetensors"], all_shards("/x.safetensors"), INDEX)
refused_file("a_config_field_is_missing", ["config.json", "num_layers"],
             edit_json(lambda v: v.pop("num_layers")), "transformer/config.json")
refused_file("a_config_field_is_absurd", ["config.json", "num_attention_heads"],
             edit_json(lambda v: v.update(num_attention_heads=-4)), "transformer/config.json")
refused_file("a_config_field_of_the_wrong_type", ["config.json", "ffn_dim"],
             edit_json(lambda v: v.update(ffn_dim="many")), "transformer/config.json")
refused_file("a_config_is_not_json", ["config.json"], lambda p: p.write_text("{"), "transformer/config.json")
refused_file("a_class_that_is_not_supported", ["model_index.json", "StableDiffusionPipeline"],
             edit_json(lambda v: v.update(_class_name="StableDiffusionPipeline")), "model_index.json")
refused_file("a_class_that_the_layers_are_not_of", ["WanImageToVideoPipeline"],
             edit_json(lambda v: v.update(_class_name="WanImageToVideoPipeline")), "model_index.json")


def component(key, *value):
    return edit_json(lambda v: v.update({key: list(value)}))


for key, library, other in (("scheduler", "diffusers", "DDIMScheduler"), ("vae", "diffusers", "AutoencoderKL"),
                            ("transformer", "diffusers", "FluxTransformer2DModel")):
    refused_file(f"an_index_with_another_class_of_{key}", ["model_index.json", key, other, "must be"],
                 component(key, library, other), "model_index.json")
refused_file("an_index_and_a_config_of_two_classes",
             ["model_index.json", "FlowMatchEulerDiscreteScheduler", "scheduler_config.json", "UniPCMultistepScheduler"],
             component("scheduler", "diffusers", "FlowMatchEulerDiscreteScheduler"), "model_index.json")
refused_file("another_qk_norm", ["transformer/config.json", "qk_norm", "layer_norm", "rms_norm_across_heads"],
             edit_json(lambda v: v.update(qk_norm="layer_norm")), "transformer/config.json")
refused_file("quantized_weights", ["text_encoder/config.json", "quantization_config", "gptq", "BF16"],
             edit_json(lambda v: v.update(quantization_config={"quant_method": "gptq"})), "text_encoder/config.json")


@test
def a_component_of_a_quantized_folder(cwd):
    """Its own configuration is read."""
    model = copy_model(cwd)
    own = model.parent / "own"
    shutil.copytree(model / "transformer", own)
    edit_json(lambda v: v.update(quantization_config={"quant_algo": "NVFP4"}))(own / "config.json")
    refused(cwd, generate(cwd, "transformer=own", "output=clip.mp4", model=model), "own/config.json", "quantization_config",
            left=["model", "own"])


refused_file("no_tokenizer", ["tokenizer"], lambda p: shutil.rmtree(p), "tokenizer")
refused_file("a_broken_tokenizer", ["tokenizer.json"], lambda p: p.write_text("{}"), "tokenizer/tokenizer.json")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
