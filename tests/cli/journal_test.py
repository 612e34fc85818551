#!/usr/bin/env python3
"""Runs that are killed and go on: journal= and resume= as a user types them, on threads and under MPI.

    journal_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    journal_test.py --list                the names
"""
import json
import pathlib
import shutil
import signal
import socket
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (MPI_ENV, SMALL, Paused, PausedMpi, files_in, generate, mpirun, read_tensors, refused, run,
                     run_script, sentence)  # noqa: E402

TESTS = {}
# A machine of one device that takes a second for every layer.
SLOW = ("description: for a test\ndevices: 1\nmemory: 80\nmemory_bandwidth: 100\nlayer_overhead: 1000000\ntoken_seconds: 0.3\n"
        "host_read: 5\ndevices_per_host: 1\n"
        "bf16: {peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5}\n"
        "float32: {peak: 0.1, gemm: 0.8, attention: 0.5, convolution: 0.5}\n")
LONG = ["num_inference_steps=200", "seed=5"]


def test(function):
    TESTS[function.__name__] = function
    return function


def command(*arguments):
    return [harness.PROGRAM, "generate", harness.MODEL, *SMALL, *arguments]


def resume(cwd, *arguments, folder="j"):
    return run([harness.PROGRAM, "generate", f"resume={folder}", *arguments], cwd)


def killed(cwd, *arguments, wait_for="Denoise: step 20 of"):
    """A run with the journal j that ended by SIGKILL behind a line of its progress."""
    with Paused(cwd, command("journal=j", *arguments)) as paused:
        paused.until(wait_for)
        paused.send(signal.SIGKILL)
        assert paused.release().returncode == -signal.SIGKILL


def first_step(result):
    """The step behind which a resumed run went on."""
    line = next(line for line in result.stderr.splitlines() if line.startswith("Goes on after step "))
    return int(line.split()[4])


def frames(cwd, folder):
    return {file.name: file.read_bytes() for file in sorted((pathlib.Path(cwd) / folder).glob("*.png"))}


@test
def a_killed_run_goes_on_with_no_other_word(cwd):
    keys = ["ranks=2", "threads=2", "deterministic=true", *LONG]
    assert generate(cwd, "output=whole/", *keys).returncode == 0
    killed(cwd, "output=clip/", *keys)
    assert "clip" not in files_in(cwd) or not frames(cwd, "clip")
    result = resume(cwd)
    assert result.returncode == 0, result.stderr
    assert first_step(result) >= 19, result.stderr  # the record of step 20 may be under way
    assert frames(cwd, "clip") == frames(cwd, "whole") and frames(cwd, "clip")
    assert not (pathlib.Path(cwd) / "j").exists(), "the journal of a complete run is removed"


@test
def keys_of_running_may_change(cwd):
    assert generate(cwd, "output=whole.gif", "dump=whole", *LONG).returncode == 0
    killed(cwd, "output=clip.gif", "trace=trace.json", *LONG)
    result = resume(cwd, "ranks=3", "output=other.gif", "dump=d", "trace=default")
    assert result.returncode == 0 and "Wrote other.gif" in result.stdout, result.stderr
    assert not {"clip.gif", "trace.json"} & set(files_in(cwd)), files_in(cwd)
    whole, rest = (read_tensors(pathlib.Path(cwd) / folder / "run.safetensors") for folder in ("whole", "d"))
    assert "latents.0" not in rest and "latents.199" in rest  # the dump has the steps of this run
    assert "dump=d: holds what is computed from here on" in result.stderr, result.stderr
    assert len(whole["frames_u8"][2]) == len(rest["frames_u8"][2])
    assert max(abs(a - b) for a, b in zip(whole["frames_u8"][2], rest["frames_u8"][2])) <= 1


@test
def other_settings_are_refused_by_name(cwd):
    killed(cwd, "output=clip.gif", *LONG)
    before = files_in(cwd)
    for keys, words in ((["seed=6", "guidance_scale=3"], ("seed is 5 there and 6 here", "guidance_scale is 5 there")),
                        (["kv_exchange_dtype=bf16"], ("kv_exchange_dtype is as_computed there and bf16 here",)),
                        (["seed=default"], ("seed is 5 there and 0 here",)),
                        (["prompt=a blue dog"], ("prompt is a red cat there and a blue dog here",)),
                        (["journal=k"], ("journal=k", "leave journal out"))):
        result = resume(cwd, *keys)
        refused(cwd, result, *words, left=before)
    result = run([harness.PROGRAM, "generate", pathlib.Path(harness.MODEL).parent / "wan21_t2v_h6", "resume=j"], cwd)
    refused(cwd, result, "another model", left=before)
    assert resume(cwd).returncode == 0


