#!/usr/bin/env python3
"""`zoetrope bench pipeline` as a user runs it: whole runs of every strategy and batch, and that bad input gets one sentence.

    bench_pipeline_test.py PROGRAM NAME    runs one test (exit 77: skipped, with the reason)
    bench_pipeline_test.py --list          the names
"""
import json
import os
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
import bench_test  # noqa: E402
from bench_test import bench, refused  # noqa: E402
from harness import MPI_ENV, Skip, run, run_script  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "pipelines" / "wan21_t2v"
PIPELINE = [f"model={GOLDEN}", "weights=checkpoint", "dtype=float32", "height=32", "width=48", "num_frames=5",
            "num_inference_steps=2"]
PUBLISHED = {"flash": "gather {0}", "ring": "Ulysses 1 x ring {0}", "ulysses": "Ulysses {0} x ring 1",
             "ulysses_ring": "Ulysses 2 x ring 2", "ulysses_ring_custom_fixed_m": "fixed_max",
             "ulysses_ring_custom_bidir": "open"}


def check_pipeline(report, ranks, batches):
    rows, phases = report["pipeline"], report["pipeline_phases"]
    assert list(dict.fromkeys(row["strategy"] for row in rows))[:6] == list(PUBLISHED), rows
    assert [row["batch"] for row in rows] == batches * (len(rows) // len(batches)), rows
    for row in rows:
        assert row["ranks"] == ranks
        if ranks == 2 and row["strategy"].startswith("ulysses_ring"):
            assert "2 ranks" in row["note"] and row["seconds_min"] is None, row
            continue
        assert row["note"] is None, row
        parts = {p["phase"]: p["seconds"] for p in phases if (p["strategy"], p["batch"]) == (row["strategy"], row["batch"])}
        assert list(parts)[0] == "Load" and parts["Inference"] == row["seconds_min"] == row["per_video"] * row["batch"], row
        for key, phase in (("text_encoder_seconds", "Conditioning/text encoder"), ("denoise_seconds", "Denoise"),
                           ("vae_seconds", "VAE decode"), ("formatting_seconds", "VAE decode/output, meanwhile")):
            assert 0 < row[key] == parts["Inference/" + phase] < row["seconds_min"], (row, parts)
        single = next(r["seconds_min"] for r in rows if (r["strategy"], r["batch"]) == (row["strategy"], 1))
        assert abs(row["of_singles"] - row["seconds_min"] / row["batch"] / single) < 1e-9, row
        assert PUBLISHED.get(row["strategy"], "").format(ranks) in row["layout"], row
        assert row["rel_l2"] <= 1e-5 and row["bytes_sent"] > 0 and row["peak_bytes"] > 0, row
        assert row["rel_l2"] == 0 or row["strategy"] != "flash", row  # the videos of a batch are those of its own rows


@test
def pipeline_measures_every_strategy_and_traces_batch_2(cwd):
    result = bench(cwd, "pipeline", *PIPELINE, "ranks=4", "batch=1,2", "json=out.json", "html=out.html", "traces=traces")
    report = json.loads((pathlib.Path(cwd) / "out.json").read_text())
    check_pipeline(report, 4, [1, 2])
    assert len(report["pipeline"]) == 18 and "Inference/Denoise" in result.stdout, result.stdout
    assert "Timing summaries" in (pathlib.Path(cwd) / "out.html").read_text()
    traces = sorted(p.name for p in (pathlib.Path(cwd) / "traces").iterdir())
    assert len(traces) == 9 and "ulysses_ring.json" in traces, traces
    events = json.loads((pathlib.Path(cwd) / "traces" / "ring.json").read_text())["traceEvents"]
    assert len({event["pid"] for event in events if event.get("ph") == "X"}) == 4, "a process of the viewer for each rank"


@test
def pipeline_says_what_these_ranks_cannot_do(cwd):
    bench(cwd, "pipeline", *PIPELINE, "ranks=2", "batch=1,4", "threads=2", "json=out.json")
    check_pipeline(json.loads((pathlib.Path(cwd) / "out.json").read_text()), 2, [1, 4])


@test
def pipeline_runs_under_mpirun(cwd):
    if shutil.which("mpirun") is None:
        raise Skip("there is no mpirun")
    result = bench(cwd, "pipeline", *PIPELINE, "batch=1,2", "threads=1", "json=out.json", "traces=traces", ranks=2)
    assert result.returncode == 0, result.stderr
    check_pipeline(json.loads((pathlib.Path(cwd) / "out.json").read_text()), 2, [1, 2])
    assert (pathlib.Path(cwd) / "traces" / "ring.json").stat().st_size > 1000


@test
def a_batch_that_does_not_fit_leaves_the_other_rows(cwd):
    """Also over processes, where all refuse it alike."""
    if any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")):
        raise Skip("sanitizers need address space of their own")
    limit = "ulimit -v 900000; exec "
    words = [*PIPELINE, "height=128", "width=128", "num_frames=9", "batch=1,64", "strategies=ring", "threads=1", "repeat=1",
             "json=b.json"]
    command = " ".join(["mpirun", "-n", "2", str(bench_test.PROGRAM), "bench", "pipeline", *map(str, words)])
    result = run(["sh", "-c", limit + command], cwd, env=MPI_ENV)
    assert result.returncode == 1 and "memory: this run needs" in result.stderr, result.stderr
    fits, does_not = json.loads((pathlib.Path(cwd) / "b.json").read_text())["pipeline"]
    assert fits["seconds_min"] > 0 and "memory: this run needs" in does_not["note"], (fits, does_not)


@test
def pipeline_takes_a_recipe(cwd):
    sent = []  # one branch a step with a recipe, else two
    for word in ("recipe=lightning_4", "num_inference_steps=4"):
        bench(cwd, "pipeline", *PIPELINE[:-1], word, "strategies=ulysses", "ranks=2", "batch=1", "json=out.json")
        sent.append(json.loads((pathlib.Path(cwd) / "out.json").read_text())["pipeline"][0]["bytes_sent"])
    assert 1.5 < sent[1] / sent[0] < 2.1, sent


@test
def bad_runs_of_a_pipeline_are_refused(cwd):
    for words, *said in ((["height=40"], "height=40", "multiple of 16"), (["num_frames=4"], "num_frames=4", "4k + 1"),
                         (["batch=0"], "'0'"), (["batch=1,65"], "'65'"), (["dtype=all"], "dtype=all", "bf16"),
                         (["batch=1", "traces=traces"], "traces are of batch 2"), (["layers=9"], "layers=9"),
                         (["strategies=spiral"], "attention=spiral is not known"), (["strategies=auto"], "strategies=auto"),
                         (["strategies=ulysses_ring", "ranks=3"], "a context of 3 ranks"),
                         (["model=missing"], "missing"), (["steps=3"], "num_inference_steps"),
                         (["traces=new/traces"], "new/traces"), (["recipe=fast"], "recipe=fast", "lightning_4"),
                         (["recipe=lightning_4"], "num_inference_steps=2", "recipe=lightning_4")):
        refused(cwd, bench(cwd, "pipeline", *PIPELINE, *words), *said)
    if shutil.which("mpirun") is not None:
        refused(cwd, bench(cwd, "pipeline", *PIPELINE, "height=40", ranks=2), "height=40")


if __name__ == "__main__":
    sys.exit(run_script(TESTS, bench_test.use))
