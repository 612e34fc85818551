#!/usr/bin/env python3
"""What `zoetrope attention` refuses, as a user meets it: one clear sentence for every kind of bad input, an exit code that is
not 0, and nothing left behind.

    attention_refusals_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    attention_refusals_test.py --list          the names
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
import attention_test  # noqa: E402
from attention_test import attention, lengths_of, mask_of, mpi, normal, problem, save  # noqa: E402
from harness import MPI_ENV, PATIENCE, SLOWER, Skip, cpu_seconds, refused, run, run_script, unreported, until  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


# ---- words ----

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
refused_words("a_shape_larger_than_memory", ["q, k, v and o take 40960.0 GB"], "shape=1x1000000000x40x128")
refused_words("no_keys", ["kv=0"], SHAPE, "kv=0")
refused_words("a_dtype_that_does_not_exist", ["fp8", "bf16, float32"], SHAPE, "dtype=fp8")
refused_words("an_exchange_in_the_dtype_of_the_keys", ["kv_exchange_dtype=bf16", "use kv_exchange_dtype=int8"], SHAPE, "dtype=bf16",
              "kv_exchange_dtype=bf16")
refused_words("a_length_beyond_the_keys", ["9", "0 to 8"], SHAPE, "key_lengths=9")
refused_words("a_negative_length", ["-1", "0 to 8"], SHAPE, "key_lengths=-1")
refused_words("lengths_of_another_batch", ["3 numbers", "batch of 2"], "shape=2x8x2x8", "key_lengths=1,2,3")
refused_words("a_scale_of_infinity", ["scale=inf", "finite"], SHAPE, "scale=inf")
refused_words("a_scale_of_nan", ["scale=nan", "finite"], SHAPE, "scale=nan")
refused_words("a_scale_beyond_float32", ["scale=1e300"], SHAPE, "scale=1e300")
refused_words("a_scale_that_vanishes", ["scale", "zero in float32"], SHAPE, "scale=1e-60")
refused_words("flash_over_ranks_in_chunks", ["ulysses_attention_chunks=2", "attention=gather, or flash over ranks"], SHAPE,
              "attention=flash", "ulysses_attention_chunks=2", "ranks=2")
refused_words("dot_product_over_ranks_in_a_direction", ["ring_direction=open", "there is no ring"], SHAPE,
              "attention=dot_product", "ring_direction=open", "ranks=2")
refused_words("a_gather_in_chunks", ["ulysses_attention_chunks=2", "all heads arrive at once"], SHAPE, "attention=gather",
              "ulysses_attention_chunks=2", "ranks=2")
refused_words("a_gather_in_a_direction", ["ring_direction=two_way", "there is no ring"], SHAPE, "attention=gather",
              "ring_direction=two_way", "ranks=2")
refused_words("a_gather_of_ulysses_groups", ["attention=gather", "means ulysses_shards=1"], SHAPE, "attention=gather",
              "ulysses_shards=2", "ranks=2")
refused_words("an_unknown_strategy", ["ulyses", "did you mean 'ulysses'"], SHAPE, "attention=ulyses")
refused_words("more_ulysses_ranks_than_heads", ["ulysses_shards", "1, 2"], SHAPE, "attention=ulysses", "ranks=4")
refused_words("a_degree_that_does_not_divide", ["ulysses_shards=3", "1, 2"], SHAPE, "ulysses_shards=3", "ranks=4")
refused_words("a_contradicted_name", ["ring", "ulysses_shards"], SHAPE, "attention=ring", "ulysses_shards=2", "ranks=2")
refused_words("a_contradicted_softmax", ["ulysses_custom_fixed_m", "softmax=fixed_max", "softmax=online"], SHAPE,
              "attention=ulysses_custom_fixed_m", "softmax=online")
refused_words("a_contradicted_direction", ["ulysses_ring_custom_bidir", "ring_direction=open", "ring_direction=forward"],
              SHAPE, "attention=ulysses_ring_custom_bidir", "ring_direction=forward", "ranks=4")
refused_words("weights_of_another_context", ["shard_weights=2,1", "has 2 numbers", "3 ranks"], SHAPE, "shard_weights=2,1",
              "ranks=3")
refused_words("a_weight_of_nothing", ["shard_weights=2,0", "1 to 1000"], SHAPE, "shard_weights=2,0", "ranks=2")
refused_words("weights_that_are_no_numbers", ["shard_weights=fast"], SHAPE, "shard_weights=fast", "ranks=2")
refused_words("weights_as_measured", ["shard_weights=auto", "is not possible in attention"], SHAPE, "shard_weights=auto",
              "ranks=2")
for ranks in (1, 2, 3, 5):
    refused_words(f"two_dimensions_of_{ranks}", [f"a context of {ranks} rank", "attention=ring or attention=ulysses"],
                  SHAPE, "attention=ulysses_ring", f"ranks={ranks}")
for shards in (1, 4):
    refused_words(f"one_dimension_of_u{shards}", [f"ulysses_shards={shards} (command line) is not possible", "4 ranks: 2;"],
                  SHAPE, "attention=ulysses_ring", f"ulysses_shards={shards}", "ranks=4")
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


# ---- files ----

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
    command = [attention_test.PROGRAM, "attention", SHAPE, "ranks=2", "threads=1", "repeat=1000000", "output=o", "json=m",
               "trace=t"]
    process = subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The start takes some hundredths of a second of a processor. A repeat is timed for 20 ms on any machine, so a million
    # of them take hours.
    until(lambda: cpu_seconds(process) > 1 * SLOWER, "the repeats do not begin")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    result = unreported(subprocess.CompletedProcess([], process.returncode, out, err))
    assert result.returncode == 130, (result.returncode, err)
    refused(cwd, result, "interrupted")


# ---- under MPI ----

@test
def mpi_refuses_another_number_of_ranks(cwd):
    refused(cwd, mpi(2)(cwd, SHAPE, "ranks=3"), "ranks=3", "2")


@test
def mpi_says_bad_input_once(cwd):
    refused(cwd, mpi(3)(cwd, "shape=1x0x2x8", "output=o"), "shape=1x0x2x8")


@test
def mpi_counts_the_tokens_of_a_rank(cwd):
    """Half of each tensor; the keys of cross-attention whole."""
    for words, gigabytes in ([], "20480.0"), (["kv=2000000000"], "51200.0"):
        result = mpi(2)(cwd, "shape=1x1000000000x40x128", *words)
        refused(cwd, result, "the tokens of rank ", f"q, k, v and o take {gigabytes} GB")


@test
def mpi_refuses_ranks_that_disagree(cwd):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    one = ["-n", "1", attention_test.PROGRAM, "attention", SHAPE, "threads=1"]
    refused(cwd, run(["mpirun", *one, ":", *one, "scale=2"], cwd, env=MPI_ENV), "disagree", "rank 1", "scale=2")
    save(cwd, problem())
    other = pathlib.Path(cwd) / "other"
    other.mkdir()
    tensors = problem()
    tensors["v"] = normal([2, 13, 3, 8], "F32", 9)
    save(other, tensors)
    # One name, two files: as on two machines that do not share their disks.
    one = ["-n", "1", "-wdir", cwd, attention_test.PROGRAM, "attention", "input=qkv.safetensors", "threads=1"]
    two = [str(other) if w == cwd else w for w in one]
    refused(cwd, run(["mpirun", *one, ":", *two], cwd, env=MPI_ENV), "disagree", "rank 1", "v (hash",
            left=["qkv.safetensors", "other"])


@test
def mpi_error_of_the_writer_ends_all(cwd):
    refused(cwd, mpi(3)(cwd, SHAPE, "output=nowhere/o"), "nowhere")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, attention_test.use))