@test
def numbers_of_a_file_are_settings(cwd):
    """What cache_ratios=FILE held when the run began is what it goes on with."""
    file = pathlib.Path(cwd) / "ratios.txt"
    file.write_text("1, 1, 0.5, 0.25")
    cached = ["cache=mag", "cache_ratios=ratios.txt", "cache_threshold=0.2", *LONG]
    assert generate(cwd, "output=whole.gif", *cached).returncode == 0
    killed(cwd, "output=clip.gif", *cached)
    file.write_text("0.5, 0.5, 1, 1")
    refused(cwd, resume(cwd, "cache_ratios=ratios.txt"), "cache_ratios is 1,1,0.5,0.25 there and 0.5,0.5,1,1 here",
            left=files_in(cwd))
    result = resume(cwd)
    assert result.returncode == 0, result.stderr
    assert (pathlib.Path(cwd) / "clip.gif").read_bytes() == (pathlib.Path(cwd) / "whole.gif").read_bytes()


@test
def a_second_run_needs_a_folder_of_its_own(cwd):
    killed(cwd, "output=clip.gif", *LONG)
    before = files_in(cwd)
    refused(cwd, generate(cwd, "output=b.gif", "journal=j"), "did not end, after", "resume=j goes on", left=before)
    with Paused(cwd, [harness.PROGRAM, "generate", "resume=j"]) as paused:
        paused.until("Goes on after step")
        second = resume(cwd)
        assert second.returncode not in (0, None) and "another process is using it" in sentence(second), second.stderr
        assert f"(process {paused.process.pid} on {socket.gethostname()})" in sentence(second), second.stderr
        assert paused.release().returncode == 0


@test
def journals_that_cannot_be_read_are_refused(cwd):
    refused(cwd, resume(cwd, folder="none"), "there is no such folder")
    (pathlib.Path(cwd) / "empty").mkdir()
    refused(cwd, resume(cwd, f"model={harness.MODEL}", "prompt=a", folder="empty"), "holds no journal", left=["empty"])
    killed(cwd, "output=clip.gif", *LONG)
    journal = pathlib.Path(cwd) / "j"
    state, previous = journal / "state.safetensors", journal / "previous.safetensors"
    whole, older = state.read_bytes(), previous.read_bytes()
    future = whole.replace(b'"zoetrope_journal":"2"', b'"zoetrope_journal":"9"')
    assert future != whole
    damaged = bytearray(whole)
    damaged[-3] ^= 1
    for name, bad in (("short", whole[:1000]), ("damaged", bytes(damaged)), ("future", future), ("empty", b"")):
        state.write_bytes(bad)
        previous.write_bytes(bad)
        said = "is of format 9, and this version reads 2" if name == "future" else "previous.safetensors"
        refused(cwd, resume(cwd), said, left=files_in(cwd))
    previous.write_bytes(older)
    state.write_bytes(whole[:1000])
    result = resume(cwd)
    assert result.returncode == 0 and "goes on from the record before" in result.stderr, result.stderr


@test
def settings_with_files_go_on_from_elsewhere(cwd):
    """Paths of the run are found from another folder, and a prompt that begins with @ is no file. The frames have the
    bits of a run that was not interrupted, tags too."""
    inside = pathlib.Path(cwd) / "a"
    inside.mkdir()
    shutil.copytree(harness.MODEL, inside / "model")
    lora = sorted((pathlib.Path(harness.MODEL).parents[1] / "loras").glob("**/*.safetensors"))[0]
    shutil.copy(lora, inside / "style.safetensors")
    (inside / "prompt.txt").write_text("@cat, a red one\n")
    words = [word for word in SMALL if not word.startswith("prompt=")]
    run_words = [harness.PROGRAM, "generate", "model=model", *words, "prompt=@prompt.txt", "lora=style.safetensors:0.5",
                 "deterministic=true", "dump=d", *LONG]
    assert run([*run_words, "output=whole/"], inside).returncode == 0
    with Paused(inside, [*run_words, "journal=j", "output=clip/"]) as paused:
        paused.until("Denoise: step 20 of")
        paused.send(signal.SIGKILL)
        paused.release()
    result = resume(cwd, folder="a/j")
    assert result.returncode == 0, result.stderr
    made = frames(inside, "clip")
    assert made == frames(inside, "whole") and all(b"@cat" in bits for bits in made.values()), made.keys()
    assert all(b"style.safetensors" in bits and str(cwd).encode() not in bits for bits in made.values())


