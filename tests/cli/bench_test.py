#!/usr/bin/env python3
"""`zoetrope bench` as a user runs it: every mode at its smallest, its JSON and page, and that bad input gets one sentence.
How fast anything is, is no test's business.

    bench_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    bench_test.py --list          the names
"""
import html.parser
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

sys.dont_write_bytecode = True
from harness import MPI_ENV, Skip, run, run_script  # noqa: E402

PROGRAM = None
TESTS = {}
PEAK = ["sizes=4K", "seconds=0.005"]
KERNEL = ["shapes=1x128x1x64", "window=0.0005", "repeat=1"]
PRODUCT = ["shapes=7x70x300", "window=0.0005", "repeat=1"]
COMM = ["sizes=4K,64K", "repeat=1"]
TINY = [f"model={pathlib.Path(__file__).resolve().parents[2] / 'demo' / 'wan-tiny'}", "weights=checkpoint", "repeat=1"]
SMALL = ["height=32", "width=48"]
ATTENTION = ["tokens=67", "heads=5", "head_dim=16", "repeat=1", "batch=1,2"]


def test(function):
    TESTS[function.__name__] = function
    return function


def bench(cwd, *arguments, ranks=0, **options):
    launcher = ["mpirun", "-n", str(ranks)] if ranks else []
    return run([*launcher, PROGRAM, "bench", *arguments], cwd, env=MPI_ENV if ranks else None, **options)


def rows(cwd, mode, *arguments, **options):
    result = bench(cwd, mode, *arguments, "json=out.json", **options)
    assert result.returncode == 0, result.stderr
    report = json.loads((pathlib.Path(cwd) / "out.json").read_text())
    assert report["machine"]["CPU"], report["machine"]
    assert mode in report and report[mode], report.keys()
    return report[mode]


def refused(cwd, result, *words):
    assert result.returncode == 1, f"exit code {result.returncode}\n{result.stderr}"
    lines = [line for line in result.stderr.splitlines() if line.startswith("zoetrope: ")]
    assert len(lines) == 1, f"{len(lines)} error lines instead of one:\n{result.stderr}"
    for word in words:
        assert word in lines[0], f"'{word}' is not in: {lines[0]}"
    assert not os.listdir(cwd), os.listdir(cwd)


