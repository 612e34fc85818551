#!/usr/bin/env python3
"""Several videos in one run: several prompts and seeds, weights loaded once, a file for each.

    series_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    series_test.py --list                the names
"""
import os
import pathlib
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_demo import read_png  # noqa: E402
import harness  # noqa: E402
from harness import (MANY_STEPS, MPI_ENV, SMALL, Paused, files_in, generate, mpirun, read_tensors, refused, run,
                     run_script)  # noqa: E402

TESTS = {}
PROMPTS = ["a red cat, running", "zwei blaue Hündchen"]
KEYS = [word for word in SMALL if not word.startswith("prompt=")]


def test(function):
    TESTS[function.__name__] = function
    return function


def series(cwd, *arguments, **options):
    return run([harness.PROGRAM, "generate", harness.MODEL, *KEYS, *arguments], cwd, **options)


def write_prompts(cwd, text="\n".join(PROMPTS) + "\n"):
    path = pathlib.Path(cwd) / "prompts.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tensors(cwd, folder):
    return read_tensors(pathlib.Path(cwd) / folder / "run.safetensors")


@test
def every_video_is_that_of_its_own_run(cwd):
    write_prompts(cwd)
    result = series(cwd, "prompts=prompts.txt", "num_videos=2", "seed=7", "output=clip.mp4", "dump=d", "ranks=2")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Load transformer") == 1, result.stderr
    for i, (prompt, seed) in enumerate((p, s) for p in PROMPTS for s in (7, 8)):
        assert f"Video {i + 1} of 4: seed {seed}, '{prompt}'" in result.stderr, result.stderr
        assert f"Video {i + 1} of 4: seed {seed}\n" in result.stdout, result.stdout
        assert f"Wrote clip_{i:03}.mp4" in result.stdout, result.stdout
        alone = series(cwd, f"prompt={prompt}", f"seed={seed}", "output=alone.mp4", "dump=alone", "ranks=2")
        assert alone.returncode == 0, alone.stderr
        assert tensors(cwd, f"d_{i:03}") == tensors(cwd, "alone"), (prompt, seed)
        tags = (pathlib.Path(cwd) / f"clip_{i:03}.mp4").read_bytes()
        assert prompt.encode() in tags and b"prompts.txt" not in tags and b"num_videos" not in tags


@test
def yaml_may_list_the_prompts(cwd):
    (pathlib.Path(cwd) / "run.yml").write_text(
        "prompts:\n- a red cat, running\n- |\n  two blue\n  dogs\noutput: frames/\nnum_videos_per_prompt: 1\n")
    result = series(cwd, "run.yml")
    assert result.returncode == 0, result.stderr
    assert "Video 2 of 2: seed 0, 'two blue dogs" in result.stderr, result.stderr
    assert {"frames_000/0000.png", "frames_001/0004.png"} <= set(files_in(cwd)), files_in(cwd)


@test
def numbered_pictures_are_named(cwd):
    for count, said in ((5, ""), (1, ""), (5, ", which replaces 5 files"),
                        (1, ", which replaces 1 file")):
        result = series(cwd, "prompt=a red cat", "num_videos=2", f"num_frames={count}", "output=a.png")
        assert result.returncode == 0, result.stderr
        name = "a_001-0000.png to a_001-0004.png" if count == 5 else "a_001.png"
        assert result.stdout.endswith(f"Wrote {name}{said}\n"), result.stdout
    for count, said in ((5, ""), (1, ", which replaces 1 file and removes 4 later frames")):
        result = series(cwd, "prompt=a red cat", f"num_frames={count}", "output=f/")
        assert result.returncode == 0 and result.stdout.endswith(f"Wrote f/{said}\n"), result.stdout