@test
def without_its_settings_a_run_goes_on_with_its_own_words(cwd):
    words = ["output=clip.gif", *LONG]
    killed(cwd, *words)
    (pathlib.Path(cwd) / "j" / "settings.json").unlink()
    refused(cwd, resume(cwd), "without its settings; repeat the run's own words", left=files_in(cwd))
    assert run(command("resume=j", *words), cwd).returncode == 0


@test
def a_series_goes_on_with_the_video_that_was_cut_off(cwd):
    keys = ["num_videos=3", "deterministic=true", "ranks=2", *LONG]
    assert generate(cwd, "output=whole/", *keys).returncode == 0
    killed(cwd, "output=clip/", *keys, wait_for="Video 2 of 3")
    result = resume(cwd)
    assert result.returncode == 0, result.stderr
    assert "Made before: video 1 of 3" in result.stderr, result.stderr
    assert result.stdout.count("Wrote ") == 2, result.stdout
    for number in range(3):
        assert frames(cwd, f"clip_{number:03}") == frames(cwd, f"whole_{number:03}"), number
    assert not (pathlib.Path(cwd) / "j").exists()


@test
def a_series_makes_its_grid_if_it_has_all_frames(cwd):
    keys = ["num_videos=2", "output=clip.gif", "grid=all.gif", *LONG]
    killed(cwd, *keys)  # in the first video: no frame is lost
    result = resume(cwd)
    assert result.returncode == 0 and "all.gif, which shows all 2" in result.stdout, result.stderr
    (pathlib.Path(cwd) / "all.gif").unlink()
    killed(cwd, *keys, wait_for="Video 2 of 2")
    refused(cwd, resume(cwd, "grid=all.gif"), "grid=all.gif", "leave it out", left=files_in(cwd))
    result = resume(cwd)
    assert result.returncode == 0 and "all.gif is not written: some of the videos" in result.stderr, result.stderr
    assert "all.gif" not in files_in(cwd) and not (pathlib.Path(cwd) / "j").exists()


@test
def a_finished_video_is_the_file_that_was_made(cwd):
    folder = pathlib.Path(cwd)
    first = folder / "clip_000.gif"
    keys = ["num_videos=2", "output=clip.gif", "fps=8", *LONG]
    killed(cwd, *keys, wait_for="Video 2 of 2")
    made = first.read_bytes()
    first.write_bytes(b"another video")
    refused(cwd, resume(cwd), "clip_000.gif has changed since it was made", "to 13 bytes", left=files_in(cwd))
    assert first.read_bytes() == b"another video" and (folder / "j" / "000.done").exists()
    first.unlink()
    (folder / "moved").mkdir()
    (folder / "moved" / first.name).write_bytes(made)
    with Paused(cwd, [harness.PROGRAM, "generate", "resume=j", "output=moved/clip.gif", "fps=12"]) as paused:
        paused.until("Made before: video 1 of 2, moved/clip_000.gif, with fps=8\n")
        paused.send(signal.SIGKILL)
        paused.release()
    assert (folder / "moved" / first.name).read_bytes() == made
    result = resume(cwd)  # it is where the run did not leave it
    assert result.returncode == 0 and "Made before" not in result.stderr and result.stdout.count("Wrote") == 2, result.stderr
    assert first.read_bytes() == made


