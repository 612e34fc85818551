#!/usr/bin/env python3
"""Ranks that are killed or stopped in the middle of a run: the right one is named, and all of them end.

    stall_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    stall_test.py --list                the names
"""
import os
import pathlib
import re
import signal
import socket
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MANY_STEPS, MPI_ENV, PausedMpi, files_in, mpirun, rank_processes, refused, run, run_script,
                     sentence, shared_memory_of, until)  # noqa: E402

TESTS = {}
RANKS = 3
HOST = socket.gethostname()


def test(function):
    TESTS[function.__name__] = function
    return function


def end_rank(cwd, rank, number, mpirun_words=()):
    """Sends the signal to a rank in the middle of a run; gives back what the run said, when nothing of it is left."""
    arguments = ["output=a.gif", "comm_timeout=10", "threads=1", "attention=ring", "data_parallelism=1", *MANY_STEPS]
    with PausedMpi(cwd, RANKS, arguments, mpirun_words) as paused:
        paused.until("Denoise: step 1 of")
        processes = rank_processes(paused.process.pid)
        assert sorted(processes) == list(range(RANKS)), processes
        shared_memory = shared_memory_of(processes[0])
        assert shared_memory(), "there is nothing that could be left"
        os.kill(processes[rank], number)
        result = paused.release()
    until(lambda: not any(runs(process) for process in processes.values()), "a process of the run still runs")
    until(lambda: not shared_memory(), "the run has left something in /dev/shm")
    return result


def runs(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def waiting_lines(result, named):
    """Each rank has one line, and those of the others say for whom they wait, in what and with how much."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("  rank ")]
    assert [int(line.split()[1]) for line in lines] == [named] + [r for r in range(RANKS) if r != named], result.stderr
    return lines


def stopped_rank_is_named(cwd, rank):
    result = end_rank(cwd, rank, signal.SIGSTOP)
    refused(cwd, result, " waited 10 s for rank ", " bytes ", " at step ",
            f"; rank {rank} on {HOST} is dead: no sign of life for ")
    named, *others = waiting_lines(result, rank)
    # What it entered last is known where another rank has waited for long enough before.
    assert re.fullmatch(rf"  rank {rank} on {HOST}: no sign of life for [0-9.]+ s(, last entered '.+'.*)?", named), named
    for line in others:
        assert re.fullmatch(rf"  rank \d on {HOST}: waits for rank \d in '.+' at step \d+ of 1000.*, [0-9.]+ s, "
                            r"\d+ bytes to (send|receive)", line), line


@test
def a_stopped_rank_is_named(cwd):
    stopped_rank_is_named(cwd, 1)


@test
def a_stopped_writer_is_named_and_leaves_nothing(cwd):
    stopped_rank_is_named(cwd, 0)


@test
def a_killed_rank_is_named(cwd):
    """Where mpirun leaves the others running, it is theirs to notice. Its exit code is 0 then, whatever theirs are."""
    result = end_rank(cwd, 1, signal.SIGKILL, ["--enable-recovery"])
    assert sentence(result).startswith(f"zoetrope: rank 1 on {HOST} is dead: its process has ended"), sentence(result)
    assert not files_in(cwd), files_in(cwd)
    waiting_lines(result, 1)


@test
def a_killed_rank_is_named_and_mpirun_ends_the_others(cwd):
    """mpirun kills them a second later, in which one may or may not say so."""
    result = end_rank(cwd, 2, signal.SIGKILL)
    assert result.returncode != 0, result.returncode
    said = f"rank 2 on {HOST} is dead: its process has ended" in result.stderr
    assert said or re.search(r"process rank 2 with PID \d+ on node \S+ exited on signal 9", result.stderr), result.stderr


@test
def a_deadline_from_the_prediction_lets_a_run_end_well(cwd):
    result = run(mpirun((2, ["output=a.gif", "comm_timeout=auto", "threads=1"])), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
