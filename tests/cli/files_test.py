#!/usr/bin/env python3
"""Files that are read and written: outputs spare what the run reads, follow links and stream into pipes; inputs are
regular files; a terminal obeys nothing that comes out of a file; and what could not be printed is not called a success.

    files_test.py PROGRAM MODELS NAME    runs one test; MODELS is the folder of the recorded checkpoints
    files_test.py --list                 the names
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import PATIENCE, SMALL, files_in, refused, run, run_script, sentence, unreported  # noqa: E402

TESTS = {}
MODELS = None
ATTENTION = ["attention", "shape=1x16x2x8"]


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, models):
    global MODELS
    MODELS = pathlib.Path(models)
    harness.use(program, MODELS / "wan21_t2v")


def zoetrope(cwd, *arguments, **options):
    return run([harness.PROGRAM, *arguments], cwd, **options)


def generate(cwd, *arguments, model=None, **options):
    return zoetrope(cwd, "generate", model or harness.MODEL, *SMALL, *arguments, **options)


def in_shell(cwd, script):
    """`script` with "$@" for the program's path: redirections as a user types them."""
    return unreported(subprocess.run(["bash", "-c", script, "bash", harness.PROGRAM], cwd=cwd, text=True,
                                     errors="replace", capture_output=True, timeout=PATIENCE))


def contents(folder):
    return {name: (pathlib.Path(folder) / name).read_bytes() for name in files_in(folder)
            if (pathlib.Path(folder) / name).is_file()}


# ---- outputs ----

@test
def a_link_is_followed_to_the_file_it_names(cwd):
    for arguments, name in (([*ATTENTION, "json=LINK"], "x.json"), ([*ATTENTION, "trace=LINK"], "t.json"),
                            (["generate", harness.MODEL, *SMALL, "output=LINK"], "clip.gif"),
                            (["plan", harness.MODEL, "ranks=2", "hardware=h100_8", "json=LINK"], "p.json")):
        real, link = pathlib.Path(cwd) / f"real_{name}", pathlib.Path(cwd) / name
        real.write_text("old")
        link.symlink_to(real.name)
        result = zoetrope(cwd, *[str(a).replace("LINK", name) for a in arguments])
        assert result.returncode == 0, result.stderr
        assert link.is_symlink(), f"{name} was replaced"
        assert not real.is_symlink() and real.stat().st_size > 10, f"{name}: what the link names was not written"


@test
def standard_output_as_a_file_is_a_stream(cwd):
    # As /dev/stdout is one, but not the machine's own, which would suffer where this fails.
    os.symlink("/proc/self/fd/1", pathlib.Path(cwd) / "out")
    result = in_shell(cwd, '"$1" attention shape=1x16x2x8 trace=out >all.txt')
    assert result.returncode == 0, result.stderr
    assert os.readlink(pathlib.Path(cwd) / "out") == "/proc/self/fd/1"
    os.unlink(pathlib.Path(cwd) / "out")
    text = (pathlib.Path(cwd) / "all.txt").read_text()
    assert '"traceEvents"' in text, text
    assert files_in(cwd) == ["all.txt"], files_in(cwd)
    result = in_shell(cwd, '"$1" attention shape=1x16x2x8 json=/dev/fd/3 3>&1 >/dev/null')
    assert json.loads(result.stdout), result.stdout
    result = in_shell(cwd, 'mkfifo pipe; cat pipe >got & "$1" attention shape=1x16x2x8 json=pipe; code=$?; wait; exit $code')
    assert result.returncode == 0, result.stderr
    assert json.loads((pathlib.Path(cwd) / "got").read_text())


def frames(cwd):
    folder = pathlib.Path(cwd) / "frames"
    folder.mkdir()
    for i in range(5):
        shutil.copy(MODELS / "wan21_vace" / "inputs" / f"video_{i:02}.png", folder / f"{i:04}.png")
    return folder


