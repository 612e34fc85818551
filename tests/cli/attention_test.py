#!/usr/bin/env python3
"""`zoetrope attention` as a user runs it: every strategy against the definition, files in and out, ranks as threads and as
MPI processes, what the JSON file says, and one clear sentence for every kind of bad input.

    attention_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    attention_test.py --list          the names
"""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from cli_test import MPI_ENV, SLOWER, Skip, files_in, read_tensors, refused, run, unreported, write_tensors  # noqa: E402

PROGRAM = None
TESTS = {}

# Relative L2 that a correct result stays below.
#   F32   1e-5, what N ranks may differ from one by (the sums of 24 to 37 terms here err by a few 2^-24)
#   BF16  2^-8: o is rounded once, by at most 2^-9 of each element, and so are the weights that multiply v
BOUND = {"float32": 1e-5, "bf16": 2.0 ** -8}
BYTES = {"float32": 4, "bf16": 2}
NAMES = {"float32": "F32", "bf16": "BF16"}
FIELDS = {"seconds_min": float, "seconds_median": float, "gflops": float, "peak_gflops": float, "fraction": float,
          "implementation": str, "tiles_fixed": int, "tiles_online": int, "bytes_sent": int, "wait_seconds": float}


def test(function):
    TESTS[function.__name__] = function
    return function


def attention(cwd, *arguments, **options):
    return run([PROGRAM, "attention", "threads=2", *arguments], cwd, **options)


