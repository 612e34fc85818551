#!/usr/bin/env python3
"""Runs that end before they should: disks that are full or refuse, and signals. Nothing half-written is left.

    ending_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    ending_test.py --list                the names
"""
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MANY_FRAMES, MANY_STEPS, PATIENCE, SMALL, Paused, Skip, files_in, generate, interrupt, refused,
                     run_script, sentence, unreported, until)  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


# ---- disks ----

@test
def an_unwritable_folder(cwd):
    if os.geteuid() == 0:
        # Root may write anywhere; a folder of /proc takes files from nobody.
        refused(cwd, generate(cwd, "output=/proc/clip.mp4"), "/proc")
        return
    folder = pathlib.Path(cwd) / "locked"
    folder.mkdir(mode=0o500)
    refused(cwd, generate(cwd, "output=locked/clip.mp4"), "locked", left=["locked"])


@test
def no_space_left(cwd):
    if not shutil.which("mount"):
        raise Skip("mount is not installed")
    disk = pathlib.Path(cwd) / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], stderr=subprocess.DEVNULL).returncode:
        raise Skip("mounting a tmpfs is not allowed here")
    try:
        for output in ("disk/clip.mp4", "disk/clip.gif", "disk/frames/"):
            result = generate(cwd, f"output={output}", "height=128", "width=128")
            assert result.returncode not in (0, -6, -11), result.stderr
            assert "space" in sentence(result) or "full" in sentence(result), sentence(result)
            left = [f for f in files_in(disk) if f != "frames"]
            assert not left, left
    finally:
        subprocess.run(["umount", disk], check=True)


@test
def a_write_that_fails_midway(cwd):
    """As on a full disk, where nothing may be mounted."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for output in ("clip.mp4", "clip.gif", "frames/"):
        result = unreported(subprocess.run(
            [harness.PROGRAM, "generate", harness.MODEL, *SMALL, f"output={output}", "height=128", "width=128"], cwd=cwd,
            text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE, preexec_fn=limit))
        refused(cwd, result, output.rstrip("/"))


# ---- signals ----

@test
def ctrl_c_while_denoising(cwd):
    result = interrupt(cwd, "Denoise: step 1 of", "output=clip.mp4", "ranks=2", *MANY_STEPS)
    assert result.returncode == 130, result.returncode
    refused(cwd, result, "interrupted")


@test
def ctrl_c_while_encoding(cwd):
    result = interrupt(cwd, "Decode: frame 1 of", "output=clip.mp4", *MANY_FRAMES)
    assert result.returncode == 130, result.returncode
    refused(cwd, result, "interrupted")


# As of two Ctrl-C in a row; two of one number might be delivered as one.
TWICE = (signal.SIGINT, signal.SIGTERM)


@test
def a_second_ctrl_c_ends_at_once_and_leaves_nothing(cwd):
    for output in ("clip.mp4", "frames/"):
        result = interrupt(cwd, "Denoise: step 1 of", f"output={output}", "dump=tensors", *MANY_STEPS, signals=TWICE)
        assert -result.returncode in TWICE, result.returncode
        assert not files_in(cwd), files_in(cwd)


@test
def a_second_ctrl_c_while_encoding_leaves_nothing(cwd):
    # Unfinished frames are in the folder by then.
    result = interrupt(cwd, "Decode: frame 1 of", "output=frames/", *MANY_FRAMES, signals=TWICE)
    assert -result.returncode in TWICE, result.returncode
    assert not files_in(cwd), files_in(cwd)


def terminate(cwd, paused):
    """In a pause, so that the handler removes the unfinished file, and not the run."""
    paused.until("Denoise: step 1 of")
    paused.until_still()
    assert files_in(cwd), "there is nothing that could be left"
    paused.send(signal.SIGTERM)
    until(lambda: not files_in(cwd), "the unfinished file is still there")


@test
def a_signal_that_comes_twice_is_one(cwd):
    """`timeout` sends it to the process and to its group."""
    results = []
    while len(results) < 10 and 128 + signal.SIGTERM not in results:
        with Paused(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=clip.mp4", *MANY_STEPS]) as paused:
            terminate(cwd, paused)
            paused.send(signal.SIGTERM)
            results.append(paused.release().returncode)
    # Half a second apart, as on a busy machine, they are two.
    assert results[-1] == 128 + signal.SIGTERM, results
    assert not files_in(cwd), files_in(cwd)


@test
def a_termination_that_is_followed_by_a_kill_leaves_nothing(cwd):
    with Paused(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=clip.mp4", *MANY_STEPS]) as paused:
        terminate(cwd, paused)
        paused.send(signal.SIGKILL)
        assert paused.release().returncode == -signal.SIGKILL
    assert not files_in(cwd), files_in(cwd)


@test
def other_signals_end_a_run_as_ctrl_c_does(cwd):
    """Batch systems send some of them before a job's time is over."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU):
        result = interrupt(cwd, "Denoise: step 1 of", "output=clip.mp4", "ranks=2", *MANY_STEPS, signals=(number,))
        assert result.returncode == 128 + number, (number, result.returncode)
        refused(cwd, result, "interrupted")


