#!/usr/bin/env python3
"""Decoding as a user meets it: the VAE over ranks and in tiles, what of that is refused, and what the timing says.

    frames_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    frames_test.py --list                the names
"""
import json
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MANY_FRAMES, MPI_ENV, generate, interrupt, mpirun, read_tensors, refused, run,
                     run_script)  # noqa: E402

TESTS = {}
# Ten latent rows, which three, four and seven ranks share unevenly.
ODD = ["height=80", "width=48", "num_frames=9"]
# In [0, 1]. Ranks sum the attention of the VAE in another order, as float32 and float64 do: four times the largest
# difference that the recorded decode of this model shows between those (1.7e-5 in [-1, 1]), as for one rank.
FLOAT32 = 4 * 1.7e-5 / 2


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model):
    harness.use(program, model)


def frames_of(cwd, *arguments, command=None):
    """The tensor `frames` of a run, and its result."""
    words = [*ODD, "output=a.gif", "dump=d", "summary=full", *arguments]
    result = run(command(words), cwd, env=MPI_ENV) if command else generate(cwd, *words)
    assert result.returncode == 0, result.stderr
    tensors = read_tensors(pathlib.Path(cwd) / "d" / "run.safetensors")
    return floats(tensors["frames"]), result, tensors


def floats(tensor):
    dtype, _, data = tensor
    assert dtype == "F32", dtype
    return struct.unpack(f"<{len(data) // 4}f", data)


def farthest(a, b):
    assert len(a) == len(b) and len(a) > 0
    return max(abs(x - y) for x, y in zip(a, b))


@test
def both_ways_to_convolve_give_the_frames(cwd):
    """In float32 they differ by the order of sums."""
    direct, _, _ = frames_of(cwd, "vae_convolution=direct")
    winograd, _, _ = frames_of(cwd, "vae_convolution=winograd")
    assert 0 < farthest(direct, winograd) <= FLOAT32, farthest(direct, winograd)
    assert frames_of(cwd, "vae_convolution=auto")[0] == direct  # this model has fewer than 64 channels
    result = generate(cwd, *ODD, "vae_dtype=bf16", "vae_convolution=winograd", "output=b.gif")
    assert result.returncode == 0, result.stderr


@test
def frames_do_not_depend_on_the_ranks_that_decode(cwd):
    # Every rank denoises the whole, and what is compared has as many ranks, whose number orders the sums of the text
    # encoder: only the decoding differs.
    whole = ["threads=1", "flash_min_seq_length=100000"]
    one, result, tensors = frames_of(cwd, "ranks=1", *whole)
    assert "waiting for the output" in result.stdout and "waiting for ranks" not in result.stdout, result.stdout
    scaled = struct.unpack(f"<{len(one)}f", struct.pack(f"<{len(one)}f", *(255 * x for x in one)))  # in float32
    assert tensors["frames_u8"][2] == bytes(int(x) for x in scaled), "bytes are the floats, truncated"
    for ranks, words, said in (("ranks=7", ["vae_parallel=7"], "VAE on 7 ranks"), ("ranks=4", ["vae_parallel=3"], "VAE on 3 ranks")):
        alone, result, tensors = frames_of(cwd, ranks, "vae_parallel=1", *whole)
        assert "VAE on rank 0" in result.stderr and "waiting for ranks" not in result.stdout, result.stderr
        many, result, dump = frames_of(cwd, ranks, *words, *whole)
        assert dump["latents.1"] == tensors["latents.1"]
        assert said in result.stderr and "waiting for ranks" in result.stdout, result.stderr
        assert farthest(many, alone) <= FLOAT32, farthest(many, alone)


@test
def frames_are_the_same_under_mpi(cwd):
    # Said and not planned: what is planned may differ where processes have a calibration of their own.
    layout = ["ulysses_shards=3", "vae_parallel=3"]
    threads, _, _ = frames_of(cwd, "ranks=3", "threads=3", *layout)
    mpi, result, _ = frames_of(cwd, "threads=1", "trace=t.json", *layout, command=lambda words: mpirun((3, words)))
    assert "VAE on 3 ranks" in result.stderr, result.stderr
    assert mpi == threads, farthest(mpi, threads)
    # Every rank's part of the decoding is in the one trace.
    events = json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]
    for rank in range(3):
        assert any(e["name"] == "halo rows" and e["pid"] == rank for e in events), rank
    assert any(e["name"] == "convert and encode" and e["pid"] == 0 for e in events)


@test
def ranks_without_rows_leave_before_the_decoding(cwd):
    words = ["height=32", "output=a.gif", "trace=t.json", "threads=1", "vae_parallel=4"]
    result = run(mpirun((6, words)), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert "VAE on 4 ranks" in result.stderr, result.stderr
    names = {(e["pid"], e["name"]) for e in json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]}
    assert [r for r in range(6) if (r, "halo rows") in names] == [0, 1, 2, 3], names
    assert {r for r, _ in names} == set(range(6)), names


@test
def more_ranks_than_rows_are_refused(cwd):
    refused(cwd, generate(cwd, "output=a.gif", "ranks=5", "vae_parallel=5"), "vae_parallel=5", "at most 4", "4 latent rows")
    refused(cwd, run(mpirun((5, ["output=a.gif", "vae_parallel=5"])), cwd, env=MPI_ENV), "vae_parallel=5", "at most 4")


@test
def more_ranks_than_there_are_are_refused(cwd):
    refused(cwd, generate(cwd, "output=a.gif", "vae_parallel=2"), "vae_parallel=2", "at most 1", "1 rank,")
    refused(cwd, generate(cwd, "output=a.gif", "vae_parallel=0"), "vae_parallel=0")


@test
def tiles_over_ranks_are_refused(cwd):
    refused(cwd, generate(cwd, "output=a.gif", "ranks=2", "vae_parallel=2", "vae_tiling=true"), "vae_parallel=2",
            "vae_tiling")


@test
def tiles_are_blended_where_a_frame_is_larger_than_one(cwd):
    def frames(width, *words):
        return frames_of(cwd, "num_frames=1", f"width={width}", *words)[0]
    assert frames(256, "vae_tiling=true") == frames(256)
    whole, tiled = frames(320), frames(320, "vae_tiling=true")
    assert farthest(whole, tiled) > 0.01, "there were no tiles"
    # Tiles are one rank's work, also where several denoise.
    _, result, _ = frames_of(cwd, "num_frames=1", "width=320", "vae_tiling=true", "ranks=2")
    assert "VAE on rank 0" in result.stderr, result.stderr


@test
def ctrl_c_while_ranks_decode(cwd):
    for words in (["ranks=2"], ["ranks=3", "vae_parallel=2"]):
        result = interrupt(cwd, "Decode: frame 1 of", "output=clip.mp4", "dump=tensors", *MANY_FRAMES, *words)
        assert result.returncode == 130, (result.returncode, result.stderr)
        refused(cwd, result, "interrupted")


@test
def ctrl_c_while_tiles_are_decoded(cwd):
    # The run pauses after a tenth of its frames at the latest.
    result = interrupt(cwd, "Denoise: step 1 of 1", "output=clip.mp4", "num_inference_steps=1", "height=272",
                       "width=272", "num_frames=401", "vae_tiling=true")
    assert result.returncode == 130, (result.returncode, result.stderr)
    refused(cwd, result, "interrupted")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