def measured(cwd, *arguments, name="m.json", command=attention, **options):
    """Runs with reference=true and gives back the JSON file."""
    result = command(cwd, "reference=true", f"json={name}", *arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads((pathlib.Path(cwd) / name).read_text())


def mpi(ranks):
    def command(cwd, *arguments, **options):
        if not shutil.which("mpirun"):
            raise Skip("mpirun is not installed")
        return run(["mpirun", "-n", str(ranks), PROGRAM, "attention", "threads=1", *arguments], cwd, env=MPI_ENV, **options)
    return command


def without_mpi(cwd):
    result = run(["mpirun", "-n", "1", PROGRAM, "--version"], cwd, env=MPI_ENV) if shutil.which("mpirun") else None
    return result is None or result.returncode != 0


# ---- tensors, with the standard library alone ----

def encode(values, dtype):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    bits = [struct.unpack("<I", struct.pack("<f", x))[0] for x in values]
    rounded = [(b >> 16) | 0x40 if b & 0x7FFFFFFF > 0x7F800000 else (b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]
    return struct.pack(f"<{len(values)}H", *rounded)


def decode(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in struct.unpack(f"<{len(data) // 2}H", data)]


def normal(shape, dtype, seed):
    source = random.Random(seed)
    return (dtype, list(shape), encode([source.gauss(0, 1) for _ in range(math.prod(shape))], dtype))


def problem(batch=2, tokens=13, heads=3, dim=8, keys=None, dtype="F32"):
    keys = tokens if keys is None else keys
    return {"q": normal([batch, tokens, heads, dim], dtype, 1), "k": normal([batch, keys, heads, dim], dtype, 2),
            "v": normal([batch, keys, heads, dim], dtype, 3)}


def lengths_of(values):
    return ("I64", [len(values)], struct.pack(f"<{len(values)}q", *values))


def mask_of(rows, dtype="BOOL"):
    return (dtype, [len(rows), len(rows[0])], bytes(v for row in rows for v in row))


def save(cwd, tensors, name="qkv.safetensors"):
    write_tensors(pathlib.Path(cwd) / name, tensors)
    return name


def load_o(cwd, name="o.safetensors"):
    tensors = read_tensors(pathlib.Path(cwd) / name)
    assert list(tensors) == ["o"], sorted(tensors)
    return tensors["o"]


def definition(tensors, valid=lambda b, j: True, scale=None):
    """softmax(scale·q·k) v, in double, [B, S, H, D] flat."""
    batch, rows, heads, dim = tensors["q"][1]
    keys = tensors["k"][1][1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    q, k, v = (decode(tensors[n]) for n in "qkv")
    out = []
    for b in range(batch):
        for i in range(rows):
            for h in range(heads):
                at = ((b * rows + i) * heads + h) * dim
                places = [((b * keys + j) * heads + h) * dim for j in range(keys) if valid(b, j)]
                scores = [scale * sum(x * y for x, y in zip(q[at:at + dim], k[p:p + dim])) for p in places]
                top = max(scores, default=0)
                weights = [math.exp(s - top) for s in scores]
                total = sum(weights)
                out += [sum(w * v[p + d] for w, p in zip(weights, places)) / total if places else 0.0 for d in range(dim)]
    return out


def distance(values, exact):
    assert len(values) == len(exact), (len(values), len(exact))
    assert all(math.isfinite(x) for x in values), "not finite"
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(values, exact)) / (sum(y * y for y in exact) or 1))


# ---- strategies ----

def strategy(name, *arguments, shape="2x37x5x24", check=lambda m, dtype: None):
    def body(cwd):
        for dtype in ("float32", "bf16"):
            m = measured(cwd, f"shape={shape}", f"dtype={dtype}", *arguments)
            assert m["rel_l2"] <= BOUND[dtype], (dtype, m["rel_l2"])
            check(m, dtype)
    body.__name__ = "strategy_" + name
    test(body)


def sends(elements):
    """A check that so many elements went between ranks, counted by hand."""
    def check(m, dtype):
        assert m["bytes_sent"] == elements * BYTES[dtype], (m["bytes_sent"], elements * BYTES[dtype])
        assert m["wait_seconds"] >= 0
    return check


def fixed(m, _):
    assert m["tiles_fixed"] > 0 and m["tiles_online"] == 0, (m["tiles_fixed"], m["tiles_online"])
    assert m["softmax"] == "fixed_max"


def layout(ulysses, ring, direction="forward"):
    def check(m, _):
        found = (m["ulysses"], m["ring"], m["ring_direction"])
        assert found == (ulysses, ring, direction), found
    return check


# Elements of one token of a tensor of the shape above, and of all 37.
TOKEN = 2 * 5 * 24
TENSOR = 37 * TOKEN
# Each rank of three has 12 or 13 tokens, and 1, 2 and 2 of the five heads: what stays at home is a token's share of own
# heads; all four tensors travel.
HOME = 4 * 2 * 24 * (12 * 1 + 12 * 2 + 13 * 2)

strategy("dot_product", "attention=dot_product", check=sends(0))
strategy("flash", "attention=flash", check=sends(0))
strategy("auto", "attention=auto", "ranks=3", check=layout(3, 1))
# K and V make two hops of three blocks.
strategy("ring", "attention=ring", "ranks=3", check=sends(2 * 2 * TENSOR))
strategy("tokamax_ring", "attention=tokamax_ring", "ranks=2", check=layout(1, 2))
strategy("tokamax_ring_custom", "attention=tokamax_ring_custom", "ranks=4", check=layout(1, 4))
strategy("ulysses", "attention=ulysses", "ranks=3", check=sends(4 * TENSOR - HOME))
strategy("ulysses_custom", "attention=ulysses_custom", "ranks=2", check=layout(2, 1))
strategy("ulysses_custom_fixed_m", "attention=ulysses_custom_fixed_m", "ranks=2", check=fixed)
strategy("ulysses_ring", "attention=ulysses_ring", "ranks=4", "ulysses_shards=2", check=layout(2, 2))
strategy("ulysses_ring_custom", "attention=ulysses_ring_custom", "ranks=6", "ulysses_shards=3", check=layout(3, 2))
strategy("ulysses_ring_custom_fixed_m", "attention=ulysses_ring_custom_fixed_m", "ranks=4", "ulysses_shards=2",
         check=fixed)
strategy("ulysses_ring_custom_bidir", "attention=ulysses_ring_custom_bidir", "ranks=6", "ulysses_shards=2",
         check=layout(2, 3, "open"))
strategy("two_way", "ulysses_shards=1", "ring_direction=two_way", "ranks=4", check=layout(1, 4, "two_way"))
strategy("two_way_fixed_max", "ulysses_shards=2", "ring_direction=two_way", "ranks=4", "softmax=fixed_max", check=fixed)
strategy("open_chain", "ulysses_shards=1", "ring_direction=open", "ranks=5", check=layout(1, 5, "open"))
strategy("head_chunks", "ulysses_shards=2", "ranks=4", "ulysses_attention_chunks=2")
strategy("more_chunks_than_heads", "attention=ulysses_custom_fixed_m", "ranks=2", "ulysses_attention_chunks=7",
         check=fixed)
strategy("without_smoothing", "softmax=fixed_max", "use_k_smoothing=false")
strategy("deterministic", "deterministic=true", "ranks=3")
strategy("block_sizes", "flash_block_sizes={block_q: 64, block_kv: 64}", "ranks=2")
strategy("fewer_tokens_than_ranks", "attention=ring", "ranks=5", shape="1x3x2x16")
strategy("one_token", "ranks=1", shape="1x1x1x1")
strategy("key_lengths", "ranks=3", "key_lengths=9,37")
strategy("no_valid_keys", "ranks=2", "key_lengths=0")
strategy("cross", "ranks=3", "kv=11", check=sends(0))
strategy("cross_with_lengths", "ranks=2", "kv=64", "key_lengths=3,60", check=sends(0))
strategy("cross_with_one_query", "ranks=3", "kv=50", "attention=ring", shape="1x1x4x40", check=sends(0))


@test
def every_implementation_that_this_machine_has(cwd):
    ran = []
    for name in ("avx512_bf16", "avx512", "avx2", "scalar"):
        for dtype in ("float32", "bf16"):
            result = attention(cwd, "shape=1x19x2x16", f"dtype={dtype}", f"implementation={name}", "reference=true",
                               "json=i.json")
            if result.returncode != 0:
                refused(cwd, result, f"'{name}' cannot run here: ", left=["i.json"])
                continue
            m = json.loads((pathlib.Path(cwd) / "i.json").read_text())
            assert m["implementation"] == name and m["rel_l2"] <= BOUND[dtype], m
            ran.append((name, dtype))
    assert {("avx2", "float32"), ("scalar", "float32"), ("scalar", "bf16")} <= set(ran), ran


# ---- files ----

def ranks_and_mpi(cwd, tensors, exact, bound, *arguments):
    """The file on one rank, on three, and on three MPI processes, each against the definition."""
    save(cwd, tensors)
    for place in (["ranks=1"], ["ranks=3"]):
        result = attention(cwd, "input=qkv.safetensors", "output=o.safetensors", "json=o.json", *place, *arguments)
        assert result.returncode == 0, result.stderr
        o = load_o(cwd)
        assert o[:2] == tensors["q"][:2], o[:2]
        assert distance(decode(o), exact) <= bound, (place, distance(decode(o), exact))
    if without_mpi(cwd):
        return
    # Transports never change a bit; that the kernel is the same is not theirs to say.
    kernel = json.loads((pathlib.Path(cwd) / "o.json").read_text())["implementation"]
    result = mpi(3)(cwd, "input=qkv.safetensors", "output=mpi.safetensors", f"implementation={kernel}", *arguments)
    assert result.returncode == 0, result.stderr
    assert load_o(cwd, "mpi.safetensors") == o


@test
def a_file_of_each_dtype(cwd):
    for dtype, name in NAMES.items():
        tensors = problem(dtype=name)
        ranks_and_mpi(cwd, tensors, definition(tensors), BOUND[dtype])


@test
def a_scale_of_ones_own(cwd):
    tensors = problem()
    ranks_and_mpi(cwd, tensors, definition(tensors, scale=-0.75), BOUND["float32"], "scale=-0.75")


def with_nan(tensors, masked):
    """NaN in every key and value for which masked(b, j)."""
    for name in "kv":
        dtype, shape, _ = tensors[name]
        values, row = decode(tensors[name]), shape[2] * shape[3]
        for b in range(shape[0]):
            for j in range(shape[1]):
                if masked(b, j):
                    at = (b * shape[1] + j) * row
                    values[at:at + row] = [math.nan] * row
        tensors[name] = (dtype, shape, encode(values, dtype))
    return tensors


@test
def key_lengths_in_a_file(cwd):
    lengths = [5, 13, 0]
    for dtype, name in NAMES.items():
        tensors = problem(batch=3, dtype=name)
        exact = definition(tensors, lambda b, j: j < lengths[b])
        tensors = with_nan(tensors, lambda b, j: j >= lengths[b])
        tensors["key_lengths"] = lengths_of(lengths)
        ranks_and_mpi(cwd, tensors, exact, BOUND[dtype], "attention=ring" if dtype == "bf16" else "attention=auto")


@test
def key_mask_in_a_file(cwd):
    rows = [[(j * 7 + b) % 3 != 0 for j in range(13)] for b in range(2)]
    for dtype in ("BOOL", "U8"):
        tensors = problem()
        exact = definition(tensors, lambda b, j: rows[b][j])
        tensors = with_nan(tensors, lambda b, j: not rows[b][j])
        # Any value but zero is valid.
        tensors["key_mask"] = mask_of([[v * (1 if dtype == "BOOL" else 200) for v in row] for row in rows], dtype)
        ranks_and_mpi(cwd, tensors, exact, BOUND["float32"], "ulysses_shards=1")


@test
def cross_attention_of_a_file(cwd):
    tensors = problem(tokens=13, keys=6)
    tensors["key_lengths"] = lengths_of([6, 2])
    ranks_and_mpi(cwd, tensors, definition(tensors, lambda b, j: j < (6, 2)[b]), BOUND["float32"])


@test
def tensors_that_lie_across_their_alignment(cwd):
    tensors = problem()
    save(cwd, tensors)
    save(cwd, {"a": ("U8", [1], b"x"), **tensors}, "odd.safetensors")
    for name in ("qkv", "odd"):
        result = attention(cwd, f"input={name}.safetensors", f"output={name}.o", "ranks=2")
        assert result.returncode == 0, result.stderr
    assert load_o(cwd, "qkv.o") == load_o(cwd, "odd.o")


@test
def infinities_are_reported_and_still_json(cwd):
    tensors = problem()
    values = decode(tensors["v"])
    values[0] = math.inf
    tensors["v"] = ("F32", tensors["v"][1], encode(values, "F32"))
    save(cwd, tensors)
    result = attention(cwd, "input=qkv.safetensors", "reference=true", "json=m.json")
    assert result.returncode == 0, result.stderr
    # One element of each of the 13 rows of one head, and nowhere else.
    assert "13 elements are not finite there, of which 0 are finite here" in result.stdout, result.stdout
    assert json.loads((pathlib.Path(cwd) / "m.json").read_text())["rel_l2"] <= BOUND["float32"]


@test
def one_seed_gives_one_result_on_any_number_of_ranks(cwd):
    outputs = []
    for i, words in enumerate((["ranks=1"], ["ranks=3"], ["ranks=3", "seed=1"])):
        result = attention(cwd, "shape=1x40x4x16", "dtype=float32", f"output={i}.o", "attention=ulysses",
                           "deterministic=true", *words)
        assert result.returncode == 0, result.stderr
        outputs.append(load_o(cwd, f"{i}.o"))
    # With deterministic=true, any U gives identical bits.
    assert outputs[0] == outputs[1] and outputs[0] != outputs[2]


# ---- what is said ----

@test
def json_has_the_fields_and_they_agree(cwd):
    result = attention(cwd, "shape=1x256x4x64", "ranks=2", "repeat=3", "json=m.json", "attention=ring")
    assert result.returncode == 0, result.stderr
    m = json.loads((pathlib.Path(cwd) / "m.json").read_text())
    for name, kind in FIELDS.items():
        assert isinstance(m[name], (int, float) if kind is float else kind), (name, m[name])
    assert "rel_l2" not in m and "max_abs" not in m
    assert 0 < m["seconds_min"] <= m["seconds_median"] and len(m["seconds"]) == 3
    flop = 4 * 256 * 256 * 64 * 4
    assert abs(m["gflops"] * 1e9 * m["seconds_median"] / flop - 1) < 1e-9
    assert m["peak_gflops"] > 0 and abs(m["fraction"] - m["gflops"] / m["peak_gflops"]) < 1e-9
    # Of one run, however many there were: every rank sends its keys and values once.
    assert m["bytes_sent"] == 2 * 256 * 4 * 64 * 2
    assert m["implementation"] in result.stdout and "GFLOP/s" in result.stdout


@test
def work_counts_valid_keys_only(cwd):
    m = measured(cwd, "shape=2x64x2x16", "kv=100", "key_lengths=10,50")
    assert m["flop"] == 4 * 64 * 60 * 2 * 16 and m["valid_keys"] == 60


@test
def large_problems_are_compared_in_samples(cwd):
    # 2^14 · 2^14 · 2^7 are 3.4·10^10, more than is compared whole; masked keys count there, but cost nothing.
    m = measured(cwd, "shape=1x16384x1x128", "dtype=bf16", "key_lengths=50")
    assert 0 < m["reference_rows"] < 16384 and m["rel_l2"] <= BOUND["bf16"], m



@test
def a_trace_shows_every_rank(cwd):
    result = attention(cwd, "shape=1x64x4x16", "ranks=4", "ulysses_shards=2", "trace=t.json")
    assert result.returncode == 0, result.stderr
    events = json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["name"] == "attention"} == {0, 1, 2, 3}