def made_again(cwd, launcher=(), env=None):
    """A batch of which one video is gone, after a series with drawn seeds that was killed in the next one."""
    folder = pathlib.Path(cwd)
    videos = [folder / f"clip_{number:03}.gif" for number in range(2)]
    keys = ["num_videos=3", "batch_size=2", "output=clip.gif", "deterministic=true", "threads=1", LONG[0], "seed=-1"]
    killed(cwd, *keys, wait_for="Video 3 of 3")
    made = [video.read_bytes() for video in videos]
    assert made[0] != made[1]
    videos[1].unlink()
    note = (folder / "j" / "000.done").read_text()
    for damaged in ("{}", note[:-2], note.replace('"seeds"', '"seed"').replace('"files"', '"seeds"'),
                    note.replace('"seeds": [', '"seeds": [7,')):
        (folder / "j" / "000.done").write_text(damaged)
        refused(cwd, resume(cwd), "000.done", left=files_in(cwd))
    (folder / "j" / "000.done").write_text(note)
    result = run([*launcher, harness.PROGRAM, "generate", "resume=j"], cwd, env=env)
    assert result.returncode == 0 and "Made before" not in result.stderr, result.stderr
    for number, seed in enumerate(json.loads(note)["seeds"], 1):
        assert f"Video {number} of 3: seed {seed}," in result.stderr, result.stderr
    if not launcher:  # on the same ranks
        assert [video.read_bytes() for video in videos] == made


@test
def a_video_that_is_gone_is_made_again_with_the_seed_that_was_drawn(cwd):
    made_again(cwd)


@test
def mpi_a_video_that_is_gone_is_made_again_with_its_seed(cwd):
    made_again(cwd, ["mpirun", "-n", "2"], MPI_ENV)


@test
def a_series_goes_on_where_a_journal_cannot_be_written(cwd):
    keys = ["num_videos=2", "output=clip.gif", *LONG]
    with Paused(cwd, command("journal=j", *keys)) as paused:
        paused.until("Denoise: step 20 of")
        (pathlib.Path(cwd) / "j" / "001").write_text("in the way")
        result = paused.release()
    assert result.returncode == 0 and result.stdout.count("Wrote") == 2, result.stderr
    assert "Note: this video is made without a journal: journal=j/001" in result.stderr, result.stderr


@test
def a_series_is_resumed_once_at_a_time(cwd):
    """Also between two of its videos, where no run has a lock."""
    folder = pathlib.Path(cwd)
    with Paused(cwd, command("journal=j", "num_videos=2", "output=clip.gif", *LONG)) as paused:
        paused.until("Video 2 of 2")
        assert "journal j: another process is using it" in sentence(resume(cwd))  # not of the video
        assert paused.release().returncode == 0
    assert files_in(cwd) == ["clip_000.gif", "clip_001.gif"]
    # A journal there that another run needs is no reason to do without one.
    with Paused(cwd, command("journal=j", "num_videos=2", "output=clip.gif", *LONG)) as paused:
        paused.until("Denoise: step 20 of")
        shutil.copytree(folder / "j" / "000", folder / "j" / "001")
        result = paused.release()
    refused(cwd, result, "video 2 of 2", "holds a run that did not end", left=files_in(cwd))
    assert (folder / "j" / "settings.json").exists() and (folder / "j" / "000.done").exists()


@test
def what_fails_behind_the_last_frame_costs_no_video(cwd):
    """A dump or grid that is too large, and a standard output that is full."""
    def limited(size, *arguments):
        return run(["prlimit", f"--fsize={size}", *command("output=clip.gif", *arguments)], cwd)

    folder = pathlib.Path(cwd)
    alone = generate(cwd, "output=clip.gif")
    assert alone.returncode == 0, alone.stderr
    whole = (folder / "clip.gif").read_bytes()
    (folder / "clip.gif").unlink()
    limit = 2 * len(whole)  # a grid of four is larger, and so is a dump
    result = limited(limit, "dump=d")
    refused(cwd, result, "run.safetensors", left=["clip.gif"])
    assert (folder / "clip.gif").read_bytes() == whole and "Wrote clip.gif" in result.stdout, result.stdout
    result = limited(2**16, "dump=d", "journal=j", "num_videos=2", "num_inference_steps=50")
    refused(cwd, result, "video 1 of 2", "run.safetensors", left=["clip.gif", "clip_000.gif", "j"])
    result = resume(cwd, "dump=")
    assert result.returncode == 0 and "Made before: video 1 of 2" in result.stderr, result.stderr
    result = limited(limit, "grid=g.gif", "num_videos=4")
    refused(cwd, result, "g.gif", left=["clip.gif", *(f"clip_{i:03}.gif" for i in range(4))])
    assert result.stdout.count("Wrote ") == 4, result.stdout
    for file in folder.glob("clip*"):
        file.unlink()
    result = run(["sh", "-c", '"$@" > /dev/full', "sh", *command("output=clip.gif", "num_videos=2")], cwd)
    refused(cwd, result, "standard output: cannot be written", left=["clip_000.gif", "clip_001.gif"])
    assert files_in(cwd) == ["clip_000.gif", "clip_001.gif"]


