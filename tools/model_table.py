#!/usr/bin/env python3
"""The tables of README.md: every model of configs/, the command that runs it, and what the planner says that it holds on
one device and on each of eight; and what of its weights stays in the memory of small machines, by the format of its
files, with the time of a step.

    model_table.py PROGRAM [MODEL…]    prints both as Markdown, of all models or of these names of configs/. The second
                                       takes minutes, 6 GB of disk for a while, and 24 GB of free memory.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import sparse_model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
HARDWARE = "h100_8"
DEVICES = (1, 8)
MACHINES = (8, 16, 24, 64)  # GB of memory
SYSTEM = 1  # GB of it that others have
SEGMENT = 77  # frames that Animate denoises together
FRUGAL = ("vae_tiling=true", "text_encoder_dtype=bf16")
# Two cores of Zen 4 or 5, which multiply bf16 twice as fast as the profile's core.
CORES = ("hardware=cpu", "threads=2", "what_if.bf16.peak=x2")
PICTURE = ROOT / "tests/golden/pipelines/wan21_i2v/inputs/image.png"
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
    ("wan2.2_vace_fun_a14b", "2.2 VACE-Fun A14B (two experts)", "alibaba-pai/Wan2.2-VACE-Fun-A14B",
     "text_encoder=… vae=… video=a.mp4 mask=b.mp4"),
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


def described(text):
    """The size that a plan's title names."""
    return ", ".join(text.split(", ")[1:3])


def size_words(name):
    return ("height=704", "width=1280") if "5b" in name else ("height=480", "width=832")


