"""Pictures as a call of WanPipeline takes them, against the program with the same files."""
import tracemalloc
import warnings
import weakref

import numpy
import pytest
import zoetrope
from conftest import MODEL, SOURCE, program, settings, tensors_of
from zoetrope._inputs import frames_as

Image = pytest.importorskip("PIL.Image")
PIPELINES = SOURCE / "tests" / "golden" / "pipelines"


def test_pictures_of_every_kind(tmp_path):
    pixels = numpy.random.default_rng(3).integers(0, 256, (40, 56, 3), numpy.uint8)
    file = tmp_path / "picture.png"
    Image.fromarray(pixels).save(file)
    small = dict(height=48, width=64, num_frames=5, num_inference_steps=2)
    model = PIPELINES / "wan21_flf2v"
    keys = {"dtype": "float32", "threads": 2, "deterministic": True}
    program("generate", str(model), "prompt=a cat", "seed=3", *settings({**keys, **small}), f"image={file}",
            f"last_image={file}", f"output={tmp_path / 'frames'}", f"dump={tmp_path / 'dump'}")
    wanted = tensors_of(tmp_path / "dump" / "run.safetensors")["frames"]
    some = zoetrope.WanImageToVideoPipeline.from_pretrained(model, keep_weights="all", **keys)
    with_alpha = Image.fromarray(numpy.dstack([pixels, numpy.full((40, 56), 9, numpy.uint8)]))
    for picture in (file, str(file), Image.fromarray(pixels), with_alpha, pixels, pixels[::-1][::-1]):
        assert (some(picture, "a cat", last_image=picture, generator=3, **small).frames[0] == wanted).all()
        assert "64 x 48 x 5" in some.describe("a cat", image=picture, last_image=picture, **small)
    for wrong, words in ((pixels / 255, "float64"), (pixels[..., 0], r"\[40, 56\]"), ([pixels], "list"), (3, "int")):
        with pytest.raises(TypeError, match=words):
            some(wrong, "a cat", last_image=file, **small)
    with pytest.raises(zoetrope.Error, match="last_image"):
        some(file, "a cat", **small)


def test_videos_of_pictures(tmp_path):
    """As diffusers has them: the bits of the folders with the same pictures."""
    inputs = PIPELINES / "wan21_vace" / "inputs"
    frames, masks = ([Image.open(file) for file in sorted(inputs.glob(f"{name}_*.png"))] for name in ("video", "mask"))
    masks = [mask.convert("L") for mask in masks]
    for name, pictures in (("video", frames), ("mask", masks)):
        (tmp_path / name).mkdir()
        for number, picture in enumerate(pictures):
            picture.save(tmp_path / name / f"{number}.png")
    reference = inputs / "reference_0.png"
    some = zoetrope.WanPipeline.from_pretrained(PIPELINES / "wan21_vace", keep_weights="all", **MODEL)
    keys = dict(prompt=["a cat", "a dog"], generator=3, height=32, width=48, num_frames=5, num_inference_steps=1,
                output_type="latent")
    wanted = some(control_video=tmp_path / "video", mask=tmp_path / "mask", reference_images=[reference, reference],
                  **keys).frames
    array = numpy.stack([numpy.asarray(frame.convert("RGB")) for frame in frames])
    opened = Image.open(reference)
    for given in (dict(video=frames, mask=masks, reference_images=[opened, opened]),
                  dict(control_video=array, mask_video=tuple(masks),
                       reference_images=[reference, numpy.asarray(opened)]),
                  dict(video=[frames], mask=(masks,), reference_images=[[opened, reference]]),
                  dict(control_video=list(array), mask=tmp_path / "mask", reference_images=f"{reference},{reference}")):
        assert (some(**given, **keys).frames == wanted).all(), given
        assert "48 x 32 x 5" in some.describe("a cat", height=32, width=48, num_frames=5, **given)
    one = some(control_video=frames, mask=masks[2], reference_images=opened, **keys).frames
    assert (one == some(control_video=frames, mask=[masks[2]] * 5, reference_images=[opened], **keys).frames).all()
    assert not (one == wanted).all()
    scales = [numpy.float32(0.5), numpy.float32(2)]
    scaled = [some(video=frames, conditioning_scale=scale, **keys).frames
              for scale in ([0.5, 2.0], scales, numpy.array(scales))]
    assert (scaled[0] == scaled[1]).all() and (scaled[0] == scaled[2]).all()
    with pytest.warns(UserWarning, match="reference_images is not upright by its EXIF"):
        turned = opened.copy()
        turned.getexif()[0x0112] = 6
        some(control_video=frames, reference_images=[opened, turned], **keys)
    for error, words, given in ((zoetrope.Error, "^control_video: is empty", dict(control_video=[])),
                                (zoetrope.Error, r"^mask: \[1\] is 9 x 7, but \[0\] is",
                                 dict(video=frames, mask=[masks[0], masks[1].resize((9, 7))])),
                                (TypeError, r"^video\[0\]: is float64", dict(video=array / 255)),
                                (TypeError, r"^video\[0\]: is of type str; give Pillow", dict(video=["a", "b"])),
                                (TypeError, "^pose_video: is of type int; give a path, a list", dict(pose_video=3)),
                                (zoetrope.Error, "^reference_images: has 2 entries, and some are lists",
                                 dict(reference_images=[[opened], [opened]])),
                                (TypeError, r"^reference_images\[1\]: is of type int",
                                 dict(reference_images=[opened, 3]))):
        with pytest.raises(error, match=words):
            some(**given, **keys)
        with pytest.raises(error, match=words):
            some.describe("a cat", **given)


