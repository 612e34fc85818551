#!/usr/bin/env python3
"""The table of docs/cpu.md: the time of a clip, as the planner predicts it from what was measured on this machine.

    clip_table.py PROGRAM [key=value…]    prints Markdown; further words go to every `zoetrope plan`, as hardware=FILE

`zoetrope calibrate` first, on an idle machine. Forwards and steps are scaled from the measured rates of products,
attention and token operations; no clip is computed.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

# Model, height, width, frames: as the models were published for, and the other size.
CLIPS = (("wan2.1_t2v_1.3b", 480, 832, 81), ("wan2.1_t2v_1.3b", 720, 1280, 81),
         ("wan2.2_ti2v_5b", 480, 832, 121), ("wan2.2_ti2v_5b", 704, 1280, 121))
DTYPES = (("bf16", ("dtype=bf16",)), ("int8", ("dtype=int8", "attention_dtype=int8")))
COMMON = ("ranks=1", "vae_dtype=bf16", "text_encoder_dtype=bf16")


def best(program, words):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        result = subprocess.run([program, "plan", *words, f"json={path}"], text=True, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)
        if result.returncode != 0:
            sys.exit(result.stderr.strip())
        return json.loads(path.read_text())["plans"][0]["candidates"][0]


def minutes(seconds):
    return f"{seconds / 60:.0f}"


def hours(seconds):
    return f"{seconds / 3600:.{1 if seconds >= 3600 else 2}f}"


def main(program, *words):
    columns = ("model", "clip", "dtype", "GB", "text, s", "forward, min", "VAE, min", "4 steps, h", "50 steps, h")
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for model, height, width, frames in CLIPS:
        for name, dtype in DTYPES:
            clip = (model, f"height={height}", f"width={width}", f"num_frames={frames}", *COMMON, *dtype, *words)
            four, fifty = (best(program, (*clip, *steps)) for steps in (("recipe=lightning_4",), ("num_inference_steps=50",)))
            cells = (model, f"{width} × {height} × {frames}", name, f"{fifty['bytes_per_rank'] / 1e9:.1f}",
                     f"{four['seconds_text_encoder']:.0f}", minutes(four["seconds_per_step"]),
                     minutes(four["seconds_vae"]), hours(four["seconds_total"]), hours(fifty["seconds_total"]))
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
