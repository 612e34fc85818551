#!/usr/bin/env python3
"""The tables of README.md: every model of configs/, the command that runs it, and what the planner says that it holds on
one device and on each of eight; and how much of its weights stays in the memory of small machines.

    model_table.py PROGRAM [HARDWARE]    prints both as Markdown; HARDWARE is a name of configs/hardware (h100_8). The
                                         second needs a machine with 24 GB of free memory.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
DEVICES = (1, 8)
MACHINES = (8, 16, 24, 64)  # GB of memory, of which the system has one
FRUGAL = ("vae_tiling=true", "text_encoder_dtype=bf16")
# What a model is called, where its folder is on the hub, and what its command has in addition to the prompt.
MODELS = (
    ("wan2.1_t2v_1.3b", "2.1 text to video 1.3B", "Wan2.1-T2V-1.3B-Diffusers", ""),
    ("wan2.1_t2v_14b", "2.1 text to video 14B", "Wan2.1-T2V-14B-Diffusers", ""),
    ("wan2.1_i2v_14b_480p", "2.1 image to video 14B, 480p", "Wan2.1-I2V-14B-480P-Diffusers", "image=a.png"),
    ("wan2.1_i2v_14b_720p", "2.1 image to video 14B, 720p", "Wan2.1-I2V-14B-720P-Diffusers", "image=a.png"),
    ("wan2.1_flf2v_14b_720p", "2.1 first and last frame 14B", "Wan2.1-FLF2V-14B-720P-diffusers",
     "image=a.png last_image=b.png"),
    ("wan2.1_vace_1.3b", "2.1 VACE 1.3B", "Wan2.1-VACE-1.3B-diffusers", "video=a.mp4 mask=b.mp4"),
    ("wan2.1_vace_14b", "2.1 VACE 14B", "Wan2.1-VACE-14B-diffusers", "video=a.mp4 mask=b.mp4"),
    ("wan2.2_t2v_a14b", "2.2 text to video A14B (two experts)", "Wan2.2-T2V-A14B-Diffusers", ""),
    ("wan2.2_i2v_a14b", "2.2 image to video A14B (two experts)", "Wan2.2-I2V-A14B-Diffusers", "image=a.png"),
    ("wan2.2_animate_14b", "2.2 Animate 14B", "Wan2.2-Animate-14B-Diffusers",
     "image=a.png pose_video=b.mp4 face_video=c.mp4"),
    ("wan2.2_ti2v_5b", "2.2 text or image to video 5B", "Wan2.2-TI2V-5B-Diffusers", "image=a.png"),
)


def plan(program, name, hardware):
    """The best plan for each number of devices, by number."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        command = [program, "plan", name, f"hardware={hardware}", "ranks=" + ",".join(map(str, DEVICES)), f"json={path}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        document = json.loads(path.read_text())
    best = {}
    for entry in document["plans"]:
        best[entry["ranks"]] = next((c for c in entry["candidates"] if c["verdict"] == "best"), None)
    return document["title"], best


def download(program, name):
    """Bytes of the published files, in GB. `inspect` refuses models that do not fit here, and has said the sizes by then."""
    text = subprocess.run([program, "inspect", name], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return sum(float(size) for size in re.findall(r"parameters, ([0-9.]+) GB in ", text))


def inspect(program, name, *words):
    command = [program, "inspect", name, "height=704" if "5b" in name else "height=480",
               "width=1280" if "5b" in name else "width=832", *FRUGAL, *words]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def peak_and_weights(text):
    """GB of the peak, and of the transformer's weights while it denoises."""
    peak = re.search(r"([0-9.]+) ([GM])B  peak: ", text)
    weights = re.search(r"denoise with transformer .*?weights ([0-9.]+) ([GM])B", text)
    return [float(m[1]) * (1 if m[2] == "G" else 1e-3) for m in (peak, weights)]


def in_memory(program, name, gigabytes):
    """What stays in the memory of such a machine: "all" or "8.1 of 28.6 GB"; "—" where the run does not fit."""
    peak, weights = peak_and_weights(inspect(program, name, "weights_in_memory=bf16"))
    if peak <= gigabytes - 1:
        return "all"
    text = inspect(program, name, f"memory_limit={gigabytes - 1}")
    if "admitted here" not in text:
        return "—"
    return f"{peak_and_weights(text)[1]:.1f} of {weights:.1f} GB"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program, hardware = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else "h100_8"
    unknown = {path.parent.name for path in CONFIGS.glob("*/model_index.json")} - {model[0] for model in MODELS}
    if unknown:
        sys.exit("not in the table: " + ", ".join(sorted(unknown)))
    print("| Wan | size | folder on the hub, `Wan-AI/…` | `zoetrope generate …` | download | one device | each of eight |")
    print("|---|---|---|---|---|---|---|")
    for name, title, folder, inputs in MODELS:
        described, best = plan(program, name, hardware)
        size = ", ".join(described.split(", ")[1:3])
        command = " ".join(word for word in (f"configs/{name}.yml", "model=…", inputs, "prompt=…") if word)
        memory = [f"{best[n]['bytes_per_rank'] * 1e-9:.1f} GB" if best.get(n) else "does not fit" for n in DEVICES]
        print(f"| {title} | {size} | `{folder}` | `{command}` | {download(program, name):.0f} GB | {' | '.join(memory)} |")
    print("\n| Wan | " + " | ".join(f"{gigabytes} GB" for gigabytes in MACHINES) + " |")
    print("|---|" + "---|" * len(MACHINES))
    for name, title, _, _ in MODELS:
        print(f"| {title} | " + " | ".join(in_memory(program, name, gigabytes) for gigabytes in MACHINES) + " |")


if __name__ == "__main__":
    main()
