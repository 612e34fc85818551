#!/usr/bin/env python3
"""Records what the program computes, bit for bit, and compares a later build with the record.

    tools/bits.py record PROGRAM [FILE]     runs the whole list and writes the hash of each result
    tools/bits.py compare PROGRAM [FILE]    runs the list again; names each run that differs, and exits with 1
    tools/bits.py list                      the names and their arguments

FILE is tools/bits/CPU.json unless given. CPU names the kind of processor, because each kind runs other kernels: a record
is compared on the kind of processor that made it. `--only TEXT` takes the runs whose name contains TEXT.

A change of structure must leave every hash as it was. A change that is meant to change bits records again, and its commit
says why. The list fixes what the planner would choose (ranks, strategy, threads), and nothing is measured.

A run of `generate` gives two hashes: of the latents (noise, each step's velocity and latents, prompt embeddings) and of
the frames. A run of `attention` gives one, of its output.
"""
import argparse
import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPELINES = ROOT / "tests/golden/pipelines"
LORAS = ROOT / "tests/golden/loras"
SECONDS = 300  # no run may take longer

SIZE = ["height=64", "width=48", "num_frames=5", "num_inference_steps=3"]
COMMON = ["seed=7", "threads=2", "prompt=a red cat walks over a market", "negative_prompt=grey, blurred"]
IMAGE = PIPELINES / "wan21_i2v/inputs/image.png"
LAST_IMAGE = PIPELINES / "wan21_flf2v/inputs/last_image.png"
DTYPES = {"float32": ["dtype=float32"], "bf16": ["dtype=bf16"]}


def tasks():
    """Name: folder of the checkpoint and the keys of the task."""
    inputs = PIPELINES / "wan21_vace/inputs"
    vace = ["height=32", "width=48"]
    return {
        "wan21_t2v": ("wan21_t2v", []),
        "wan21_t2v_h6": ("wan21_t2v_h6", []),
        "wan21_i2v": ("wan21_i2v", [f"image={IMAGE}"]),
        "wan21_flf2v": ("wan21_flf2v", [f"image={IMAGE}", f"last_image={LAST_IMAGE}"]),
        "wan21_vace": ("wan21_vace", []),
        "wan21_vace_reference": ("wan21_vace", [f"reference_images={inputs}/reference_0.png"] + vace),
        "wan21_vace_control": ("wan21_vace", ["control_video=@video", "mask=@mask", "conditioning_scale=1,0.8"] + vace),
        "wan22_t2v": ("wan22_t2v", ["guidance_scale_2=3"]),
        "wan22_i2v": ("wan22_i2v", [f"image={IMAGE}"]),
        "wan22_ti2v": ("wan22_ti2v", ["width=96"]),
        "wan22_ti2v_image": ("wan22_ti2v", [f"image={IMAGE}", "width=96"]),
    }


# Name: ranks and the keys of the strategy. The recorded models have four heads (wan21_t2v_h6: six).
STRATEGIES = {
    "ring_2": (2, ["attention=ring"]),
    "ring_3": (3, ["attention=ring"]),
    "ring_7": (7, ["attention=ring"]),
    "two_way_4": (4, ["ring_direction=two_way", "ulysses_shards=1"]),
    "open_4": (4, ["ring_direction=open", "ulysses_shards=1"]),
    "ulysses_2": (2, ["attention=ulysses"]),
    "ulysses_4": (4, ["attention=ulysses"]),
    "ulysses_chunks_2": (2, ["attention=ulysses", "ulysses_attention_chunks=2"]),
    "ulysses_ring_4": (4, ["attention=ulysses_ring", "ulysses_shards=2"]),
    "ulysses_ring_6": (6, ["attention=ulysses_ring", "ulysses_shards=2"]),
    "fixed_max_4": (4, ["attention=ulysses_ring_custom_fixed_m", "ulysses_shards=2"]),
    "fixed_max_raw_4": (4, ["attention=ulysses_ring_custom_fixed_m", "ulysses_shards=2", "use_k_smoothing=false"]),
    "data_2": (2, ["attention=ulysses", "context_parallelism=1"]),
    "data_2_ring_2": (4, ["attention=ring", "context_parallelism=2"]),
}