@test
def a_grid_shows_all_videos(cwd):
    here = pathlib.Path(cwd)
    for ranks, said in (("ranks=1", ""), ("ranks=3", ", which replaces 5 files")):
        result = series(cwd, "prompt=a red cat", "num_videos=3", "batch_size=2", "output=f/", "grid=all/", ranks)
        assert result.returncode == 0, result.stderr
        assert result.stdout.endswith(f"Wrote f_002/{said}\nWrote all/, which shows all 3\n"), result.stdout
        grid, alone = read_png(here / "all/0002.png"), [read_png(here / f"f_{i:03}/0002.png") for i in range(3)]
        (height, width) = (len(alone[0]), len(alone[0][0]))
        assert (len(grid), len(grid[0])) == (2 * height + 2, 2 * width + 2)
        for i, frame in enumerate(alone):
            top, left = i // 2 * (height + 2), i % 2 * (width + 2)
            # Of PNG files values are rounded, of the grid's too.
            assert [row[left:left + width] for row in grid[top:top + height]] == frame, i
    # A shorter one replaces a longer one.
    result = series(cwd, "prompt=a red cat", "num_videos=2", "num_frames=1", "output=g/", "grid=all/")
    assert result.returncode == 0 and [p.name for p in (here / "all").iterdir()] == ["0000.png"], result.stderr
    kept = sorted(files_in(cwd))
    large = ("num_videos=200", "width=512", "height=512", "num_frames=81", "memory_limit=8")  # 200 x 64 MB
    refused(cwd, generate(cwd, *large, "output=a.mp4", "grid=b.mp4"), "memory: this run needs", "what would fit: no grid", left=kept)
    refused(cwd, generate(cwd, "grid=one.mp4"), "grid=one.mp4", "several videos", left=kept)
    refused(cwd, generate(cwd, "num_videos=2", "output=a.mp4", "grid=a_001.mp4"), "output=a_001.mp4 is the same file as grid=a_001.mp4", left=kept)
    refused(cwd, generate(cwd, "num_videos=2", "output=a.mp4", "grid=a.preview.gif", "preview=1"),
            "preview=a.preview.gif is the same file as grid=a.preview.gif", left=kept)
    refused(cwd, generate(cwd, "output=a.mp4", "trace=a.preview.gif", "preview=1"), "trace=a.preview.gif", left=kept)
    refused(cwd, generate(cwd, "num_videos=2", "output=b/", "grid=b_001"), "is the same file", left=kept)
    refused(cwd, generate(cwd, "num_videos=2", "output=a.mp4", "grid=no/a.mp4"), "no/a.mp4", left=kept)
    result = generate(cwd, "num_videos=2", "output=a.mp4", "codec=h265", "width=64", "grid=b.gif")  # the grid is coded by default
    assert result.returncode == 0 and "b.gif" in files_in(cwd), result.stderr


@test
def bad_prompts_are_refused(cwd):
    for text, words in (("", ["no prompt"]), ("a cat\n\na dog\n", ["line 2 is blank"]),
                        (b"a cat\nH\xfcndchen\n", ["line 2", "UTF-8"])):
        write_prompts(cwd, text)
        refused(cwd, series(cwd, "prompts=prompts.txt", "output=clip.mp4"), "prompts=prompts.txt (command line)", *words,
                left=["prompts.txt"])
    refused(cwd, series(cwd, "prompts=nowhere.txt"), "nowhere.txt", left=["prompts.txt"])
    refused(cwd, generate(cwd, "prompts=prompts.txt"), "prompts", "prompt", left=["prompts.txt"])
    refused(cwd, generate(cwd, "num_videos=0"), "num_videos=0", "1 to 100000", left=["prompts.txt"])
    refused(cwd, generate(cwd, "num_videos=2", "compare_one_rank=true"), "compare_one_rank", left=["prompts.txt"])


@test
def files_that_cannot_be_are_refused_before_anything_is_computed(cwd):
    def nothing_was_computed(result, *words, left=()):
        refused(cwd, result, *words, left=left)
        assert "Denoise" not in result.stderr and "Load" not in result.stderr, result.stderr
    here = pathlib.Path(cwd)
    nothing_was_computed(generate(cwd, "num_videos=2", "output=/dev/stdout"), "output=/dev/stdout", "one video")
    os.mkfifo(here / "pipe.mp4")
    nothing_was_computed(generate(cwd, "num_videos=2", "output=pipe.mp4"), "output=pipe.mp4", left=["pipe.mp4"])
    (here / "clip_001.mp4").symlink_to("clip_000.mp4")
    nothing_was_computed(generate(cwd, "num_videos=2", "output=clip.mp4"), "clip_000.mp4", "clip_001.mp4",
                         left=["pipe.mp4", "clip_001.mp4"])
    # The prompts are an input, under any name.
    write_prompts(cwd)
    (here / "a_001.mp4").symlink_to("prompts.txt")
    nothing_was_computed(series(cwd, "prompts=prompts.txt", "output=a.mp4"), "a_001.mp4", "prompts.txt",
                         left=["pipe.mp4", "clip_001.mp4", "a_001.mp4", "prompts.txt"])
    (here / "b_001.mp4").mkdir()
    (here / "b_001.mp4" / "x").touch()
    kept = ["pipe.mp4", "clip_001.mp4", "a_001.mp4", "prompts.txt", "b_001.mp4"]
    nothing_was_computed(generate(cwd, "num_videos=2", "output=b.gif", "trace=b.mp4"), "b_001.mp4", left=kept)