@test
def help_names_every_key(cwd):
    text = run([PROGRAM, "attention", "--help"], cwd)
    assert text.returncode == 0
    for key in (*FIELDS, "input", "output", "shape", "kv", "reference", "ulysses_shards", "softmax", "implementation",
                "comm_timeout", "deterministic", "rel_l2"):
        assert key in text.stdout, key


@test
def keys_may_stand_in_a_yaml_file(cwd):
    (pathlib.Path(cwd) / "a.yml").write_text("shape: 1x8x2x8\nattention: ring\nranks: 2\nimplementation: auto\n")
    result = attention(cwd, "a.yml", "ranks=4")
    assert result.returncode == 0 and "ring 4" in result.stdout, result.stdout + result.stderr


# ---- bad input ----

def refused_words(name, words, *arguments):
    def body(cwd):
        refused(cwd, attention(cwd, *arguments), *words)
    body.__name__ = "refuses_" + name
    test(body)


SHAPE = "shape=1x8x2x8"
refused_words("no_data", ["input=", "shape="])
refused_words("a_shape_of_three", ["shape=1x8x2", "BxSxHxD"], "shape=1x8x2")
refused_words("a_shape_of_words", ["shape=axbxcxd", "BxSxHxD"], "shape=axbxcxd")
refused_words("no_tokens", ["shape=1x0x2x8", "at least 1"], "shape=1x0x2x8")
refused_words("no_heads", ["shape=1x8x0x8", "at least 1"], "shape=1x8x0x8")
refused_words("a_negative_batch", ["shape=-1x8x2x8", "at least 1"], "shape=-1x8x2x8")
refused_words("a_head_dim_no_kernel_has", ["2000", "1024"], "shape=1x8x2x2000")
refused_words("a_shape_that_overflows", ["larger than any memory"], "shape=1000000000x1000000000x1000x1000")
refused_words("a_shape_larger_than_memory", ["GB"], "shape=1x1000000000x40x128")
refused_words("no_keys", ["kv=0"], SHAPE, "kv=0")
refused_words("a_dtype_that_does_not_exist", ["fp8", "bf16, float32"], SHAPE, "dtype=fp8")
refused_words("a_length_beyond_the_keys", ["9", "0 to 8"], SHAPE, "key_lengths=9")
refused_words("a_negative_length", ["-1", "0 to 8"], SHAPE, "key_lengths=-1")
refused_words("lengths_of_another_batch", ["3 numbers", "batch of 2"], "shape=2x8x2x8", "key_lengths=1,2,3")
refused_words("a_scale_of_infinity", ["scale=inf", "finite"], SHAPE, "scale=inf")
refused_words("a_scale_of_nan", ["scale=nan", "finite"], SHAPE, "scale=nan")
refused_words("a_scale_beyond_float32", ["scale=1e300"], SHAPE, "scale=1e300")
refused_words("a_scale_that_vanishes", ["scale", "zero in float32"], SHAPE, "scale=1e-60")
refused_words("flash_on_two_ranks", ["flash", "2", "ring"], SHAPE, "attention=flash", "ranks=2")
refused_words("dot_product_on_two_ranks", ["dot_product", "ring"], SHAPE, "attention=dot_product", "ranks=2")
refused_words("an_unknown_strategy", ["ulyses", "did you mean 'ulysses'"], SHAPE, "attention=ulyses")
refused_words("more_ulysses_ranks_than_heads", ["ulysses_shards", "1, 2"], SHAPE, "attention=ulysses", "ranks=4")
refused_words("a_degree_that_does_not_divide", ["ulysses_shards=3", "1, 2"], SHAPE, "ulysses_shards=3", "ranks=4")
refused_words("a_contradicted_name", ["ring", "ulysses_shards"], SHAPE, "attention=ring", "ulysses_shards=2", "ranks=2")
refused_words("a_contradicted_softmax", ["ulysses", "fixed_max"], SHAPE, "attention=ulysses", "softmax=fixed_max")
refused_words("a_contradicted_implementation", ["dot_product", "scalar", "avx2"], SHAPE, "attention=dot_product",
              "implementation=avx2")
