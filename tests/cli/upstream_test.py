#!/usr/bin/env python3
"""Configuration files of MaxDiffusion, read as they are: the files of tests/cli/upstream, one for each of its Wan
models.

    upstream_test.py PROGRAM MODELS NAME    runs one test; MODELS holds the recorded models
    upstream_test.py --list                 the names
"""
import json
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import read_tensors, refused, run, run_script  # noqa: E402

PROGRAM = MODELS = None
TESTS = {}
FILES = pathlib.Path(__file__).resolve().parent / "upstream"
SIZE = ["height=32", "width=32", "num_frames=5", "num_inference_steps=4"]
# What each file says, in keys of this program, and its prompt.
COOKS, ASTRONAUT = "a dog stirs batter while a cat measures flour", "an astronaut hatches from an egg on the moon"
SAME = {"base_wan_1_3b.yml": ("wan21_t2v", ["guidance_scale=5", "flow_shift=3", "fps=16"], COOKS),
        "base_wan_14b.yml": ("wan21_t2v", ["guidance_scale=5", "flow_shift=5", "fps=16"], COOKS),
        "base_wan_27b.yml": ("wan22_t2v", ["guidance_scale=4", "guidance_scale_2=3", "boundary_ratio=0.875", "flow_shift=12",
                                           "fps=16"], COOKS),
        "base_wan_i2v_14b.yml": ("wan21_i2v", ["guidance_scale=5", "flow_shift=5", "fps=16"], ASTRONAUT),
        "base_wan_i2v_27b.yml": ("wan22_i2v", ["guidance_scale=4", "guidance_scale_2=3", "boundary_ratio=0.9", "flow_shift=5",
                                               "fps=16"], ASTRONAUT),
        "base_wan_animate.yml": ("wan22_animate", ["guidance_scale=1", "flow_shift=5", "fps=24", "mode=animate",
                                                   "prev_segment_conditioning_frames=1"],
                                 "the person of the picture moves as in the videos")}


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, models):
    global PROGRAM, MODELS
    PROGRAM, MODELS = program, pathlib.Path(models)
    harness.use(program, MODELS / "wan21_t2v")


def generate(cwd, *arguments):
    return run([PROGRAM, "generate", *arguments], cwd)


def changed(cwd, file, *lines):
    """The file with other lines for the same keys, or with more lines."""
    text = (FILES / file).read_text()
    for line in lines:
        key = line.split(":")[0]
        kept = [old for old in text.splitlines() if not old.startswith(f"{key}:")]
        text = "\n".join([*kept, line]) + "\n"
    path = pathlib.Path(cwd) / "changed.yml"
    path.write_text(text)
    return path.name


def inputs_of(cwd, model):
    """Size and pictures for a recorded model."""
    recorded = MODELS / model / "inputs"
    if not recorded.exists():
        return SIZE
    if model != "wan22_animate":
        return [*SIZE, f"image={recorded / 'image.png'}"]
    keys = [*SIZE[:2], "num_inference_steps=2", "segment_frame_length=5", f"image={recorded / 'image.png'}"]
    for name in ("pose_video", "face_video"):
        folder = pathlib.Path(cwd) / name
        folder.mkdir()
        for picture in sorted(recorded.glob(f"animate_{name}_*.png"))[:5]:
            shutil.copy(picture, folder)
        keys.append(f"{name}={folder}")
    return keys


@test
def each_file_runs_as_the_keys_that_it_means(cwd):
    for file, (model, keys, prompt) in SAME.items():
        inputs = inputs_of(cwd, model)
        ours = generate(cwd, MODELS / model, *inputs, f"prompt={prompt}", "negative_prompt=blurred, static, subtitles", *keys,
                        "attention=flash", "output=a.gif", "dump=ours")
        theirs = generate(cwd, FILES / file, f"model={MODELS / model}", *inputs, "output=a.gif", "dump=theirs")
        assert ours.returncode == 0 and theirs.returncode == 0, ours.stderr + theirs.stderr
        values = [read_tensors(pathlib.Path(cwd) / name / "run.safetensors") for name in ("ours", "theirs")]
        assert values[0] == values[1], file
        notes = [line for line in theirs.stderr.splitlines() if "ignored" in line]
        assert len(notes) == 1, theirs.stderr
        for key in ("run_name", "hardware", "mask_padding_tokens", "logical_axis_rules", "learning_rate"):
            assert key in notes[0], notes[0]
        assert ("lora_config" in notes[0]) == ("lora_config" in (FILES / file).read_text()), notes[0]
        assert "height" not in notes[0] and "ignored" not in ours.stderr, notes[0]


