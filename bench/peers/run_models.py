#!/usr/bin/env python3
"""Our transformer, VAE and text encoder compared with diffusers' (and OpenVINO's, for the transformer) on this CPU: the same
checkpoint, shapes and dtype, one after the other, each in a process of its own, so that its peak memory is its own.

    bench/peers/run_models.py [--program build/release/bin/zoetrope] [--venv out/models-venv] [--json out/models.json]
                              [--model FOLDER] [--work out/models] [--cases model,vae,text] [--dtypes bf16,f32]
                              [--peers diffusers,openvino] [--layers 2,4] [--threads 2] [--repeat 3] …

On first use a virtual environment is made and diffusers, transformers, PyTorch and OpenVINO are installed into it from
PyPI with pip (six gigabytes: PyTorch for Linux brings its CUDA libraries along, which nothing here uses). Without
--model a checkpoint of random weights is written once with `zoetrope synthesize` (18 GB in the published layout;
--layers makes it as small as its larger number).

--layers A,B measures the transformer and the text encoder with A and with B of their layers and draws the line through
both: seconds per layer × all layers + the rest. Rows that come from that say so, and say nothing of memory. Without it
whole models run.

Seconds are of one forward, one decoding of latents into frames, or one prompt, after a run that is not counted (where
that alone takes longer than --patience seconds, it counts and is the only one). Memory is the most that the process had
resident (VmHWM), weights, libraries and loading included. A ratio is their median time over ours, above 1 where ours is
faster, and their memory over ours.

Ways that the others are run: `plain` as their documentation does it. VAE: `channels_last` with weights and latents in
channels-last order, `tiled` with enable_tiling(). Text: `padded` to 512 rows with a mask, as their pipeline does it,
`real` with the prompt's own rows only. --command NAME=COMMAND runs any other program: its wall time and memory, whatever
it does, for programs that load, compute and end by themselves ({model}, {threads}, {height}, {width} and {num_frames}
are filled in).
"""
import argparse
import hashlib
import json
import os
import pathlib
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGES = {"diffusers": ["torch", "diffusers", "transformers", "accelerate", "sentencepiece"],
            "openvino": ["openvino", "torch", "diffusers", "transformers", "accelerate"]}
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
WHOLE_TEXT = 24  # layers of the text encoder
WAYS = {("diffusers", "model"): ["plain"], ("diffusers", "vae"): ["plain", "channels_last", "tiled"],
        ("diffusers", "text"): ["padded", "real"], ("openvino", "model"): ["plain"]}
TEXT_ROWS = 512  # of cross-attention, and of a padded prompt
TIMESTEP = 500
LATENT_CELL = 8  # pixels, in each direction
FRAMES_PER_LATENT = 4


# ---- a measurement, in a process of its own: one JSON object in, one out ----

