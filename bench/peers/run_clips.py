#!/usr/bin/env python3
"""One clip, from the prompt to its frames, with Zoetrope and with others on this CPU: the same weights, prompt, size and
steps, each in a process of its own, from its start to its end.

    bench/peers/run_clips.py [--program build/release/bin/zoetrope] [--model FOLDER] [--work out/clips] [--json FILE]
                             [--height 480] [--width 832] [--num-frames 17] [--steps 4] [--guidance-scale 1]
                             [--ours bf16,int8] [--peers diffusers,openvino,sd.cpp,sglang] [--sd-source FOLDER] …

diffusers: WanPipeline, bf16, from PyPI (run_models.py says what is installed). openvino: the same with its transformer in
OpenVINO. sd.cpp: stable-diffusion.cpp, built here from the sources in --sd-source (with its submodule ggml), with the
transformer in bf16 and in Q8_0, for which `zoetrope convert` writes the files. sglang: `sglang generate` of an SGLang on
the PATH, on the CPU, in bf16; docs/benchmarks.md says which. What cannot run says why, and the others run.

Without --model, weights are random and written once. Those say what a clip costs, not what it shows.

Seconds are of the whole process: loading, text encoder, denoising and frames. Memory is the most that the largest process
had resident. A ratio is their seconds over those of ours in bf16, above 1 where ours is faster.
"""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import run_models
from run_models import Failed

PROMPT = "A red fox runs through deep snow at dawn"
SEED = 1
OURS = {"bf16": ["dtype=bf16"], "int8": ["dtype=int8"], "int8_attention": ["dtype=int8", "attention_dtype=int8"],
        "float32": ["dtype=float32"]}
PEERS = ("diffusers", "openvino", "sd.cpp", "sglang")


def run(command, environment=None):
    """A process from its start to its end: seconds, and the most it had resident."""
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as said:
        begin = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=said, stderr=subprocess.STDOUT,
                                   env={**os.environ, **(environment or {})})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.strip()]
    if process.returncode != 0:
        raise Failed((lines or [f"exit code {process.returncode}"])[-1][:200])
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024}


def must_exist(path):
    if not path.exists():
        raise Failed(f"no {path} was written")


# ---- ours ----

def ours(options, way):
    out = options.work / f"ours-{way}.mp4"
    out.unlink(missing_ok=True)
    answer = run([*options.under, options.program, "generate", options.model, f"prompt={PROMPT}", f"seed={SEED}",
                  f"height={options.height}", f"width={options.width}", f"num_frames={options.num_frames}",
                  f"num_inference_steps={options.steps}", f"guidance_scale={options.guidance_scale}",
                  f"threads={options.threads}", "ranks=1", "vae_dtype=bf16", "text_encoder_dtype=bf16", f"output={out}",
                  *OURS[way]])
    must_exist(out)
    return answer


# ---- diffusers and OpenVINO, in the virtual environment ----

def with_openvino(transformer, order):
    """The pipeline's transformer, computed by OpenVINO."""
    import openvino
    import torch
    compiled = openvino.Core().compile_model(run_models.openvino_file(order), "CPU", {
        "INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": order["threads"], "NUM_STREAMS": 1})
    request = compiled.create_infer_request()

    def forward(hidden_states, timestep, encoder_hidden_states, **_):
        inputs = (hidden_states, timestep, encoder_hidden_states)
        arrays = [part.float().numpy() if part.is_floating_point() else part.numpy() for part in inputs]
        result = request.infer([array.astype(port.element_type.to_dtype()) for array, port in
                                zip(arrays, compiled.inputs)])
        return (torch.from_numpy(result[compiled.output(0)].copy()).to(hidden_states.dtype),)

    transformer.forward = forward
    transformer.blocks = torch.nn.ModuleList()  # OpenVINO has its own copy


def worker(order):
    import numpy
    import torch
    from diffusers import WanPipeline
    torch.set_num_threads(order["threads"])
    pipeline = WanPipeline.from_pretrained(order["model"], torch_dtype=torch.bfloat16)
    if order["peer"] == "openvino":
        with_openvino(pipeline.transformer, order)
    frames = pipeline(prompt=order["prompt"], height=order["height"], width=order["width"],
                      num_frames=order["num_frames"], num_inference_steps=order["steps"],
                      guidance_scale=order["guidance_scale"], output_type="np",
                      generator=torch.Generator().manual_seed(SEED)).frames[0]
    if frames.shape[:3] != (order["num_frames"], order["height"], order["width"]):
        sys.exit(f"the frames are {frames.shape}")
    if not numpy.isfinite(frames).all():
        sys.exit("the frames are not finite")