def step_hours(program, name):
    """Of a step on CORES: with the least memory of MACHINES that is enough, and with the most."""
    hours = []
    for gigabytes in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.json"
            result = subprocess.run([program, "plan", name, *CORES, *size_words(name), *FRUGAL, f"json={path}",
                                     f"memory_limit={gigabytes - SYSTEM}"], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
            if result.returncode == 0:
                best = json.loads(path.read_text())["plans"][0]["candidates"][0]
                hours.append(best["seconds_per_step"] / 3600)
    first, last = (f"{h:.2f}" for h in (max(hours), min(hours)))
    return last if first == last else f"{last} to {first}"


def input_words(name, folder):
    """Pictures and videos that a run cannot be without; what they show does not matter."""
    if "animate" in name:
        video = folder / "video"
        if not video.exists():
            video.mkdir()
            for frame in range(SEGMENT):
                (video / f"{frame:03}.png").symlink_to(PICTURE)
        return (f"image={PICTURE}", f"pose_video={video}", f"face_video={video}")
    if "flf2v" in name:
        return (f"image={PICTURE}", f"last_image={PICTURE}")
    return (f"image={PICTURE}",) if "i2v" in name and "ti2v" not in name else ()


def write_tokenizer(path, rows):
    """That of configs/, with an id for each row of the text encoder's embedding."""
    document = json.loads((CONFIGS / "tokenizer/tokenizer.json").read_text())
    vocab = document["model"]["vocab"]
    vocab += [[f"<row {i}>", -1e4] for i in range(len(vocab), rows)]
    path.write_text(json.dumps(document))


class Files:
    """Of one model, without values, and what the program says of them."""

    def __init__(self, program, name, folder):
        self.program, self.name, self.folder = program, name, pathlib.Path(folder)
        shapes = sparse_model.model_shapes(program, CONFIGS / name, self.folder / "synthesized")
        self.transformer, self.path = shapes.pop("transformer"), None  # of the file that `of` wrote last
        tokenizer = self.folder / "tokenizer.json"
        write_tokenizer(tokenizer, shapes["text_encoder"]["shared.weight"][0])
        self.words = [*size_words(name), *FRUGAL, *input_words(name, self.folder), f"tokenizer={tokenizer}"]
        for component, tensors in shapes.items():
            path = self.folder / f"{component}.safetensors"
            sparse_model.write_safetensors(path, tensors)
            self.words.append(f"{component}={path}")

    def of(self, format):
        """Words that name the transformer in this format."""
        keys = ["transformer", "transformer_2"] if (CONFIGS / self.name / "transformer_2").is_dir() else ["transformer"]
        words = []
        for key, noise in zip(keys, ("high_noise", "low_noise")):
            folder = self.folder / noise
            folder.mkdir(exist_ok=True)
            self.path = sparse_model.write_transformer(folder, self.transformer, format)
            words.append(f"{key}={self.path}")
        return words

    def inspect(self, *words):
        command = [self.program, "inspect", self.name, *self.words, *words]
        said = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if "peak: " not in said.stdout:
            sys.exit(said.stderr)
        return said.stdout

    def cells(self, format):
        """What stays in memory, for each of MACHINES."""
        words = self.of(format)
        text = self.inspect(*words, "weights_in_memory=bf16")
        peak, weights = peak_and_weights(text)
        as_stored = peak if format == "bf16" else peak_and_weights(self.inspect(*words, "weights_in_memory=as_stored"))[0]
        cells = []
        for gigabytes in MACHINES:
            if peak <= gigabytes - SYSTEM:
                cells.append("all")
            elif as_stored <= gigabytes - SYSTEM:
                cells.append("file")
            else:
                text = self.inspect(*words, f"memory_limit={gigabytes - SYSTEM}")
                fewer = re.search(r"what would fit: .*?(?:num_frames|segment_frame_length)=([0-9]+) ", text)
                cells.append(f"{peak_and_weights(text)[1]:.1f} of {weights:.1f} GB" if "admitted here" in text else
                             f"{fewer[1]} frames" if fewer else "—")
        return cells


def peak_and_weights(text):
    """GB of the peak, and of the transformer's weights while it denoises."""
    peak = re.search(r"([0-9.]+) ([GM])B  peak: ", text)
    weights = re.search(r"denoise with transformer .*?weights ([0-9.]+) ([GM])B", text)
    return [float(m[1]) * (1 if m[2] == "G" else 1e-3) for m in (peak, weights)]


def memory_rows(program, name):
    """(formats and sizes of a file, cells…, step) of a model: formats with the same cells share a row."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        files = Files(program, name, folder)
        for format in sparse_model.FORMATS:
            cells = tuple(files.cells(format))
            rows.setdefault(cells, []).append(f"{format} {files.path.stat().st_size * 1e-9:.1f} GB")
    step = step_hours(program, name)
    return tuple((", ".join(formats), *cells, step) for cells, formats in rows.items())


def print_run_table(program, models):
    print("| Wan | size | folder on the hub (of `Wan-AI` where no owner is named) | `zoetrope generate …` | download, GB | one device | each of eight |")
    print("|---|---|---|---|---|---|---|")
    for name, title, folder, inputs in models:
        text, best = plan(program, name, HARDWARE)
        command = " ".join(word for word in (f"configs/{name}.yml", "model=…", inputs, "prompt=…") if word)
        memory = [f"{best[n]['bytes_per_rank'] * 1e-9:.1f}" if best.get(n) else "does not fit" for n in DEVICES]
        print(f"| {title} | {described(text)} | `{folder}` | `{command}` | {download(program, name):.0f} | "
              f"{' | '.join(memory)} |")


def print_memory_table(program, models):
    alike = {}
    for name, title, *_ in models:
        alike.setdefault(memory_rows(program, name), []).append(title)
    print("| Wan | weights | " + " | ".join(f"{gigabytes} GB" for gigabytes in MACHINES) + " | a step, h |")
    print("|---|---|" + "---|" * len(MACHINES) + "---|")
    for rows, titles in alike.items():
        for i, row in enumerate(rows):
            print(f"| {'; '.join(titles) if i == 0 else ''} | {' | '.join(row)} |")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program, *names = sys.argv[1:]
    known = {model[0] for model in MODELS}
    if unknown := ({path.parent.name for path in CONFIGS.glob("*/model_index.json")} | set(names)) - known:
        sys.exit("not in the table: " + ", ".join(sorted(unknown)))
    models = [model for model in MODELS if not names or model[0] in names]
    print_run_table(program, models)
    print()
    print_memory_table(program, models)


if __name__ == "__main__":
    main()