def peak_bytes():
    """The most this process had resident. Not ru_maxrss, which begins with what the parent had when it forked."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(seconds, cpu):
    """Wall seconds, and the processor time of all threads: on a machine that others use, the second wanders less."""
    return {"seconds_min": min(seconds), "seconds_median": statistics.median(seconds), "cpu_seconds": min(cpu)}


def timed(run, repeat, patience):
    seconds, cpu = [], []
    for _ in range(1 + repeat):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        run()
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - cpu_begin)
        if seconds[0] > patience:
            return summary(seconds, cpu)
    return summary(seconds[1:], cpu[1:])


def latent_shape(order):
    return (1, 16, 1 + (order["num_frames"] - 1) // FRAMES_PER_LATENT, order["height"] // LATENT_CELL,
            order["width"] // LATENT_CELL)


def torch_dtype(torch, order):
    return torch.bfloat16 if order["dtype"] == "bf16" else torch.float32


def shortened_transformer(order, dtype):
    from diffusers import WanTransformer3DModel
    words = {"num_layers": order["layers"]} if order["layers"] else {}
    return WanTransformer3DModel.from_pretrained(order["model"], subfolder="transformer", torch_dtype=dtype,
                                                 **words).eval()


def transformer_inputs(torch, transformer, order, dtype):
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(latent_shape(order), generator=generator).to(dtype)
    text = torch.randn((1, TEXT_ROWS, transformer.config.text_dim), generator=generator).to(dtype)
    return latents, torch.tensor([TIMESTEP]), text


def diffusers_model(torch, order):
    dtype = torch_dtype(torch, order)
    transformer = shortened_transformer(order, dtype)
    latents, timestep, text = transformer_inputs(torch, transformer, order, dtype)
    return lambda: transformer(hidden_states=latents, timestep=timestep, encoder_hidden_states=text,
                               return_dict=False)[0]


def diffusers_vae(torch, order):
    from diffusers import AutoencoderKLWan
    dtype = torch_dtype(torch, order)
    vae = AutoencoderKLWan.from_pretrained(order["model"], subfolder="vae", torch_dtype=dtype).eval()
    latents = torch.randn(latent_shape(order), generator=torch.Generator().manual_seed(1)).to(dtype)
    if order["way"] == "channels_last":
        for module in vae.modules():  # as a whole it cannot: it has convolutions of two kinds
            kind = {torch.nn.Conv3d: torch.channels_last_3d, torch.nn.Conv2d: torch.channels_last}
            for of, layout in kind.items():
                if isinstance(module, of):
                    module.to(memory_format=layout)
        latents = latents.contiguous(memory_format=torch.channels_last_3d)
    if order["way"] == "tiled":
        vae.enable_tiling()
    return lambda: vae.decode(latents, return_dict=False)[0]


def diffusers_text(torch, order):
    from transformers import AutoConfig, UMT5EncoderModel
    folder = str(pathlib.Path(order["model"]) / "text_encoder")
    config = AutoConfig.from_pretrained(folder)
    if order["layers"]:
        config.num_layers = min(order["layers"], config.num_layers)
    encoder = UMT5EncoderModel.from_pretrained(folder, config=config, dtype=torch_dtype(torch, order)).eval()
    rows = TEXT_ROWS if order["way"] == "padded" else order["tokens"]
    ids = torch.zeros((1, rows), dtype=torch.long)
    mask = torch.zeros((1, rows), dtype=torch.long)
    for i in range(order["tokens"]):
        ids[0, i] = 2 + i * 7919 % (config.vocab_size - 2)
        mask[0, i] = 1
    ids[0, order["tokens"] - 1] = 1  # </s>
    return lambda: encoder(ids, mask).last_hidden_state[:, :order["tokens"]]


def measure_diffusers(order):
    import diffusers
    import torch
    torch.set_num_threads(order["threads"])
    prepare = {"model": diffusers_model, "vae": diffusers_vae, "text": diffusers_text}[order["case"]]
    with torch.inference_mode():
        run = prepare(torch, order)
        last = []

        def keep():
            last[:] = [run()]

        seconds = timed(keep, order["repeat"], order["patience"])
        if not torch.isfinite(last[0]).all():
            sys.exit(f"run_models.py: the result of diffusers for {order} is not finite")
    return {**seconds, "peak_bytes": peak_bytes(),
            "version": f"diffusers {diffusers.__version__}, PyTorch {torch.__version__}"}


def digest(*words):
    """A short name for what is made of these."""
    return hashlib.sha256("\0".join(str(word) for word in words).encode()).hexdigest()[:8]


def openvino_file(order):
    model = pathlib.Path(order["model"]).resolve()
    name = "-".join(str(order[key]) for key in ("layers", "num_frames", "height", "width"))
    return pathlib.Path(order["work"]) / f"openvino-{model.name}-{digest(model)}-{name}.xml"


def convert_openvino(order):
    """Apart from the measurement: converting needs the model several times over."""
    import openvino
    import torch

    class Forward(torch.nn.Module):
        def __init__(self, transformer):
            super().__init__()
            self.transformer = transformer

        def forward(self, latents, timestep, text):
            return self.transformer(hidden_states=latents, timestep=timestep, encoder_hidden_states=text,
                                    return_dict=False)[0]

    transformer = shortened_transformer(order, torch.float32)
    inputs = transformer_inputs(torch, transformer, order, torch.float32)
    with torch.inference_mode():
        model = openvino.convert_model(Forward(transformer), example_input=inputs,
                                       input=[tuple(part.shape) for part in inputs])
    # Float32 in the file: it is computed with in the dtype of the measurement.
    openvino.save_model(model, openvino_file(order), compress_to_fp16=False)
    return {}


def measure_openvino(order):
    import numpy
    import openvino
    compiled = openvino.Core().compile_model(openvino_file(order), "CPU", {
        "INFERENCE_PRECISION_HINT": "bf16" if order["dtype"] == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": order["threads"], "NUM_STREAMS": 1})
    request = compiled.create_infer_request()
    generator = numpy.random.default_rng(1)
    for i, port in enumerate(compiled.inputs):
        shape = tuple(port.shape)
        value = generator.standard_normal(shape, dtype=numpy.float32)
        if len(shape) == 1:
            value = numpy.full(shape, TIMESTEP, dtype=numpy.int64)
        request.set_input_tensor(i, openvino.Tensor(value))
    seconds = timed(request.infer, order["repeat"], order["patience"])
    if not numpy.isfinite(request.get_output_tensor(0).data.astype(numpy.float32)).all():
        sys.exit(f"run_models.py: the result of OpenVINO for {order} is not finite")
    return {**seconds, "peak_bytes": peak_bytes(), "version": f"OpenVINO {openvino.__version__}"}


WORKERS = {"diffusers": measure_diffusers, "openvino": measure_openvino, "openvino-convert": convert_openvino}


def worker(order):
    answer = WORKERS[order["peer"]](order)
    print("ANSWER " + json.dumps(answer), flush=True)


# ---- the comparison ----

class Failed(Exception):
    pass


def ask_worker(python, order):
    environment = {**os.environ, "OMP_NUM_THREADS": str(order["threads"]), "HF_HUB_OFFLINE": "1",
                   "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([*order["under"], str(python), __file__, "--worker", json.dumps(order)], text=True,
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line.removeprefix("ANSWER "))
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    raise Failed(lines[-1][:200])


def ask_peer(python, order):
    if order["peer"] == "openvino" and not openvino_file(order).exists():
        ask_worker(python, {**order, "peer": "openvino-convert"})
    return ask_worker(python, order)


def ask_ours(program, order):
    mode = order["case"]
    words = [f"model={order['model']}", "weights=checkpoint", f"dtype={order['dtype']}", f"threads={order['threads']}",
             f"repeat={order['repeat']}"]
    if mode == "text":
        words += [f"tokens={order['tokens']}"]
    else:
        words += [f"{key}={order[key]}" for key in ("height", "width", "num_frames")]
    if order["layers"] and mode != "vae":
        words += [f"layers={order['layers']}"]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ours.json"
        done = subprocess.run([*order["under"], str(program), "bench", mode, *words, f"json={path}"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failed((done.stderr.strip().splitlines() or ["no message"])[-1])
        return json.loads(path.read_text())[mode][0]


def run_command(text, order):
    """Any program, from its start to its end."""
    words = [word.format(**{key: order[key] for key in ("model", "threads", "height", "width", "num_frames")})
             for word in shlex.split(text)]
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}: {shlex.join(words)}")
    cpu = usage.ru_utime + usage.ru_stime
    return {**summary([time.perf_counter() - begin], [cpu]), "peak_bytes": usage.ru_maxrss * 1024, "version": words[0]}


def whole(answers, counts, layers):
    """The line through the measurements with fewer layers, at all of them."""
    if len(counts) == 1:
        return answers[0]
    (a, b), (small, large) = counts, answers

    def at_all(key):
        return small[key] + (large[key] - small[key]) / (b - a) * (layers - a)

    # Memory is no line: what loading needs for a moment outweighs a few layers.
    drawn_out = [key for key in ("seconds_min", "seconds_median", "cpu_seconds") if key in large]
    return {**large, "measured_layers": [a, b], "measured": answers, "peak_bytes": None,
            **{key: at_all(key) for key in drawn_out}}


def gigabytes(answer):
    return f"{answer['peak_bytes'] * 1e-9:.2f}" if answer["peak_bytes"] else ""


def print_row(cells):
    widths = [5, 22, 5, 10, 14, 9, 9, 8, 7, 7, 9]
    print("  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths)).rstrip(), flush=True)


class Comparison:
    def __init__(self, options, python):
        self.options, self.python = options, python
        self.layers = {"model": options.all_layers, "text": WHOLE_TEXT}
        self.rows = []

    def order(self, case, dtype, **more):
        options = self.options
        return {"case": case, "dtype": dtype, "model": str(options.model), "threads": options.threads,
                "height": options.height, "width": options.width, "num_frames": 1, "tokens": options.tokens,
                "repeat": options.repeat, "patience": options.patience, "layers": 0, "way": "plain",
                "work": str(options.work), "under": shlex.split(options.under), **more}

    def measure(self, ask, order):
        """With all layers, or with fewer and drawn out."""
        counts = self.options.layers if self.options.layers and order["case"] != "vae" else [0]
        answers = [ask({**order, "layers": count}) for count in counts]
        return whole(answers, counts, self.layers.get(order["case"]))

    def cases(self):
        options = self.options
        for case in options.cases:
            for dtype in options.text_dtypes if case == "text" else options.dtypes:
                if case == "model":
                    for count in options.num_frames:
                        yield self.order(case, dtype, num_frames=count)
                elif case == "vae":
                    for height, width in options.vae_sizes:
                        yield self.order(case, dtype, num_frames=options.vae_frames, height=height, width=width)
                else:
                    yield self.order(case, dtype)

    def shape_text(self, order):
        if order["case"] == "text":
            return f"{order['tokens']} tokens"
        return f"{order['num_frames']}x{order['height']}x{order['width']}"

    def add(self, order, who, way, answer, ours):
        row = {"case": order["case"], "shape": self.shape_text(order), "dtype": order["dtype"], "who": who, "way": way,
               **answer}
        if ours and ours is not answer:
            row["ratio"] = answer["seconds_median"] / ours["seconds_median"]
            if answer["peak_bytes"] and ours["peak_bytes"]:
                row["memory_ratio"] = answer["peak_bytes"] / ours["peak_bytes"]
        self.rows.append(row)
        fraction = f"{100 * answer['fraction']:.1f} %" if answer.get("fraction") else ""
        scaled = ",".join(str(count) for count in answer.get("measured_layers", []))
        print_row([row["case"], row["shape"], row["dtype"], who, way, f"{answer['seconds_min']:.2f}",
                   f"{answer['seconds_median']:.2f}", gigabytes(answer),
                   f"{row['ratio']:.2f}" if "ratio" in row else fraction,
                   f"{row['memory_ratio']:.2f}" if "memory_ratio" in row else "", scaled])

    def failed(self, order, who, way, why):
        self.rows.append({"case": order["case"], "shape": self.shape_text(order), "dtype": order["dtype"], "who": who,
                          "way": way, "failed": str(why)})
        print_row([order["case"], self.shape_text(order), order["dtype"], who, way, f"failed: {why}"])

    def run(self):
        print_row(["case", "shape", "dtype", "who", "way", "least s", "median s", "GB", "ratio", "memory", "layers"])
        for order in self.cases():
            ours = None
            try:
                ours = self.measure(lambda o: ask_ours(self.options.program, o), order)
                self.add(order, "ours", "", ours, ours)
            except Failed as why:
                self.failed(order, "ours", "", why)
            for peer in self.options.peers:
                for way in WAYS.get((peer, order["case"]), []):
                    if self.options.ways and way not in self.options.ways:
                        continue
                    asked = {**order, "peer": peer, "way": way}
                    try:
                        self.add(order, peer, way, self.measure(lambda o: ask_peer(self.python, o), asked), ours)
                    except Failed as why:
                        self.failed(order, peer, way, why)
            for name, command in self.options.command:
                try:
                    self.add(order, name, "command", run_command(command, order), ours)
                except Failed as why:
                    self.failed(order, name, "command", why)
            self.write()

    def write(self):
        report = {"threads": self.options.threads, "model": str(self.options.model), "rows": self.rows}
        self.options.json.write_text(json.dumps(report, indent=1) + "\n")
        self.options.json.with_suffix(".md").write_text(markdown(self.rows))


def markdown(rows):
    """For documents: a line a case and way, ours first."""
    lines = ["| case | dtype | who | least s | median s | of peak | GB | time / ours | memory / ours |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        who = " ".join(word for word in (row["who"], row["way"]) if word)
        if "failed" in row:
            lines.append(f"| {row['case']} {row['shape']} | {row['dtype']} | {who} | failed: {row['failed']} | | | | | |")
            continue
        fraction = f"{100 * row['fraction']:.1f} %" if row.get("fraction") else ""
        ratios = [f"{row[key]:.2f}" if key in row else "" for key in ("ratio", "memory_ratio")]
        scaled = f" (layers {','.join(map(str, row['measured_layers']))})" if "measured_layers" in row else ""
        lines.append(f"| {row['case']} {row['shape']} | {row['dtype']} | {who}{scaled} | {row['seconds_min']:.2f} | "
                     f"{row['seconds_median']:.2f} | {fraction} | {gigabytes(row)} | {ratios[0]} | "
                     f"{ratios[1]} |")
    peaks = sorted({round(row["peak_gflops"]) for row in rows if row.get("peak_gflops")})
    versions = sorted({row["version"] for row in rows if "version" in row})
    lines += ["", f"Peak measured next to ours: {', '.join(map(str, peaks))} GFLOP/s. {'; '.join(versions)}."]
    return "\n".join(lines) + "\n"


def install(venv, peers):
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    for name in peers:
        modules = "openvino, diffusers, transformers" if name == "openvino" else "diffusers, transformers, torch"
        if subprocess.run([str(python), "-c", f"import {modules}"], stderr=subprocess.DEVNULL).returncode != 0:
            print(f"installing {name} into {venv}", file=sys.stderr)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
    return python


def synthesize(options):
    """A checkpoint of random weights, written once."""
    layers = max(options.layers) if options.layers else 0
    folder = options.work / (f"{options.size}-{layers}" if layers else options.size)
    if not (folder / "model_index.json").exists():
        words = [f"model={options.size}", f"out={folder}"] + ([f"layers={layers}", f"text_layers={layers}"]
                                                                    if layers else [])
        print(f"writing random weights to {folder}", file=sys.stderr)
        done = subprocess.run([str(options.program), "synthesize", *words], stderr=subprocess.PIPE, text=True,
                              stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"run_models.py: {done.stderr.strip()}")
    return folder


def layers_of(model):
    """Of its transformer."""
    path = model / "transformer" / "config.json"
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["num_layers"])
    except (OSError, ValueError, KeyError) as why:
        sys.exit(f"run_models.py: {path} does not say how many layers the transformer has ({why!r}); --all-layers does")


def words(text):
    return [word for word in text.split(",") if word]


def counts(text):
    values = [int(word) for word in words(text)]
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of positive numbers")
    return values


def two_counts(text):
    values = counts(text)
    if len(values) != 2 or not values[0] < values[1]:
        raise argparse.ArgumentTypeError(f"'{text}' is not two layer counts, the smaller first, such as 2,4")
    return values


def sizes(text):
    return [tuple(counts(word.replace("x", ","))) for word in words(text)]


def named_command(text):
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=COMMAND")
    return name, command


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/bin/zoetrope"))
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path("out/models-venv"))
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("out/models.json"))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/models"),
                        help="for what is made on the way: the checkpoint, OpenVINO's models")
    parser.add_argument("--model", type=pathlib.Path, help="a checkpoint folder; default: random weights")
    parser.add_argument("--size", default="wan2.1_t2v_1.3b", help="model whose size the random weights have: a name of configs/")
    parser.add_argument("--cases", type=words, default=["model", "vae", "text"])
    parser.add_argument("--peers", type=words, default=["diffusers", "openvino"])
    parser.add_argument("--ways", type=words, default=[], help="only these ways of running the others")
    parser.add_argument("--dtypes", type=words, default=["bf16", "f32"])
    parser.add_argument("--text-dtypes", type=words, default=["bf16"],
                        help="dtypes of the text encoder, which others hold whole: 11 GB in bf16, 23 in f32")
    parser.add_argument("--layers", type=two_counts, help="A,B: measure with these numbers of layers, state for all")
    parser.add_argument("--all-layers", type=int, help="layers of the whole transformer, where the checkpoint has fewer: 30")
    parser.add_argument("--num-frames", type=counts, default=[1, 17], help="frames for the transformer")
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--vae-frames", type=int, default=5)
    parser.add_argument("--vae-sizes", type=sizes, default=[(240, 416), (480, 832)])
    parser.add_argument("--tokens", type=int, default=64, help="of the prompt")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--under", default="", help="starts each measurement: 'taskset -c 0,1', 'nice -n -5'")
    parser.add_argument("--command", type=named_command, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.worker:
        worker(json.loads(options.worker))
        return
    if not options.program.exists():
        sys.exit(f"run_models.py: {options.program} is not there; './run build' makes it, --program names another")
    for peer in options.peers:
        if peer not in PACKAGES:
            sys.exit(f"run_models.py: there is no peer '{peer}'; there are: {', '.join(PACKAGES)}")
    for case in options.cases:
        if case not in ("model", "vae", "text"):
            sys.exit(f"run_models.py: there is no case '{case}'; there are: model, vae, text")
    if options.layers and "model" in options.cases and not options.all_layers:
        options.all_layers = layers_of(options.model or CONFIGS / options.size)
    options.work.mkdir(parents=True, exist_ok=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    if options.model is None:
        options.model = synthesize(options)
    python = install(options.venv, options.peers) if options.peers else None
    Comparison(options, python).run()
    print(f"all figures in {options.json}, as a table in {options.json.with_suffix('.md')}")


if __name__ == "__main__":
    main()