@test
def ctrl_c_keeps_the_videos_that_are_done(cwd):
    with Paused(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "num_videos=3", "output=clip.mp4", "dump=d",
                      *MANY_STEPS]) as paused:
        paused.until("Video 2 of 3")
        paused.until("Denoise: step 1 of")
        paused.send(signal.SIGINT)
        result = paused.release()
    assert result.returncode == 130, result.stderr
    refused(cwd, result, "video 2 of 3", "interrupted", left=["clip_000.mp4", "d_000"])
    assert "Wrote clip_000.mp4" in result.stdout, result.stdout
    assert (pathlib.Path(cwd) / "clip_000.mp4").stat().st_size > 1000
    assert tensors(cwd, "d_000")


@test
def a_batch_that_ends_early_names_the_videos_that_are_done(cwd):
    with Paused(cwd, [harness.PROGRAM, "generate", harness.MODEL, *SMALL, "num_frames=33", "num_videos=3", "batch_size=3",
                      "output=clip.mp4", "seed=7", "threads=1"]) as paused:
        while paused.seen.count("frame 1 of 33") < 2:  # of the second
            assert paused.read_line(), paused.seen
        paused.send(signal.SIGINT)
        result = paused.release()
    assert result.returncode == 130, result.stderr
    refused(cwd, result, "videos 1 to 3 of 3", "video 2 of the batch", "interrupted", left=["clip_000.mp4"])
    assert result.stdout == "Video 1 of 3: seed 7\nWrote clip_000.mp4\n", result.stdout


@test
def mpi_makes_the_same_series(cwd):
    common = ["attention=ring", "data_parallelism=1", "seed=7", "num_videos=2"]
    result = run(mpirun((3, [*common, "output=a.mp4", "dump=mpi", "threads=1"])), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Wrote ") == 2, result.stdout
    assert generate(cwd, *common, "output=b.mp4", "dump=threads", "ranks=3", "threads=3").returncode == 0
    for i in range(2):
        assert tensors(cwd, f"mpi_{i:03}")["latents.1"] == tensors(cwd, f"threads_{i:03}")["latents.1"]


# The layouts that a batch is denoised in: ranks and keys. Data 2 has the branches on halves of the ranks.
LAYOUTS = [(1, []), (2, ["attention=ulysses", "data_parallelism=1"]), (3, ["attention=ring", "data_parallelism=1"]),
           (4, ["attention=ring", "data_parallelism=2", "context_parallelism=2"])]


def batch_is_that_of_its_videos(cwd, layout, start):
    write_prompts(cwd)
    common = ["prompts=prompts.txt", "num_videos=2", "seed=7", *layout]
    for arguments in (["batch_size=3", "output=b.mp4", "dump=b"], ["output=a.mp4", "dump=a"]):
        result = start([*common, *arguments])
        assert result.returncode == 0, result.stderr
        assert all(f"Wrote {arguments[-1][-1]}_{i:03}.mp4" in result.stdout for i in range(4)), result.stdout
    for i in range(4):  # a batch of three, and one of what is left
        assert tensors(cwd, f"b_{i:03}") == tensors(cwd, f"a_{i:03}"), (layout, i)


@test
def a_batch_has_the_bits_of_its_videos(cwd):
    for ranks, layout in LAYOUTS:
        batch_is_that_of_its_videos(cwd, layout, lambda words: series(cwd, f"ranks={ranks}", *words))


@test
def mpi_a_batch_has_the_bits_of_its_videos(cwd):
    for ranks, layout in LAYOUTS[1:]:
        batch_is_that_of_its_videos(
            cwd, layout, lambda words: run(mpirun((ranks, [*words, "prompt=", "threads=1"])), cwd, env=MPI_ENV))


@test
def a_batch_that_cannot_be_is_refused(cwd):
    refused(cwd, generate(cwd, "num_videos=2", "batch_size=3"), "batch_size=3", "2 videos")
    refused(cwd, generate(cwd, "num_videos=2", "batch_size=2", "cache=sen"), "batch_size=2", "one video")
    size = ["height=128", "width=128", "num_frames=17", "dtype=float32", "threads=2", "memory_limit=0.09", "output=frames/"]
    result = run([harness.PROGRAM, "inspect", harness.MODEL, *size, "batch_size=4"], cwd)
    assert result.returncode == 1 and "what would fit: batch_size=1" in result.stdout + result.stderr, result.stderr
    assert run([harness.PROGRAM, "inspect", harness.MODEL, *size], cwd).returncode == 0


@test
def mpi_ranks_must_have_the_same_series(cwd):
    refused(cwd, run(mpirun((1, ["num_videos=2"]), (1, ["num_videos=3"])), cwd, env=MPI_ENV), "disagree", "rank 1",
            "number of videos=3")
    refused(cwd, run(mpirun((1, ["num_videos=2"]), (1, ["num_videos=2", "keep_weights=all"])), cwd, env=MPI_ENV),
            "disagree", "rank 1", "keep_weights set")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