def generate_runs():
    """Name: (checkpoint, ranks, under MPI, keys)."""
    runs = {}
    for task, (model, keys) in tasks().items():
        for dtype, chosen in DTYPES.items():
            runs[f"task/{task}/{dtype}"] = (model, 1, False, keys + chosen)
    for name, (ranks, keys) in STRATEGIES.items():
        data = ["data_parallelism=2"] if name.startswith("data") else ["data_parallelism=1"]
        for dtype, chosen in DTYPES.items():
            runs[f"ranks/{name}/{dtype}"] = ("wan21_t2v", ranks, False, keys + data + chosen)
    for name in ("ring_3", "ulysses_2", "ulysses_chunks_2", "ulysses_ring_4", "fixed_max_4", "data_2_ring_2"):
        ranks, keys = STRATEGIES[name]
        data = ["data_parallelism=2"] if name.startswith("data") else ["data_parallelism=1"]
        runs[f"mpi/{name}"] = ("wan21_t2v", ranks, True, keys + data + ["dtype=bf16"])
    two = ["attention=ulysses", "data_parallelism=1", "dtype=bf16"]
    for task in ("wan21_t2v_h6", "wan21_i2v", "wan21_flf2v", "wan21_vace_control", "wan22_t2v", "wan22_ti2v_image"):
        model, keys = tasks()[task]
        runs[f"tasks_over_ranks/{task}"] = (model, 2, False, keys + two)
    f32 = ["dtype=float32"]
    steps = ["num_inference_steps=8"] + f32
    for name, keys in {
        "mag": ["cache=mag", "cache_ratios=1,1,0.98,0.97,0.99,1,0.97,0.98,1,0.99,0.96,0.97,0.99,0.98,0.97,0.99",
                "cache_threshold=0.3"],
        "tea": ["cache=tea", "cache_coefficients=wan2.1_t2v_1.3b", "cache_threshold=0.3"],
        "tea_retention": ["cache=tea", "cache_coefficients=wan2.1_t2v_1.3b", "cache_threshold=0.3",
                          "cache_retention_steps=true"],
        "sen": ["cache=sen", "cache_threshold=0.5"],
        "cfg": ["cache=cfg", "cache_interval=2"],
        "drift": ["cache=drift", "cache_threshold=0.3"],
    }.items():
        runs[f"cache/{name}"] = ("wan21_t2v", 1, False, keys + steps)
        runs[f"cache/{name}/ranks"] = ("wan21_t2v", 2, False, keys + steps + ["attention=ring", "data_parallelism=1"])
    for name, keys in {"original": [f"lora={LORAS}/original.safetensors:0.8"], "peft": [f"lora={LORAS}/peft.safetensors"],
                       "both": [f"lora={LORAS}/original.safetensors:0.5,{LORAS}/peft.safetensors:0.5"]}.items():
        runs[f"lora/{name}"] = ("wan21_t2v", 1, False, keys + f32)
        runs[f"lora/{name}/bf16"] = ("wan21_t2v", 1, False, keys + ["dtype=bf16"])
    large = ["height=320", "width=352", "num_inference_steps=1"] + f32
    for name, keys in {
        "vae/tiling": large + ["vae_tiling=true"],
        "vae/tiling_bf16": large + ["vae_tiling=true", "vae_dtype=bf16"],
        "vae/whole": large,
        "vae/bf16": f32 + ["vae_dtype=bf16"],
        "solver/euler": f32 + ["scheduler=flow_match_euler"],
        "solver/dpmpp": f32 + ["scheduler=dpmpp"],
        "solver/legacy_grid": f32 + ["sigma_grid=legacy"],
        "solver/sigmas": f32 + ["num_inference_steps=default", "sigmas=1,0.8,0.3"],
        "solver/shift": f32 + ["flow_shift=8"],
        "text/bf16": f32 + ["text_encoder_dtype=bf16"],
        "text/masked_padding": f32 + ["mask_padding_tokens=true"],
        "text/short": f32 + ["max_sequence_length=3"],
        "guidance/off": f32 + ["guidance_scale=1"],
        "weights/random": f32 + ["weights=random", "weights_seed=5"],
        "weights/cache": f32 + ["weight_cache=@weight_cache"],
        "weights/cache_again": f32 + ["weight_cache=@weight_cache"],
        "weights/cache_bf16": ["dtype=bf16", "weight_cache=@weight_cache"],
        "deterministic/one": ["dtype=bf16", "deterministic=true"],
    }.items():
        runs[name] = ("wan21_t2v", 1, False, keys)
    over_ranks = ["attention=ring", "data_parallelism=1"] + large
    runs["vae/ranks_2"] = ("wan21_t2v", 2, False, over_ranks + ["vae_parallel=2"])
    runs["vae/ranks_3"] = ("wan21_t2v", 3, False, over_ranks + ["vae_parallel=3"])
    runs["deterministic/ranks_4"] = ("wan21_t2v", 4, False, ["dtype=bf16", "deterministic=true", "attention=ulysses"])
    for dtype, chosen in DTYPES.items():
        runs[f"demo/{dtype}"] = (ROOT / "demo/wan-tiny", 1, False, chosen + ["height=128", "width=128"])
        runs[f"demo/{dtype}/ranks"] = (ROOT / "demo/wan-tiny", 4, False, chosen + [
            "height=128", "width=128", "attention=ulysses_ring", "ulysses_shards=2", "data_parallelism=1"])
    return runs


