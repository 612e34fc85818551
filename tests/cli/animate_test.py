#!/usr/bin/env python3
"""Wan 2.2 Animate as a user runs it: both modes, segments, over ranks, and what is refused.

    animate_test.py PROGRAM MODELS NAME    runs one test; MODELS is the folder of the recorded checkpoints
    animate_test.py --list                 the names
"""
import json
import pathlib
import re
import shutil
import struct
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, Skip, read_tensors, refused, run, run_script, write_tensors  # noqa: E402

TESTS = {}
MODEL = None


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, models):
    global MODEL
    harness.use(program)
    MODEL = pathlib.Path(models) / "wan22_animate"


def video(cwd, mode, name, count=None):
    folder = pathlib.Path(cwd) / f"{mode}_{name}_{count}"
    if not folder.exists():
        folder.mkdir()
        for file in sorted((MODEL / "inputs").glob(f"{mode}_{name}_video_*.png"))[:count]:
            shutil.copy(file, folder)
    return folder


def words(cwd, recorded="animate", **changed):
    """Settings of the recorded run; a change to None leaves a key out."""
    case = json.loads((MODEL / "case.json").read_text())["runs"][recorded]
    arguments = case["arguments"]
    settings = {key: arguments[key] for key in ("prompt", "negative_prompt", "height", "width", "num_inference_steps",
                                                "guidance_scale", "segment_frame_length",
                                                "prev_segment_conditioning_frames")}
    settings |= {"seed": case["generator_seed"], "image": MODEL / "inputs" / "image.png", "dtype": "float32",
                 "output": "clip.gif", "pose_video": video(cwd, recorded, "pose"),
                 "face_video": video(cwd, recorded, "face")}
    if recorded == "replace":
        settings |= {"mode": recorded, "background_video": video(cwd, recorded, "background"),
                     "mask": video(cwd, recorded, "mask")}
    settings |= changed
    return [MODEL, *(f"{key}={value}" for key, value in settings.items() if value is not None)]


def tensors_of(cwd, arguments, prefix=()):
    shutil.rmtree(pathlib.Path(cwd) / "d", ignore_errors=True)
    result = run([*prefix, harness.PROGRAM, "generate", *arguments, "dump=d"], cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    return read_tensors(pathlib.Path(cwd) / "d" / "run.safetensors"), result


def floats(tensor):
    dtype, _, data = tensor
    return struct.unpack(f"<{len(data) // 4}f", data) if dtype == "F32" else None


def error_of(tensor, expected):
    a, b = floats(tensor), floats(expected)
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / max(sum(y * y for y in b), 1e-30)) ** 0.5


def noise(mode, name):
    """Of float32 in the recorded run: what a segment is off by enters the next one through its frames."""
    entries = json.loads((MODEL / "case.json").read_text())["noise"]
    prefix = f"{mode}.f32_vs_f64."
    if prefix + name in entries:
        return entries[prefix + name]["rel_l2"]
    return max(entry["rel_l2"] for key, entry in entries.items() if key.startswith(prefix))


def ranks_give_one_ranks_video(cwd, mode, counts, prefix_of):
    alone, _ = tensors_of(cwd, words(cwd, mode))
    for count in counts:
        together, _ = tensors_of(cwd, words(cwd, mode) + ([] if prefix_of(count) else [f"ranks={count}", "threads=2"]),
                                 prefix_of(count))
        assert together.keys() == alone.keys()
        for name, expected in alone.items():
            if floats(expected) is None:
                continue
            # 1e-5 for a segment; later ones as far as float32 itself is off by then.
            bound = 1e-5 if name.startswith("segment.0.") else max(1e-5, 4 * noise(mode, name))
            assert error_of(together[name], expected) <= bound, (count, name, error_of(together[name], expected))


def ranks_test(mode, where, counts, prefix_of):
    def body(cwd):
        if where == "processes" and not shutil.which("mpirun"):
            raise Skip("mpirun is not installed")
        ranks_give_one_ranks_video(cwd, mode, counts, prefix_of)
    body.__name__ = f"{where}_give_one_ranks_video_to_{mode}"
    test(body)


for name in ("animate", "replace"):
    ranks_test(name, "threads", (2, 3, 4, 7), lambda count: [])
    ranks_test(name, "processes", (2, 3, 4, 7), lambda count: ["mpirun", "-n", str(count)])


@test
def one_rank_decodes_while_the_others_wait(cwd):
    alone, _ = tensors_of(cwd, words(cwd, "replace"))
    together, _ = tensors_of(cwd, words(cwd, "replace", ranks=3, threads=1, vae_parallel=1))
    assert error_of(together["frames"], alone["frames"]) <= max(1e-5, 4 * noise("replace", "frames"))