class Links(html.parser.HTMLParser):
    """What a page would fetch or run, and whether its elements close in order."""
    VOID = {"meta", "br", "hr", "img", "input", "link"}

    def __init__(self):
        super().__init__()
        self.open, self.outside, self.seen = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.outside.append((tag, name, value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


# ---- what works ----

@test
def help_lists_modes_and_keys(cwd):
    result = bench(cwd, "--help")
    assert result.returncode == 0
    for word in ("bench peak", "bench kernel", "bench product", "bench comm", "bench attention", "bench model", "bench vae", "bench text", "bench load", "bench shared", "bench all", "shapes", "sizes", "traces",
                 "json", "html", "svg", "comm_timeout"):
        assert word in result.stdout, word


@test
def peak_measures_every_instruction_set_and_copies(cwd):
    found = rows(cwd, "peak", *PEAK, "threads=1")
    names = {row["what"] for row in found}
    assert {"avx2", "memcpy", "streaming copy"} <= names, names
    for row in found:
        assert row["best"] >= row["median"] > 0, row


@test
def kernel_verifies_and_times_every_choice(cwd):
    found = rows(cwd, "kernel", *KERNEL, "softmax=all", "threads=1,2")
    seen = {(row["dtype"], row["implementation"], row["softmax"], row["threads"]) for row in found}
    assert len(seen) == len(found)
    for dtype in ("bf16", "f32"):
        for softmax in ("online", "exact_online", "fixed_max"):
            for threads in (1, 2):
                assert (dtype, "avx2", softmax, threads) in seen, (dtype, softmax, threads)
    for row in found:
        if row["note"]:
            assert "needs" in row["note"], row  # an instruction set that this CPU lacks
            continue
        assert row["seconds_median"] >= row["seconds_min"] > 0, row
        assert 0 < row["rel_l2"] <= row["tolerance"], row
        assert row["fraction"] > 0 and (row["cpu"] is not None) == (row["threads"] == 1), row
        tiled = row["implementation"] != "scalar"
        assert (row["block_q"] is not None) == (row["block_kv"] is not None) == tiled, row
        assert not tiled or (row["block_q"] >= 16 and row["block_kv"] >= 16), row
        assert (row["tiles_fixed"] > 0) == (row["softmax"] == "fixed_max"), row


@test
def kernel_times_masks_and_cross_attention(cwd):
    found = rows(cwd, "kernel", "shapes=2x33x2x40:kv=65,1x40x1x16:lengths=0.5,1x40x1x16:mask=0.5", *KERNEL[1:],
                 "implementation=auto", "dtype=f32", "threads=1")
    assert [row["mask"] for row in found] == ["none", "lengths 50 %", "mask 50 %"]
    assert (found[0]["queries"], found[0]["keys"], found[0]["batch"]) == (33, 65, 2)
    assert all(row["implementation"] in ("avx512", "avx2", "scalar") for row in found), found


@test
def kernel_says_why_an_implementation_cannot(cwd):
    """A row with the reason, and an exit code: the user wanted this one."""
    result = bench(cwd, "kernel", *KERNEL, "implementation=avx512_bf16", "dtype=float32", "threads=1", "json=out.json")
    assert result.returncode == 1 and result.stderr.count("zoetrope: ") == 1, result.stderr
    assert "avx512_bf16" in result.stderr and "takes BF16" in result.stderr, result.stderr
    (row,) = json.loads((pathlib.Path(cwd) / "out.json").read_text())["kernel"]
    assert "takes BF16" in row["note"] and row["seconds_min"] is None and row["dtype"] == "f32", row


@test
def kernel_of_all_dtypes_takes_those_that_fit(cwd):
    result = bench(cwd, "kernel", *KERNEL, "implementation=avx512_bf16", "threads=1", "json=out.json")
    (row,) = json.loads((pathlib.Path(cwd) / "out.json").read_text())["kernel"]
    assert row["dtype"] == "bf16" and result.returncode == (1 if row["note"] else 0), (row, result.stderr)


@test
def numerics_has_tolerances_and_no_notes(cwd):
    found = rows(cwd, "numerics", "tokens=32,64", "head_dim=16", "rows=8", "dtype=float32", "svg=plots")
    for row in found:
        assert row["dtype"] == "f32" and row["rel_l2"] <= row["tolerance"] and row["note"] is None, row
    drawings = sorted((pathlib.Path(cwd) / "plots").iterdir())
    assert [p.name for p in drawings] == ["numerics-1.svg", "numerics-2.svg"], drawings
    for path in drawings:
        root = xml.etree.ElementTree.parse(path).getroot()  # well-formed, and an SVG by itself
        assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
        (style,) = root.findall("{http://www.w3.org/2000/svg}style")
        assert "prefers-color-scheme:dark" in style.text
        text = "".join(root.itertext())
        assert "f32: " in text and " exact_online" in text, "title and legend"
        assert "url(" not in text and "href" not in path.read_text() and "<script" not in path.read_text()


@test
def comm_runs_on_threads(cwd):
    found = rows(cwd, "comm", *COMM, "ranks=2,3")
    assert len(found) == 2 * 2 * 2
    for row in found:
        assert row["transport"] == "threads" and row["fraction"] > 0, row
        share = (row["ranks"] - 1) / row["ranks"] if row["pattern"] == "all_to_all" else 1
        assert abs(row["busbw"] - row["algbw"] * share) < 1e-6 * row["busbw"], row


@test
def comm_runs_under_mpirun(cwd):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    found = rows(cwd, "comm", *COMM, ranks=2)
    assert {(row["pattern"], row["transport"], row["ranks"]) for row in found} == {("all_to_all", "MPI", 2),
                                                                                   ("ring", "MPI", 2)}


# The rows of strategies=all.
STRATEGIES = ["flash", "gather", "ring", "ring+ring_direction=two_way", "ring+ring_direction=open", "ulysses",
              "ulysses_custom_fixed_m", "ulysses+ulysses_attention_chunks=2", "ulysses_ring",
              "ulysses_ring_custom_fixed_m", "ulysses_ring+ulysses_attention_chunks=2"]


def check_strategies(found, ranks):
    assert [(row["batch"], row["strategy"]) for row in found] == [(b, n) for b in (1, 2) for n in STRATEGIES]
    for row in found:
        # No other strategy in its place.
        if row["strategy"].startswith("ulysses_ring") and ranks < 4:
            assert f"a context of {ranks} ranks" in row["note"] and row["ulysses"] is None, row
            continue
        assert not row["note"], row
        assert not row["strategy"].startswith("ulysses_ring") or (row["ulysses"] > 1 and row["ring"] > 1), row
        assert row["softmax"] == ("fixed_max" if "fixed_m" in row["strategy"] else "online"), row
        assert 0 < row["rel_l2"] <= row["tolerance"], row
        one = row["strategy"] == "flash"
        assert row["ranks"] == (1 if one else ranks) and row["ulysses"] * row["ring"] * row["gather"] == row["ranks"], row
        assert (row["gather"] > 1) == (row["strategy"] == "gather"), row
        assert (row["bytes_sent"] == 0) == one and row["fraction"] > 0 and 0 <= row["unhidden"] <= 1, row


@test
def no_folder_is_made_for_nothing(cwd):
    result = bench(cwd, "peak", "seconds=0.01", "svg=plots")
    assert result.returncode == 0 and "svg=plots: nothing was written" in result.stderr, result.stderr
    assert not os.listdir(cwd), os.listdir(cwd)
    refused(cwd, bench(cwd, "attention", *ATTENTION, "batch=1", "traces=traces"), "traces are of batch 2", "batch=1")
    refused(cwd, bench(cwd, "attention", *ATTENTION, "traces=new/traces"), "new/traces")


@test
def attention_verifies_every_strategy_and_traces_batch_2(cwd):
    check_strategies(rows(cwd, "attention", *ATTENTION, "ranks=4", "traces=traces"), 4)
    traces = sorted(p.name for p in (pathlib.Path(cwd) / "traces").iterdir())
    assert traces == sorted(f"{name}.json" for name in STRATEGIES), traces
    text = json.loads((pathlib.Path(cwd) / "traces" / "ulysses_ring.json").read_text())
    events = text["traceEvents"] if isinstance(text, dict) else text
    assert len({event["pid"] for event in events if event.get("ph") == "X"}) == 4, "a process of the viewer for each rank"


@test
def attention_takes_every_name_that_generate_takes(cwd):
    words = ["tokens=32", "heads=4", "head_dim=16", "batch=1", "repeat=1", "ranks=4"]
    names = ["tokamax_flash", "tokamax_ring", "ulysses_custom_fixed_m", "ulysses_ring_custom_bidir",
             "ring+softmax=fixed_max+ring_direction=two_way"]
    found = rows(cwd, "attention", "strategies=" + ",".join(names), *words)
    assert [(row["strategy"], row["ulysses"], row["ring"], row["softmax"], row["direction"]) for row in found] == [
        ("tokamax_flash", 1, 1, "online", "forward"), ("tokamax_ring", 1, 4, "online", "forward"),
        ("ulysses_custom_fixed_m", 4, 1, "fixed_max", "forward"),
        ("ulysses_ring_custom_bidir", 2, 2, "online", "open"),
        ("ring+softmax=fixed_max+ring_direction=two_way", 1, 4, "fixed_max", "two_way")], found
    assert [row["note"] for row in found] == ["attention=tokamax_flash is computed as flash"] + 4 * [None], found
    (pathlib.Path(cwd) / "out.json").unlink()
    refused(cwd, bench(cwd, "attention", "strategies=ulysses_ring", *words[:-1], "ranks=3"), "a context of 3 ranks")


@test
def attention_of_fewer_tokens_than_ranks(cwd):
    """The first rank has no token, and so no kernel."""
    for strategy in ("gather", "ring", "ulysses", "ulysses_ring"):
        (row,) = rows(cwd, "attention", f"strategies={strategy}", "tokens=3", "heads=4", "head_dim=16", "ranks=4",
                      "batch=1", "repeat=1")
        assert not row["note"] and row["implementation"] not in ("", "none"), row


@test
def attention_runs_under_mpirun(cwd):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    check_strategies(rows(cwd, "attention", *ATTENTION, ranks=2), 2)


@test
def product_verifies_and_times_every_dtype(cwd):
    found = rows(cwd, "product", *PRODUCT, "threads=1,2")
    dtypes = ("bf16", "f32", "int8")
    assert {(row["dtype"], row["threads"]) for row in found} == {(d, t) for d in dtypes for t in (1, 2)}, found
    for row in found:
        assert not row["note"] and 0 < row["rel_l2"] <= row["tolerance"], row
        assert row["seconds_median"] >= row["seconds_min"] > 0 and row["fraction"] > 0, row
    os.remove(pathlib.Path(cwd) / "out.json")
    for word in ("7x70", "0x1x1", "7x70x", "axbxc", "1x1048576x1048576"):
        refused(cwd, bench(cwd, "product", "shapes=" + word), "shapes", word)


@test
def all_makes_one_page_that_stands_alone(cwd):
    words = ["peak." + w for w in PEAK] + ["comm." + w for w in COMM] + ["attention." + w for w in ATTENTION]
    words += ["kernel." + w for w in KERNEL[1:]] + ["kernel.shapes=1x64x1x128,1x128x1x128", "kernel.threads=1"]
    words += ["product." + w for w in PRODUCT]
    words += ["numerics.tokens=32,64", "numerics.head_dim=16", "numerics.rows=8"]
    result = bench(cwd, "all", *words, "html=page.html", "json=out.json")
    assert result.returncode == 0, result.stderr
    report = json.loads((pathlib.Path(cwd) / "out.json").read_text())
    assert list(report) == ["machine", "peak", "kernel", "product", "numerics", "comm", "attention"]
    page = (pathlib.Path(cwd) / "page.html").read_text()
    assert "http:" not in page and "https:" not in page and "<script" not in page and "@import" not in page
    links = Links()
    links.feed(page)
    assert not links.open and not links.outside, (links.open, links.outside)
    assert {"title", "style", "svg", "table", "figure"} <= links.seen
    assert page.count("<svg viewBox=\"0 0 5") >= 6, "plots of kernel, comm and attention"


def report(cwd, mode, *arguments):
    rows(cwd, mode, *arguments)
    return json.loads((pathlib.Path(cwd) / "out.json").read_text())


def check_model_row(row):
    assert not row["note"], row
    assert 0 < row["rel_l2"] <= row["tolerance"], row
    assert row["seconds_median"] >= row["seconds_min"] > 0, row
    assert row["fraction"] > 0 and row["gflop"] > 0 and row["peak_gflops"] > 0, row
    assert row["peak_bytes"] > row["weight_bytes"] > 0, row


def check_operations(found, keys):
    """Shares of one pass add up to one."""
    assert {"operation", "calls", "seconds", "share", "gflop", "fraction"} <= set(found[0]), found[0]
    for key in keys:
        share = sum(row["share"] for row in found if all(row[name] == value for name, value in key.items()))
        assert abs(share - 1) < 1e-6, (key, share)


@test
def model_is_verified_and_timed_in_every_dtype_and_length(cwd):
    found = report(cwd, "model", *TINY, *SMALL, "num_frames=1,5", "dtype=all", "threads=2")
    cases = [(dtype, frames) for dtype in ("bf16", "f32") for frames in (1, 5)]
    assert [(row["dtype"], row["num_frames"]) for row in found["model"]] == cases
    assert [row["tokens"] for row in found["model"]] == [6, 12, 6, 12], found["model"]  # 16 x 16 pixels each
    for row in found["model"]:
        check_model_row(row)
        assert row["layers"] == 6 and row["above_weights_bytes"] == row["peak_bytes"] - row["weight_bytes"], row
    check_operations(found["model_operations"], [{"dtype": d, "num_frames": f} for d, f in cases])


@test
def model_takes_fewer_layers_and_weights_by_formula(cwd):
    (short,) = rows(cwd, "model", *TINY, *SMALL, "num_frames=1", "layers=1")
    (whole,) = rows(cwd, "model", *TINY, "weights=random", *SMALL, "num_frames=1")
    check_model_row(short)
    check_model_row(whole)
    assert short["layers"] == 1 and short["gflop"] < whole["gflop"] and short["weight_bytes"] < whole["weight_bytes"]


@test
def vae_is_verified_and_timed(cwd):
    found = report(cwd, "vae", *TINY, *SMALL, "num_frames=1,5", "dtype=all", "html=page.html")
    assert [(r["dtype"], r["num_frames"]) for r in found["vae"]] == [("bf16", 1), ("bf16", 5), ("f32", 1), ("f32", 5)]
    for row in found["vae"]:
        check_model_row(row)
        assert row["dense_gflop"] > row["gflop"], row
    check_operations(found["vae_operations"], [{"dtype": "bf16", "num_frames": 5}, {"dtype": "f32", "num_frames": 1}])
    assert "dense GFLOP" in (pathlib.Path(cwd) / "page.html").read_text()
    both = report(cwd, "vae", *TINY, *SMALL, "num_frames=1", "dtype=bf16", "convolution=all")
    check_operations(both["vae_operations"], [{"convolution": "direct"}, {"convolution": "auto"}])


@test
def text_is_verified_and_compared_with_its_bound(cwd):
    found = report(cwd, "text", *TINY, "tokens=3,9", "dtype=all")
    assert [(row["dtype"], row["tokens"]) for row in found["text"]] == [("bf16", 3), ("bf16", 9), ("f32", 3), ("f32", 9)]
    for row in found["text"]:
        check_model_row(row)
        assert abs(row["ratio"] * row["bound_seconds"] / row["seconds_median"] - 1) < 1e-6, row
        # The file's bf16 whatever is computed with: two layers, final norm, the embedding's rows of the ids.
        assert row["read_bytes"] == 2 * (2 * (2 * 32 + 4 * 32 * 32 + 3 * 32 * 64 + 32 * 4) + 32 + 32 * row["tokens"])
    (made,) = rows(cwd, "text", *TINY, "weights=random", "tokens=3")
    check_model_row(made)
    assert made["bound_seconds"] is None and made["read_bytes"] is None, made


@test
def load_measures_a_first_start(cwd):
    found = rows(cwd, "load", *TINY, "dtype=all", "repeat=2")
    assert [(row["start"], row["dtype"]) for row in found] == [
        (start, dtype) for dtype in ("bf16", "f32") for start in ("first", "on use")]
    for row in found:
        if row["start"] == "on use":
            assert row["seconds_median"] >= row["seconds_min"] > 0 and row["of_first"] > 0, row
            continue
        assert not row["note"] and 0 < row["rel_l2"] <= row["tolerance"], row
        assert row["seconds_median"] >= row["seconds_min"] > 0 and row["forward_seconds"] > 0, row
        assert row["bytes"] > 0 and row["fraction"] > 0 and row["of_first"] == 1, row


@test
def load_measures_starts_through_a_cache(cwd):
    found = rows(cwd, "load", *TINY, "repeat=2", "weight_cache=cache")
    assert [row["start"] for row in found] == ["first", "on use", "writes cache", "from cache"]
    for row in [row for row in found if row["start"] != "on use"]:
        assert not row["note"] and 0 < row["rel_l2"] <= row["tolerance"] and row["of_first"] > 0, row
    written = list((pathlib.Path(cwd) / "cache").rglob("*.weights"))
    assert len(written) == 1, written
    (pathlib.Path(cwd) / "file").write_text("")
    result = bench(cwd, "load", *TINY, "repeat=1", "weight_cache=file")
    assert result.returncode != 0 and "file: this folder cannot be made" in result.stderr, result.stderr


def processes_in(folder):
    """Processes whose working folder this is."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == os.path.realpath(folder):
                found.append(int(process.name))
        except OSError:
            pass
    return found


@test
def shared_is_verified_and_compared_with_the_fair_share(cwd):
    found = rows(cwd, "shared", *TINY, *SMALL, "num_frames=5", "dtype=f32", "busy=1,3", "seconds=0", "html=page.html")
    assert [(row["part"], row["busy"]) for row in found] == [(part, busy) for part in ("forward", "decode")
                                                             for busy in (0, 1, 3)], found
    for row in found:
        assert not row["note"] and 0 < row["rel_l2"] <= row["tolerance"], row
        assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"], row
        assert abs(row["fair"] - (row["threads"] + row["busy"]) / row["threads"]) < 1e-9, row  # a thread for each core
        assert abs(row["of_fair"] * row["fair"] - row["slower"]) < 1e-9 and row["of_fair_max"] >= row["of_fair"], row
    assert found[0]["slower"] == found[3]["slower"] == 1, found
    assert "next to 3" in (pathlib.Path(cwd) / "page.html").read_text()
    assert not processes_in(cwd)


@test
def shared_takes_its_busy_processes_along_when_it_is_killed(cwd):
    process = subprocess.Popen([PROGRAM, "bench", "shared", *TINY[:2], *SMALL, "num_frames=5", "busy=3", "repeat=10000"],
                               cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while len(processes_in(cwd)) < 4:
            assert process.poll() is None, process.returncode
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    while processes_in(cwd):  # the harness ends a test that waits for ever
        time.sleep(0.01)


# ---- bad input ----

@test
def bad_modes_and_keys_are_refused(cwd):
    refused(cwd, bench(cwd), "MODE", "peak, kernel, ", "attention, model, vae, text, load, shared, pipeline, all")
    refused(cwd, bench(cwd, "kernels"), "'kernels'", "peak, kernel")
    refused(cwd, bench(cwd, "peak", "json=a", "html=./a"), "html=./a is the same file as json=a")
    refused(cwd, bench(cwd, "kernel", "shape=1x8x1x8"), "shape", "shapes")
    refused(cwd, bench(cwd, "kernel", "shapes=8x8"), "'8x8'", "BxSxHxD")
    refused(cwd, bench(cwd, "kernel", "dtype=f16"), "'f16'", "bf16")
    refused(cwd, bench(cwd, "kernel", "implementation=amx"), "'amx'", "avx2")
    refused(cwd, bench(cwd, "kernel", "softmax=lazy"), "'lazy'", "online")
    refused(cwd, bench(cwd, "kernel", "threads=0"), "'0'")
    refused(cwd, bench(cwd, "peak", "sizes=16T"), "'16T'")
    refused(cwd, bench(cwd, "peak", "seconds=nan"), "seconds")
    refused(cwd, bench(cwd, "comm", "ranks=1"), "2 is the least")
    refused(cwd, bench(cwd, "attention", "strategies=spiral"), "attention=spiral is not known", "ulysses_ring")
    refused(cwd, bench(cwd, "attention", "strategies=ring+ulysses_shards=2"), "ulysses_shards=1", "ulysses_shards=2")
    refused(cwd, bench(cwd, "attention", "strategies=auto"), "strategies=auto")
    refused(cwd, bench(cwd, "attention", "tokens=0"), "tokens")
    refused(cwd, bench(cwd, "attention", *ATTENTION, "kernel=abacus"), "kernel=abacus", "no implementation")
    refused(cwd, bench(cwd, "attention", *ATTENTION, "kernel=avx512_bf16", "dtype=f32"), "kernel=avx512_bf16", "BF16")
    refused(cwd, bench(cwd, "comm", "comm_timeout=0"), "comm_timeout")
    refused(cwd, bench(cwd, "all", "attn.tokens=5"), "'attn'")
    refused(cwd, bench(cwd, "all", "tokens=5"), "tokens")
    refused(cwd, bench(cwd, "all", "model.layers=1"), "'model'")


@test
def bad_models_are_refused(cwd):
    for mode in ("model", "vae", "text", "load", "shared"):
        refused(cwd, bench(cwd, mode, "model=missing", "weights=checkpoint"), "missing")
        refused(cwd, bench(cwd, mode, *TINY, "weights=zero"), "weights", "'zero'", "random", "checkpoint")
        refused(cwd, bench(cwd, mode, *TINY, "dtype=f16"), "'f16'", "bf16")
        refused(cwd, bench(cwd, mode, *TINY, "threads=-1"), "threads")
    refused(cwd, bench(cwd, "model", "model=wan2.1_t2v_1.3b", "weights=checkpoint"), "wan2.1_t2v_1.3b")
    refused(cwd, bench(cwd, "model", *TINY, "layers=7"), "layers=7", "6")
    refused(cwd, bench(cwd, "model", *TINY, "height=40"), "height=40", "16")
    refused(cwd, bench(cwd, "model", *TINY, *SMALL, "num_frames=1,4"), "num_frames=4", "4 times", "plus 1")
    refused(cwd, bench(cwd, "vae", *TINY, "width=52"), "width=52", "8")
    refused(cwd, bench(cwd, "vae", *TINY, *SMALL, "num_frames=3"), "num_frames=3", "plus 1")
    refused(cwd, bench(cwd, "text", *TINY, "tokens=513"), "tokens", "'513'")
    refused(cwd, bench(cwd, "shared", *TINY, "busy=0"), "busy", "'0'")
    refused(cwd, bench(cwd, "shared", *TINY, "height=40"), "height=40", "16")


@test
def an_output_that_cannot_be_written_is_refused_before_measuring(cwd):
    refused(cwd, bench(cwd, "kernel", "json=missing/out.json"), "missing")
    refused(cwd, bench(cwd, "kernel", "html=missing/out.html"), "missing")
    refused(cwd, bench(cwd, "kernel", "svg=/proc/nothing"), "/proc/nothing")


@test
def modes_of_one_process_refuse_mpirun(cwd):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    refused(cwd, bench(cwd, "peak", *PEAK, ranks=2), "without mpirun")


@test
def what_cannot_be_measured_under_mpirun_is_said_once(cwd):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    refused(cwd, bench(cwd, "attention", *ATTENTION, "kernel=abacus", ranks=2), "kernel=abacus", "no implementation")


def use(program):
    global PROGRAM
    PROGRAM = program


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
