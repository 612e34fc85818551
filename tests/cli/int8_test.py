#!/usr/bin/env python3
"""dtype=int8 and attention_dtype=int8 as users see them.

    int8_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    int8_test.py --list                the names
"""
import array
import json
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import files_in, generate, read_tensors, refused, run, run_script  # noqa: E402

TESTS = {}
INT8 = ["dtype=int8", "int8_layers=all", "deterministic=true"]


def test(function):
    TESTS[function.__name__] = function
    return function


def skip_without_int8(cwd):
    result = generate(cwd, *INT8, "output=probe.gif")
    if result.returncode != 0:
        refused(cwd, result, "dtype=int8", "no int8 dot products", "dtype=bf16")
        raise harness.Skip("this CPU has no int8 dot products")
    for file in files_in(cwd):
        (pathlib.Path(cwd) / file).unlink()


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


def distance(a, b):
    error = sum((x - y) ** 2 for x, y in zip(a, b))
    return (error / sum(y * y for y in b)) ** 0.5


@test
def ranks_and_ways_to_hold_weights_give_the_same_bits(cwd):
    skip_without_int8(cwd)
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
    skip_without_int8(cwd)
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
    skip_without_int8(cwd)
    exact, bf16, int8 = (last_latents(made(cwd, "deterministic=true", *words)[0])
                         for words in (["dtype=float32"], ["dtype=bf16"], ["dtype=int8", "int8_layers=all"]))
    one_block = last_latents(made(cwd, "deterministic=true", "dtype=int8", "int8_layers=1")[0])
    assert 0 < distance(int8, bf16) and 0 < distance(one_block, bf16)
    assert distance(int8, exact) <= 3 * max(distance(bf16, exact), 0.01), (distance(int8, exact), distance(bf16, exact))
    assert one_block != int8


@test
def bad_words_are_refused(cwd):
    skip_without_int8(cwd)
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
    plan = run([harness.PROGRAM, "plan", "wan2.1_t2v_1.3b", "dtype=int8", "int8_layers=1-40"], cwd)
    refused(cwd, plan, "'1-40'", "blocks 0 to 29", "0-29")


# ---- attention_dtype ----

ATTENTION = ["dtype=bf16", "attention_dtype=int8", "deterministic=true"]


def skip_without_int8_attention(cwd):
    result = generate(cwd, *ATTENTION, "output=probe.gif")
    if result.returncode != 0:
        refused(cwd, result, "attention_dtype=int8", "no AVX512-VNNI with AVX-512-BF16")
        raise harness.Skip("this CPU has no AVX512-VNNI with AVX-512-BF16")
    for file in files_in(cwd):
        (pathlib.Path(cwd) / file).unlink()


@test
def ranks_that_share_heads_have_the_same_attention_in_int8(cwd):
    skip_without_int8_attention(cwd)
    one, said = made(cwd, *ATTENTION)
    assert "\nAttention in int8: 100 % of heads, their weights off by " in said, said
    for words in (["ranks=2", "data_parallelism=1", "attention=ulysses"], ["ranks=2", "data_parallelism=2"]):
        other, said = made(cwd, *ATTENTION, *words)
        assert other == one and "Attention in int8: 100 % of heads" in said, (words, said)
    if shutil.which("mpirun") is not None:
        assert made(cwd, *ATTENTION, "attention=ulysses", "data_parallelism=1", processes=2)[0] == one


@test
def attention_in_int8_is_verified_over_ranks(cwd):
    skip_without_int8_attention(cwd)
    for dtype in ("bf16", "int8"):
        words = [f"dtype={dtype}", "attention_dtype=int8", *(["int8_layers=all"] if dtype == "int8" else [])]
        for layout in (["ranks=1"], ["ranks=3", "data_parallelism=1", "attention=ring"],
                       ["ranks=4", "data_parallelism=1", "attention=ulysses_ring_custom_fixed_m"]):
            result = run([harness.PROGRAM, "verify", harness.MODEL, *harness.SMALL, *words, *layout], cwd)
            assert result.returncode == 0 and "Every value is inside its bound" in result.stdout, \
                result.stdout + result.stderr


@test
def attention_in_int8_is_near_bf16_and_not_it(cwd):
    skip_without_int8_attention(cwd)
    exact, bf16, int8 = (last_latents(made(cwd, "deterministic=true", *words)[0])
                         for words in (["dtype=float32"], ["dtype=bf16"], ["dtype=bf16", "attention_dtype=int8"]))
    assert 0 < distance(int8, bf16)
    assert distance(int8, exact) <= 3 * max(distance(bf16, exact), 0.01), (distance(int8, exact), distance(bf16, exact))


@test
def attention_in_int8_is_refused_in_float32(cwd):
    refused(cwd, generate(cwd, "dtype=float32", "attention_dtype=int8", "output=a.gif"), "attention_dtype=int8", "float32")
    refused(cwd, generate(cwd, "attention_dtype=fp8", "output=a.gif"), "attention_dtype", "as_computed, int8")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
