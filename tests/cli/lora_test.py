#!/usr/bin/env python3
"""LoRA files as a user meets them: what they do to a run, what is said of them, and what is refused.

    lora_test.py PROGRAM MODEL LORAS NAME    runs one test; LORAS is the folder of the recorded files
    lora_test.py --list                      the names
"""
import math
import pathlib
import shutil
import struct
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, Skip, generate, read_tensors, refused, rewrite, run, run_script, write_tensors  # noqa: E402

PROGRAM = None
LORAS = None
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, model, loras):
    global PROGRAM, LORAS
    PROGRAM, LORAS = program, pathlib.Path(loras)
    harness.use(program, model)


def made(cwd, name, *arguments, **options):
    """Runs, and returns what it computed and what it said."""
    result = generate(cwd, f"output={name}.png", f"dump={name}", *arguments, **options)
    assert result.returncode == 0, result.stderr
    return (pathlib.Path(cwd) / name / "run.safetensors").read_bytes(), result.stderr


def changed(cwd, name, change, source="original"):
    """A copy of a recorded file with its tensors changed."""
    path = pathlib.Path(cwd) / name
    shutil.copy(LORAS / f"{source}.safetensors", path)
    rewrite(path, change)
    return path


def renamed(rule):
    def change(tensors):
        for key in list(tensors):
            tensors[rule(key)] = tensors.pop(key)
    return change


def kohya(key):
    module, _, end = key.removeprefix("diffusion_model.").partition(".lora_" if ".lora_" in key else ".alpha")
    return "lora_unet_" + module.replace(".", "_") + key[len("diffusion_model.") + len(module):]


@test
def files_change_the_video_and_the_log_says_how(cwd):
    plain, _ = made(cwd, "plain")
    with_peft, said = made(cwd, "peft", f"lora={LORAS}/peft.safetensors:0.8")
    assert with_peft != plain
    assert f"LoRA {LORAS}/peft.safetensors: strength 0.8, 20 tensors of transformer, ranks 2 to 4" in said, said
    both, said = made(cwd, "both", f"lora={LORAS}/peft.safetensors:0.8,{LORAS}/original.safetensors:-0.5")
    assert both not in (plain, with_peft)
    assert "original.safetensors: strength -0.5, 14 tensors of transformer, ranks 4 to 5" in said, said
    none, said = made(cwd, "none", f"lora={LORAS}/peft.safetensors:0")
    assert none == plain and "adds nothing" in said, said


@test
def spellings_compute_the_same(cwd):
    original, _ = made(cwd, "original", f"lora={LORAS}/original.safetensors")
    file = changed(cwd, "kohya.safetensors", renamed(kohya))
    assert "lora_unet_blocks_0_self_attn_q.alpha" in read_tensors(file)
    assert made(cwd, "kohya", f"lora={file}")[0] == original
    file = changed(cwd, "a:b.safetensors", renamed(
        lambda key: key.replace("lora_down", "lora_A.default").replace("lora_up", "lora_B.default")))
    assert made(cwd, "diffsynth", f"lora={file}:1")[0] == original


@test
def a_folder_stands_for_its_file(cwd):
    folder = pathlib.Path(cwd) / "style"
    folder.mkdir()
    refused(cwd, generate(cwd, "lora=style", "output=a.png"), "style: is a folder with neither", left=["style"])
    file, _ = made(cwd, "file", f"lora={LORAS}/peft.safetensors:0.8")
    for name in ("adapter_model.safetensors", "pytorch_lora_weights.safetensors"):
        shutil.copy(LORAS / "peft.safetensors", folder / name)
        found, said = made(cwd, "folder", "lora=style:0.8")
        assert found == file and f"LoRA style/{name}: strength 0.8" in said, said


@test
def experts_take_their_own(cwd):
    model = pathlib.Path(harness.MODEL).parent / "wan22_t2v"
    file = pathlib.Path(cwd) / "small.safetensors"
    write_tensors(file, {"diffusion_model.blocks.0.ffn.2.diff_b": ("F32", [32], struct.pack("<32f", *range(32)))})
    steps = ("num_inference_steps=6", "guidance_scale_2=3")  # the experts switch between them
    outcomes = {}
    for keys in ((), ("lora",), ("lora_high",), ("lora_low",), ("lora_high", "lora_low")):
        name = "_".join(keys) or "plain"
        outcomes[name], said = made(cwd, name, *steps, *(f"{key}={file}:0.01" for key in keys), model=model)
        assert ("1 tensors of transformer," in said) == (name in ("lora", "lora_high", "lora_high_lora_low")), said
        assert ("1 tensors of transformer_2," in said) == (name in ("lora", "lora_low", "lora_high_lora_low")), said
    assert outcomes["lora"] == outcomes["lora_high_lora_low"]
    assert len(set(outcomes.values())) == 4


