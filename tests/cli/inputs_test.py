#!/usr/bin/env python3
"""Pictures and videos as a user gives them: each kind of model with its inputs by one command, over ranks and in tiles, and
what is refused.

    inputs_test.py PROGRAM MODELS NAME    runs one test; MODELS is the folder of the recorded checkpoints
    inputs_test.py --list                 the names
"""
import pathlib
import shutil
import struct
import sys
import zlib

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import MPI_ENV, Skip, read_tensors, refused, run, run_script  # noqa: E402

TESTS = {}
MODELS = None
SMALL = ["num_frames=5", "num_inference_steps=2", "dtype=float32", "prompt=a red cat", "output=clip.gif", "dump=d",
         "summary=full"]


def test(function):
    TESTS[function.__name__] = function
    return function


def use(program, models):
    global MODELS
    harness.use(program)
    MODELS = pathlib.Path(models)


def given(model, name):
    return MODELS / model / "inputs" / name


def generate(cwd, model, *arguments, command=None):
    words = [MODELS / model, *SMALL, *arguments]
    return run(command(words) if command else [harness.PROGRAM, "generate", *words], cwd, env=MPI_ENV)


def floats(tensor):
    dtype, _, data = tensor
    assert dtype == "F32", dtype
    return struct.unpack(f"<{len(data) // 4}f", data)


def tensors_of(cwd, model, *arguments, **options):
    shutil.rmtree(pathlib.Path(cwd) / "d", ignore_errors=True)
    result = generate(cwd, model, *arguments, **options)
    assert result.returncode == 0, result.stderr
    assert (pathlib.Path(cwd) / "clip.gif").stat().st_size > 0
    return read_tensors(pathlib.Path(cwd) / "d" / "run.safetensors"), result


def frames_folder(cwd, prefix, count=5):
    folder = pathlib.Path(cwd) / prefix
    folder.mkdir(exist_ok=True)
    for i in range(count):
        shutil.copy(given("wan21_vace", f"{prefix}_{i % 5:02}.png"), folder / f"{i:02}.png")
    return folder


