#!/usr/bin/env python3
"""A diffusers transformer with PyTorch's own attention and with Zoetrope's as its backend, in turns.

    diffusers_backend.py [--model wan|flux] [--layers 4] [--frames 17] [--height 480] [--width 832]
                         [--dtypes bf16,float32] [--repeat 3] [--threads N] [--json FILE]

wan: the layers of Wan 2.1 1.3B. flux: those of FLUX.1, half of them of its second kind, for one picture.

Needs the Python package, torch and diffusers (docs/python.md). Random weights, no download. The backends alternate, so
that what else the machine does meets both; the least time and the median ratio of the pairs are what to compare. The
results of both are held against each other before anything is timed.
"""
import argparse
import json
import os
import pathlib
import statistics
import time

import diffusers
import torch
import zoetrope
import zoetrope.diffusers
import zoetrope.torch

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}
# How far results in each dtype may be apart, as relative L2: roundings of some hundred sums.
BOUNDS = {"bf16": 3e-2, "float32": 1e-4}
HEAD_DIM, TEXT_DIM, TEXT_TOKENS = 128, 4096, 512


class Wan:
    heads = 12

    def __init__(self, given):
        self.layers = given.layers
        self.latents = (1, 16, (given.frames - 1) // 4 + 1, given.height // 8, given.width // 8)
        self.tokens = self.latents[2] * (self.latents[3] // 2) * (self.latents[4] // 2)

    def model(self):
        return diffusers.WanTransformer3DModel(
            num_attention_heads=self.heads, attention_head_dim=HEAD_DIM, ffn_dim=8960, text_dim=TEXT_DIM,
            num_layers=self.layers)

    def inputs(self, draw):
        return {"hidden_states": draw(*self.latents), "timestep": torch.tensor([500]),
                "encoder_hidden_states": draw(1, TEXT_TOKENS, TEXT_DIM)}


class Flux:
    heads, channels, pooled = 24, 64, 768

    def __init__(self, given):
        self.layers = given.layers
        self.rows, self.columns = given.height // 16, given.width // 16
        self.tokens = self.rows * self.columns

    def model(self):
        return diffusers.FluxTransformer2DModel(
            num_layers=self.layers // 2, num_single_layers=self.layers - self.layers // 2)

    def inputs(self, draw):
        places = torch.zeros(self.rows, self.columns, 3)
        places[..., 1] += torch.arange(self.rows)[:, None]
        places[..., 2] += torch.arange(self.columns)[None, :]
        return {"hidden_states": draw(1, self.tokens, self.channels), "timestep": torch.tensor([0.5]),
                "encoder_hidden_states": draw(1, TEXT_TOKENS, TEXT_DIM), "pooled_projections": draw(1, self.pooled),
                "img_ids": places.reshape(-1, 3), "txt_ids": torch.zeros(TEXT_TOKENS, 3)}


MODELS = {"wan": Wan, "flux": Flux}


def words():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="wan")
    for name, value in (("layers", 4), ("frames", 17), ("height", 480), ("width", 832), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtypes", default="bf16,float32")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def cpu():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def with_backend(on, function):
    """(seconds, result)."""
    if on:
        zoetrope.diffusers.enable()
    begin = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - begin
    zoetrope.diffusers.disable()
    return seconds, result


def compare(name, function, repeat, bound):
    _, wanted = with_backend(False, function)
    _, got = with_backend(True, function)
    error = float((got.double() - wanted.double()).norm() / wanted.double().norm())
    if not error < bound:
        raise SystemExit(f"{name}: the backends differ by {error:.2g}, more than {bound:.2g}")
    seconds = {"torch": [], "zoetrope": []}
    for _ in range(repeat):
        seconds["torch"].append(with_backend(False, function)[0])
        seconds["zoetrope"].append(with_backend(True, function)[0])
    pairs = [a / b for a, b in zip(seconds["torch"], seconds["zoetrope"])]
    line = {"case": name, "rel_l2": error, "torch_min": min(seconds["torch"]), "zoetrope_min": min(seconds["zoetrope"]),
            "ratio_of_min": min(seconds["torch"]) / min(seconds["zoetrope"]), "median_ratio": statistics.median(pairs),
            "seconds": seconds}
    print(f"{name:<22} torch {line['torch_min']:8.3f} s   zoetrope {line['zoetrope_min']:8.3f} s   "
          f"ratio {line['ratio_of_min']:.2f} of the least, {line['median_ratio']:.2f} in the median   "
          f"rel. L2 {error:.1e}", flush=True)
    return line


def main():
    given = words()
    torch.set_num_threads(given.threads)
    case = MODELS[given.model](given)
    print(f"{cpu()}, {given.threads} threads; torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), "
          f"diffusers {diffusers.__version__}, zoetrope {zoetrope.__version__}; {given.model}, {given.layers} layers, {case.tokens} tokens")
    lines = []
    with torch.no_grad():
        for dtype in given.dtypes.split(","):
            generator = torch.Generator().manual_seed(1)
            draw = lambda *shape: torch.randn(*shape, generator=generator).to(DTYPES[dtype])  # noqa: E731
            q, k, v = (draw(1, case.tokens, case.heads, HEAD_DIM) for _ in range(3))
            attend = diffusers.models.attention_dispatch.dispatch_attention_fn
            lines.append(compare(f"{dtype} attention", lambda: attend(q, k, v), given.repeat, BOUNDS[dtype]))
            torch.manual_seed(0)
            model, inputs = case.model().to(DTYPES[dtype]).eval(), case.inputs(draw)
            lines.append(compare(f"{dtype} transformer", lambda: model(**inputs, return_dict=False)[0], given.repeat,
                                 BOUNDS[dtype]))
    if zoetrope.torch.reasons():
        raise SystemExit(f"attention was handed to PyTorch: {zoetrope.torch.reasons()}")
    if given.json:
        given.json.write_text(json.dumps({"cpu": cpu(), "torch": torch.__version__, "model": given.model, "tokens": case.tokens, "cases": lines},
                                         indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