@test
def what_the_run_reads_is_not_written(cwd):
    """Each input once as an output of every kind, under its own name, a link and a hard link."""
    model = pathlib.Path(cwd) / "model"
    shutil.copytree(MODELS / "wan21_vace", model)
    frames(cwd)
    config = pathlib.Path(cwd) / "run.yml"
    config.write_text("".join(f"{word.replace('=', ': ', 1)}\n" for word in SMALL))
    hardware = pathlib.Path(cwd) / "h.yml"
    hardware.write_bytes((pathlib.Path(__file__).parents[2] / "configs" / "hardware" / "h100_8.yml").read_bytes())
    shutil.copy(MODELS / "wan21_vace" / "inputs" / "reference_0.png", pathlib.Path(cwd) / "reference.png")
    first = generate(cwd, "control_video=frames", "output=video.mp4", model=model)
    assert first.returncode == 0, first.stderr
    os.symlink("video.mp4", pathlib.Path(cwd) / "link.mp4")
    os.link(pathlib.Path(cwd) / "video.mp4", pathlib.Path(cwd) / "hard.mp4")
    given = ["control_video=video.mp4", "reference_images=reference.png", "hardware=h.yml"]
    before = contents(cwd)
    shard = "model/transformer/diffusion_pytorch_model.safetensors"
    tokenizer = next(f"model/tokenizer/{name}" for name in ("tokenizer.json", "spiece.model")
                     if (model / "tokenizer" / name).exists())
    cases = ["output=video.mp4", "output=link.mp4", "output=hard.mp4", "trace=reference.png", "trace=run.yml", "trace=h.yml",
             "trace=video.mp4", "trace=model/model_index.json", f"trace={shard}", f"trace={tokenizer}",
             "trace=model/vae/config.json"]
    for case in cases:
        output = [] if case.startswith("output") else ["output=new.gif"]
        result = zoetrope(cwd, "generate", model, config, *given, *output, case)
        assert result.returncode != 0, f"{case}: {result.stdout}"
        assert "this run reads it" in sentence(result) or "is the same file as" in sentence(result), sentence(result)
        assert contents(cwd) == before, f"{case} left something else: {files_in(cwd)}"
        # Known before the work, not after it.
        assert "Denoise" not in result.stderr, f"{case} is refused after the run:\n{result.stderr}"
    result = zoetrope(cwd, *ATTENTION, "hardware=h.yml", "attention=auto", "ranks=2", "json=h.yml")
    assert result.returncode != 0 and contents(cwd) == before, result.stderr


@test
def a_folder_of_frames_is_not_written_into(cwd):
    folder = frames(cwd)
    before = contents(cwd)
    for output in ("output=frames", "output=frames/x.png", "output=frames/new-%04d.png", "output=frames/clip.mp4"):
        result = generate(cwd, "control_video=frames", output, model=MODELS / "wan21_vace")
        refused(cwd, result, "this run reads", left=["frames"])
        assert contents(cwd) == before and folder.is_dir()


@test
def a_shorter_clip_leaves_no_frames_of_a_longer_one(cwd):
    for output, name in (("frames", "{:04}.png"), ("still.png", "still-{:04}.png"), ("x-%03d.png", "x-{:03}.png")):
        folder = pathlib.Path(cwd) / "place"
        folder.mkdir()
        for count in (9, 5):
            result = generate(cwd, f"num_frames={count}", f"output=place/{output}")
            assert result.returncode == 0, result.stderr
        (folder / "mine.png").write_text("stays")
        there = {path.name for path in folder.rglob("*.png")}
        assert there == {name.format(i) for i in range(5)} | {"mine.png"}, there
        shutil.rmtree(folder)


def make_stills(cwd, name, numbers):
    for i in numbers:
        result = generate(cwd, "num_frames=1", f"seed={i}", f"output={name.format(i)}")
        assert result.returncode == 0, result.stderr


@test
def numbered_frames_spare_what_is_no_rest_of_their_clip(cwd):
    make_stills(cwd, "cat-{:04}.png", range(9))
    (pathlib.Path(cwd) / "dog-0000.png").write_text("no PNG")
    for i in (1, 2, 5, 6):
        shutil.copy(MODELS / "wan21_vace" / "inputs" / "reference_0.png", pathlib.Path(cwd) / f"dog-{i:04}.png")
    before = contents(cwd)
    for words in (["num_frames=1", "output=cat.png"], ["num_frames=1", "output=dog.png"]):
        assert generate(cwd, *words).returncode == 0
    assert before.items() <= contents(cwd).items(), set(before) - set(contents(cwd))
    for name in ("cat", "dog"):
        assert generate(cwd, "num_frames=5", f"output={name}.png").returncode == 0
    after = contents(cwd)
    assert {name for name in before if before[name] != after.get(name)} == {
        *(f"cat-{i:04}.png" for i in range(5)), *(f"dog-{i:04}.png" for i in range(3))}