@test
def a_series_of_numbered_pictures_goes_on(cwd):
    for output, first in (("clip.png", "clip_000-0000.png"), ("x%02d.png", "x000-00.png")):
        killed(cwd, f"output={output}", "num_videos=2", *LONG, wait_for="Video 2 of 2")
        made = (pathlib.Path(cwd) / first).stat().st_ino
        result = resume(cwd)
        assert result.returncode == 0, result.stderr
        assert "Made before: video 1 of 2, " in result.stderr and f"/{first} to " in result.stderr, result.stderr
        assert result.stdout.count("Wrote ") == 1 and (pathlib.Path(cwd) / first).stat().st_ino == made


@test
def a_series_goes_on_as_the_same_series(cwd):
    """Also behind a video that is made, where no run is under way whose journal could tell."""
    keys = [*LONG, "num_videos=3", "output=clip.gif", "deterministic=true"]
    assert generate(cwd, *keys).returncode == 0
    folder = pathlib.Path(cwd)
    videos = [folder / f"clip_{number:03}.gif" for number in range(3)]
    whole = [video.read_bytes() for video in videos]
    killed(cwd, *keys, wait_for="Video 2 of 3")
    if (folder / "j" / "001").exists():
        shutil.rmtree(folder / "j" / "001")
    assert (folder / "j" / "000.done").exists(), files_in(cwd)
    for old in videos[1:]:
        old.write_bytes(b"an older video")
    before = files_in(cwd)
    other = pathlib.Path(harness.MODEL).parent / "wan21_t2v_h6"
    for words, said in ((["batch_size=2"], "batch_size is 1 there and 2 here"), (["num_videos=4"], "num_videos is 3 there"),
                        (["prompt=a blue dog"], "prompt is a red cat there"), (["seed=77"], "seed is 5 there and 77 here"),
                        (["num_inference_steps=5"], "num_inference_steps is 200 there"),
                        ([f"model={other}"], "another model")):
        refused(cwd, resume(cwd, *words), said, left=before)
    result = resume(cwd)
    assert result.returncode == 0 and "Made before: video 1 of 3" in result.stderr, result.stderr
    assert [video.read_bytes() for video in videos] == whole
    assert not (folder / "j").exists()


def killed_between(cwd, model, *arguments):
    """A series of two with the journal j that ended behind its first video."""
    with Paused(cwd, [harness.PROGRAM, "generate", model, *SMALL, "journal=j", "output=clip.gif", *arguments, *LONG]) as paused:
        paused.until("Video 2 of 2")
        paused.send(signal.SIGKILL)
        paused.release()
    shutil.rmtree(pathlib.Path(cwd) / "j" / "001", ignore_errors=True)


@test
def a_series_goes_on_with_the_same_inputs(cwd):
    folder, models = pathlib.Path(cwd), pathlib.Path(harness.MODEL).parent
    pictures = [models / "wan21_flf2v" / "inputs" / name for name in ("image.png", "last_image.png")]
    shutil.copy(pictures[0], folder / "cat.png")
    killed_between(cwd, models / "wan21_i2v", "image=cat.png", "num_videos=2")
    shutil.copy(pictures[1], folder / "cat.png")
    refused(cwd, resume(cwd), "pixels of image", left=files_in(cwd))
    shutil.copy(pictures[0], folder / "cat.png")
    result = resume(cwd)
    assert result.returncode == 0 and "Made before: video 1 of 2" in result.stderr, result.stderr


