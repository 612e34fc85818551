#!/usr/bin/env python3
"""`zoetrope attention` as a user runs it: every strategy against the definition, files in and out, ranks as threads and as
MPI processes, what the JSON file says. What is refused is in attention_refusals_test.py.

    attention_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    attention_test.py --list          the names
"""
import json
import math
import pathlib
import random
import shutil
import struct
import sys

sys.dont_write_bytecode = True
from harness import MPI_ENV, Skip, read_tensors, refused, run, run_script, write_tensors  # noqa: E402

PROGRAM = None
TESTS = {}

# Relative L2 that a correct result stays below.
#   F32   1e-5, what N ranks may differ from one by (the sums of 24 to 37 terms here err by a few 2^-24)
#   BF16  2^-8: o is rounded once, by at most 2^-9 of each element, and so are the weights that multiply v
BOUND = {"float32": 1e-5, "bf16": 2.0 ** -8}
BYTES = {"float32": 4, "bf16": 2}
NAMES = {"float32": "F32", "bf16": "BF16"}
FIELDS = {"seconds_min": float, "seconds_median": float, "gflops": float, "peak_gflops": float, "fraction": float,
          "implementation": str, "tiles_fixed": int, "tiles_online": int, "bytes_sent": int, "wait_seconds": float,
          "key_rounding": float, "value_rounding": float, "heads_int8": int, "heads_as_computed": int,
          "int8_error": float}


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


def gathers(ranks):
    def check(m, dtype):
        assert (m["ulysses"], m["ring"], m["gather"]) == (1, 1, ranks), m
        sends((ranks - 1) * 2 * TENSOR)(m, dtype)
    return check


def planned(m, _):
    assert m["ulysses"] * m["ring"] * m["gather"] == 3 and m["predicted_seconds"] > 0, m


# Elements of one token of a tensor of the shape above, and of all 37.
TOKEN = 2 * 5 * 24
TENSOR = 37 * TOKEN
# Each rank of three has 12 or 13 tokens, and 1, 2 and 2 of the five heads: what stays at home is a token's share of own
# heads; all four tensors travel.
HOME = 4 * 2 * 24 * (12 * 1 + 12 * 2 + 13 * 2)

for name in ("flash", "tokamax_flash", "cudnn_flash_te", "dot_product"):
    strategy(name, f"attention={name}", check=sends(0))
# K and V of each rank go to the two others.
for name in ("gather", "flash", "dot_product"):
    strategy(f"{name}_over_ranks", f"attention={name}", "ranks=3", check=gathers(3))
strategy("gather_fixed_max", "attention=gather", "ranks=4", "softmax=fixed_max", check=fixed)
strategy("gather_key_lengths", "attention=gather", "ranks=3", "key_lengths=9,37")
strategy("gather_fewer_tokens_than_ranks", "attention=gather", "ranks=5", shape="1x3x2x16")
strategy("gather_cross", "attention=gather", "ranks=3", "kv=11", check=sends(0))
strategy("auto", "attention=auto", "ranks=3", check=planned)  # what is chosen where: auto_test.py
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
strategy("ulysses_ring_unset", "attention=ulysses_ring", "ranks=4", check=layout(2, 2))
strategy("ulysses_ring_two_way", "attention=ulysses_ring", "ranks=6", "ulysses_shards=2", "ring_direction=two_way",
         check=layout(2, 3, "two_way"))
strategy("ulysses_ring_bidir_two_way", "attention=ulysses_ring_custom_bidir", "ranks=6", "ulysses_shards=2",
         "ring_direction=two_way", check=layout(2, 3, "two_way"))
strategy("ring_fixed_max", "attention=ring", "ranks=3", "softmax=fixed_max", check=fixed)
strategy("ulysses_custom_chunks", "attention=ulysses_custom", "ranks=2", "ulysses_attention_chunks=2", check=layout(2, 1))
strategy("dot_product_by_a_kernel", "attention=dot_product", "implementation=scalar", check=sends(0))
strategy("two_way", "ulysses_shards=1", "ring_direction=two_way", "ranks=4", check=layout(1, 4, "two_way"))
strategy("two_way_fixed_max", "ulysses_shards=2", "ring_direction=two_way", "ranks=4", "softmax=fixed_max", check=fixed)
strategy("open_chain", "ulysses_shards=1", "ring_direction=open", "ranks=5", check=layout(1, 5, "open"))
strategy("head_chunks", "ulysses_shards=2", "ranks=4", "ulysses_attention_chunks=2")
strategy("more_chunks_than_heads", "attention=ulysses_custom_fixed_m", "ranks=2", "ulysses_attention_chunks=7",
         check=fixed)
strategy("unequal_ring", "attention=ring", "ranks=4", "shard_weights=3,1,2,1", check=layout(1, 4))
strategy("unequal_groups", "ulysses_shards=2", "ranks=6", "shard_weights=5,4,3,2,1,7")
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
def a_tensor_that_is_not_read_is_named(cwd):
    tensors = problem()
    name = save(cwd, tensors)
    assert "Not read" not in attention(cwd, f"input={name}").stdout
    tensors["key_length"] = lengths_of([3, 4])
    name = save(cwd, tensors)
    result = attention(cwd, f"input={name}")
    assert result.returncode == 0 and "\nNot read: key_length\n" in result.stdout, result.stdout
    tensors.update({f"o{i}": tensors["q"] for i in range(3)})
    result = attention(cwd, f"input={save(cwd, tensors)}")
    assert "\nNot read: key_length, o0, o1 and 1 more\n" in result.stdout, result.stdout


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
            bound_by = "avx2" if name == "scalar" else name  # as the help says
            assert f" GFLOP/s ({bound_by})\n" in result.stdout, result.stdout
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