refused_words("an_unknown_implementation", ["'sse'", "avx2", "scalar"], SHAPE, "implementation=sse")
refused_words("no_head_chunks", ["ulysses_attention_chunks=0"], SHAPE, "ulysses_attention_chunks=0")
refused_words("an_unknown_direction", ["ring_direction=left", "two_way"], SHAPE, "ring_direction=left")
refused_words("a_block_size_that_does_not_exist", ["block_x", "block_q"], SHAPE, "flash_block_sizes={block_x: 3}")
refused_words("another_base", ["use_base2_exp"], SHAPE, "use_base2_exp=false")
refused_words("no_repeats", ["repeat=0"], SHAPE, "repeat=0")
refused_words("no_ranks", ["ranks=0"], SHAPE, "ranks=0")
refused_words("an_unknown_key", ["shapee", "'shape'"], "shapee=1x8x2x8")
refused_words("a_word_that_is_no_key", ["hello", "key=value"], "hello")
refused_words("an_output_that_cannot_be_written", ["nowhere"], SHAPE, "output=nowhere/o.safetensors")
refused_words("a_json_that_cannot_be_written", ["nowhere"], SHAPE, "json=nowhere/m.json", "output=o.safetensors")
refused_words("a_trace_that_cannot_be_written", ["nowhere"], SHAPE, "trace=nowhere/t.json", "output=o.safetensors")
refused_words("one_file_for_two_things", ["json=x", "output=./x"], SHAPE, "output=./x", "json=x")
refused_words("a_missing_file", ["none.safetensors"], "input=none.safetensors")


