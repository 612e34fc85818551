#!/usr/bin/env python3
"""What a user does every day: prompts in files, every kind of output file with its codec and quality, and previews.

    everyday_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    everyday_test.py --list                the names
"""
import pathlib
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, SMALL, files_in, generate, mpirun, refused, run, run_script  # noqa: E402

TESTS = {}
KEYS = [word for word in SMALL if not word.startswith("prompt=")]


def test(function):
    TESTS[function.__name__] = function
    return function


def with_prompt(cwd, *words):
    return run([harness.PROGRAM, "generate", harness.MODEL, *KEYS, *words], cwd)


def frames(cwd, *words):
    """The bytes of the numbered pictures of a run."""
    result = with_prompt(cwd, *words, "output=frames")
    assert result.returncode == 0, result.stderr
    return [path.read_bytes() for path in sorted((pathlib.Path(cwd) / "frames").iterdir())]


def clip(cwd, name, *words):
    result = generate(cwd, f"output={name}", *words)
    assert result.returncode == 0, result.stderr
    return (pathlib.Path(cwd) / name).read_bytes()


@test
def numbers_of_a_cache_are_looked_for_beside_a_yaml_file(cwd):
    """And a name that something was published for stays one, whatever else has it."""
    runs = pathlib.Path(cwd) / "runs"
    (runs / "wan2.1_t2v_14b").mkdir(parents=True)
    (runs / "ratios.txt").write_text("1, 1, 0.5, 0.25")
    said = {}
    for value in ("wan2.1_t2v_14b", "ratios.txt", "1,1,0.5,0.25"):
        (runs / "run.yml").write_text(f"cache: mag\ncache_ratios: '{value}'\ncache_threshold: 0.2\nnum_inference_steps: 20\n")
        keys = [word for word in SMALL if not word.startswith("num_inference_steps")]
        result = run([harness.PROGRAM, "generate", "runs/run.yml", f"model={harness.MODEL}", *keys, "output=a.gif"], cwd)
        assert result.returncode == 0, result.stderr
        said[value] = next(line for line in result.stdout.splitlines() if "MagCache reused" in line).split(",")[0]
    assert said["ratios.txt"] == said["1,1,0.5,0.25"] != said["wan2.1_t2v_14b"], said


@test
def a_prompt_comes_from_a_file(cwd):
    folder = pathlib.Path(cwd)
    (folder / "prompt.txt").write_text("a red cat,\nrunning\r\n\n", encoding="utf-8")
    (folder / "negative.txt").write_text("blur\n", encoding="utf-8")
    given = frames(cwd, "prompt=a red cat,\nrunning", "negative_prompt=blur")
    assert frames(cwd, "prompt=@prompt.txt", "negative_prompt=@negative.txt") == given
    assert frames(cwd, "prompt=another", "negative_prompt=blur") != given
    (folder / "sub").mkdir()
    (folder / "sub" / "run.yml").write_text("prompt: '@beside.txt'\nnegative_prompt: blur\n", encoding="utf-8")
    (folder / "sub" / "beside.txt").write_text("a red cat,\nrunning", encoding="utf-8")
    assert frames(cwd, "sub/run.yml") == given
    (folder / "home.txt").write_text("@home", encoding="utf-8")
    assert frames(cwd, "prompt=@@home") == frames(cwd, "prompt=@home.txt")


@test
def a_prompt_file_that_holds_none_is_refused(cwd):
    folder = pathlib.Path(cwd)
    (folder / "empty.txt").write_text("\n", encoding="utf-8")
    (folder / "latin1.txt").write_bytes(b"caf\xe9")
    (folder / "large.txt").write_bytes(b"a" * (1 << 21))
    left = files_in(cwd)
    refused(cwd, with_prompt(cwd, "prompt=@empty.txt"), "prompt=@empty.txt", "no prompt", left=left)
    refused(cwd, with_prompt(cwd, "prompt=@latin1.txt"), "latin1.txt", "UTF-8", left=left)
    refused(cwd, with_prompt(cwd, "prompt=@large.txt"), "large.txt", left=left)
    refused(cwd, with_prompt(cwd, "prompt=@absent.txt"), "absent.txt", left=left)
    refused(cwd, with_prompt(cwd, "prompt=@"), "name the file", left=left)
    refused(cwd, with_prompt(cwd, "prompt=a", "negative_prompt=@absent.txt"), "absent.txt", left=left)