def test_frames_are_not_held_twice():
    """The plan has them once, and a run that is complete must not end for want of memory."""
    def made():
        return [{"frames": numpy.full((20, 128, 128, 3), value, numpy.float32)} for value in (0.25, 0.75)]

    videos = made()
    held = [weakref.ref(video["frames"]) for video in videos]
    stacked = frames_as("np", videos)
    assert all(one() is None for one in held) and (stacked == numpy.stack([v["frames"] for v in made()])).all()
    videos = made()
    size = videos[0]["frames"].nbytes
    tracemalloc.start()
    pictures = frames_as("pil", videos)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size, (peak, size)
    assert [len(video) for video in pictures] == [20, 20] and pictures[1][19].getpixel((5, 5)) == (191, 191, 191)


def test_a_pillow_image_on_its_side_is_said(tmp_path):
    from PIL import ImageOps
    file = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(numpy.random.default_rng(3).integers(0, 256, (40, 56, 3), numpy.uint8)).save(file, exif=exif)
    with Image.open(file) as photo:
        photo.load()
    some = zoetrope.WanPipeline.from_pretrained(PIPELINES / "wan21_i2v", keep_weights="all", **MODEL)
    keys = dict(prompt="a cat", generator=3, height=48, width=64, num_frames=5, num_inference_steps=1)
    with pytest.warns(UserWarning, match="image is not upright by its EXIF") as warned:
        lying = some(image=photo, **keys).frames
    assert warned[0].filename == __file__
    first = zoetrope.WanImageToVideoPipeline.from_pretrained(PIPELINES / "wan21_i2v", keep_weights="all", **MODEL)
    with pytest.warns(UserWarning, match="upright|remat_policy") as warned:
        assert (first(photo, remat_policy="NONE", **keys).frames == lying).all()
    assert len(warned) == 2 and {one.filename for one in warned} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        upright = some(image=file, **keys).frames
        assert (some(image=ImageOps.exif_transpose(photo), **keys).frames == upright).all()
        broken = Image.fromarray(numpy.asarray(photo))
        broken.info["exif"] = b"none"
        assert (some(image=broken, **keys).frames == lying).all()
    assert not (lying == upright).all()