@test
def refuses_a_forced_implementation_and_says_why(cwd):
    # vdpbf16ps multiplies bf16 only: wherever this runs, there is a reason.
    refused(cwd, attention(cwd, SHAPE, "dtype=float32", "implementation=avx512_bf16", "ranks=2"), "avx512_bf16",
            "cannot run here")


def refused_file(name, words, change, *arguments, **sizes):
    """`change(tensors)` breaks a file that was right."""
    def body(cwd):
        tensors = problem(**sizes)
        change(tensors)
        save(cwd, tensors)
        refused(cwd, attention(cwd, "input=qkv.safetensors", "output=o.safetensors", *arguments), *words,
                left=["qkv.safetensors"])
    body.__name__ = "refuses_" + name
    test(body)


def put(**tensors):
    return lambda t: t.update(tensors)


for missing in "qkv":
    refused_file(f"a_file_without_{missing}", ["qkv.safetensors", f"'{missing}'", "missing"],
                 lambda t, n=missing: t.pop(n))
refused_file("k_of_another_batch", ["'k'", "[3, 13, 3, 8]", "[2, 13, 3, 8]"], put(k=normal([3, 13, 3, 8], "F32", 1)))
refused_file("k_of_other_heads", ["'k'", "[2, 13, 4, 8]", "[2, 13, 3, 8]"], put(k=normal([2, 13, 4, 8], "F32", 1)))
refused_file("k_of_another_head_dim", ["'k'", "[2, 13, 3, 9]", "[2, 13, 3, 8]"], put(k=normal([2, 13, 3, 9], "F32", 1)))
refused_file("v_of_other_tokens", ["'v'", "[2, 12, 3, 8]", "[2, 13, 3, 8]"], put(v=normal([2, 12, 3, 8], "F32", 1)))
refused_file("q_of_three_axes", ["'q'", "[13, 3, 8]", "four axes"], put(q=normal([13, 3, 8], "F32", 1)))
refused_file("q_of_six_axes", ["'q'", "[1, 1, 1, 13, 3, 8]", "four axes"], put(q=normal([1, 1, 1, 13, 3, 8], "F32", 1)))
refused_file("a_file_without_tokens", ["'q'", "[2, 0, 3, 8]", "at least 1"], put(q=("F32", [2, 0, 3, 8], b"")))
refused_file("a_file_without_heads", ["'q'", "[2, 13, 0, 8]", "at least 1"], put(q=("F32", [2, 13, 0, 8], b"")))
refused_file("a_file_without_keys", ["'k'", "[2, 0, 3, 8]", "at least 1"], put(k=("F32", [2, 0, 3, 8], b"")))
refused_file("dtypes_that_disagree", ["'v'", "BF16", "F32"], put(v=normal([2, 13, 3, 8], "BF16", 1)))
refused_file("a_dtype_without_a_kernel", ["'q'", "F16", "F32 or BF16"], put(q=("F16", [2, 13, 3, 8], bytes(2 * 624))))
refused_file("a_dtype_without_arithmetic", ["'q'", "F8_E4M3", "F32 or BF16"], put(q=("F8_E4M3", [2, 13, 3, 8], bytes(624))))
refused_file("a_length_beyond_the_keys_of_a_file", ["key_lengths[1]", "14", "0 to 13"],
             put(key_lengths=lengths_of([3, 14])))
