"""WanPipeline with the names of diffusers' WanPipeline and WanImageToVideoPipeline."""
from __future__ import annotations

import logging
import numbers
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from . import _core
from ._inputs import (VIDEOS, as_user_array, checked_latents, drawn_noise, float32_array, frames_as, is_generator,
                      is_turned, latents_file, picture_files, require_output_type)
from ._values import Keys, is_torch, keys_of
from ._values import text as value_text

_log = logging.getLogger("zoetrope")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")

_LOCAL = "folders are read as they are on this machine; download the model and name its folder"
# What diffusers takes and this does not, with what to do instead.
_REFUSED_WHEN_OPENED = {
    "device_map": "everything is computed on CPUs", "device": "everything is computed on CPUs", "variant": _LOCAL,
    "revision": _LOCAL, "cache_dir": _LOCAL, "token": _LOCAL, "force_download": _LOCAL, "proxies": _LOCAL,
    "local_files_only": _LOCAL, "subfolder": _LOCAL, "custom_pipeline": _LOCAL,
    "quantization_config": "quantised weights are files here: transformer='model-Q4_K_M.gguf'",
    "max_memory": "memory_limit=GB says what the process may use", "offload_folder": "weight_cache=FOLDER does it",
    "low_cpu_mem_usage": "weights are read as memory allows; see weight_memory",
    "use_safetensors": "pickles are never read; leave it out"}
_COMPONENTS = ("transformer", "transformer_2", "text_encoder", "vae", "image_encoder", "tokenizer", "scheduler")
_REFUSED_WHEN_CALLED = {
    "prompt_embeds": "prompts are encoded here; give prompt",
    "negative_prompt_embeds": "prompts are encoded here; give negative_prompt",
    "image_embeds": "pictures are encoded here; give image",
    "attention_kwargs": "attention is chosen in from_pretrained, as attention='ring'"}
# Attributes of diffusers' pipelines.
_REFUSED_ATTRIBUTES = {
    "enable_model_cpu_offload": "weights are in the memory of the CPU; weight_memory=GB keeps fewer of them there",
    "enable_sequential_cpu_offload": "weights are in the memory of the CPU; weight_memory=GB keeps fewer of them there",
    "load_lora_weights": "give lora={'FILE': 1.0} to from_pretrained",
    "set_adapters": "give lora={'FILE': 0.8} to from_pretrained",
    "enable_vae_tiling": "give vae_tiling=True to the call", "encode_prompt": "prompts are encoded in the call",
    "save_pretrained": "`zoetrope convert` writes checkpoints",
    **dict.fromkeys(("transformer", "transformer_2", "vae", "text_encoder", "tokenizer"),
                    "components are read from files, not passed as objects; files of other weights go to from_pretrained"),
    "scheduler": "give scheduler='unipc' and flow_shift=3.0 to from_pretrained or to the call"}
_OUTPUT_TYPES = ("np", "pil", "pt", "latent")
_TENSOR_INPUTS = ("latents",)
_PICTURES = ("reference_images", *VIDEOS)
_DTYPE_KEYS = {"transformer": "dtype", "text_encoder": "text_encoder_dtype", "vae": "vae_dtype"}


@dataclass
class WanPipelineOutput:
    """frames as output_type says: np: [videos, frames, height, width, 3] float32 in [0, 1]; pt: a tensor [videos,
    frames, 3, height, width]; pil: a list of pictures for each video; latent: [videos, C, T, h, w]."""

    frames: Any
    latents: list[Any] = field(repr=False)  # of each video [1, C, T, h, w], final, normalised
    seeds: list[int | None]  # of each video; None where the noise was given
    summaries: list[str] = field(repr=False)  # the timing summary of each run

    def __getitem__(self, key: int | str) -> Any:
        return getattr(self, key) if isinstance(key, str) else (self.frames,)[key]