@test
def ranks_compute_what_one_does(cwd):
    for arguments, launcher in ((["ranks=2"], []), ([], ["mpirun", "-n", "2"])):
        if launcher and shutil.which("mpirun") is None:
            raise Skip("there is no mpirun")
        result = run([*launcher, PROGRAM, "generate", harness.MODEL, *harness.SMALL, "output=a.gif",
                      "compare_one_rank=true", f"lora={LORAS}/original.safetensors:0.8", *arguments], cwd, env=MPI_ENV)
        assert result.returncode == 0, result.stderr
        (line,) = [line for line in result.stdout.splitlines() if "relative L2" in line]
        assert float(line.split()[-1]) <= 1e-5, line


@test
def the_weight_cache_is_that_of_files_and_strengths(cwd):
    cache = pathlib.Path(cwd) / "cache"
    lora = f"lora={LORAS}/original.safetensors"
    outcomes = {}
    for name, key in (("plain", "lora="), ("one", f"{lora}:0.8"), ("other", f"{lora}:0.4")):
        outcomes[name] = made(cwd, f"{name}_uncached", key)[0]
        for time in ("first", "second"):
            outcome, said = made(cwd, f"{name}_{time}", key, "weight_cache=cache")
            assert outcome == outcomes[name], (name, time)
            again = name == "other" and time == "first"  # in the place of the file with the other strength
            assert ("was made from other weights" in said) == again, said
    assert len(set(outcomes.values())) == 3
    assert len(list(cache.iterdir())) == 2, list(cache.iterdir())
    file = changed(cwd, "copy.safetensors", lambda tensors: None)
    made(cwd, "copy_first", f"lora={file}", "weight_cache=cache")
    rewrite(file, renamed(lambda key: key.replace("blocks.0", "blocks.9").replace("blocks.1", "blocks.0")
                          .replace("blocks.9", "blocks.1")))
    assert "was made from other weights" in made(cwd, "copy_second", f"lora={file}", "weight_cache=cache")[1]


@test
def keys_that_match_nothing_are_named(cwd):
    def change(tensors):
        for layer in (0, 1):
            prefix = f"diffusion_model.blocks.{layer}.self_attn.q."
            for end in ("alpha", "lora_down.weight", "lora_up.weight"):
                tensors[prefix.replace("self_attn.q", "cross_attn.q_img") + end] = tensors[prefix + end]
    file = changed(cwd, "more.safetensors", change)
    outcome, said = made(cwd, "more", f"lora={file}")
    assert outcome == made(cwd, "original", f"lora={LORAS}/original.safetensors")[0]
    assert "6 of 48 keys match no tensor of this model" in said, said
    assert "'diffusion_model.blocks.*.cross_attn.q_img.lora_up.weight' (2 keys)" in said, said


@test
def a_lora_of_text_to_video_runs_on_image_to_video(cwd):
    """But for the whole change of the patch embedding, which has fewer channels."""
    model = pathlib.Path(harness.MODEL).parent / "wan21_i2v"
    image = f"image={model}/inputs/image.png"
    bias = {"diffusion_model.blocks.0.ffn.2.diff_b": ("F32", [32], struct.pack("<32f", *range(32)))}
    patches = {"diffusion_model.patch_embedding.diff": ("F32", [32, 16, 1, 2, 2], bytes(4 * 32 * 64))}
    write_tensors(pathlib.Path(cwd) / "bias.safetensors", bias)
    write_tensors(pathlib.Path(cwd) / "both.safetensors", bias | patches)
    alone, _ = made(cwd, "alone", image, "lora=bias.safetensors:0.01", model=model)
    both, said = made(cwd, "both", image, "lora=both.safetensors:0.01", model=model)
    assert "1 of 2 keys match no tensor of this model and are left out: 'diffusion_model.patch_embedding.diff'" in said, said
    assert both == alone != made(cwd, "plain", image, model=model)[0]
    pair = {f"diffusion_model.patch_embedding.{part}.weight": ("F32", shape, bytes(4 * math.prod(shape)))
            for part, shape in (("lora_down", [4, 16, 1, 2, 2]), ("lora_up", [32, 4, 1, 1, 1]))}
    pair["diffusion_model.patch_embedding.alpha"] = ("F32", [], struct.pack("<f", 4))
    write_tensors(pathlib.Path(cwd) / "pair.safetensors", bias | pair)
    paired, said = made(cwd, "pair", image, "lora=pair.safetensors:0.01", model=model)
    assert "3 of 4 keys match no tensor of this model and are left out" in said, said
    assert paired == alone
    patches["diffusion_model.patch_embedding.diff"] = ("F32", [32, 16, 1, 4, 1], bytes(4 * 32 * 64))
    write_tensors(pathlib.Path(cwd) / "both.safetensors", bias | patches)
    result = generate(cwd, image, "lora=both.safetensors", "output=a.gif", model=model)
    assert "[32, 16, 1, 4, 1] does not fit" in harness.sentence(result), result.stderr