def attention_runs():
    """Name: (ranks, keys)."""
    runs = {}
    for kernel, dtypes in {"amx_bf16": ["bf16"], "avx512_bf16": ["bf16"], "avx512": ["float32", "bf16"],
                           "avx2": ["float32", "bf16"], "scalar": ["float32", "bf16"]}.items():
        for dtype in dtypes:
            for softmax in ("online", "fixed_max"):
                runs[f"attention/{kernel}/{dtype}/{softmax}"] = (1, [
                    "shape=2x203x3x72", "kv=150", "key_lengths=150,31", f"dtype={dtype}", f"implementation={kernel}",
                    f"softmax={softmax}"])
    for name, (ranks, keys) in STRATEGIES.items():
        if not name.startswith("data"):
            runs[f"attention/{name}"] = (ranks, keys + ["shape=1x517x8x128", "dtype=bf16"])
    return runs


class Unavailable(Exception):
    """A kernel that this processor has not."""


def tensors(path):
    """(name, dtype, shape, bytes) of a safetensors file, by name."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name in sorted(header):
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in header[name]["data_offsets"])
            yield name, header[name]["dtype"], header[name]["shape"], data[begin:end]


def hash_of(path, chosen):
    digest = hashlib.sha256()
    count = 0
    for name, dtype, shape, data in tensors(path):
        if chosen(name):
            digest.update(f"{name} {dtype} {shape}\n".encode())
            digest.update(data)
            count += 1
    if count == 0:
        sys.exit(f"{path} has none of the tensors to hash")
    return digest.hexdigest()


class Runner:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.environment = {
            **os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "ZOETROPE_MEASURE": "no",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        inputs = PIPELINES / "wan21_vace/inputs"
        for kind in ("video", "mask"):
            (self.folder / kind).mkdir()
            for picture in inputs.glob(f"{kind}_*.png"):
                (self.folder / kind / picture.name).symlink_to(picture)

    def call(self, name, command):
        result = subprocess.run([str(word).replace("=@", f"={self.folder}/") for word in command], cwd=self.folder,
                                env=self.environment, timeout=SECONDS, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no message"]
            reason = next((line for line in lines if line.startswith("zoetrope: ")), lines[-1])
            if "cannot run here: needs" in reason:
                raise Unavailable(reason)
            sys.exit(f"{name}: exit code {result.returncode}: {reason}")

    def generate(self, name, model, ranks, mpi, keys):
        dump = self.folder / "run.safetensors"
        dump.unlink(missing_ok=True)
        common = COMMON if ranks <= 2 else [f"threads={ranks}" if key == "threads=2" else key for key in COMMON]
        if mpi:
            common = ["threads=1" if key.startswith("threads=") else key for key in common]
        words = [self.program, "generate", PIPELINES / model, *SIZE, *common, *keys, f"dump={self.folder}",
                 f"output={self.folder}/frames.png", "summary=none"]
        self.call(name, ["mpirun", "-n", ranks, *words] if mpi else [*words, f"ranks={ranks}"])
        is_frames = lambda tensor: tensor.startswith("frames")
        return {"latents": hash_of(dump, lambda tensor: not is_frames(tensor)), "frames": hash_of(dump, is_frames)}

    def attention(self, name, ranks, keys):
        output = self.folder / "o.safetensors"
        output.unlink(missing_ok=True)
        self.call(name, [self.program, "attention", *keys, f"ranks={ranks}", f"threads={max(2, ranks)}", "seed=3",
                         f"output={output}"])
        return {"output": hash_of(output, lambda _: True)}


def run_all(program, only):
    program = pathlib.Path(program).resolve()
    results = {}
    with tempfile.TemporaryDirectory(prefix="zoetrope_bits_") as folder:
        runner = Runner(program, folder)
        calls = [(name, runner.generate, run) for name, run in generate_runs().items()]
        calls += [(name, runner.attention, run) for name, run in attention_runs().items()]
        for name, function, run in calls:
            if only not in name:
                continue
            try:
                results[name] = function(name, *run)
                print(name, " ".join(f"{key} {value[:12]}" for key, value in results[name].items()), flush=True)
            except Unavailable as reason:
                print(f"{name}: left out: {reason}", flush=True)
    if not results:
        sys.exit(f"no run has '{only}' in its name; `list` prints them")
    return results


def cpu_kind():
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(fields.get("vendor_id"), "cpu")
    flags = fields.get("flags", "").split()
    widest = next((isa for flag, isa in (("amx_bf16", "amx"), ("avx512_bf16", "avx512_bf16"), ("avx512f", "avx512"),
                                         ("avx2", "avx2")) if flag in flags), "scalar")
    return f"{vendor}_{fields.get('cpu family', '0')}_{fields.get('model', '0')}_{widest}"


def compare(record, results):
    """Names of the runs that differ, each with what does."""
    differences = []
    for name, hashes in results.items():
        before = record.get(name)
        if before is None:
            differences.append(f"{name}: not in the record")
        elif before != hashes:
            differences.append(f"{name}: other bits in {', '.join(key for key in hashes if hashes[key] != before.get(key))}")
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["record", "compare", "list"])
    parser.add_argument("program", nargs="?", help="the zoetrope binary")
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="unset: tools/bits/CPU.json of this processor")
    parser.add_argument("--only", default="", help="runs whose name contains this text")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for name, (*_, keys) in {**generate_runs(), **attention_runs()}.items():
            print(name, *keys)
        return 0
    if arguments.program is None:
        parser.error("PROGRAM is missing: the path of the zoetrope binary")
    path = arguments.file or ROOT / "tools/bits" / f"{cpu_kind()}.json"
    if arguments.command == "compare" and not path.exists():
        sys.exit(f"{path} does not exist: there is no record of this kind of processor. Make one with a build of the "
                 f"commit to compare with: tools/bits.py record PROGRAM")
    results = run_all(arguments.program, arguments.only)
    if arguments.command == "record":
        path.parent.mkdir(parents=True, exist_ok=True)
        if arguments.only and path.exists():  # the other runs stay as they are recorded
            results = {**json.loads(path.read_text()), **results}
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"recorded {len(results)} runs in {path}")
        return 0
    record = json.loads(path.read_text())
    differences = compare(record, results)
    if not arguments.only:
        differences += [f"{name}: was not run" for name in record if name not in results]
    for line in differences:
        print(line)
    print(f"{len(results)} runs compared, {len(differences)} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
