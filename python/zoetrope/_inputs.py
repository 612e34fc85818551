"""Noise, pictures and results as diffusers has them, and as the engine takes and gives them."""
from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy

from . import _core
from ._attention import is_torch


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


def picture_file(key: str, picture: Any, folder: Path) -> str:
    """A path as it is; pixels as a file of the folder."""
    if isinstance(picture, (str, os.PathLike)):
        return os.fspath(picture)
    if hasattr(picture, "convert") and hasattr(picture, "getbands"):  # of Pillow
        picture = numpy.asarray(picture.convert("RGB"))
    if is_torch(picture):
        picture = picture.detach().cpu().numpy()
    if not isinstance(picture, numpy.ndarray):
        raise TypeError(f"{key}: is of type {type(picture).__name__}; give one path, Pillow image, or array of uint8 "
                        "[height, width, 3]")
    if picture.dtype != numpy.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
        raise TypeError(f"{key}: is {picture.dtype} {list(picture.shape)}, but must be uint8 [height, width, 3]")
    file = folder / f"{key}.png"
    _core.write_png(str(file), numpy.ascontiguousarray(picture))
    return str(file)


def picture_files(folder: Path, **pictures: Any) -> dict[str, str]:
    """Of those that are given."""
    return {key: picture_file(key, picture, folder) for key, picture in pictures.items() if picture is not None}


def is_turned(picture: Any) -> bool:
    """Whether a Pillow image lies otherwise than EXIF says it was taken."""
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
