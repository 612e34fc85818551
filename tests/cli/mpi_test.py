#!/usr/bin/env python3
"""The program under mpirun: the same video, errors said once, ranks that hang named.

    mpi_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    mpi_test.py --list                the names
"""
import os
import pathlib
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (LONG_STEPS, MPI_ENV, SLOWER, files_in, generate, interrupt, mpirun, read_tensors, refused, run,
                     run_script, unreported)  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


@test
def mpi_gives_what_threads_give(cwd):
    common = ["ulysses_shards=2", "attention=ulysses_ring", "data_parallelism=1"]
    result = run(mpirun((4, common + ["output=a.gif", "dump=mpi", "threads=1"])), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert generate(cwd, "output=b.gif", "dump=threads", "ranks=4", "threads=4", *common).returncode == 0
    mpi, threads = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("mpi", "threads"))
    # Transports never change a bit.
    assert mpi["latents.1"] == threads["latents.1"]


@test
def mpi_bad_input_is_said_once(cwd):
    refused(cwd, run(mpirun((3, ["output=a.gif", "height=40"])), cwd, env=MPI_ENV), "height=40", "32 and 48")


@test
def mpi_ranks_that_disagree_are_refused(cwd):
    result = run(mpirun((1, ["output=a.gif"]), (1, ["output=a.gif", "seed=9"])), cwd, env=MPI_ENV)
    refused(cwd, result, "disagree", "rank 1", "seed=9")


@test
def mpi_error_of_one_rank_ends_all(cwd):
    # Rank 0 alone writes, and cannot.
    result = run(mpirun((3, ["output=nowhere/a.gif"])), cwd, env=MPI_ENV)
    refused(cwd, result, "nowhere")


@test
def mpi_ctrl_c_leaves_nothing(cwd):
    # mpirun ends the ranks, and kills them a second later: within one of these steps.
    for words in (LONG_STEPS, ["height=128", "width=128", "num_inference_steps=1000"]):
        result, _ = interrupt(cwd, "Denoise: step 1 of", environment=MPI_ENV,
                              command=mpirun((2, ["output=clip.mp4", "threads=1", *words])))
        assert result.returncode != 0
        assert not files_in(cwd), files_in(cwd)


@test
def mpi_a_stopped_rank_is_named(cwd):
    stop_rank(cwd, 1)


@test
def mpi_a_stopped_writer_is_named_and_leaves_nothing(cwd):
    stop_rank(cwd, 0)


def stop_rank(cwd, rank):
    words = mpirun((2, ["output=a.gif", "num_inference_steps=1000", "height=128", "width=128", "comm_timeout=3",
                        "threads=1"]))
    process = subprocess.Popen(words, cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, **MPI_ENV})
    seen = ""
    while "Denoise: step 1 of" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, stdout=subprocess.PIPE).stdout.split()
    assert len(ranks) == 2, ranks
    variable = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    stopped = [p for p in ranks if variable in pathlib.Path(f"/proc/{p}/environ").read_bytes().split(b"\0")]
    os.kill(int(stopped[0]), signal.SIGSTOP)
    try:
        out, err = process.communicate(timeout=90 * SLOWER)
    finally:
        try:
            os.kill(int(stopped[0]), signal.SIGCONT)
        except ProcessLookupError:
            pass
    result = unreported(subprocess.CompletedProcess([], process.returncode, out, seen + err))
    refused(cwd, result, "rank 0", "rank 1", "step")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