@test
def a_run_goes_on_with_the_same_noise(cwd):
    folder = pathlib.Path(cwd)
    for seed in (1, 2):
        assert generate(cwd, "output=x.gif", f"dump=d{seed}", f"seed={seed}").returncode == 0
    (folder / "prompts.txt").write_text("a cat\na dog\n")
    noise = [(folder / f"d{seed}" / "run.safetensors").read_bytes() for seed in (1, 2)]
    (folder / "n.safetensors").write_bytes(noise[0])
    for start in (lambda: killed(cwd, "output=clip.gif", "latents=n.safetensors", *LONG),
                  lambda: killed_between(cwd, harness.MODEL, "prompt=", "prompts=prompts.txt", "latents=n.safetensors")):
        start()
        (folder / "n.safetensors").write_bytes(noise[1])
        refused(cwd, resume(cwd), "latents n.safetensors", left=files_in(cwd))
        (folder / "n.safetensors").write_bytes(noise[0])
        assert resume(cwd).returncode == 0


@test
def a_file_of_prompts_may_go_away_but_not_change(cwd):
    file = pathlib.Path(cwd) / "prompts.txt"
    file.write_text("a cat\na dog\n")
    words = [*LONG, "prompt=", "prompts=prompts.txt", "output=clip.gif"]
    killed(cwd, *words, wait_for="Video 2 of 2")
    file.write_text("a cat\na cow\n")
    refused(cwd, resume(cwd, "prompts=prompts.txt"), "prompt 2 is a dog there and a cow here", left=files_in(cwd))
    file.unlink()
    assert resume(cwd).returncode == 0


@test
def one_run_is_not_taken_for_a_series(cwd):
    killed(cwd, "output=clip.gif", *LONG)
    before = files_in(cwd)
    refused(cwd, resume(cwd, "num_videos=2"), "holds one run, but 2 are asked for", left=before)
    assert resume(cwd).returncode == 0


@test
def an_interrupted_run_says_how_it_goes_on(cwd):
    result = harness.interrupt(cwd, "Denoise: step 20 of", "output=clip.gif", "journal=j", *LONG)
    assert result.returncode != 0 and "resume=j goes on from there" in result.stderr, result.stderr
    assert "interrupted" in sentence(result) and "cannot be written" not in result.stderr, result.stderr
    assert resume(cwd).returncode == 0


@test
def long_runs_are_noted_without_being_asked(cwd):
    """With a profile of a machine that would need days."""
    profile = pathlib.Path(cwd) / "slow.yml"
    profile.write_text(SLOW)
    slow = [f"hardware={profile}"]
    with Paused(cwd, command("output=clip.gif", *slow, *LONG)) as paused:
        paused.until("Denoise: step 20 of")
        assert "Noted in clip.gif.journal" in paused.seen, paused.seen
        paused.send(signal.SIGKILL)
        paused.release()
    result = resume(cwd, folder="clip.gif.journal")
    assert result.returncode == 0 and first_step(result) >= 19, result.stderr
    result = generate(cwd, "output=clip.gif", "journal=none", *slow)
    assert result.returncode == 0 and "Noted in" not in result.stderr, result.stderr
    result = generate(cwd, "output=clip.gif")
    assert result.returncode == 0 and "Noted in" not in result.stderr, result.stderr


@test
def mpi_a_killed_job_goes_on(cwd):
    keys = ["output=clip/", "deterministic=true", "threads=1", "ulysses_shards=2", *LONG]
    whole = run(mpirun((2, ["output=whole/", *keys[1:]])), cwd, env=MPI_ENV)
    assert whole.returncode == 0, whole.stderr
    with PausedMpi(cwd, 2, ["journal=j", *keys]) as paused:
        paused.until("Denoise: step 20 of")
        paused.send(signal.SIGKILL)
        paused.process.wait()
    harness.until(lambda: "lock" not in "".join(lock_holders(cwd)), "ranks outlive their job")
    result = run(["mpirun", "-n", "2", harness.PROGRAM, "generate", "resume=j"], cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert first_step(result) >= 19
    assert frames(cwd, "clip") == frames(cwd, "whole") and frames(cwd, "clip")
    assert not (pathlib.Path(cwd) / "j").exists()


def lock_holders(cwd):
    """Descriptors of any process on the journal's lock."""
    lock = str(pathlib.Path(cwd) / "j" / "lock")
    found = []
    for link in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == lock:
                found.append("lock")
        except OSError:
            pass
    return found


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