refused_file("a_negative_length_in_a_file", ["key_lengths[0]", "-1", "0 to 13"], put(key_lengths=lengths_of([-1, 3])))
refused_file("a_length_beyond_the_keys_of_cross_attention", ["key_lengths[0]", "9", "0 to 6"],
             put(key_lengths=lengths_of([9, 3])), keys=6)
refused_file("lengths_of_the_wrong_shape", ["'key_lengths'", "[3]", "[2]"], put(key_lengths=lengths_of([1, 2, 3])))
refused_file("lengths_of_the_wrong_dtype", ["'key_lengths'", "I32", "I64"], put(key_lengths=("I32", [2], bytes(8))))
refused_file("a_mask_of_the_wrong_shape", ["'key_mask'", "[2, 12]", "[2, 13]"], put(key_mask=mask_of([[1] * 12] * 2)))
refused_file("a_mask_of_the_wrong_axes", ["'key_mask'", "[26]", "[2, 13]"], put(key_mask=("BOOL", [26], bytes(26))))
refused_file("a_mask_of_the_wrong_dtype", ["'key_mask'", "F32", "BOOL or U8"], put(key_mask=normal([2, 13], "F32", 1)))
refused_file("two_masks", ["key_lengths", "key_mask"],
             put(key_lengths=lengths_of([1, 2]), key_mask=mask_of([[1] * 13] * 2)))