@test
def numbered_frames_spare_the_picture_that_they_begin_with(cwd):
    image = pathlib.Path(cwd) / "owl-0003.png"
    shutil.copy(MODELS / "wan21_vace" / "inputs" / "reference_0.png", image)
    model = MODELS / "wan21_i2v"
    result = generate(cwd, "image=owl-0003.png", "output=owl.png", "num_frames=5", model=model)
    refused(cwd, result, "owl-0003.png", "this run reads it", left=["owl-0003.png"])
    assert "Denoise" not in result.stderr, result.stderr
    for number in (0, 1):
        given = image.rename(pathlib.Path(cwd) / f"owl-{number:04}.png")
        result = generate(cwd, f"image={given.name}", "output=owl.png", "num_frames=1", model=model)
        assert result.returncode == 0 and given.exists(), result.stderr
        image = given
    # A picture of the old clip, behind the frames of the new one.
    assert generate(cwd, "output=a/", "num_frames=9").returncode == 0
    kept = contents(pathlib.Path(cwd) / "a")
    result = generate(cwd, "image=a/0007.png", "output=a/", "num_frames=5", model=model)
    assert result.returncode != 0 and "a/0007.png: this run reads it" in sentence(result), result.stderr
    assert contents(pathlib.Path(cwd) / "a") == kept and "Denoise" not in result.stderr


# ---- what cannot be printed ----

@test
def a_run_needs_no_standard_error(cwd):
    clips = {}
    for name, ending in (("plain", ""), ("closed", "2>&-"), ("full", "2>/dev/full"), ("none", "<&- 2>&-")):
        words = " ".join(f"'{word}'" for word in SMALL)
        result = in_shell(cwd, f'"$1" generate {harness.MODEL} {words} output={name}.mp4 seed=3 {ending}')
        assert result.returncode == 0, (name, result.returncode, result.stderr)
        clips[name] = (pathlib.Path(cwd) / f"{name}.mp4").stat().st_size
    assert len(set(clips.values())) == 1, clips


@test
def an_answer_that_was_not_printed_is_an_error(cwd):
    for words in (["--help"], ["plan", "--help"], ["--version"], [], ["inspect", harness.MODEL],
                  ["plan", harness.MODEL, "ranks=2", "hardware=h100_8"], ATTENTION):
        command = " ".join(f"'{word}'" for word in words)
        for ending in (">/dev/full", ">&-"):
            result = in_shell(cwd, f'"$1" {command} {ending}')
            assert result.returncode == 1, (words, ending, result.returncode, result.stderr)
            assert "standard output: cannot be written" in sentence(result), result.stderr
    words = " ".join(f"'{word}'" for word in SMALL)
    result = in_shell(cwd, f'"$1" generate {harness.MODEL} {words} output=clip.gif >/dev/full')
    assert result.returncode == 1 and (pathlib.Path(cwd) / "clip.gif").exists(), result.stderr


# ---- inputs ----

@test
def yaml_is_one_document_with_each_key_once(cwd):
    config = pathlib.Path(cwd) / "run.yml"
    lines = "".join(f"{word.replace('=', ': ', 1)}\n" for word in SMALL)
    for text, words in ((lines + "---\nseed: 77\nbogus_key: 1\n", ("2 documents", "line")),
                        (lines + "seed: 1\nseed: 2\n", ("seed is given again", "line 8"))):
        config.write_text(text)
        refused(cwd, zoetrope(cwd, "generate", harness.MODEL, config, "output=clip.gif"), "run.yml", *words,
                left=["run.yml"])
    h100 = (pathlib.Path(__file__).parents[2] / "configs" / "hardware" / "h100_8.yml").read_text()
    (pathlib.Path(cwd) / "h.yml").write_text(h100 + "\n---\ndevices: 1\n")
    result = zoetrope(cwd, "plan", harness.MODEL, "ranks=2", "hardware=h.yml")
    assert result.returncode != 0 and "2 documents" in sentence(result), result.stderr


