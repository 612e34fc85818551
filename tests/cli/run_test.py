#!/usr/bin/env python3
"""`zoetrope run`: a job that loses a rank goes on with those that are left.

    run_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    run_test.py --list                the names
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, SMALL, Skip, files_in, refused, run, run_script, sentence, until  # noqa: E402

TESTS = {}
# Killed behind its first records, hundreds of steps before its end.
LONG = ["num_inference_steps=1000", "height=64", "width=64", "seed=5", "output=clip/", "threads=1"]


def test(function):
    TESTS[function.__name__] = function
    return function


def words(*arguments):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    return [harness.PROGRAM, "run", harness.MODEL, *SMALL, "mpirun_arguments=--oversubscribe", *arguments]


def ranks_of(process):
    """The processes of the job by rank: grandchildren of `zoetrope run`."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            above = int(pathlib.Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
            if above != process.pid:
                continue
            values = dict(pair.split("=", 1) for pair in (folder / "environ").read_bytes().decode().split("\0") if "=" in pair)
            found[int(values["OMPI_COMM_WORLD_RANK"])] = int(folder.name)
        except (OSError, ValueError, KeyError):
            continue
    return found


def record_of(journal):
    """Tells the latest records of a journal apart; None while there are not two: one is renamed in a moment without."""
    try:
        return (journal / "previous.safetensors").stat().st_ino
    except FileNotFoundError:
        return None


def text_of(file):
    """What stands in a file that others write to; its place is theirs."""
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")


def losing(cwd, ranks, lost, *arguments, journal="clip.journal"):
    """A job from which ranks are killed one after another, each when it has a record; its result."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([str(word) for word in words(f"ranks={ranks}", *LONG, *arguments)], cwd=cwd, stderr=said,
                                   stdout=subprocess.DEVNULL, env={**os.environ, **MPI_ENV})
        try:
            folder = pathlib.Path(cwd) / journal
            for number, rank in enumerate(lost):
                until(lambda: process.poll() is not None or (len(ranks_of(process)) == ranks - number and record_of(folder)),
                      "the job does not begin")
                assert process.poll() is None, "the job has ended"
                before = record_of(folder)
                until(lambda: record_of(folder) not in (None, before), "no step is recorded")
                os.kill(ranks_of(process)[rank], signal.SIGKILL)
                # Until then the ranks of the job that has lost one may record another step.
                until(lambda: process.poll() is not None or text_of(said).count("Lost rank") > number, "no loss is told")
            process.wait(timeout=harness.PATIENCE)
        finally:
            process.kill()
        return subprocess.CompletedProcess([], process.returncode, "", text_of(said))


@test
def a_lost_rank_is_replaced_by_none(cwd):
    result = losing(cwd, 3, [1], "ulysses_shards=3", "attention=ulysses", "data_parallelism=1")
    assert result.returncode == 0, result.stderr
    assert "Lost rank 1: goes on from clip.journal on 2 ranks" in result.stderr, result.stderr
    assert "Goes on after step" in result.stderr and len(files_in(pathlib.Path(cwd) / "clip")) == 5, result.stderr
    assert not (pathlib.Path(cwd) / "clip.journal").exists()


@test
def rank_after_rank_may_be_lost(cwd):
    result = losing(cwd, 3, [2, 0])
    assert result.returncode == 0, result.stderr
    assert "on 2 ranks" in result.stderr and "on 1 rank\n" in result.stderr, result.stderr


@test
def the_last_rank_leaves_its_journal(cwd):
    result = losing(cwd, 1, [0])
    assert result.returncode == 1 and "no rank is left; resume=clip.journal goes on" in sentence(result), result.stderr
    assert (pathlib.Path(cwd) / "clip.journal" / "state.safetensors").exists()


def run_with_mpirun(cwd, script, *arguments):
    """With a shell script for mpirun."""
    fake = pathlib.Path(cwd) / "bin" / "mpirun"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return run(words(*arguments), cwd, env={**MPI_ENV, "PATH": f"{fake.parent}:{os.environ['PATH']}"})


@test
def ranks_that_mpirun_ended_are_not_lost(cwd):
    # An mpirun that loses rank 2 and ends rank 0 before rank 1; the second time all goes well.
    result = run_with_mpirun(cwd, """