@test
def keys_that_a_file_has_for_other_models_are_refused_without_it(cwd):
    for word, said in (("do_classifier_free_guidance=false", "guidance_scale=1"), ("resolution=1280x720", "height and width"),
                       ("output_dir=here", "output"), ("precision=float32", "dtype"), ("controlnet_image=a.png", "control_video"),
                       ("controlnet_conditioning_scale=1", "conditioning_scale")):
        result = generate(cwd, MODELS / "wan21_t2v", *SIZE, "prompt=a cat", "output=a.gif", word)
        harness.refused(cwd, result, word.split("=")[0], said)


@test
def degrees_and_switches_of_a_file_are_followed(cwd):
    file = changed(cwd, "base_wan_14b.yml", "attention: ulysses_ring", "ici_context_parallelism: 2", "dcn_context_parallelism: 2",
                   "use_cfg_cache: True", "vae_spatial: 2", "per_device_batch_size: 0.25", "flash_min_seq_length: 0",
                   "num_inference_steps: 8")
    result = generate(cwd, file, f"model={MODELS / 'wan21_t2v'}", *SIZE[:3], "ranks=4", "output=a.gif",
                      "flash_block_sizes={block_q: 1024, block_kv: 1024, block_kv_compute: 512, block_q_dkv: 1024}")
    assert result.returncode == 0, result.stderr
    for words in ("data 1 x context 4 (Ulysses 2 x ring 2)", "step cache cfg", "VAE on 2 ranks"):
        assert words in result.stderr, result.stderr
    profiled = generate(cwd, FILES / "base_wan_14b.yml", f"model={MODELS / 'wan21_t2v'}", *SIZE, "enable_profiler=True",
                        "output=a.gif")
    assert profiled.returncode == 0, profiled.stderr
    assert json.loads((pathlib.Path(cwd) / "trace.json").read_text())


@test
def a_file_is_planned_by_the_name_of_its_repository(cwd):
    for file, tokens, steps in (("base_wan_1_3b.yml", 32760, 30), ("base_wan_14b.yml", 75600, 50),
                                ("base_wan_27b.yml", 75600, 40), ("base_wan_i2v_14b.yml", 75600, 50),
                                ("base_wan_i2v_27b.yml", 75600, 40), ("base_wan_animate.yml", 75600, 60)):
        result = run([PROGRAM, "plan", FILES / file, "attention=auto", "flash_block_sizes=", "hardware=tpu_v7x_8", "ranks=8",
                      "json=plan.json"], cwd)
        assert result.returncode == 0, result.stderr
        document = json.loads((pathlib.Path(cwd) / "plan.json").read_text())
        assert (document["tokens"], document["steps"]) == (tokens, steps), document
        assert sum("ignored" in note and "run_name" in note for note in document["notes"]) == 1, document["notes"]


@test
def loras_that_nothing_turns_on_are_said_not_to_be_used(cwd):
    sentence = "without enable_lora no LoRA of lora_config is used"
    text = "".join(line for line in (FILES / "base_wan_14b.yml").read_text().splitlines(True) if "enable_lora" not in line)
    (pathlib.Path(cwd) / "none.yml").write_text(text)
    for file, says in ((FILES / "base_wan_14b.yml", False), ("none.yml", True)):
        for command in ([PROGRAM, "generate", file, f"model={MODELS / 'wan21_t2v'}", *SIZE, "output=a.gif"],
                        [PROGRAM, "plan", file, "attention=auto", "flash_block_sizes=", "hardware=tpu_v7x_8", "ranks=8"]):
            result = run(command, cwd)
            assert result.returncode == 0, result.stderr
            assert (sentence in result.stderr + result.stdout) == says, result.stderr + result.stdout


@test
def what_is_not_built_or_absurd_is_refused_by_name(cwd):
    for line, *words in (("quantization: int8", "not built"), ("use_qwix_quantization: True", "not built"),
                         ("enable_lora: True", "lora"), ("guidance_rescale: 0.7", "not built"), ("mode: swap", "animate, replace"),
                         ("per_device_batch_size: 1.5", "1.5 videos", "one video give 1"), ("per_device_batch_size: -1", "-1"),
                         ("weights_dtype: int8", "bf16, float32"), ("ici_context_parallelism: 0", "-1"),
                         ("dcn_data_parallelism: 1.5", "whole number"), ("use_magcache: 7", "true nor false"),
                         ("guidance_scale: 1000", "0 to 100"), ("vae_spatial: 99999", "4096"),
                         ("pretrained_model_name_or_pth: x", "pretrained_model_name_or_path"),
                         ("ulysess_shards: 2", "ulysses_shards")):
        file = changed(cwd, "base_wan_14b.yml", line)
        key, value = line.split(": ")
        result = generate(cwd, file, f"model={MODELS / 'wan21_t2v'}", *SIZE, "output=a.gif")
        refused(cwd, result, key, value if "unknown key" not in result.stderr else "unknown key", "changed.yml line", *words,
                left=("changed.yml",))


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