@test
def deterministic_runs_have_the_same_bits(cwd):
    settings = {"deterministic": "true", "attention": "ulysses"}
    alone, _ = tensors_of(cwd, words(cwd, "replace", deterministic="true"))
    for more in ({"ranks": 2, "data_parallelism": 1}, {"ranks": 4, "data_parallelism": 2}, {"ranks": 4}):
        together, _ = tensors_of(cwd, words(cwd, "replace", threads=2, **settings, **more))
        for name in alone:
            assert together[name] == alone[name], (more, name)


@test
def other_features_work_over_segments(cwd):
    """Each gives the frames of a plain run; a cache has to reuse something."""
    alone, _ = tensors_of(cwd, words(cwd, "replace"))
    for more in ({"compare_one_rank": "true", "ranks": 2}, {"trace": "t.json", "ranks": 3, "vae_parallel": 1},
                 {"weight_cache": "weights"}, {"weight_cache": "weights"}, {"keep_weights": "all"}):
        tensors, _ = tensors_of(cwd, words(cwd, "replace", threads=3, **more))
        assert error_of(tensors["frames"], alone["frames"]) <= 4 * noise("replace", "frames"), more
    json.loads((pathlib.Path(cwd) / "t.json").read_text())
    _, result = tensors_of(cwd, words(cwd, "replace", num_inference_steps=4, cache="mag", cache_compare="true",
                                      cache_ratios=",".join(["1"] * 8), cache_threshold=1, summary="full"))
    assert "reused" in result.stdout, result.stdout


@test
def noise_of_a_dump_serves_the_first_segment(cwd):
    drawn, _ = tensors_of(cwd, words(cwd))
    shutil.copy(pathlib.Path(cwd) / "d" / "run.safetensors", pathlib.Path(cwd) / "noise.safetensors")
    given, _ = tensors_of(cwd, words(cwd, latents="noise.safetensors"))
    assert given["segment.0.decoded"] == drawn["segment.0.decoded"]
    # As in the reference, what is given is not drawn, so the second segment has the first draw.
    assert given["segment.1.latents.init"] == drawn["segment.0.latents.init"]


@test
def noise_may_be_given_for_each_segment(cwd):
    drawn, _ = tensors_of(cwd, words(cwd))
    write_tensors(pathlib.Path(cwd) / "noise.safetensors", {
        f"latents.init.{segment}" if segment else "latents.init": drawn[f"segment.{segment}.latents.init"]
        for segment in range(3)})
    given, result = tensors_of(cwd, words(cwd, latents="noise.safetensors", seed=-1))
    assert "drawn" not in result.stderr, result.stderr
    for segment in range(3):
        name = f"segment.{segment}.latents.init"
        assert given[name] == drawn[name], name
    assert given["frames"] == drawn["frames"]


@test
def segments_and_lengths_are_said(cwd):
    result = run([harness.PROGRAM, "generate", *words(cwd)], cwd)
    assert result.returncode == 0, result.stderr
    for note in ("10 frames in 3 segments of 5", "face_video has 8 frames, the video 10: it is played back and forth"):
        assert note in result.stderr, result.stderr
    result = run([harness.PROGRAM, "generate", *words(cwd, segment_frame_length=7)], cwd)
    assert "segment_frame_length=7 becomes 5" in result.stderr, result.stderr


@test
def num_frames_is_the_most_that_are_made(cwd):
    for asked, made, note in ((5, 5, "pose_video has 10 frames, the video 5: the rest is left out"),
                              (33, 10, "num_frames=33, but pose_video has 10 frames: the video has 10")):
        values, result = tensors_of(cwd, words(cwd, num_frames=asked))
        assert values["frames_u8"][1][0] == made and note in result.stderr, (values["frames_u8"][1], result.stderr)


@test
def a_pose_beyond_num_frames_changes_nothing(cwd):
    """Seven frames are a segment of five and two of the next, whose other frames must not follow the pose."""
    whole, _ = tensors_of(cwd, words(cwd, num_frames=7))
    cut, _ = tensors_of(cwd, words(cwd, pose_video=video(cwd, "animate", "pose", 7)))
    assert whole["frames_u8"] == cut["frames_u8"] and whole["frames_u8"][1][0] == 7


@test
def a_face_of_one_frame_is_shown_all_the_time(cwd):
    still, _ = tensors_of(cwd, words(cwd, face_video=video(cwd, "animate", "face", 1)))
    _, shape, data = still["face_u8"]
    frame = len(data) // shape[0]
    assert all(data[i * frame:(i + 1) * frame] == data[:frame] for i in range(shape[0])), shape


@test
def videos_that_drift_apart_are_said(cwd):
    clips = {}
    for fps in (16, 8):
        tensors_of(cwd, words(cwd, output=f"{fps}.gif", fps=fps))
        clips[fps] = pathlib.Path(cwd) / f"{fps}.gif"
    _, result = tensors_of(cwd, words(cwd, pose_video=clips[16], face_video=clips[8]))
    # The times of a GIF are hundredths of a second.
    assert re.search(r"face_video has [78][.\d]* frames per second, but pose_video 1[67][.\d]*: they drift apart",
                     result.stderr), result.stderr
    _, result = tensors_of(cwd, words(cwd, pose_video=clips[16], face_video=clips[16]))
    assert "drift" not in result.stderr, result.stderr


