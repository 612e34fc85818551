#!/usr/bin/env python3
"""Compares our attention with PyTorch's and OpenVINO's on this CPU, in alternation, so that disturbances affect all of them
equally.

    bench/peers/run_peers.py [--program build/release/bin/zoetrope] [--venv out/peers-venv] [--json out/peers.json]
                             [--lengths 1024,4096,16384,32760] [--heads 1,2] [--dtypes bf16,f32] [--threads 1,2]
                             [--rounds 5] [--peers torch,openvino]

On first use a virtual environment is created and the peers' newest releases are installed into it from PyPI with pip
(some gigabytes: PyTorch for Linux includes its CUDA libraries, which are not used). Head size 128, batch 1, no mask.

A round of a case times each peer, then ours (`zoetrope bench kernel`, which verifies its result and measures the
machine's peak right before and after it). The peers get contiguous [B, H, S, D] tensors of the dtype, their fastest
layout, prepared before the timing; ours gets [B, S, H, D], the output layout of a projection. Every peer's result is
first compared with float64 on a few rows. A ratio is the peer's time over ours in the same round; the median over the
rounds is printed, above 1 where ours is faster, and the fraction of the peak that each reached. The peak is that of the
instruction set that ours used.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HEAD_DIM = 128
WINDOW = 0.1  # minimum duration of a timing, in seconds: short runs are repeated inside
ROWS = 4      # of each head that are compared with float64
# Relative L2 on random data: bf16 rounds weights and results (2^-9 each), and some peers the scores, too; float32 within
# the error of a plain sum of 32760 terms.
TOLERANCE = {"bf16": 2e-2, "f32": 1e-4}
PACKAGES = {"torch": ["torch", "numpy"], "openvino": ["openvino", "numpy"]}


# ---- a peer, in a process of its own: JSON lines in, JSON lines out ----

def random_inputs(numpy, tokens, heads):
    generator = numpy.random.default_rng(1)
    return [generator.standard_normal((1, heads, tokens, HEAD_DIM), dtype=numpy.float32) for _ in range(3)]


class TorchPeer:
    def __init__(self, threads):
        import torch
        self.torch = torch
        torch.set_num_threads(threads)
        self.version = torch.__version__

    def prepare(self, arrays, dtype):
        kind = self.torch.bfloat16 if dtype == "bf16" else self.torch.float32
        self.inputs = [self.torch.from_numpy(a).to(kind) for a in arrays]

    def run(self):
        with self.torch.no_grad():
            self.output = self.torch.nn.functional.scaled_dot_product_attention(*self.inputs)

    def values(self):
        return [t.to(self.torch.float32).numpy() for t in self.inputs], self.output.to(self.torch.float32).numpy()


class OpenVinoPeer:
    def __init__(self, threads):
        import openvino
        self.openvino = openvino
        self.threads = threads
        self.version = openvino.__version__

    def prepare(self, arrays, dtype):
        import numpy
        ov = self.openvino
        from openvino import opset13
        self.numpy = numpy
        self.bf16 = dtype == "bf16"
        kind = ov.Type.bf16 if self.bf16 else ov.Type.f32
        if self.bf16:
            arrays = [round_to_bf16(numpy, a) for a in arrays]  # as 16-bit integers
            tensors = [ov.Tensor(ov.Type.bf16, ov.Shape(a.shape)) for a in arrays]
            for tensor, array in zip(tensors, arrays):
                tensor.data.view(numpy.uint16)[:] = array
        else:
            tensors = [ov.Tensor(a) for a in arrays]
        self.arrays = arrays
        parameters = [opset13.parameter(list(a.shape), kind) for a in arrays]
        node = opset13.scaled_dot_product_attention(*parameters, causal=False)
        model = ov.Model([node], parameters)
        compiled = ov.Core().compile_model(model, "CPU", {
            "INFERENCE_PRECISION_HINT": "bf16" if self.bf16 else "f32", "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1})
        self.request = compiled.create_infer_request()
        for i, tensor in enumerate(tensors):
            self.request.set_input_tensor(i, tensor)

    def run(self):
        self.request.infer()

    def values(self):
        numpy = self.numpy
        output = self.request.get_output_tensor(0).data
        if self.bf16:
            return ([from_bf16(numpy, a) for a in self.arrays], from_bf16(numpy, output.view(numpy.uint16)))
        return self.arrays, output


def round_to_bf16(numpy, array):
    bits = array.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(numpy, bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def relative_error(numpy, peer):
    """Of a few rows of every head, against the definition in float64."""
    (q, k, v), output = peer.values()
    rows = numpy.unique(numpy.linspace(0, q.shape[2] - 1, ROWS).astype(int))
    difference = norm = 0.0
    for head in range(q.shape[1]):
        scores = q[0, head, rows].astype(numpy.float64) @ k[0, head].astype(numpy.float64).T / HEAD_DIM ** 0.5
        weights = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        expected = weights @ v[0, head].astype(numpy.float64) / weights.sum(axis=1, keepdims=True)
        difference += ((output[0, head, rows] - expected) ** 2).sum()
        norm += (expected ** 2).sum()
    return float((difference / norm) ** 0.5)


def worker(name, threads):
    import numpy
    peer = {"torch": TorchPeer, "openvino": OpenVinoPeer}[name](threads)
    print(json.dumps({"version": peer.version}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "tokens" in order:
            peer.prepare(random_inputs(numpy, order["tokens"], order["heads"]), order["dtype"])
            peer.run()
            begin = time.perf_counter()
            peer.run()
            runs = max(1, int(WINDOW / (time.perf_counter() - begin)))
            print(json.dumps({"error": relative_error(numpy, peer)}), flush=True)
        else:
            begin = time.perf_counter()
            for _ in range(runs):
                peer.run()
            print(json.dumps({"seconds": (time.perf_counter() - begin) / runs}), flush=True)


class Peer:
    """The other end of a worker."""

    def __init__(self, python, name, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.name = name
        self.process = subprocess.Popen([str(python), __file__, "--worker", name, str(threads)], text=True,
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version = self.answer()["version"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"run_peers.py: the process that runs {self.name} ended; its message is above")
        return json.loads(line)

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- the comparison ----

def install(venv, peers):
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    for name in peers:
        if subprocess.run([str(python), "-c", f"import {name}, numpy"], stderr=subprocess.DEVNULL).returncode != 0:
            print(f"installing {name} into {venv}", file=sys.stderr)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]], check=True)
    return python


def time_ours(program, case):
    shape = f"1x{case['tokens']}x{case['heads']}x{HEAD_DIM}"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ours.json"
        done = subprocess.run([str(program), "bench", "kernel", f"shapes={shape}", f"dtype={case['dtype']}",
                               f"threads={case['threads']}", "implementation=auto", "repeat=1", f"window={WINDOW}",
                               f"json={path}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"run_peers.py: {done.stderr.strip()}")
        row = json.loads(path.read_text())["kernel"][0]
        if row["seconds_median"] is None:
            sys.exit(f"run_peers.py: ours was not timed: {row['note']}")
        return row


def compare(program, peers, case, rounds):
    for peer in peers:
        error = peer.ask(tokens=case["tokens"], heads=case["heads"], dtype=case["dtype"])["error"]
        if not error <= TOLERANCE[case["dtype"]]:
            sys.exit(f"run_peers.py: {peer.name} {case}: relative error {error} against float64")
    seconds = {peer.name: [] for peer in peers}
    ours = []
    for _ in range(rounds):
        for peer in peers:
            seconds[peer.name].append(peer.ask()["seconds"])
        ours.append(time_ours(program, case))
    flop = 4.0 * case["tokens"] ** 2 * HEAD_DIM * case["heads"]
    peak = statistics.median(row["peak_gflops"] for row in ours) * 1e9
    result = {**case, "implementation": ours[0]["implementation"], "peak_gflops": peak * 1e-9,
              "ours": {"seconds_min": min(row["seconds_min"] for row in ours),
                       "seconds_median": statistics.median(row["seconds_median"] for row in ours),
                       "fraction": statistics.median(row["fraction"] for row in ours)}}
    for name, values in seconds.items():
        result[name] = {"seconds_min": min(values), "seconds_median": statistics.median(values),
                        "fraction": statistics.median(flop / s / peak for s in values),
                        "ratio": statistics.median(s / row["seconds_median"] for s, row in zip(values, ours)),
                        "ratio_min": min(s / row["seconds_median"] for s, row in zip(values, ours))}
    return result


def print_row(cells, widths):
    print("  ".join(str(cell).rjust(width) for cell, width in zip(cells, widths)), flush=True)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]))
        return
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=root / "build/release/bin/zoetrope")
    parser.add_argument("--venv", type=pathlib.Path, default=root / "out/peers-venv")
    parser.add_argument("--json", type=pathlib.Path, default=root / "out/peers.json")
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 16384, 32760])
    parser.add_argument("--heads", type=numbers, default=[1, 2])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bf16", "f32"])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["torch", "openvino"])
    options = parser.parse_args()
    if not options.program.exists():
        sys.exit(f"run_peers.py: {options.program} does not exist; './run build' builds it, --program names another")
    for name in options.peers:
        if name not in PACKAGES:
            sys.exit(f"run_peers.py: there is no peer '{name}'; there are: {', '.join(PACKAGES)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    python = install(options.venv, options.peers)
    report = {"head_dim": HEAD_DIM, "rounds": options.rounds, "versions": {}, "cases": []}
    headings = ["dtype", "threads", "heads", "tokens", "kernel", "peak", "ours"]
    widths = [5, 7, 5, 6, 11, 7, 7]
    for name in options.peers:
        headings += [name, "ratio"]
        widths += [9, 6]
    print_row(headings, widths)
    for threads in options.threads:
        peers = [Peer(python, name, threads) for name in options.peers]
        report["versions"] = {peer.name: peer.version for peer in peers}
        for dtype in options.dtypes:
            for heads in options.heads:
                for tokens in options.lengths:
                    case = {"dtype": dtype, "threads": threads, "heads": heads, "tokens": tokens}
                    result = compare(options.program, peers, case, options.rounds)
                    report["cases"].append(result)
                    cells = [dtype, threads, heads, tokens, result["implementation"],
                             f"{result['peak_gflops']:.1f}", f"{100 * result['ours']['fraction']:.1f} %"]
                    for name in options.peers:
                        cells += [f"{100 * result[name]['fraction']:.1f} %", f"{result[name]['ratio']:.2f}"]
                    print_row(cells, widths)
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
        for peer in peers:
            peer.close()
    print(f"peak in GFLOP/s; versions: {report['versions']}; all figures in {options.json}")


if __name__ == "__main__":
    main()