@test
def files_named_in_yaml_are_found_beside_it(cwd):
    """There first, then where the program was called; paths of the command line are not."""
    cwd = pathlib.Path(cwd)
    (cwd / "runs").mkdir()
    shutil.copy(LORAS / "original.safetensors", cwd / "runs" / "style.safetensors")
    shutil.copy(LORAS / "peft.safetensors", cwd / "style.safetensors")
    shutil.copy(LORAS / "peft.safetensors", cwd / "other.safetensors")
    (cwd / "runs" / "fox.yml").write_text("lora: style.safetensors:0.8,other.safetensors:0.5\n")
    _, said = made(cwd, "both", "runs/fox.yml")
    assert "LoRA runs/style.safetensors: strength 0.8, 14 tensors" in said, said
    assert "LoRA other.safetensors: strength 0.5, 20 tensors" in said, said
    (cwd / "runs" / "empty.yml").write_text("seed: 3\n")
    _, said = made(cwd, "command_line", "lora=style.safetensors:0.8", "runs/empty.yml")
    assert "LoRA style.safetensors: strength 0.8, 20 tensors" in said, said
    (cwd / "runs" / "prompts.txt").write_text("a fox\n")
    (cwd / "runs" / "lines.yml").write_text("prompts: prompts.txt\nlora: style.safetensors\n")
    result = run([PROGRAM, "generate", harness.MODEL, *harness.SMALL[:-1], "runs/lines.yml", "output=lines.png"], cwd)
    assert result.returncode == 0, result.stderr


# ---- what is refused ----

def refused_file(name, words, change):
    """`change(tensors)` makes a bad file of a recorded one."""
    def body(cwd):
        file = changed(cwd, "bad.safetensors", change)
        refused(cwd, generate(cwd, "output=clip.mp4", f"lora={file}:0.8"), "bad.safetensors", *words,
                left=["bad.safetensors"])
    body.__name__ = name
    test(body)


QUERY = "diffusion_model.blocks.0.self_attn.q."


def with_value(key, value):
    def change(tensors):
        dtype, shape, data = tensors[key]
        tensors[key] = (dtype, shape, data[:-4] + struct.pack("<f", value))
    return change


def with_rank(rank):
    def change(tensors):
        dtype, shape, data = tensors[QUERY + "lora_up.weight"]
        tensors[QUERY + "lora_up.weight"] = (dtype, [shape[0], rank], data[:4 * shape[0] * rank])
    return change


def of_another_size(tensors):
    for end, shape in (("lora_down.weight", [4, 64]), ("lora_up.weight", [64, 4])):
        tensors[QUERY + end] = ("F32", shape, bytes(4 * 256))


refused_file("a_lora_of_another_model", ["another model", "double_blocks", "diffusion_model.blocks.0"],
             renamed(lambda key: key.replace("blocks", "double_blocks")))
refused_file("a_lora_with_nan", [QUERY + "lora_up.weight", "nan"], with_value(QUERY + "lora_up.weight", float("nan")))
refused_file("a_lora_with_infinity", [QUERY + "alpha", "inf"], with_value(QUERY + "alpha", float("inf")))
refused_file("ranks_that_differ", ["differ in rank", "[48, 3]", "[4, 48]"], with_rank(3))
refused_file("a_lora_of_another_size", ["blocks.0.attn1.to_q.weight", "[64, 4]", "[48, 48]"], of_another_size)
refused_file("half_a_pair", ["without its other half", QUERY], lambda tensors: tensors.pop(QUERY + "lora_up.weight"))


def refused_setting(name, words, argument, left=()):
    def body(cwd):
        for file in left:
            (pathlib.Path(cwd) / file).write_bytes(b"no safetensors")
        refused(cwd, generate(cwd, "output=clip.mp4", argument), *words, left=left)
    body.__name__ = name
    test(body)


refused_setting("a_strength_that_is_no_number", ["'a.safetensors:strong'", "not a number"], "lora=a.safetensors:strong")
refused_setting("a_strength_that_is_nan", ["'a.safetensors:nan'", "not a number"], "lora=a.safetensors:nan")
refused_setting("an_empty_entry", ["empty", "a.safetensors:0.8"], "lora=a.safetensors:1,,b.safetensors")
refused_setting("a_file_that_is_not_there", ["nowhere.safetensors"], "lora=nowhere.safetensors:1")
refused_setting("a_file_that_is_no_safetensors", ["text.safetensors"], "lora=text.safetensors", ["text.safetensors"])
refused_setting("a_key_of_experts_for_one", ["lora_low", "no two experts"], "lora_low=a.safetensors")

if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