@test
def no_input_may_be_a_pipe(cwd):
    """Nobody writes into these pipes: whoever opens one as a file waits for ever."""
    pipe = pathlib.Path(cwd) / "pipe.yml"
    os.mkfifo(pipe)
    at_once = {"timeout": 60}
    cases = [["generate", harness.MODEL, pipe], ["plan", harness.MODEL, "hardware=pipe.yml"], [*ATTENTION, pipe],
             [*ATTENTION, "ranks=2", "attention=auto", "hardware=pipe.yml"], [*ATTENTION, "input=pipe.yml"],
             ["generate", harness.MODEL, *SMALL, "output=c.gif", "hardware=pipe.yml", "ranks=2", "attention=auto"],
             ["generate", harness.MODEL, *SMALL, "output=c.gif", "latents=pipe.yml"],
             ["generate", harness.MODEL, *SMALL, "output=c.gif", "lora=pipe.yml"],
             ["generate", MODELS / "wan21_i2v", *SMALL, "output=c.gif", "image=pipe.yml"],
             ["generate", MODELS / "wan21_vace", *SMALL, "output=c.gif", "control_video=pipe.yml"]]
    for words in cases:
        result = zoetrope(cwd, *words, **at_once)
        refused(cwd, result, "pipe.yml", left=["pipe.yml"])
    for name in ("model_index.json", "transformer/config.json", "tokenizer/tokenizer.json",
                 "vae/diffusion_pytorch_model.safetensors"):
        model = pathlib.Path(cwd) / "model"
        shutil.copytree(harness.MODEL, model)
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)
        result = generate(cwd, "output=c.gif", model=model, **at_once)
        assert result.returncode != 0 and sentence(result), name
        shutil.rmtree(model)
    cache = pathlib.Path(cwd) / "cache" / "zoetrope"
    cache.mkdir(parents=True)
    for name in ("tiles.json", "hardware.yml", "hardware-1x2.yml"):
        os.mkfifo(cache / name)
        zoetrope(cwd, *ATTENTION, "ranks=2", "attention=auto", env={"XDG_CACHE_HOME": str(cache.parent)}, **at_once)
        (cache / name).unlink()


# ---- what a terminal would obey ----

ESCAPE = "\x1b[31m\x07\x9b2J"


@test
def nothing_from_a_file_reaches_the_terminal_raw(cwd):
    def changed(change):
        model = pathlib.Path(cwd) / f"m{ESCAPE}"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(harness.MODEL, model)
        change(model)
        return model

    def edit_json(name, edit):
        def change(model):
            value = json.loads((model / name).read_text())
            edit(value)
            (model / name).write_text(json.dumps(value))
        return change

    def rename_tensor(tensors):
        tensors[f"odd{ESCAPE}\nname"] = tensors.pop(next(iter(tensors)))

    def odd_type(tensors):
        name = next(iter(tensors))
        tensors[name] = (f"F{ESCAPE}", *tensors[name][1:])

    shard = "vae/diffusion_pytorch_model.safetensors"
    index = {"weight_map": {"conv": f"sh{ESCAPE}ard.safetensors"}}
    cases = [edit_json("model_index.json", lambda v: v.update(_class_name=f"Wan{ESCAPE}Pipeline")),
             edit_json("model_index.json", lambda v: v.update(vae=["diffusers", f"VAE{ESCAPE}"])),
             edit_json("transformer/config.json", lambda v: v.update({f"key{ESCAPE}": 1, "patch_size": ESCAPE})),
             lambda model: harness.rewrite(model / shard, rename_tensor),
             lambda model: harness.rewrite(model / shard, odd_type),
             lambda model: ((model / shard).unlink(),
                            (model / (shard + ".index.json")).write_text(json.dumps(index)))]
    for i, change in enumerate(cases):
        model = changed(change)
        for command in (["inspect", model], ["generate", model, *SMALL, "output=c.gif", "dump=d"]):
            result = zoetrope(cwd, *command)
            for text in (result.stdout, result.stderr):
                odd = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7f <= ord(c) < 0xa0]
                assert not odd, f"case {i}: {odd} in {text!r}"
    for command in (["generate", harness.MODEL, f"{ESCAPE}=1"], ["generate", f"no{ESCAPE}where"], [f"x{ESCAPE}"],
                    ["plan", harness.MODEL, f"hardware={ESCAPE}"], ["generate", harness.MODEL, f"bad{ESCAPE}.yml"]):
        result = zoetrope(cwd, *command)
        assert result.returncode != 0 and "\x1b" not in result.stderr + result.stdout, (command, result.stderr)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