def diffusers(options, peer):
    python = run_models.install(options.venv, [peer])
    order = {"case": "model", "peer": peer, "model": str(options.model), "prompt": PROMPT, "threads": options.threads,
             "height": options.height, "width": options.width, "num_frames": options.num_frames, "steps": options.steps,
             "guidance_scale": options.guidance_scale, "layers": 0, "work": str(options.files), "under": options.under,
             "dtype": "bf16"}
    if peer == "openvino" and not run_models.openvino_file(order).exists():
        try:
            run_models.ask_worker(python, {**order, "peer": "openvino-convert"})
        except Failed as why:
            raise Failed(f"OpenVINO does not take the transformer: {why}") from why
    return run([*options.under, python, __file__, "--worker", json.dumps(order)],
               {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})


# ---- stable-diffusion.cpp ----

def build_sd(options):
    if options.sd_source is None:
        raise Failed("--sd-source FOLDER says where its sources are")
    if not (options.sd_source / "ggml" / "CMakeLists.txt").exists():
        raise Failed(f"{options.sd_source} has no ggml/ (git submodule update --init ggml)")
    source = options.sd_source.resolve()
    build = options.work / f"sd.cpp-{run_models.digest(source, *options.sd_options)}"
    print(f"building stable-diffusion.cpp in {build}", file=sys.stderr)
    run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *options.sd_options])
    run(["cmake", "--build", build, "--target", "sd-cli", "--parallel", str(options.threads)])
    program = build / "bin" / "sd-cli"
    must_exist(program)
    return program


def converted(options, component, ending, format_name, layout="original"):
    """A component in one file, with the names that ComfyUI's files have: of the text encoder they are the hub's."""
    path = options.files / f"{component}-{format_name}.{ending}"
    if not path.exists():
        run([options.program, "convert", options.model / component, f"out={path}", f"format={format_name}",
             f"layout={layout}", "tensors=false"])
    return path


def sd_cpp(options, way):
    program = build_sd(options)
    transformer = converted(options, "transformer", "gguf", way)
    vae = converted(options, "vae", "safetensors", "bf16")
    text = converted(options, "text_encoder", "gguf", way, "diffusers")
    out = options.work / f"sd-{way}.avi"
    out.unlink(missing_ok=True)
    answer = run([*options.under, program, "-M", "vid_gen", "--diffusion-model", transformer, "--vae", vae, "--t5xxl",
                  text, "-p", PROMPT, "--cfg-scale", options.guidance_scale, "--sampling-method", "euler", "--steps",
                  options.steps, "-W", options.width, "-H", options.height, "--video-frames", options.num_frames,
                  "--diffusion-fa", "--flow-shift", "3.0", "-t", options.threads, "-s", SEED, "-o", out])
    must_exist(out)
    return answer


# ---- SGLang ----

def sglang(options):
    program = shutil.which("sglang")
    if program is None:
        raise Failed("no sglang is installed")

    def clip(steps):
        with tempfile.TemporaryDirectory() as folder:
            # Its own pipeline or none: it could take that of diffusers instead. Without a precision its text encoder is
            # float32, which is twice the memory.
            answer = run([*options.under, program, "generate", "--backend", "sglang", "--model-path",
                          options.model.resolve(), "--prompt", PROMPT, "--height", options.height, "--width",
                          options.width, "--num-frames", options.num_frames, "--num-inference-steps", steps,
                          "--guidance-scale", options.guidance_scale, "--seed", SEED, "--text-encoder-precisions", "bf16",
                          "--vae-precision", "bf16", "--save-output", "--output-path", folder],
                         {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1",
                          "TOKENIZERS_PARALLELISM": "false", "SGLANG_DIFFUSION_PLATFORM_OVERRIDE": "cpu",
                          "SGLANG_DIFFUSION_CACHE_ROOT": str(compiled.resolve())})
            if not list(pathlib.Path(folder).glob("*.mp4")):
                raise Failed("no video was written")
        return answer

    compiled = options.files / f"sglang-{options.height}x{options.width}x{options.num_frames}"
    done = compiled / "done"
    if not done.exists():  # it compiles for a size what it keeps: not counted, as no build and no conversion is
        print("letting SGLang compile", file=sys.stderr)
        clip(1)
        done.touch()
    return clip(options.steps)