def png(path, width, height, data=None, alpha=False, bits=8):
    """A grey picture; `data` in place of the compressed rows. `alpha`: half transparent."""
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    rows = (b"\0" + b"\x80" * width * (2 if alpha or bits == 16 else 1)) * min(height, 1 << 12)
    body = zlib.compress(rows) if data is None else data
    head = struct.pack(">IIBBBBB", width, height, bits, 4 if alpha else 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


# ---- what works: a command a kind of model ----

KINDS = {
    "image_to_video": ("wan21_i2v", ["height=32", "width=48"], {"image": "image.png"}),
    "image_to_video_of_two_experts": ("wan22_i2v", ["height=32", "width=48"], {"image": "image.png"}),
    "first_and_last_frame_to_video": ("wan21_flf2v", ["height=48", "width=32"],
                                      {"image": "image.png", "last_image": "last_image.png"}),
    "text_and_image_to_video": ("wan22_ti2v", ["height=64", "width=32"], {"image": "image.png"}),
    "text_and_image_to_video_by_text": ("wan22_ti2v", ["height=64", "width=32"], {}),
    "controlled_video": ("wan21_vace", ["height=32", "width=48", "conditioning_scale=0.5,1"],
                         {"reference_images": "reference_0.png"}),
}


def words_of(cwd, kind):
    model, words, inputs = KINDS[kind]
    words = words + [f"{key}={given(model, name)}" for key, name in inputs.items()]
    if kind == "controlled_video":
        words += [f"video={frames_folder(cwd, 'video')}", f"mask={frames_folder(cwd, 'mask')}"]
    return model, words


def kind_of_model(kind):
    def body(cwd):
        model, words = words_of(cwd, kind)
        tensors, result = tensors_of(cwd, model, *words)
        last = floats(tensors["latents.1"])
        assert all(x == x for x in last)
        for key in KINDS[kind][2]:
            assert f"{key}=" in result.stderr, result.stderr
        return tensors
    body.__name__ = kind
    return test(body)


for name in KINDS:
    kind_of_model(name)


@test
def every_video_of_a_batch_has_the_conditions_in_its_dump(cwd):
    for kind, name in (("image_to_video", "condition"), ("text_and_image_to_video", "condition"),
                       ("controlled_video", "control.latents")):
        model, words = words_of(cwd, kind)
        result = generate(cwd, model, *words, "num_videos=2", "batch_size=2")
        assert result.returncode == 0, result.stderr
        one, two = (read_tensors(pathlib.Path(cwd) / f"d_{i:03}" / "run.safetensors") for i in range(2))
        assert sorted(one) == sorted(two), set(one) ^ set(two)
        assert one[name] == two[name] and one["latents.1"] != two["latents.1"]


def close(a, b, bound=1e-5):
    a, b = floats(a), floats(b)
    assert len(a) == len(b)
    difference = sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5
    return difference <= bound * sum(y * y for y in b) ** 0.5


@test
def ranks_encode_conditions_together(cwd):
    for kind in ("image_to_video", "text_and_image_to_video", "controlled_video"):
        model, words = words_of(cwd, kind)
        alone, _ = tensors_of(cwd, model, *words, "ranks=1")
        for more in (["ranks=3"], ["ranks=2", "vae_parallel=1"], ["ranks=4", "data_parallelism=2"]):
            together, _ = tensors_of(cwd, model, *words, *more)
            for tensor in ("condition", "control.latents", "latents.1"):
                assert (tensor in alone) == (tensor in together), tensor
                assert tensor not in alone or close(together[tensor], alone[tensor]), (kind, more, tensor)


def of_two_processes(words):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    return ["mpirun", "-n", "2", harness.PROGRAM, "generate", *words]


@test
def processes_encode_conditions_together(cwd):
    model, words = words_of(cwd, "image_to_video")
    alone, _ = tensors_of(cwd, model, *words)
    for more in ([], ["vae_parallel=1"]):
        together, _ = tensors_of(cwd, model, *words, *more, command=of_two_processes)
        for tensor in ("condition", "image_embeds", "latents.1"):
            assert close(together[tensor], alone[tensor]), tensor


@test
def a_picture_masks_every_frame(cwd):
    video, mask = frames_folder(cwd, "video"), given("wan21_vace", "mask_00.png")
    tensors, _ = tensors_of(cwd, "wan21_vace", "height=32", "width=48", f"control_video={video}", f"mask={mask}")
    _, shape, _ = tensors["control.video_mask"]
    values = floats(tensors["control.video_mask"])
    frame = len(values) // 5
    assert shape == [1, 1, 5, 32, 48] and all(values[i * frame:(i + 1) * frame] == values[:frame] for i in range(5))


@test
def a_video_file_is_followed(cwd):
    model, words = words_of(cwd, "image_to_video")
    tensors_of(cwd, model, *words)
    clip = pathlib.Path(cwd) / "clip.gif"
    control = clip.rename(clip.with_name("control.gif"))
    words = ["height=32", "width=48", f"control_video={control}"]
    _, result = tensors_of(cwd, "wan21_vace", *words)
    assert "control_video=" in result.stderr and "speed" not in result.stderr, result.stderr
    _, result = tensors_of(cwd, "wan21_vace", *words, "fps=8")
    # The times of a GIF are hundredths of a second: four of 6 and one of 7.
    assert "the video 8: it plays at 0.48 times its speed; fps=17 keeps it" in result.stderr, result.stderr


@test
def what_is_not_used_of_a_video_is_said(cwd):
    video = frames_folder(cwd, "video", 7)
    _, result = tensors_of(cwd, "wan21_vace", "height=32", "width=32", f"control_video={video}")
    assert "7 frames, of which the first 5 are used" in result.stderr, result.stderr
    assert "48 x 32 and is resized to 32 x 32" in result.stderr, result.stderr


@test
def an_alpha_that_is_not_used_is_said(cwd):
    mask = png(pathlib.Path(cwd) / "mask.png", 48, 32, alpha=True)
    frames = frames_folder(cwd, "mask")
    shutil.copy(mask, frames / "03.png")
    for given_mask in (mask, frames):
        words = [f"control_video={frames_folder(cwd, 'video')}", f"mask={given_mask}", f"reference_images={mask}"]
        _, result = tensors_of(cwd, "wan21_vace", "height=32", "width=48", *words)
        for note in ("mask has transparent parts, but its alpha is not used; white is regenerated",
                     "reference_images has transparent parts, but its alpha is not used\n"):
            assert note in result.stderr, result.stderr


@test
def grey_of_16_bits_is_said_to_become_white(cwd):
    depth = png(pathlib.Path(cwd) / "depth.png", 48, 32, bits=16)
    frames = pathlib.Path(cwd) / "depth"
    frames.mkdir()
    for i in range(5):
        shutil.copy(depth, frames / f"{i}.png")
    words = [f"control_video={frames}", f"mask={depth}", f"reference_images={depth}"]
    _, result = tensors_of(cwd, "wan21_vace", "height=32", "width=48", *words)
    for key in ("control_video", "mask", "reference_images"):
        assert f"{key} is grey of 16 bits, and as in Pillow all above 255 is white" in result.stderr, result.stderr


@test
def a_frame_that_is_missing_is_said(cwd):
    frames = frames_folder(cwd, "mask", 6)
    (frames / "03.png").unlink()
    words = [f"control_video={frames_folder(cwd, 'video')}", f"mask={frames}"]
    _, result = tensors_of(cwd, "wan21_vace", "height=32", "width=48", *words)
    assert "mask: 02.png is followed by 04.png" in result.stderr and "is one missing?" in result.stderr, result.stderr
    assert "control_video:" not in result.stderr, result.stderr


@test
def the_size_follows_the_picture(cwd):
    _, result = tensors_of(cwd, "wan21_i2v", f"image={given('wan21_i2v', 'image.png')}", "max_area=2560")
    assert "Video 48 x 32 x 5" in result.stderr, result.stderr


@test
def conditions_are_planned_and_measured(cwd):
    model, words = words_of(cwd, "image_to_video")
    _, result = tensors_of(cwd, model, *words)
    conditioning = result.stdout.split("  Conditioning")[1].split("  Denoise")[0]
    assert [p for p in ("text encoder", "image encoder", "VAE encode") if f"    {p}" in conditioning] == \
        ["text encoder", "image encoder", "VAE encode"], result.stdout
    assert "conditions" in result.stdout, result.stdout
    inspected = run([harness.PROGRAM, "inspect", MODELS / model, "height=32", "width=48", "num_frames=5"], cwd)
    assert inspected.returncode == 0, inspected.stderr
    assert "encode conditions" in inspected.stdout and "image encoder" in inspected.stdout, inspected.stdout


# ---- what is refused ----

def refused_inputs(name, model, words, *sentence_words, files=None):
    def body(cwd):
        made = files(pathlib.Path(cwd)) if files else {}
        left = [pathlib.Path(p).relative_to(cwd).as_posix() for p in made.values()]
        given_words = [f"{key}={path}" for key, path in made.items()]
        found = [w.replace("=@", f"={MODELS}/") for w in words]
        refused(cwd, generate(cwd, model, *found, *given_words), *sentence_words, left=left)
    body.__name__ = name
    test(body)


def image(model):
    return f"image=@{model}/inputs/image.png"


SIZE = ["height=32", "width=48"]
refused_inputs("an_image_for_a_text_model", "wan21_t2v", [*SIZE, image("wan21_i2v")],
               "image (command line): this model (text to video) takes a prompt alone")
refused_inputs("no_image_for_an_image_model", "wan21_i2v", SIZE, "image: this model (image to video) needs")
refused_inputs("no_last_image", "wan21_flf2v", [*SIZE, image("wan21_flf2v")],
               "last_image: this model (first and last frame to video) needs")
refused_inputs("a_last_image_too_many", "wan21_i2v",
               [*SIZE, image("wan21_i2v"), "last_image=x.png"], "last_image (command line):", "takes a prompt and image")
refused_inputs("a_video_for_an_image_model", "wan22_i2v", [*SIZE, image("wan22_i2v"), "video=x.mp4"],
               "control_video (command line):", "takes a prompt and image and, where wanted, last_image")
refused_inputs("a_mask_without_its_video", "wan21_vace", [*SIZE, "mask=x.png"], "mask (command line):", "control_video")
refused_inputs("as_many_scales_as_layers", "wan21_vace", [*SIZE, "conditioning_scale=1,2,3"], "3 numbers", "2 control")
refused_inputs("a_scale_is_a_number", "wan21_vace", [*SIZE, "conditioning_scale=strong"], "conditioning_scale", "strong")
refused_inputs("a_reference_without_a_name", "wan21_vace", [*SIZE, "reference_images=a.png,"], "a name is missing")
refused_inputs("one_frame_with_two_ends", "wan22_i2v",
               [*SIZE, image("wan22_i2v"), "last_image=x.png", "num_frames=1"], "num_frames=1")
refused_inputs("an_image_that_is_absent", "wan21_i2v", [*SIZE, "image=no.png"], "no.png")


def broken(change):
    return lambda cwd: {"image": change(cwd / "cat.png")}


def write(path, data):
    path.write_bytes(data)
    return path


refused_inputs("an_image_that_is_text", "wan21_i2v", SIZE, "cat.png", files=broken(lambda p: write(p, b"a red cat")))
refused_inputs("an_empty_image", "wan21_i2v", SIZE, "cat.png", files=broken(lambda p: write(p, b"")))
refused_inputs("an_image_of_zero_size", "wan21_i2v", SIZE, "cat.png", files=broken(lambda p: png(p, 0, 0)))
refused_inputs("an_image_of_a_hundred_megapixels", "wan21_i2v", SIZE, "cat.png",
               files=broken(lambda p: png(p, 20000, 20000, b"")))
refused_inputs("an_image_cut_short", "wan21_i2v", SIZE, "cat.png",
               files=broken(lambda p: write(p, given("wan21_i2v", "image.png").read_bytes()[:2000])))
refused_inputs("a_video_with_too_few_frames", "wan21_vace", SIZE, "control_video", "4", "5",
               files=lambda cwd: {"video": frames_folder(cwd, "video", 4)})
refused_inputs("a_mask_of_another_length", "wan21_vace", SIZE, "mask=", "has 6 frames", "has 5",
               files=lambda cwd: {"video": frames_folder(cwd, "video", 5), "mask": frames_folder(cwd, "mask", 6)})
refused_inputs("an_empty_folder_of_frames", "wan21_vace", SIZE, "control_video",
               files=lambda cwd: {"video": (lambda p: (p.mkdir(), p)[1])(cwd / "none")})
refused_inputs("a_video_that_is_none", "wan21_vace", SIZE, "cat.mp4",
               files=lambda cwd: {"video": write(cwd / "cat.mp4", b"a red cat")})


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
