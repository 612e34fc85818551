"""Noise, pictures and results as diffusers has them, and as the engine takes and gives them."""
from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy

from . import _core
from ._values import is_torch


def is_generator(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Generator)


def as_user_array(array: numpy.ndarray) -> Any:
    """A PyTorch tensor where PyTorch is imported, else the array; over the same memory."""
    torch = sys.modules.get("torch")
    return array if torch is None else torch.from_numpy(array)


def drawn_noise(generator: Any, shape: list[int], videos: int) -> numpy.ndarray:
    """[videos, C, T, h, w] as diffusers draws it: from one generator at once, or from one for each video."""
    torch = sys.modules["torch"]
    generators = generator if isinstance(generator, list) else [generator]
    for one in generators:
        if one.device.type != "cpu":
            raise _core.Error(f"generator: is on {one.device}, but noise is drawn on the CPU; make it with "
                              "torch.Generator()")
    if len(generators) == 1:
        return torch.randn([videos, *shape[1:]], generator=generators[0], dtype=torch.float32).numpy()
    return torch.cat([torch.randn(shape, generator=one, dtype=torch.float32) for one in generators]).numpy()


def float32_array(what: str, values: Any) -> numpy.ndarray:
    """A contiguous array of a PyTorch tensor of any dtype or a NumPy array of float32."""
    if is_torch(values):
        values = values.detach().cpu().float().numpy()
    if not isinstance(values, numpy.ndarray):
        raise TypeError(f"{what}: is of type {type(values).__name__}; give a PyTorch tensor or a NumPy array")
    if values.dtype != numpy.float32:
        raise TypeError(f"{what}: is {values.dtype}, but must be float32")
    return numpy.ascontiguousarray(values)


def checked_latents(latents: Any, shape: list[int], videos: int) -> numpy.ndarray:
    latents = float32_array("latents", latents)
    wanted = (videos, *shape[1:])
    if latents.shape != wanted:
        raise _core.Error(f"latents: is {latents.shape}, but these videos need {wanted} (videos, channels, frames, "
                          "height, width of the latents)")
    return latents


VIDEOS = ("control_video", "video", "mask", "mask_video", "pose_video", "face_video", "background_video")


def pixels_of(key: str, picture: Any, wanted: str) -> numpy.ndarray:
    """uint8 [height, width, 3]."""
    if hasattr(picture, "convert") and hasattr(picture, "getbands"):  # of Pillow
        picture = numpy.asarray(picture.convert("RGB"))
    if is_torch(picture):
        picture = picture.detach().cpu().numpy()
    if not isinstance(picture, numpy.ndarray):
        raise TypeError(f"{key}: is of type {type(picture).__name__}; give {wanted}")
    if picture.dtype != numpy.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
        raise TypeError(f"{key}: is {picture.dtype} {list(picture.shape)}, but must be uint8 [height, width, 3]")
    return numpy.ascontiguousarray(picture)


def picture_file(key: str, picture: Any, file: Path,
                 wanted: str = "one path, Pillow image, or array of uint8 [height, width, 3]") -> str:
    """A path as it is; pixels as that file."""
    if isinstance(picture, (str, os.PathLike)):
        return os.fspath(picture)
    _core.write_png(str(file), pixels_of(key, picture, wanted))
    return str(file)


def frames_folder(key: str, frames: Any, folder: Path) -> str:
    """Pictures of one size in the order of their names."""
    if len(frames) == 0:
        raise _core.Error(f"{key}: is empty; give one picture or more")
    folder.mkdir()
    first = None
    for number, frame in enumerate(frames):
        pixels = pixels_of(f"{key}[{number}]", frame, "Pillow images, or arrays of uint8 [height, width, 3]")
        first = first or pixels.shape
        if pixels.shape != first:
            raise _core.Error(f"{key}: [{number}] is {pixels.shape[1]} x {pixels.shape[0]}, but [0] is {first[1]} x "
                              f"{first[0]}; give pictures of one size")
        _core.write_png(str(folder / f"{number:06}.png"), pixels)
    return str(folder)


def _of_one_video(key: str, value: Any) -> Any:
    """What a list for each video, which diffusers takes too, has for the only one."""
    if not isinstance(value, (list, tuple)) or not any(isinstance(one, (list, tuple)) for one in value):
        return value
    if len(value) != 1:
        raise _core.Error(f"{key}: has {len(value)} entries, and some are lists; give one list for all videos")
    return value[0]


def picture_files(folder: Path, **given: Any) -> dict[str, Any]:
    """As keys: paths as they are, pixels as files of the folder. Of those that are given."""
    keys: dict[str, Any] = {}
    for key, value in given.items():
        if key == "reference_images" or key in VIDEOS:
            value = _of_one_video(key, value)
        listed = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 4
        if value is None:
            continue
        if key == "reference_images" and listed:
            keys[key] = [picture_file(f"{key}[{number}]", one, folder / f"{key}_{number}.png")
                         for number, one in enumerate(value)]
        elif key in VIDEOS and listed:
            keys[key] = frames_folder(key, value, folder / key)
        else:
            wanted = ("a path, a list of Pillow images, or uint8 [frames, height, width, 3]",) if key in VIDEOS else ()
            keys[key] = picture_file(key, value, folder / f"{key}.png", *wanted)
    return keys


def is_turned(picture: Any) -> bool:
    """Whether a Pillow image, or one of a list, lies otherwise than EXIF says it was taken."""
    if isinstance(picture, (list, tuple)):
        return any(is_turned(one) for one in picture)
    orientation, upright = 0x0112, 1
    try:
        return hasattr(picture, "getexif") and picture.getexif().get(orientation, upright) in range(upright + 1, 9)
    except SyntaxError:  # Pillow's, of broken EXIF
        return False


def latents_file(latents: list[numpy.ndarray], number: int, folder: Path) -> str:
    file = folder / f"latents_{number}.safetensors"
    _core.write_latents(str(file), latents)
    return str(file)


def require_output_type(output_type: str) -> None:
    """Before a run, which may take hours: what frames_as() needs."""
    module, name = {"pil": ("PIL.Image", "Pillow"), "pt": ("torch", "PyTorch")}.get(output_type, ("", ""))
    try:
        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise _core.Error(f"call: output_type='{output_type}' needs {name}, which cannot be imported: {error}") from None


def frames_as(output_type: str, videos: list[dict[str, Any]]) -> Any:
    """What diffusers returns as frames. Takes those of each video, so that few are in memory twice."""
    if output_type == "latent":
        return as_user_array(numpy.concatenate([video["latents"] for video in videos]))
    if output_type == "pil":
        from PIL import Image

        return [[Image.fromarray((frame * 255).round().astype(numpy.uint8)) for frame in video.pop("frames")]
                for video in videos]
    stacked = videos[0]["frames"][None]
    if len(videos) > 1:
        stacked = numpy.empty((len(videos), *stacked.shape[1:]), numpy.float32)
        for number, video in enumerate(videos):
            stacked[number] = video.pop("frames")
    if output_type == "np":
        return stacked
    import torch

    return torch.from_numpy(stacked).permute(0, 1, 4, 2, 3).contiguous()