refused_file("input_and_shape", ["input=", "shape="], put(), SHAPE)
refused_file("lengths_beside_a_file", ["key_lengths=3", "input="], put(), "key_lengths=3")
refused_file("another_dtype_beside_a_file", ["dtype=bf16", "float32"], put(), "dtype=bf16")
refused_file("other_keys_beside_a_file", ["kv=6", "[2, 13, 3, 8]"], put(), "kv=6")


@test
def refuses_to_write_over_its_input(cwd):
    save(cwd, problem())
    os.symlink("qkv.safetensors", pathlib.Path(cwd) / "link")
    before = (pathlib.Path(cwd) / "qkv.safetensors").read_bytes()
    for output in ("qkv.safetensors", "./qkv.safetensors", "link"):
        refused(cwd, attention(cwd, "input=qkv.safetensors", f"output={output}"), f"output={output}", "same file",
                left=["qkv.safetensors", "link"])
    assert (pathlib.Path(cwd) / "qkv.safetensors").read_bytes() == before


@test
def refuses_an_output_that_is_a_folder(cwd):
    (pathlib.Path(cwd) / "o").mkdir()
    refused(cwd, attention(cwd, SHAPE, "output=o"), "o", left=["o"])


@test
def refuses_a_truncated_file(cwd):
    path = pathlib.Path(cwd) / save(cwd, problem())
    path.write_bytes(path.read_bytes()[:-4])
    refused(cwd, attention(cwd, "input=qkv.safetensors", "output=o"), "qkv.safetensors", left=["qkv.safetensors"])