[ "$2" = 2 ] && echo "$@" > words && exit 0
echo "zoetrope: rank 0 on node1 is dead: its process has ended; so are ranks 2" >&2
echo "mpirun noticed that process rank 2 with PID 0 on node node1 exited on signal 9 (Killed)." >&2
exit 137""", "ranks=3", "output=clip/", "context_parallelism=3")
    lost = "Lost rank 2: begins again on 2 ranks, without context_parallelism\n"
    assert result.returncode == 0 and lost in result.stderr, result.stderr
    # What said how three share the work is taken back.
    again = (pathlib.Path(cwd) / "words").read_text().split()
    assert again.index("context_parallelism=3") < again.index("context_parallelism=default"), again


@test
def an_mpirun_that_ends_without_a_word_is_explained(cwd):
    noted = "mkdir -p clip.journal && touch clip.journal/settings.json && "
    killed, failed, goes_on = "mpirun was ended by signal 9 (Killed); ", "mpirun ended with code 3; ", "resume=clip.journal goes on"
    for script, said in (("kill -9 $$", killed + "no step is noted"), ("exit 3", failed + "no step is noted"),
                         (noted + "kill -9 $$", killed + goes_on), (noted + "exit 3", failed + goes_on)):
        result = run_with_mpirun(cwd, script, "output=clip/")
        refused(cwd, result, said, left=["bin", "clip.journal"])
        shutil.rmtree(pathlib.Path(cwd) / "clip.journal", ignore_errors=True)


@test
def what_ranks_say_is_not_said_again(cwd):
    error, note = "echo zoetrope: too hot >&2", "resume=clip.journal goes on"
    result = run_with_mpirun(cwd, f"{error}; exit 3", "output=clip/")
    assert result.returncode == 3 and result.stderr == "zoetrope: too hot\n", result.stderr
    # How to go on they may not have said.
    noted = f"mkdir -p clip.journal; touch clip.journal/settings.json; {error}"
    for script in (noted, f"{noted}; echo {note} >&2"):
        result = run_with_mpirun(cwd, f"{script}; exit 3", "output=clip/")
        assert result.returncode == 3 and result.stderr.count(note) == 1, result.stderr
        assert sentence(result) == "zoetrope: too hot", result.stderr
        shutil.rmtree(pathlib.Path(cwd) / "clip.journal")


@test
def a_job_ends_with_its_launcher(cwd):
    """Also where that is killed."""
    journal = pathlib.Path(cwd) / "clip.journal"
    process = subprocess.Popen(words("ranks=2", *LONG), cwd=cwd, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               env={**os.environ, **MPI_ENV})
    try:
        until(lambda: process.poll() is not None or (len(ranks_of(process)) == 2 and record_of(journal)), "the job does not begin")
        ranks = ranks_of(process).values()
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(runs(rank) for rank in ranks), "ranks outlive their launcher")
    result = run([harness.PROGRAM, "run", "ranks=2", "mpirun_arguments=--oversubscribe", "resume=clip.journal"], cwd, env=MPI_ENV)
    assert result.returncode == 0 and "Goes on after step" in result.stderr, result.stderr
    assert len(files_in(pathlib.Path(cwd) / "clip")) == 5, files_in(cwd)


def runs(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes() != b""  # empty where nobody has waited for its end
    except OSError:
        return False


@test
def signals_of_batch_systems_stop_a_job(cwd):
    """At its next safe point, so that the ranks end themselves."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(words("ranks=2", *LONG), cwd=cwd, stderr=said, stdout=subprocess.DEVNULL,
                                       env={**os.environ, **MPI_ENV})
            try:
                until(lambda: process.poll() is not None or record_of(pathlib.Path(cwd) / "clip.journal"), "the job does not begin")
                process.send_signal(number)
                process.wait(timeout=harness.PATIENCE)
            finally:
                process.kill()
            text = text_of(said)
        assert process.returncode == 128 + number, (process.returncode, text)
        assert "interrupted" in text and "resume=clip.journal goes on" in text, text
        shutil.rmtree(pathlib.Path(cwd) / "clip.journal")


@test
def ctrl_c_of_a_terminal_stops_a_job(cwd):
    """mpirun gets it too, and at a second signal would leave ranks that compute and hold the journal."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words("ranks=2", *LONG), cwd=cwd, stderr=said, stdout=subprocess.DEVNULL,
                                   env={**os.environ, **MPI_ENV}, start_new_session=True)
        try:
            until(lambda: process.poll() is not None or record_of(pathlib.Path(cwd) / "clip.journal"), "the job does not begin")
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=harness.PATIENCE)
        finally:
            process.kill()
        text = text_of(said)
    assert process.returncode == 128 + signal.SIGINT, (process.returncode, text)
    assert "interrupted" in text and "resume=clip.journal goes on from there" in text, text
    result = run([harness.PROGRAM, "run", "ranks=2", "mpirun_arguments=--oversubscribe", "resume=clip.journal"], cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr


@test
def a_series_goes_on(cwd):
    result = losing(cwd, 2, [1], "num_videos=2", "num_inference_steps=500", journal="clip.journal/000")
    assert result.returncode == 0, result.stderr
    assert "goes on from clip.journal on 1 rank" in result.stderr, result.stderr
    for number in range(2):
        assert len(files_in(pathlib.Path(cwd) / f"clip_{number:03}")) == 5, files_in(cwd)
    assert not (pathlib.Path(cwd) / "clip.journal").exists(), files_in(cwd)


@test
def a_journal_of_another_run_is_spared(cwd):
    assert losing(cwd, 1, [0]).returncode == 1
    before = files_in(cwd)
    result = run(words("output=clip/"), cwd, env=MPI_ENV)
    refused(cwd, result, "holds a run that did not end; resume=clip.journal", left=before)


@test
def errors_of_the_user_start_nothing_again(cwd):
    result = run(words("ranks=2", "output=a.gif", "width=40"), cwd, env=MPI_ENV)
    refused(cwd, result, "width=40")
    assert "Lost" not in result.stderr
    for arguments, said in ((["hosts=a:2", "ranks=3"], "ranks=3: hosts=a:2 has 2"), (["hosts=a:x"], "hosts=a:x"),
                            (["journal=none"], "name its folder"), (["ranks=0"], "ranks=0"),
                            (["output=/dev/stdout"], "name its folder"), (["grid=g.png", "num_videos=2"], "grid=g.png")):
        refused(cwd, run(words(*arguments), cwd, env=MPI_ENV), said)
    inside = ["mpirun", "-n", "1", *words("output=a.gif")]
    refused(cwd, run(inside, cwd, env=MPI_ENV), "starts mpirun itself")


@test
def hosts_are_given_to_mpirun(cwd):
    name = socket.gethostname()
    result = run(words(f"hosts={name}:2", "output=a.gif"), cwd, env=MPI_ENV)
    assert result.returncode == 0 and "Ranks 2: " in result.stderr, result.stderr
    assert files_in(cwd) == ["a.gif"], files_in(cwd)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