@test
def a_run_past_its_limit_of_computing_stops(cwd):
    """The kernel sends SIGXCPU again with every further second, in which the run is to come to its next safe point."""
    with Paused(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=clip.mp4", *MANY_STEPS]) as paused:
        paused.until("Denoise: step 1 of")
        paused.until_still()
        paused.send(signal.SIGXCPU)
        time.sleep(0.6)  # longer than what makes two of another signal one
        paused.send(signal.SIGXCPU)
        result = paused.release()
    assert result.returncode == 128 + signal.SIGXCPU, result.returncode
    refused(cwd, result, "interrupted")


@test
def crashes_leave_nothing(cwd):
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # else one may be left
    numbers = [signal.SIGABRT, signal.SIGILL]
    if not {"ASAN_OPTIONS", "TSAN_OPTIONS"} & set(os.environ):  # which report these
        numbers += [signal.SIGSEGV, signal.SIGFPE]
    for output in ("clip.mp4", "frames/"):
        for number in numbers:
            result = interrupt(cwd, "Denoise: step 1 of", f"output={output}", "dump=tensors", *MANY_STEPS, signals=(number,))
            assert result.returncode == -number, (number, result.returncode, result.stderr)
            assert not files_in(cwd), (number, files_in(cwd))


@test
def a_hang_up_that_was_ignored_stays_ignored(cwd):
    """As nohup starts a run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = interrupt(cwd, "Denoise: step 1 of", "output=clip.mp4", "num_inference_steps=20",
                           signals=(signal.SIGHUP,))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert files_in(cwd) == ["clip.mp4"], files_in(cwd)


@test
def a_reader_of_messages_that_leaves_ends_the_run_and_leaves_nothing(cwd):
    """As `zoetrope generate … 2>&1 | head -n 2`."""
    for output in ("clip.mp4", "frames/"):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        process = subprocess.Popen([harness.PROGRAM, "generate", harness.MODEL, *SMALL, f"output={output}", *MANY_STEPS],
                                   cwd=cwd, stdout=subprocess.DEVNULL, stderr=writer)
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        assert process.wait(timeout=PATIENCE) == -signal.SIGPIPE, process.returncode
        assert not files_in(cwd), files_in(cwd)


@test
def a_file_that_may_not_grow_is_an_error_of_the_write(cwd):
    """Past the limit the kernel sends SIGXFSZ, which ends a process that does not expect it."""
    result = unreported(subprocess.run(
        [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=clip.mp4", "height=128", "width=128"], cwd=cwd,
        text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))))
    refused(cwd, result, "clip.mp4", "File too large")


@test
def interruptions_at_any_moment_leave_nothing(cwd):
    """A run that is over before the signal comes has its clip; none has anything half-written."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGXCPU)
    for i, number in enumerate(2 * numbers):
        process = subprocess.Popen([harness.PROGRAM, "generate", harness.MODEL, *SMALL, *MANY_STEPS,
                                    f"output={('clip.mp4', 'frames/')[i % 2]}", f"ranks={1 + i % 3}", "dump=tensors"],
                                   cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.random())
        process.send_signal(number)
        code = process.wait(timeout=PATIENCE)
        left = files_in(cwd)
        # One that comes while a finished run goes away ends the process, and its outputs have their names.
        assert left or code != 0, number
        assert not any("partial" in name for name in left), (number, code, left)
        frames = sum(name.startswith("frames/") for name in left)
        assert not left or "clip.mp4" in left or frames == 5, (number, code, left)
        for name in reversed(left):
            path = pathlib.Path(cwd) / name
            path.rmdir() if path.is_dir() else path.unlink()


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
