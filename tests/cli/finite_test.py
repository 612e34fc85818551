#!/usr/bin/env python3
"""Values that are no numbers: a run ends with the first tensor, step and rank that has NaN or infinity, and writes nothing.

    finite_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    finite_test.py --list                the names
"""
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MPI_ENV, copy_model, files_in, generate, mpirun, read_tensors, refused, rewrite, run,  # noqa: E402
                     run_script, write_tensors)

TESTS = {}
NAN = struct.pack("<f", float("nan"))


def test(function):
    TESTS[function.__name__] = function
    return function


def write_latents(cwd, change):
    """16 channels of 2 frames of 4 × 4, for the 32 × 32 pixels of every run here; `change(values)`."""
    values = [((i * 37) % 19 - 9) / 9 for i in range(16 * 2 * 4 * 4)]
    change(values)
    write_tensors(pathlib.Path(cwd) / "noise.safetensors",
                  {"latents.init": ("F32", [1, 16, 2, 4, 4], struct.pack(f"<{len(values)}f", *values))})


def spoil(file, name, at=-4):
    """NaN in one element of a tensor, by its byte; by default the last one."""
    def change(tensors):
        dtype, shape, data = tensors[name]
        assert dtype == "F32"
        at_byte = at % len(data)
        tensors[name] = (dtype, shape, data[:at_byte] + NAN + data[at_byte + 4:])
    rewrite(file, change)


def last_tensor(file):
    """That of the file's last bytes."""
    return list(read_tensors(file))[-1]


@test
def noise_with_nan(cwd):
    def change(values):
        values[17] = float("nan")
    write_latents(cwd, change)
    arguments = ["latents=noise.safetensors", "output=clip.gif"]
    for more in ([], ["ranks=2"]):
        refused(cwd, generate(cwd, *arguments, *more),
                "noise.safetensors", "before the first step", "'latents.init' holds nan at element 17",
                "check_finite=false", left=["noise.safetensors"])
    result = generate(cwd, *arguments, "check_finite=false")
    assert result.returncode == 0, result.stderr
    assert files_in(cwd) == ["clip.gif", "noise.safetensors"]


@test
def a_lora_that_overflows(cwd):
    large = struct.pack("<48f", *[1e30] * 48)
    write_tensors(pathlib.Path(cwd) / "large.safetensors",
                  {"transformer.blocks.0.attn1.to_q.lora_A.weight": ("F32", [1, 48], large),
                   "transformer.blocks.0.attn1.to_q.lora_B.weight": ("F32", [48, 1], large)})
    for more in ([], ["ranks=2"], ["dtype=bf16"]):
        refused(cwd, generate(cwd, "lora=large.safetensors:1", "output=clip.gif", *more),
                "large.safetensors", "'blocks.0.attn1.to_q.weight'", "inf", "check_finite=false",
                left=["large.safetensors"])
    result = generate(cwd, "lora=large.safetensors:1", "output=clip.gif", "check_finite=false")
    assert result.returncode == 0, result.stderr


@test
def a_lora_whose_factor_overflows(cwd):
    small = struct.pack("<48f", *[0.01] * 48)
    base = "diffusion_model.blocks.0.self_attn.q."
    write_tensors(pathlib.Path(cwd) / "alpha.safetensors",
                  {base + "lora_down.weight": ("F32", [1, 48], small), base + "lora_up.weight": ("F32", [48, 1], small),
                   base + "alpha": ("F32", [], struct.pack("<f", 3e38))})
    refused(cwd, generate(cwd, "lora=alpha.safetensors:1000", "output=clip.gif"),
            "alpha.safetensors", "blocks.0.attn1.to_q.weight", "1000", left=["alpha.safetensors"])


SPOILED = ["NaN or infinity comes first in", "step 1 of 2", "rank 0", "check_finite=false"]


def shard_with_nan(cwd):
    """A model with NaN in the last float of a shard of the transformer; the name of its tensor."""
    model = copy_model(cwd)
    shard = sorted((model / "transformer").glob("*.safetensors"))[0]
    name = last_tensor(shard)
    spoil(shard, name)
    return model, f"weight '{name}' in {shard}"


