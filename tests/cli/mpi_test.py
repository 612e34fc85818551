#!/usr/bin/env python3
"""The program under mpirun: the same video, errors said once, ranks that hang named.

    mpi_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    mpi_test.py --list                the names
"""
import pathlib
import signal
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MANY_STEPS, MPI_ENV, PATIENCE, PausedMpi, copy_model, files_in, generate, mpirun, read_tensors, refused, run,
                     run_on_hosts, run_script, until)  # noqa: E402

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
def mpi_error_of_another_host_names_it(cwd):
    copy_model(cwd)
    words = [harness.PROGRAM, "generate", "model", *harness.SMALL, "output=a.gif", "threads=1"]
    result = run_on_hosts(["left", "right"], words, cwd, MPI_ENV, of_last="mkdir away; cd away")
    refused(cwd, result, "'model' is neither", "(rank 1 on right)", left=["away", "model"])


@test
def mpi_error_of_one_rank_ends_all(cwd):
    # Rank 0 alone writes, and cannot.
    result = run(mpirun((3, ["output=nowhere/a.gif"])), cwd, env=MPI_ENV)
    refused(cwd, result, "nowhere")


@test
def mpi_ctrl_c_leaves_nothing(cwd):
    """mpirun passes Ctrl-C on as SIGTERM, and kills a second later what still runs."""
    for release in (True, False):
        with PausedMpi(cwd, 2, ["output=clip.mp4", "threads=1", *MANY_STEPS]) as paused:
            paused.until("Denoise: step 1 of")
            assert files_in(cwd), "there is nothing that could be left"
            paused.send(signal.SIGINT)
            until(lambda: not files_in(cwd), "no rank has removed the unfinished file")
            if not release:
                paused.process.wait(timeout=PATIENCE)  # rank 0 pauses, so it was killed
            assert paused.release().returncode != 0
        assert not files_in(cwd), files_in(cwd)


@test
def mpi_signals_to_mpirun_leave_nothing(cwd):
    """Also those that end mpirun itself: its ranks end with it."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL):
        with PausedMpi(cwd, 2, ["output=clip.mp4", "threads=1", *MANY_STEPS]) as paused:
            paused.until("Denoise: step 1 of")
            assert files_in(cwd), "there is nothing that could be left"
            paused.send(number)
            until(lambda: not files_in(cwd), f"no rank has removed the unfinished file after {number.name}")
            paused.release()
        assert not files_in(cwd), files_in(cwd)


@test
def mpi_signals_that_mpirun_passes_on_stop_a_run(cwd):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        with PausedMpi(cwd, 2, ["output=clip.mp4", "threads=1", *MANY_STEPS]) as paused:
            paused.until("Denoise: step 1 of")
            paused.send(number)
            until(lambda: not files_in(cwd), f"no rank has removed the unfinished file after {number.name}")
            result = paused.release()
        assert result.returncode == 128 + number, (result.returncode, result.stderr)
        refused(cwd, result, "interrupted")


@test
def mpi_ranks_agree_on_the_seed_that_is_drawn(cwd):
    common = ["ranks=2", "threads=1", "attention=ulysses", "data_parallelism=1"]
    drawn = run(mpirun((2, ["output=a.gif", "dump=mpi", "seed=-1", *common])), cwd, env=MPI_ENV)
    assert drawn.returncode == 0, drawn.stderr
    (line,) = [line for line in drawn.stdout.splitlines() if line.startswith("Seed ")]
    again = run(mpirun((2, ["output=b.gif", "dump=again", f"seed={line.split()[1]}", *common])), cwd, env=MPI_ENV)
    assert again.returncode == 0, again.stderr
    one, two = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("mpi", "again"))
    assert one["latents.1"] == two["latents.1"]


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