@test
def the_settings_of_a_clip_make_it_again(cwd):
    first, _ = tensors_of(cwd, words(cwd) + ["num_frames=10"])
    again, _ = tensors_of(cwd, words(cwd))
    assert first == again


@test
def a_batch_has_the_bits_of_its_videos(cwd):
    """Every segment of each; what all videos share is in the first one's dump."""
    def dumps(start, *more):
        result = run([*start, harness.PROGRAM, "generate", *words(cwd, "replace", num_videos=2, output="clip.mp4"),
                      "dump=d", "deterministic=true", "attention=ulysses", *more], cwd, env=MPI_ENV)
        assert result.returncode == 0, result.stderr
        return [read_tensors(pathlib.Path(cwd) / f"d_{i:03}" / "run.safetensors") for i in range(2)]
    starts = [([], ["ranks=1"]), ([], ["ranks=4", "threads=2", "data_parallelism=2"])]
    if shutil.which("mpirun"):
        starts.append((["mpirun", "-n", "3"], ["data_parallelism=1"]))
    for start, more in starts:
        singles = dumps(start, *more)
        batch = dumps(start, *more, "batch_size=2")
        for i, tensors in enumerate(batch):
            assert i > 0 or tensors.keys() == singles[i].keys()
            assert {"segment.1.condition", "segment.1.latents.1", "segment.1.decoded", "frames"} <= tensors.keys(), tensors.keys()
            for name, value in tensors.items():
                assert value == singles[i][name], (more, i, name)
        assert batch[0]["segment.1.condition"] != batch[1]["segment.1.condition"]


@test
def the_planner_knows_the_published_model(cwd):
    configs = pathlib.Path(__file__).resolve().parents[2] / "configs"
    result = run([harness.PROGRAM, "plan", configs / "wan2.2_animate_14b.yml", "hardware=h100_8", "ranks=8",
                  "num_frames=157", "json=plan.json"], cwd)
    assert result.returncode == 0, result.stderr
    document = json.loads((pathlib.Path(cwd) / "plan.json").read_text())
    # 21 latent frames of 45 × 80 tokens, the reference image's among them; three segments of 20 steps.
    assert (document["tokens"], document["steps"]) == (21 * 3600, 60), document


def refusal(name, changed, *expected, mode="animate"):
    def body(cwd):
        values = {key: value(cwd) if callable(value) else value for key, value in changed.items()}
        arguments = words(cwd, mode, **values)
        given = [path.name for path in pathlib.Path(cwd).iterdir()]
        refused(cwd, run([harness.PROGRAM, "generate", *arguments], cwd), *expected, left=given)
    body.__name__ = name
    test(body)


refusal("no_face_is_refused", {"face_video": None}, "face_video: this model (character animation) needs the crops")
refusal("no_pose_is_refused", {"pose_video": None}, "pose_video: this model (character animation) needs")
refusal("no_character_is_refused", {"image": None}, "image: this model (character animation) needs the picture of the")
refusal("another_mode_is_refused", {"mode": "swap"}, "mode", "swap", "animate, replace")
refusal("replacing_needs_a_background", {"mode": "replace"}, "mask: this model (character animation) needs")
refusal("animating_has_no_background", {"background_video": lambda cwd: video(cwd, "replace", "background")},
        "background_video", "mode=animate has no background", "mode=replace")
refusal("segments_that_are_too_short", {"prev_segment_conditioning_frames": 5, "segment_frame_length": 9},
        "segment_frame_length=9", "must be 13 or more")
refusal("an_overlap_of_another_length", {"prev_segment_conditioning_frames": 3}, "must be 1 or 5")
refusal("fewer_frames_than_the_overlap", {"pose_video": lambda cwd: video(cwd, "animate", "pose", 1)},
        "pose_video (command line): 1 frames are too few")
refusal("a_limit_below_the_overlap", {"num_frames": 1}, "num_frames=1", "needs 2 or more")
refusal("a_pose_that_is_no_video", {"pose_video": lambda cwd: MODEL / "case.json"}, "case.json")
refusal("an_empty_face", {"face_video": lambda cwd: video(cwd, "none", "face")}, "holds no .png")


@test
def other_models_refuse_a_pose(cwd):
    result = run([harness.PROGRAM, "generate", MODEL.parent / "wan21_t2v", "prompt=a cat", "output=clip.gif",
                  "pose_video=x.mp4"], cwd)
    refused(cwd, result, "pose_video (command line): this model (text to video) takes a prompt alone")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
