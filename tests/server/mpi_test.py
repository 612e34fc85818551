"""`mpirun -n 3 zoetrope serve`: rank 0 serves, and all ranks make the videos.

mpi_test.py PROGRAM MODEL NAME
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import harness
from harness import LONG, Server, block_video, compressed_frames, run_script, slow_profile

RANKS = 3
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
           "OMPI_MCA_btl": "self,vader"}


def serving(folder, *settings, **options):
    return Server(folder, *settings, launcher=["mpirun", "-n", str(RANKS)], environment=MPI_ENV, **options)


def content(server, identity):
    server.until(identity, "completed")
    return compressed_frames(server.get(f"/v1/videos/{identity}/content").body)


def the_same_frames_as_ranks_that_are_threads(folder):
    (folder / "threads").mkdir()
    with Server(folder / "threads", f"ranks={RANKS}") as server:
        wanted = [content(server, server.create(seed=seed).ok()["id"]) for seed in (1, 2)]
    assert wanted[0] != wanted[1]
    with serving(folder) as server:
        ids = [server.create(seed=seed).ok()["id"] for seed in (1, 2, 1)]
        assert [content(server, identity) for identity in ids] == [*wanted, wanted[0]]
        plan = server.ask("POST", "/v1/videos/plan", body=harness.SMALL).ok()
        assert f"{RANKS}" in plan["layout"], plan


def previews_and_frames_of_one_decoder(folder):
    """Rank 0 alone loads it for previews, which the first of these jobs has; then all have it."""
    with serving(folder, "vae_parallel=3") as server:
        ids = [server.create(seed=1, size="32x64", preview=1).ok()["id"] for _ in range(3)]
        made = [content(server, identity) for identity in ids]
        assert made[1:] == made[:1] * 2


def a_prompt_that_is_the_word_default(folder):
    with serving(folder) as server:
        server.until(server.create(prompt="default").ok()["id"], "completed")


def cancelled_on_all_ranks(folder):
    """Again and again, in the steps and before them, and the model stays open with its weights."""
    with serving(folder) as server:
        for _ in range(3):
            first = server.create(LONG).ok()["id"]
            server.until_computing(first)
            server.ask("DELETE", f"/v1/videos/{first}").ok()
            hasty = server.create(LONG).ok()["id"]
            server.ask("DELETE", f"/v1/videos/{hasty}").ok()
            server.until(server.create().ok()["id"], "completed")
        assert server.metric("steps_total") < 3 * 900, "a cancelled run went on"
        assert server.log().count("opened") == 1, server.log()


def weights_that_ranks_share(folder):
    """Each rank keeps a part of the weights for the others, also after a job that was cancelled: in its steps, and when
    its frames are decoded, which takes seconds and where the weights stay."""
    decodes = {**harness.SMALL, "size": "128x128", "num_frames": 321, "num_inference_steps": 1}
    with serving(folder, f"fsdp_parallelism={RANKS}", f"context_parallelism={RANKS}") as server:
        ids = [server.create(seed=1).ok()["id"]]
        for settings, phase in ((LONG, "denoising"), (decodes, "decoding")):
            cancelled = server.create(settings).ok()["id"]
            server.until_phase(cancelled, phase)
            server.ask("DELETE", f"/v1/videos/{cancelled}").ok()
            ids += [server.create(seed=1).ok()["id"] for _ in range(2)]
        files = [content(server, identity) for identity in ids]
        assert len(set(files)) == 1
        assert server.metric('runs_total{status="cancelled"}') == 2


def memory_is_shared_by_the_processes_of_a_host(folder):
    """What each process may have is a part of what one alone may have."""
    def available(server):
        body = {**harness.SMALL, "size": "16384x16384", "num_frames": 4093}
        plan = server.ask("POST", "/v1/videos/plan", body=body).ok()
        return float(re.search(r" but ([\d.]+) GB are available", plan["reason"])[1])

    (folder / "alone").mkdir()
    with Server(folder / "alone") as alone, serving(folder) as together:
        ratio = available(alone) / available(together)
        assert 0.7 * RANKS < ratio < 1.4 * RANKS, ratio


def two_models(folder):
    other = folder / "other"
    shutil.copytree(harness.MODEL, other)
    with serving(folder, models=[harness.MODEL, other]) as server:
        names = [model["id"] for model in server.get("/v1/models").ok()["data"]]
        ids = [server.create(seed=1, model=name).ok()["id"] for name in (*names, names[0])]
        files = [content(server, identity) for identity in ids]
        assert files[0] == files[1] == files[2]


def a_file_that_one_rank_lacks(folder):
    """The job fails with that rank's sentence, and the server goes on."""
    model = pathlib.Path(__file__).resolve().parents[1] / "golden" / "pipelines" / "wan21_i2v"
    hidden = folder / "state"
    # The last rank sees an empty folder where the jobs' files are.
    serve = " ".join([harness.PROGRAM, "serve", str(model), "port=0", f"state={hidden}", "threads=1"])
    script = f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec unshare -m sh -c "mount -t tmpfs none {hidden} && exec {serve}"; fi; exec {serve}'
    hidden.mkdir()
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        print("no mount namespaces here")
        sys.exit(77)
    with Server(folder, launcher=["mpirun", "-n", "2", "sh", "-c", script], environment=MPI_ENV, models=[model]) as server:
        parts = [("prompt", "a red ball"), ("size", "32x32"), ("num_frames", "5"), ("num_inference_steps", "2")]
        identity = server.form([*parts, ("image", harness.png(32, 32), "x.png")]).ok()["id"]
        failed = server.until(identity, "failed")
        assert "image.png" in failed["error"]["message"], failed
        server.retry(identity).ok()
        assert server.until(identity, "failed")["error"] == failed["error"]
        assert server.get("/health").status == 200