def _warn(text: str) -> None:
    """With the line that called this file, through whatever class of it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _refuse(what: str, values: dict[str, Any], reasons: dict[str, str]) -> None:
    for key, reason in reasons.items():
        if values.pop(key, None) is not None:
            raise _core.Error(f"{what}: {key} is not possible; {reason}")


def _torch_dtypes(torch_dtype: Any) -> dict[str, Any]:
    """Of every component, as diffusers has it: one for all, or a dict by component with "default"."""
    if torch_dtype is None:
        return {}
    if not isinstance(torch_dtype, dict):
        torch_dtype = {"default": torch_dtype}
    for name in torch_dtype:
        if name not in (*_DTYPE_KEYS, "default"):
            raise _core.Error(f"from_pretrained: torch_dtype has '{name}'; there are {', '.join(_DTYPE_KEYS)} and "
                              "default")
    default = torch_dtype.get("default")
    return {key: torch_dtype.get(name, default) for name, key in _DTYPE_KEYS.items()}


def _output(output_type: str, made: list[dict[str, Any]], seeds: bool) -> WanPipelineOutput:
    return WanPipelineOutput(frames_as(output_type, made), [as_user_array(video["latents"]) for video in made],
                             [video["seed"] if seeds else None for video in made],
                             [video["summary"] for video in made])


def _attach(error: BaseException, output_type: str, made: list[dict[str, Any]], seeds: bool, count: int) -> None:
    """Gives what ends a call the videos that are finished."""
    try:
        error.finished = _output(output_type, made, seeds)  # type: ignore[attr-defined]
    except Exception as problem:  # no memory for them twice, say; the error is what counts
        error.add_note(f"{len(made)} of {count} videos were finished, but are lost: {problem!r}")
    else:
        error.add_note(f"{len(made)} of {count} videos are finished; this exception has them as `finished`")


def _listed(key: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise _core.Error(f"call: {key} has {len(value)} entries for {count} prompts; give one for each, or one "
                          "for all")
    return list(value)


class WanPipeline:
    """An opened model. Made by from_pretrained(); called with a prompt it makes videos."""

    def __init__(self, model: _core.Pipeline, opened: Keys) -> None:
        self._model = model
        self._opened = dict(opened)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, *,
                        torch_dtype: Any = None, **options: Any) -> WanPipeline:
        """Opens a checkpoint folder in the diffusers layout; with weights="random" a name of configs/ too.

        Options are the keys of docs/configuration.md: ranks, threads, dtype, attention, weight_cache, keep_weights,
        lora, … Those of a video (flow_shift, scheduler, cache, …) are then the defaults of every call. torch_dtype, or
        dtype where it is not text, sets the dtypes of all components, as in diffusers. Reads and checks configs and
        headers; weights are read by the first call.
        """
        if options.get("use_safetensors") is True:
            del options["use_safetensors"]
        _refuse("from_pretrained", options, _REFUSED_WHEN_OPENED)
        for name in _COMPONENTS:
            if options.get(name) is not None and not isinstance(options[name], (str, os.PathLike)):
                raise _core.Error(f"from_pretrained: {name} is an object of type {type(options[name]).__name__}, but "
                                  "components are read from files; give a path or name")
        name = pretrained_model_name_or_path
        folder = "" if name is None else value_text("model", os.fspath(name))
        # diffusers' newer name for the same; text is the key of that name, which is the transformer's.
        if "dtype" in options and not isinstance(options["dtype"], (str, type(None))):
            if torch_dtype is not None:
                raise _core.Error("from_pretrained: torch_dtype and dtype say the same; give one")
            torch_dtype = options.pop("dtype")
        keys = keys_of({**_torch_dtypes(torch_dtype), **options})
        model = _core.Pipeline(folder, keys)
        if model.note:
            _warn(f"from_pretrained: {model.note}")
        return cls(model, keys)

    def __call__(self, prompt: str | Sequence[str] | None = None, negative_prompt: str | Sequence[str] | None = None,
                 height: int | None = None, width: int | None = None, num_frames: int | None = None,
                 num_inference_steps: int | None = None, guidance_scale: float | None = None,
                 guidance_scale_2: float | None = None, num_videos_per_prompt: int = 1, generator: Any = None,
                 latents: Any = None, output_type: str = "np", return_dict: bool = True,
                 callback_on_step_end: Callable[..., Any] | None = None,
                 callback_on_step_end_tensor_inputs: Sequence[str] = _TENSOR_INPUTS,
                 max_sequence_length: int | None = None, *, image: Any = None, last_image: Any = None,
                 batch_size: int = 1, **keys: Any) -> WanPipelineOutput | tuple[Any]:
        """Makes a video, or several: of a list of prompts, num_videos_per_prompt of each.

        generator: an int is a seed (of several videos the first one's; the others follow), a torch.Generator draws the
        noise as in diffusers, a list has one for each video; unset: a seed is drawn. latents: the noise itself,
        float32 [videos, C, T, h, w]. image, last_image: a path, a Pillow image, or uint8 [height, width, 3];
        control_video, mask and other videos: a path, a list of those, or uint8 [frames, height, width, 3].
        batch_size: videos that are denoised together. Other keys are those of docs/configuration.md. Unset values are
        those of from_pretrained, else the defaults there.

        callback_on_step_end(pipe, step, timestep, {"latents": …}) may return {"latents": …} to go on with, and
        ends the run by raising. Ctrl-C ends it too. What ends a call of several videos has those that are finished as
        its attribute `finished`.
        """
        _refuse("call", keys, _REFUSED_WHEN_CALLED)
        if output_type not in _OUTPUT_TYPES:
            raise _core.Error(f"call: output_type={output_type!r}; use one of {', '.join(_OUTPUT_TYPES)}")
        require_output_type(output_type)
        for name, count in (("num_videos_per_prompt", num_videos_per_prompt), ("batch_size", batch_size)):
            if not isinstance(count, numbers.Integral) or count < 1:
                raise _core.Error(f"call: {name}={count!r}; it must be 1 or more")
        if prompt is None:
            raise _core.Error("call: prompt is missing; say what the video shows")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        for text in prompts:
            if not isinstance(text, str):
                raise TypeError(f"prompt: {type(text).__name__} is not text; give a str or a list of them")
        if not prompts:
            raise _core.Error("call: prompt is an empty list; give one prompt or more")
        negatives = _listed("negative_prompt", negative_prompt, len(prompts))
        hook = self._latents_hook(callback_on_step_end, callback_on_step_end_tensor_inputs)
        given = {"image": image, "last_image": last_image, **{key: keys.pop(key) for key in _PICTURES if key in keys}}
        for key, picture in given.items():
            if is_turned(picture):
                _warn(f"call: {key} is not upright by its EXIF, and a Pillow image is taken as it lies; give its path "
                      "or PIL.ImageOps.exif_transpose(…)")
        with tempfile.TemporaryDirectory(prefix="zoetrope-") as name:
            folder = Path(name)
            pictures = picture_files(folder, **given)
            common = keys_of({
                "height": height, "width": width, "num_frames": num_frames, "num_inference_steps": num_inference_steps,
                "guidance_scale": guidance_scale, "guidance_scale_2": guidance_scale_2,
                "max_sequence_length": max_sequence_length, **pictures, **keys})
            videos = [common + keys_of({"prompt": text, "negative_prompt": negative})
                      for text, negative in zip(prompts, negatives) for _ in range(num_videos_per_prompt)]
            if ignored := self._model.ignored(common):
                _warn(f"call: {ignored}")
            if len(videos) > batch_size:
                self._refuse_journal(common, len(videos), batch_size)
            seeds = self._add_noise(videos, generator, latents, folder)
            made, found = [], []

            def note(text: str) -> None:
                found.extend(_core.warnings_in(text))
                _log.info(text)

            try:
                for first in range(0, len(videos), batch_size):
                    made += self._model.generate(videos[first:first + batch_size], output_type != "latent", note,
                                                 None, hook)
            except BaseException as error:
                for warning in dict.fromkeys(found):
                    error.add_note(f"Warning: {warning}")
                if made:
                    _attach(error, output_type, made, seeds, len(videos))
                raise
        for warning in dict.fromkeys(found):
            _warn(warning)
        output = _output(output_type, made, seeds)
        return output if return_dict else (output.frames,)

    def _refuse_journal(self, common: Keys, count: int, batch_size: int) -> None:
        """A journal is of one run: the second would not find what the first completes and removes."""
        keys = {**self._opened, **dict(common)}
        for key, unset in (("resume", ("",)), ("journal", ("", "none"))):
            if keys.get(key, "") not in unset:
                raise _core.Error(f"call: {key}={keys[key]} is of one run, and {count} videos with batch_size="
                                  f"{batch_size} are several; make a call for each, or set batch_size={count}")

    def _add_noise(self, videos: list[Keys], generator: Any, latents: Any, folder: Path) -> bool:
        """Adds the keys of the noise; returns whether they are seeds."""
        given = [name for name, value in (("generator", generator), ("latents", latents)) if value is not None]
        keys = dict(videos[0])
        given += [key for key in ("seed", "latents") if key in keys or (not given and key in self._opened)]
        if len(given) > 1:
            raise _core.Error(f"call: {' and '.join(given)} are both given, and each says what the noise is; give one")
        several = isinstance(generator, (list, tuple))
        if several and len(generator) != len(videos):
            raise _core.Error(f"call: generator has {len(generator)} entries for {len(videos)} videos; give one for "
                              "each")
        each = list(generator) if several else [generator]
        if latents is not None or (generator is not None and all(is_generator(one) for one in each)):
            shapes = self._model.noise_shapes(videos[0])  # of each segment
            noise = ([drawn_noise(each if several else generator, shape, len(videos)) for shape in shapes]
                     if latents is None else [checked_latents(latents, shapes[0], len(videos))])
            for number, video in enumerate(videos):
                video.append(("latents", latents_file([part[number:number + 1] for part in noise], number, folder)))
            return False
        for one in each:
            if one is not None and (isinstance(one, bool) or not hasattr(one, "__index__")):
                raise TypeError(f"generator: is of type {type(one).__name__}; give a torch.Generator, or a seed as int")
        if generator is not None:
            for number, video in enumerate(videos):
                seed = int(each[number]) if several else int(generator) + number
                if seed < 0:
                    raise _core.Error(f"call: generator={seed}; a seed is 0 or more, and one is drawn without "
                                      "generator")
                video += [("latents", ""), ("seed", str(seed))]  # those of from_pretrained give way
        elif "seed" in given:
            text = keys.get("seed", self._opened.get("seed"))
            seed = int(text) if _WHOLE_NUMBER.fullmatch(text) else -1  # what is no number, the engine refuses
            for number, video in enumerate(videos):
                video += [("latents", ""), ("seed", text if seed < 0 else str(seed + number))]
        elif not given:
            for video in videos:
                video.append(("seed", "-1"))
        return "latents" not in given

    def _latents_hook(self, callback: Callable[..., Any] | None,
                      inputs: Sequence[str]) -> Callable[..., Any] | None:
        if callback is None:
            return None
        if not callable(callback):
            raise TypeError(f"callback_on_step_end: {type(callback).__name__} cannot be called")
        if hasattr(callback, "tensor_inputs"):
            raise _core.Error("call: callback_on_step_end is one of diffusers' own classes, which change the guidance "
                              "while the pipeline runs; that is not possible, give a function")
        for name in inputs:
            if name not in _TENSOR_INPUTS:
                raise _core.Error(f"call: callback_on_step_end_tensor_inputs has '{name}'; there are "
                                  f"{', '.join(_TENSOR_INPUTS)}")

        def hook(step: int, timestep: float, latents: Any) -> Any:
            given = {"latents": as_user_array(latents)} if "latents" in inputs else {}
            returned = callback(self, step, timestep, given)
            if returned is None:
                return None
            if not isinstance(returned, dict) or not set(returned) <= set(_TENSOR_INPUTS):
                raise TypeError(f"callback_on_step_end returned {returned!r:.80}; it must return None or "
                                "{'latents': …}")
            changed = returned.get("latents")
            if isinstance(changed, numpy.ndarray) or is_torch(changed):
                return float32_array("latents of the callback", changed)
            return changed

        return hook

    def describe(self, prompt: str, *, image: Any = None, last_image: Any = None, **keys: Any) -> str:
        """What the run would be, before anything runs: model, size, use of the ranks, memory, predicted time."""
        with tempfile.TemporaryDirectory(prefix="zoetrope-") as folder:
            given = {key: keys.pop(key) for key in _PICTURES if key in keys}
            pictures = picture_files(Path(folder), image=image, last_image=last_image, **given)
            return self._model.describe(keys_of({"prompt": prompt, **pictures, **keys}))

    def to(self, device: Any = "cpu") -> WanPipeline:
        """For scripts that say where to compute: CPUs alone can."""
        if str(device) != "cpu":
            raise _core.Error(f"to: {device} is not possible; everything is computed on CPUs")
        return self

    def release_weights(self) -> None:
        """Frees the weights that keep_weights kept between calls."""
        self._model.release_weights()

    def close(self) -> None:
        """Frees the model. Later calls raise Error; a run that goes on ends as usual."""
        self._model.close()

    def __enter__(self) -> WanPipeline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        reason = _REFUSED_ATTRIBUTES.get(name)
        raise AttributeError(f"WanPipeline has no {name}" + (f"; {reason}" if reason else ""))


class WanImageToVideoPipeline(WanPipeline):
    """The same with the picture first, as diffusers has it."""

    def __call__(self, image: Any, prompt: str | Sequence[str], *arguments: Any,  # type: ignore[override]
                 **keys: Any) -> WanPipelineOutput | tuple[Any]:
        return super().__call__(prompt, *arguments, image=image, **keys)
