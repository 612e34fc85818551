#!/usr/bin/env python3
"""Runs that end before they should: disks that are full or refuse, and signals. Nothing half-written is left.

    ending_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    ending_test.py --list                the names
"""
import os
import pathlib
import resource
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MANY_FRAMES, MANY_STEPS, SLOWER, SMALL, Held, Skip, files_in, generate, interrupt, refused, run,
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
            text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240 * SLOWER, preexec_fn=limit))
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
    # Unfinished frames stand in the folder by then.
    result = interrupt(cwd, "Decode: frame 1 of", "output=frames/", *MANY_FRAMES, signals=TWICE)
    assert -result.returncode in TWICE, result.returncode
    assert not files_in(cwd), files_in(cwd)


@test
def a_termination_that_is_followed_by_a_kill_leaves_nothing(cwd):
    """The handler removes, not the run, which stands still all the time."""
    with Held(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "output=clip.mp4", *MANY_STEPS]) as held:
        held.until("Denoise: step 1 of")
        held.until_still()
        assert files_in(cwd), "there is nothing that could be left"
        held.send(signal.SIGTERM)
        until(lambda: not files_in(cwd), "the unfinished file is still there")
        held.send(signal.SIGKILL)
        assert held.release().returncode == -signal.SIGKILL
    assert not files_in(cwd), files_in(cwd)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