def log_sums(tensors):
    """ln Σ exp(q·k/√D), in double, [B, S, H] flat."""
    batch, rows, heads, dim = tensors["q"][1]
    q, k = decode(tensors["q"]), decode(tensors["k"])
    sums = []
    for b in range(batch):
        for i in range(rows):
            for h in range(heads):
                at = ((b * rows + i) * heads + h) * dim
                places = [((b * rows + j) * heads + h) * dim for j in range(rows)]
                sums.append(math.log(sum(math.exp(sum(x * y for x, y in zip(q[at:at + dim], k[p:p + dim])) / math.sqrt(dim))
                                         for p in places)))
    return sums


@test
def the_log_sum_exp_is_written_and_compared(cwd):
    tensors = problem()
    save(cwd, tensors)
    exact = log_sums(tensors)
    # A score s errs by at most 4·2^-24·s, sums and the result by (8 + s + ln 13)·2^-24; |s| < 12 for these data.
    bound = 2 ** -24 * (5 * 12 + 8 + math.log(13))
    places = [(attention, "ranks=1"), (attention, "ranks=3", "attention=ulysses"),
              (attention, "ranks=4", "ulysses_shards=2", "softmax=fixed_max", "ulysses_attention_chunks=2")]
    if not without_mpi(cwd):
        places.append((mpi(3), "attention=ulysses"))
    for command, *arguments in places:
        m = measured(cwd, "input=qkv.safetensors", "output=o.safetensors", "log_sum_exp=true", *arguments, command=command)
        assert m["log_sum_exp_max_abs"] <= bound, (arguments, m["log_sum_exp_max_abs"])
        written = read_tensors(pathlib.Path(cwd) / "o.safetensors")
        assert sorted(written) == ["log_sum_exp", "o"], sorted(written)
        assert written["log_sum_exp"][:2] == ("F32", [2, 13, 3]), written["log_sum_exp"][:2]
        error = max(abs(x - y) for x, y in zip(decode(written["log_sum_exp"]), exact))
        assert error <= bound, (arguments, error)
    assert "log_sum_exp_max_abs" not in measured(cwd, "input=qkv.safetensors")


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
    assert "13 elements of the definition are not finite, of which 0 are finite in o" in result.stdout, result.stdout
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


# ---- keys and values in fewer bits ----

@test
def narrowed_keys_send_fewer_bytes_and_say_their_error(cwd):
    """Each of three ranks sends the keys and values of all but itself on, of 37 tokens, 2 samples and 5 heads of 24: in int8
    a vector has 28 bytes. Off by what rounding does to o: near it, and far above what N ranks differ by otherwise."""
    for dtype, exchange, vector in (("float32", "bf16", 48), ("float32", "int8", 28), ("bf16", "int8", 28)):
        for attention_name in ("ring", "gather"):
            for command in (attention, mpi(3)):
                if command is not attention and without_mpi(cwd):
                    continue
                ranks = ["ranks=3"] if command is attention else []
                m = measured(cwd, "shape=2x37x5x24", f"dtype={dtype}", f"attention={attention_name}", *ranks,
                             f"kv_exchange_dtype={exchange}", command=command)
                assert m["bytes_sent"] == 2 * 37 * 2 * 2 * 5 * vector, m
                assert 1e-3 < m["key_rounding"] < 2 ** -6 and 1e-3 < m["value_rounding"] < 2 ** -6, m
                assert BOUND["float32"] < m["rel_l2"] < 4 * (m["key_rounding"] + m["value_rounding"]) + BOUND[dtype], m


@test
def attention_in_int8_says_its_error(cwd):
    """Three heads, over a ring of two ranks times two blocks each. o is off by about as much as that of a sample."""
    words = ["shape=1x400x3x64", "dtype=bf16", "attention_dtype=int8"]
    for ranks, blocks in ((1, 3), (2, 12)):
        m = measured(cwd, *words, f"ranks={ranks}", "attention=ring")
        assert m["heads_int8"] == blocks and m["heads_as_computed"] == 0, m
        assert 2 ** -9 < m["int8_error"] < 2 ** -6 and m["rel_l2"] < 2 * m["int8_error"] + BOUND["bf16"], m
    refused(cwd, attention(cwd, *words, "implementation=avx512_bf16"), "avx512_bf16",
            "does not multiply in int8", left=["m.json"])


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
                "comm_timeout", "deterministic", "rel_l2", "log_sum_exp", "(of avx2 for scalar)"):
        assert key in text.stdout, key


@test
def keys_may_stand_in_a_yaml_file(cwd):
    (pathlib.Path(cwd) / "a.yml").write_text("shape: 1x8x2x8\nattention: ring\nranks: 2\nimplementation: auto\n")
    result = attention(cwd, "a.yml", "ranks=4")
    assert result.returncode == 0 and "ring 4" in result.stdout, result.stdout + result.stderr


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


def use(program):
    global PROGRAM
    PROGRAM = program


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