@test
def weights_in_prompts_are_refused(cwd):
    refused(cwd, with_prompt(cwd, "prompt=a (red cat:1.3) on a mat"), "prompt", "(red cat:1.3)")
    refused(cwd, with_prompt(cwd, "prompt=a cat", "negative_prompt=(blur:2)"), "negative_prompt", "(blur:2)")
    (pathlib.Path(cwd) / "prompts.txt").write_text("a cat\na (dog:0.5)\n", encoding="utf-8")
    left = files_in(cwd)
    refused(cwd, with_prompt(cwd, "prompts=prompts.txt"), "(dog:0.5)", left=left)
    assert with_prompt(cwd, "prompt=a screen (16:9)").returncode == 0


@test
def every_kind_of_file_is_written(cwd):
    h264, h265 = clip(cwd, "a.mp4"), clip(cwd, "b.mp4", "codec=h265", "width=64")
    assert h264[4:8] == b"ftyp" and b"avc1" in h264 and b"hvc1" not in h264
    assert h265[4:8] == b"ftyp" and b"hvc1" in h265
    mov = clip(cwd, "a.mov")
    assert mov[4:12] == b"ftypqt  " and b"avc1" in mov
    webm = clip(cwd, "a.webm")
    assert webm[:4] == b"\x1a\x45\xdf\xa3" and b"V_VP9" in webm
    webp = clip(cwd, "a.webp")
    assert webp[:4] == b"RIFF" and webp[8:12] == b"WEBP" and webp.count(b"ANMF") == 5
    assert int.from_bytes(webp[4:8], "little") + 8 == len(webp)
    header = webp.index(b"ANIM") + 8
    assert webp[header + 4:header + 6] == b"\0\0", "the animation ends"


@test
def crf_is_the_quality(cwd):
    for name in ("mp4", "mov", "webm"):
        best, usual, worst = (len(clip(cwd, f"{crf}.{name}", *words))
                              for crf, words in (("0", ["crf=1"]), ("d", []), ("50", ["crf=50"])))
        assert best > usual > worst, (name, best, usual, worst)


@test
def codecs_that_a_file_cannot_hold_are_refused(cwd):
    for words, says in ((["output=a.mp4", "codec=vp9"], "h264 or h265"), (["output=a.webm", "codec=h264"], "vp9"),
                        (["output=a.webp", "crf=20"], "leave it out"), (["output=a.gif", "crf=20"], ".webm"),
                        (["output=a.png", "codec=h264"], "leave them out"), (["output=a.mp4", "crf=52"], "51"),
                        (["output=a.webm", "crf=64"], "63"), (["output=a.mp4", "codec=h266"], "h265"),
                        (["output=a.mp4", "codec=h265", "width=48"], "at least 64 pixels wide"),
                        (["output=a.avi"], ".webm")):
        refused(cwd, generate(cwd, *words), says)


@test
def previews_are_written_between_steps(cwd):
    words = ["num_inference_steps=4", "height=48", "width=32"]
    plain = clip(cwd, "plain.gif", *words)
    result = generate(cwd, "output=clip.gif", "preview=3", "summary=full", *words)
    assert result.returncode == 0, result.stderr
    assert "Preview" in result.stdout, result.stdout
    folder = pathlib.Path(cwd)
    preview = (folder / "clip.preview.gif").read_bytes()
    assert preview[:6] == b"GIF89a" and preview[6:10] == bytes([32, 0, 48, 0]) and preview.endswith(b";")
    assert (folder / "clip.gif").read_bytes() == plain
    assert sorted(files_in(cwd)) == ["clip.gif", "clip.preview.gif", "plain.gif"]
    generate(cwd, "output=none.gif", "preview=4", *words)
    assert not (folder / "none.preview.gif").exists()  # the clip itself follows the last step
    refused(cwd, generate(cwd, "preview=0"), "preview", left=files_in(cwd))


@test
def mpi_rank_0_shows_what_all_are_making(cwd):
    words = ["num_inference_steps=3", "preview=1", "output=clip.gif", "threads=1"]
    result = run(mpirun((3, words)), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert (pathlib.Path(cwd) / "clip.preview.gif").read_bytes().startswith(b"GIF89a")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