@test
def a_shard_with_nan(cwd):
    model, weight = shard_with_nan(cwd)
    for more in ([], ["dtype=bf16"], ["threads=1"], ["weight_cache=cache"], ["weight_cache=cache"]):
        refused(cwd, generate(cwd, "output=clip.gif", *more, model=model), *SPOILED, weight, left=["model", "cache"])
    result = generate(cwd, "output=clip.gif", "check_finite=false", model=model)
    assert result.returncode == 0, result.stderr


@test
def a_shard_with_nan_over_ranks(cwd):
    model, weight = shard_with_nan(cwd)
    for more in (["ranks=2", "ulysses_shards=1", "data_parallelism=1"],
                 ["ranks=2", "data_parallelism=2"],
                 ["ranks=4", "ulysses_shards=2", "data_parallelism=1", "attention=ulysses_ring"],
                 ["ranks=2", "flash_min_seq_length=1000000", "data_parallelism=1"]):
        refused(cwd, generate(cwd, "output=clip.gif", "comm_timeout=100", *more, model=model), *SPOILED, weight,
                left=["model"])
    # One rank more than there are tokens: the first has none.
    refused(cwd, generate(cwd, "output=clip.gif", "ranks=9", "attention=ring", "data_parallelism=1", model=model),
            *(word.replace("rank 0", "rank 1") for word in SPOILED), weight, left=["model"])


@test
def a_shard_with_nan_over_mpi(cwd):
    model, weight = shard_with_nan(cwd)
    command = [model if word == harness.MODEL else word for word in
               mpirun((2, ["output=clip.gif", "comm_timeout=100", "threads=1", "data_parallelism=1"]))]
    refused(cwd, run(command, cwd, env=MPI_ENV), *SPOILED, weight, left=["model"])


def overflow_in_the_last_token(values):
    """The weights of the patch embedding are far from adding up to 0, so that finite latents overflow in it."""
    for channel in range(16):
        for row in (2, 3):
            for column in (2, 3):
                values[((channel * 2 + 1) * 4 + row) * 4 + column] = 3e38


@test
def the_rank_is_that_of_the_token(cwd):
    write_latents(cwd, overflow_in_the_last_token)
    arguments = ["output=clip.gif", "latents=noise.safetensors", "data_parallelism=1", "comm_timeout=100"]
    words = ["NaN or infinity comes first in patch_embedding of transformer", "step 1 of 2", "whose weights are finite"]
    refused(cwd, generate(cwd, *arguments), *words, "rank 0", left=["noise.safetensors"])
    refused(cwd, generate(cwd, *arguments, "ranks=2"), *words, "rank 1", left=["noise.safetensors"])
    refused(cwd, run(mpirun((2, [*arguments, "threads=1"])), cwd, env=MPI_ENV), *words, "rank 1",
            left=["noise.safetensors"])


@test
def a_text_encoder_with_nan(cwd):
    model = copy_model(cwd)
    name = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
    file = next(shard for shard in (model / "text_encoder").glob("*.safetensors") if name in read_tensors(shard))
    spoil(file, name)
    for more in ([], ["ranks=3", "data_parallelism=1"]):
        refused(cwd, generate(cwd, "output=clip.gif", *more, model=model), "before the first step", "prompt_embeds",
                f"weight '{name}' in {file}", "check_finite=false", left=["model"])


@test
def a_vae_with_nan(cwd):
    model = copy_model(cwd)
    file = next((model / "vae").glob("*.safetensors"))
    name = "decoder.conv_out.bias"
    spoil(file, name)
    for more in ([], ["ranks=2", "vae_parallel=2"], ["vae_tiling=true"]):
        for output in ("clip.gif", "frames"):
            refused(cwd, generate(cwd, f"output={output}", *more, model=model), "after the last step, rank 0",
                    "frame 1 of 5", f"weight '{name}' in {file}", "check_finite=false", left=["model"])


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