def a_failed_one_goes_on_on_all_ranks(folder):
    """Where it was, and the server makes other videos."""
    steps = {**LONG, "num_inference_steps": 300}
    with serving(folder, slow_profile(folder, devices=RANKS)) as server:
        identity = server.create(steps, seed=1).ok()["id"]
        server.until_computing(identity)
        place = block_video(folder, identity)
        server.until(identity, "failed")
        shutil.rmtree(place)
        computed = server.metric("steps_total")
        server.retry(identity).ok()
        made = content(server, identity)
        assert server.metric("steps_total") == computed and f"{identity}: Goes on after" in server.log(), server.log()
        assert content(server, server.create(steps, seed=1).ok()["id"]) == made


def ended_and_started_again(folder):
    """As often as one likes: mpirun kills the ranks when they have had a second, and that is no crash of theirs. A layer
    of this video takes longer."""
    for start in range(3):
        with serving(folder) as server:
            if start == 0:
                identity = server.create({**LONG, "size": "832x480", "num_frames": 81}).ok()["id"]
            server.until_phase(identity, "denoising")
            server.stop(signal.SIGTERM)
    with serving(folder) as server:
        assert server.video(identity)["status"] in ("queued", "in_progress"), server.video(identity)
        server.ask("DELETE", f"/v1/videos/{identity}").ok()
        server.until(server.create().ok()["id"], "completed")


def processes_of(server):
    """The ranks' process ids, rank 0 first."""
    ids = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(server.process.pid):
                values = dict(line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line)
                ids.append((int(values["OMPI_COMM_WORLD_RANK"]), int(folder.name)))
        except OSError:  # ended meanwhile
            pass
    assert len(ids) == RANKS, ids
    return [process for _, process in sorted(ids)]


def a_rank_that_does_not_answer(folder):
    """While nothing runs, and in a job, which the next server takes up again."""
    for job in (False, True):
        place = folder / ("in_a_job" if job else "idle")
        place.mkdir()
        with serving(place, "comm_timeout=10") as server:
            identity = server.create(LONG).ok()["id"] if job else None
            if job:
                server.until_computing(identity)
            os.kill(processes_of(server)[2], signal.SIGSTOP)
            code = server.process.wait(timeout=harness.PATIENCE)
            # Rank 0 may wait for rank 1, which waits for rank 2, and either may be the first to give up: the sentence
            # names the rank that is missing.
            assert code != 0 and re.search(r"waited 10 s for rank \d .*; rank 2 on \S+ is dead: ", server.log()), f"{code}\n{server.log()}"
    with Server(place) as server:
        assert server.video(identity)["status"] in ("queued", "in_progress")


def refused_where_ranks_is_another_number(folder):
    result = subprocess.run(["mpirun", "-n", "2", harness.PROGRAM, "serve", str(harness.MODEL), "port=0", "ranks=4"], text=True,
                            timeout=harness.PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, **MPI_ENV}, cwd=folder)
    assert result.returncode != 0 and result.stdout.count("ranks=4: mpirun started 2 ranks") == 1, result.stdout


TESTS = {test.__name__: test for test in (
    the_same_frames_as_ranks_that_are_threads, previews_and_frames_of_one_decoder, a_prompt_that_is_the_word_default,
    cancelled_on_all_ranks, weights_that_ranks_share, memory_is_shared_by_the_processes_of_a_host, two_models,
    a_file_that_one_rank_lacks, a_failed_one_goes_on_on_all_ranks, a_rank_that_does_not_answer, ended_and_started_again,
    refused_where_ranks_is_another_number)}

if __name__ == "__main__":
    if sys.argv[1:] != ["--list"] and not shutil.which("mpirun"):
        print("mpirun is not installed")
        sys.exit(77)
    sys.exit(run_script(TESTS))