@test
def ctrl_c_leaves_nothing(cwd):
    process = subprocess.Popen([PROGRAM, "attention", SHAPE, "ranks=2", "threads=1", "repeat=1000000", "output=o", "json=m",
                                "trace=t"], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1 * SLOWER)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60 * SLOWER)
    result = unreported(subprocess.CompletedProcess([], process.returncode, out, err))
    assert result.returncode == 130, (result.returncode, err)
    refused(cwd, result, "interrupted")


# ---- under MPI ----

@test
def mpi_on_two_ranks(cwd):
    for words in (["attention=ring"], ["attention=ulysses"], ["attention=ulysses_custom_fixed_m", "dtype=bf16"],
                  ["kv=11", "key_lengths=9,11"]):
        dtype = "bf16" if "dtype=bf16" in words else "float32"
        m = measured(cwd, "shape=2x37x5x24", *({f"dtype={dtype}", *words}), command=mpi(2))
        assert m["ranks"] == 2 and m["rel_l2"] <= BOUND[dtype], (words, m)
        assert (m["bytes_sent"] == 0) == (words[0] == "kv=11"), (words, m)


@test
def mpi_on_three_ranks_gives_what_threads_give(cwd):
    words = ["shape=1x37x5x24", "dtype=float32", "attention=ulysses", "ulysses_attention_chunks=2", "seed=5"]
    result = mpi(3)(cwd, "output=a.o", "json=a.json", "trace=t.json", "ranks=3", *words)
    assert result.returncode == 0, result.stderr
    assert attention(cwd, "output=b.o", "json=b.json", "ranks=3", *words).returncode == 0
    assert load_o(cwd, "a.o") == load_o(cwd, "b.o")
    a, b = (json.loads((pathlib.Path(cwd) / f"{n}.json").read_text()) for n in "ab")
    assert a["bytes_sent"] == b["bytes_sent"] > 0 and a["tiles_online"] == b["tiles_online"]
    events = json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["name"] == "attention"} == {0, 1, 2}
    # One process prints.
    assert result.stdout.count("Strategy:") == 1, result.stdout


@test
def mpi_refuses_another_number_of_ranks(cwd):
    refused(cwd, mpi(2)(cwd, SHAPE, "ranks=3"), "ranks=3", "2")


@test
def mpi_says_bad_input_once(cwd):
    refused(cwd, mpi(3)(cwd, "shape=1x0x2x8", "output=o"), "shape=1x0x2x8")


@test
def mpi_refuses_ranks_that_disagree(cwd):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    one = ["-n", "1", PROGRAM, "attention", SHAPE, "threads=1"]
    refused(cwd, run(["mpirun", *one, ":", *one, "scale=2"], cwd, env=MPI_ENV), "disagree", "rank 1", "scale=2")
    save(cwd, problem())
    other = pathlib.Path(cwd) / "other"
    other.mkdir()
    tensors = problem()
    tensors["v"] = normal([2, 13, 3, 8], "F32", 9)
    save(other, tensors)
    # One name, two files: as on two machines that do not share their disks.
    one = ["-n", "1", "-wdir", cwd, PROGRAM, "attention", "input=qkv.safetensors", "threads=1"]
    two = [str(other) if w == cwd else w for w in one]
    refused(cwd, run(["mpirun", *one, ":", *two], cwd, env=MPI_ENV), "disagree", "rank 1", "v (hash",
            left=["qkv.safetensors", "other"])


@test
def mpi_error_of_the_writer_ends_all(cwd):
    refused(cwd, mpi(3)(cwd, SHAPE, "output=nowhere/o"), "nowhere")


def main():
    global PROGRAM
    if sys.argv[1:] == ["--list"]:
        print(";".join(TESTS))
        return 0
    PROGRAM, name = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="zoetrope_attention_") as cwd:
        try:
            TESTS[name](cwd)
        except Skip as reason:
            print(f"skipped: {reason}")
            return 77
    print(f"{name}: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