# ---- the table ----

def ways(options):
    """Everything that is asked for: who, way and what runs it."""
    for way in options.ours:
        yield "ours", way, lambda way=way: ours(options, way)
    for peer in options.peers:
        if peer in ("diffusers", "openvino"):
            yield peer, "bf16", lambda peer=peer: diffusers(options, peer)
        elif peer == "sd.cpp":
            for way in ("bf16", "q8_0"):
                yield peer, way, lambda way=way: sd_cpp(options, way)
        else:
            yield peer, "bf16", lambda: sglang(options)


def markdown(options, rows):
    clip = f"{options.width}×{options.height}×{options.num_frames}, {options.steps} steps, guidance {options.guidance_scale:g}"
    lines = [f"| {clip} | | seconds | GB | time / ours in bf16 |", "|---|---|---|---|---|"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['who']} | {row['way']} | failed: {row['failed']} | | |")
            continue
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        lines.append(f"| {row['who']} | {row['way']} | {row['seconds']:.1f} | {row['peak_bytes'] * 1e-9:.2f} | {ratio} |")
    return "\n".join(lines) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/bin/zoetrope"))
    parser.add_argument("--venv", type=pathlib.Path, default=pathlib.Path("out/models-venv"))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("out/clips"))
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("out/clips.json"))
    parser.add_argument("--model", type=pathlib.Path, help="a folder in the published layout; default: random weights")
    parser.add_argument("--size", default="wan2.1_t2v_1.3b", help="model whose size the random weights have: a name of configs/")
    parser.add_argument("--sd-source", type=pathlib.Path, help="folder with the sources of stable-diffusion.cpp")
    parser.add_argument("--sd-options", type=shlex.split, default=[], help="options for its CMake, such as -DGGML_OPENMP=OFF")
    for name, value in (("height", 480), ("width", 832), ("num-frames", 17), ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--guidance-scale", type=float, default=1)
    parser.add_argument("--ours", type=run_models.words, default=["bf16", "int8", "int8_attention"])
    parser.add_argument("--peers", type=run_models.words, default=list(PEERS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--under", type=shlex.split, default=[], help="starts each clip: 'taskset -c 0,1'")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.worker:
        worker(json.loads(options.worker))
        return
    if not options.program.exists():
        sys.exit(f"run_clips.py: {options.program} is not there; './run build' makes it, --program names another")
    for given, known in ((options.ours, OURS), (options.peers, PEERS)):
        for name in given:
            if name not in known:
                sys.exit(f"run_clips.py: '{name}' is unknown; there are: {', '.join(known)}")
    options.work.mkdir(parents=True, exist_ok=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    if options.model is None:
        options.layers = None
        options.model = run_models.synthesize(options)
    model = options.model.resolve()
    options.files = options.work / f"files-{model.name}-{run_models.digest(model)}"  # of this model, converted
    options.files.mkdir(exist_ok=True)
    rows = []
    for who, way, clip in ways(options):
        row = {"who": who, "way": way}
        try:
            row.update(clip())
            ours_bf16 = next((r for r in rows if (r["who"], r["way"]) == ("ours", "bf16")), {})
            if "seconds" in ours_bf16:
                row["ratio"] = row["seconds"] / ours_bf16["seconds"]
            print(f"{who:10} {way:15} {row['seconds']:9.1f} s {row['peak_bytes'] * 1e-9:7.2f} GB", flush=True)
        except (Failed, subprocess.CalledProcessError, OSError) as why:
            row["failed"] = str(why)
            print(f"{who:10} {way:15} failed: {why}", flush=True)
        rows.append(row)
        options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=1) + "\n")
        options.json.with_suffix(".md").write_text(markdown(options, rows))
    print(f"all figures in {options.json}, as a table in {options.json.with_suffix('.md')}")


if __name__ == "__main__":
    main()
