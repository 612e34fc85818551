"""What becomes of jobs when the server ends, by any signal, and starts again; and what keeps it from starting.

restart_test.py PROGRAM MODEL NAME
"""
import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import harness
from harness import LONG, SMALL, Server, block_video, change_job, compressed_frames, events_of, run_script, slow_profile


def restart_after(folder, number):
    """The job that ran and those that waited are run by the next server, in order, with the bits that they have alone."""
    with Server(folder) as server:
        done = server.create(seed=1).ok()["id"]
        server.until(done, "completed")
        alone = server.get(f"/v1/videos/{done}/content").body
        ids = [server.create({**LONG, "num_inference_steps": 300}, seed=2).ok()["id"]]
        ids += [server.create(seed=seed).ok()["id"] for seed in (1, 3)]
        server.until_computing(ids[0])
        code = server.stop(number)
        assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL), code
        if number != signal.SIGKILL:
            assert "it is queued for the next start" in server.log(), server.log()
    with Server(folder) as server:
        listed = server.get("/v1/videos?order=asc").ok()["data"]
        assert [video["id"] for video in listed] == [done, *ids], listed
        assert server.get(f"/v1/videos/{done}/content").body == alone
        server.ask("DELETE", f"/v1/videos/{done}").ok()
        videos = [server.until(identity, "completed") for identity in ids]
        finished = [video["completed_at"] for video in videos]
        assert finished == sorted(finished), finished
        assert server.get(f"/v1/videos/{ids[1]}/content").body == alone
        new = server.create().ok()["id"]
        assert server.get("/v1/videos").ok()["data"][0]["id"] == new


def after_sigterm(folder):
    restart_after(folder, signal.SIGTERM)


def after_sigint(folder):
    restart_after(folder, signal.SIGINT)


def after_sigkill(folder):
    restart_after(folder, signal.SIGKILL)


def killed_with_a_journal(folder, *settings, **request):
    """A job of a server that was killed while it computed."""
    with Server(folder, *settings) as server:
        identity = server.create({**LONG, **request}).ok()["id"]
        server.until_computing(identity)
        server.stop(signal.SIGKILL)
    journal = folder / "state" / identity / "journal"
    assert (journal / "state.safetensors").exists()
    return identity, journal


def long_ones_go_on_where_the_server_was_killed(folder):
    slow = slow_profile(folder)
    request = {**SMALL, "num_inference_steps": 600}
    with Server(folder, slow) as server:
        first = server.create(request, seed=1).ok()["id"]
        server.until(first, "completed")
        alone = server.get(f"/v1/videos/{first}/content").body
        assert not (folder / "state" / first / "journal").exists()
    second, journal = killed_with_a_journal(folder, slow, **request, seed=1)
    assert list(journal.parent.glob(".zoetrope-*.partial")), "the unfinished video"
    with Server(folder, slow) as server:
        server.until(second, "completed")
        assert not list(journal.parent.glob(".zoetrope-*.partial"))
        assert server.get(f"/v1/videos/{second}/content").body == alone
        assert f"{second}: Goes on after step" in server.log(), server.log()


def a_journal_of_other_settings_is_dropped(folder):
    """The video is made again. That is one start of this server, not two."""
    slow = slow_profile(folder)
    identity, journal = killed_with_a_journal(folder, slow)
    starts = journal.with_name("starts")
    assert starts.stat().st_size == 1
    with Server(folder, slow, "layers=1") as server:
        server.until_computing(identity)
        assert starts.stat().st_size == 2, starts.read_bytes()
        server.until(identity, "completed")
        assert f"{identity}: begins again: " in server.log() and "layers is" in server.log(), server.log()
        assert not journal.exists()


def a_damaged_journal_is_dropped(folder):
    slow = slow_profile(folder)
    identity, journal = killed_with_a_journal(folder, slow, num_inference_steps=600)
    for record in journal.glob("*.safetensors"):
        record.write_bytes(record.read_bytes()[:-1])
    with Server(folder, slow) as server:
        server.until(identity, "completed")
        assert f"{identity}: begins again: " in server.log(), server.log()


def a_journal_outlives_other_failures(folder):
    """What keeps a run from beginning says nothing of its journal: a signal, memory that is short."""
    slow = slow_profile(folder)
    identity, journal = killed_with_a_journal(folder, slow)
    for _ in range(5):
        before = (folder / "errors.txt").stat().st_size
        with Server(folder, slow) as server:
            while "started" not in server.log()[before:]:
                assert server.process.poll() is None
                time.sleep(0.02)
            assert server.stop(signal.SIGTERM) == 0
        assert (journal / "state.safetensors").exists()
    fail_for_memory(folder, slow, ids=[identity])
    assert (journal / "state.safetensors").exists()
    assert "begins again" not in (folder / "errors.txt").read_text()


def fail_for_memory(folder, *settings, ids):
    """A server that has too little for jobs that an earlier one left."""
    with Server(folder, *settings, "memory_limit=0.02") as server:
        for identity in ids:
            video = server.until(identity, "failed")
            assert "memory: this run needs" in video["error"]["message"], video


def a_failed_one_goes_on_where_it_was(folder):
    """Also in a later server, and with the seed that was drawn."""
    slow = slow_profile(folder)
    request = {"num_inference_steps": 600}
    identity, journal = killed_with_a_journal(folder, slow, **request)
    fail_for_memory(folder, slow, ids=[identity])
    with Server(folder, slow) as server:
        failed, before = server.video(identity), len(server.log())
        assert failed["status"] == "failed" and (journal / "state.safetensors").exists(), failed
        again = server.retry(identity).ok()
        assert again["id"] == identity and again["status"] == "queued" and again["queue_position"] == 0, again
        assert [again[key] for key in ("error", "completed_at", "seconds_taken", "warnings")] == [None, None, None, []], again
        assert [again[key] for key in ("created_at", "settings")] == [failed[key] for key in ("created_at", "settings")], again
        video = server.until(identity, "completed")
        assert f"{identity}: Goes on after step" in server.log()[before:] and not journal.exists(), server.log()
        alone = server.create({**SMALL, **request}, seed=video["seed"]).ok()["id"]
        server.until(alone, "completed")
        frames = [compressed_frames(server.get(f"/v1/videos/{each}/content").body) for each in (identity, alone)]
        assert frames[0] == frames[1]


def one_that_failed_at_its_end_computes_nothing_again(folder):
    with Server(folder, slow_profile(folder)) as server:
        identity = server.create(LONG).ok()["id"]
        server.until_computing(identity)
        place = block_video(folder, identity)
        failed = server.until(identity, "failed")
        assert "video.mp4" in failed["error"]["message"] and failed["seconds_taken"] > 0, failed
        shutil.rmtree(place)
        steps, before = server.metric("steps_total"), len(server.log())
        server.retry(identity).ok()
        # A stream of events begins anew.
        events = events_of(server.get(f"/v1/videos/{identity}/events").body)
        assert events[-1][0] == "completed" and all(name == "progress" for name, _ in events[:-1]), events
        assert re.search(rf"{identity}: Goes on after \d decoded frames", server.log()[before:]), server.log()
        assert server.metric("steps_total") == steps


def a_retried_one_counts_as_the_newest(folder):
    """Behind those that wait, also in the next server, and among those that are kept. Without a journal it is made from
    the beginning."""
    with Server(folder) as server:
        other, identity = server.create(LONG).ok()["id"], server.create(seed=1).ok()["id"]
        server.until_computing(other)
        server.stop(signal.SIGKILL)
    fail_for_memory(folder, ids=[other, identity])

    def listed(server):
        return [video["id"] for video in server.get("/v1/videos").ok()["data"]]
    with Server(folder, "dtype=float32") as server:
        assert listed(server) == [identity, other]
        running, waiting = server.create({**LONG, "num_inference_steps": 300}).ok()["id"], server.create(seed=1).ok()["id"]
        server.until_computing(running)
        again = server.retry(identity).ok()
        assert again["queue_position"] == 2 and " dtype=float32 " in again["command"], again
        assert listed(server) == [identity, waiting, running, other]
        server.stop(signal.SIGKILL)
    with Server(folder, "keep=2") as server:
        assert listed(server) == [identity, waiting, running, other]
        assert " dtype=" not in server.video(identity)["command"], "that of this server"
        server.until(identity, "completed")
        server.until_metric('jobs{status="completed"}', 2)
        assert listed(server) == [identity, waiting]
        files = [server.get(f"/v1/videos/{each}/content").body for each in (identity, waiting)]
        assert files[0] == files[1]


def what_is_left_of_a_journal_does_not_keep_a_job_from_its_run(folder):
    """A server was killed while it removed one: its records are gone, but not its frames."""
    slow = slow_profile(folder)
    identity, journal = killed_with_a_journal(folder, slow, num_inference_steps=600)
    for record in journal.glob("*.safetensors"):
        record.unlink()
    (journal / "frames.f32").write_bytes(b"frames")
    with Server(folder, slow) as server:
        server.until(identity, "completed")
        assert not journal.exists()


def previews_leave_the_journal_alone(folder):
    """The file of a preview is no input of the run: a record may get its inode."""
    with Server(folder, slow_profile(folder)) as server:
        identity = server.create({**SMALL, "num_inference_steps": 40}, preview=1).ok()["id"]
        server.until(identity, "completed")
        assert "the journal cannot be written" not in server.log(), server.log()


def streams_end_with_the_server(folder):
    with Server(folder) as server:
        identity = server.create(LONG).ok()["id"]
        server.until_computing(identity)
        with server.socket() as wire, server.socket() as half:
            wire.sendall(f"GET /v1/videos/{identity}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = b""
            while b"event: progress" not in data:
                data += wire.recv(65536)
            half.sendall(b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert server.stop() == 0
            data += harness.read_all(wire)
            assert b"event: stopping" in data, data[-400:]


def a_download_may_end_after_the_server(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        whole = bytes(range(256)) * 100_000  # more than both sockets hold
        (folder / "state" / identity / "video.mp4").write_bytes(whole)
        with server.socket() as wire:
            wire.sendall(f"GET /v1/videos/{identity}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = wire.recv(4096)
            server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(ConnectionError):
                while True:  # until it listens no longer
                    server.socket().close()
            data += wire.makefile("rb").read()
        assert data.endswith(whole), len(data)
        assert server.process.wait(timeout=harness.PATIENCE) == 0


def a_deleted_one_stays_deleted(folder):
    with Server(folder) as server:
        first, second = server.create(LONG).ok()["id"], server.create(LONG).ok()["id"]
        server.until_computing(first)
        server.ask("DELETE", f"/v1/videos/{first}").ok()
        server.stop(signal.SIGKILL)
    with Server(folder) as server:
        assert [video["id"] for video in server.get("/v1/videos").ok()["data"]] == [second]


def what_kills_the_server_again_and_again_is_given_up(folder):
    slow = slow_profile(folder)
    with Server(folder, slow) as server:
        poison, after = server.create(LONG).ok()["id"], server.create().ok()["id"]
        server.until_computing(poison)
        server.stop(signal.SIGTERM)  # in order: not counted
    for _ in range(3):
        with Server(folder, slow) as server:
            server.until_computing(poison)
            server.stop(signal.SIGKILL)
    job = folder / "state" / poison
    assert (job / "journal").exists()
    with Server(folder) as server:
        video = server.until(poison, "failed")
        assert "ended 3 times while it made this video" in video["error"]["message"], video
        server.until(after, "completed")
    with Server(folder, slow) as server:
        assert server.video(poison)["status"] == "failed"
        assert server.retry(poison).ok()["status"] == "queued"
        server.until_computing(poison)
        assert "Goes on after step" in server.log() and (job / "starts").stat().st_size == 1
        server.stop(signal.SIGKILL)
    with Server(folder, slow) as server:
        assert server.video(poison)["status"] in ("queued", "in_progress")
        server.ask("DELETE", f"/v1/videos/{poison}").ok()
        server.until(server.create().ok()["id"], "completed")
        assert not job.exists()


def an_end_that_cannot_be_saved_is_not_told(folder):
    """A folder takes the place of the job's file, because nothing is forbidden to root."""
    with Server(folder) as server:
        for goes_on in (True, False):
            # The second one waits meanwhile.
            first, identity = server.create(LONG).ok()["id"], server.create().ok()["id"]
            file = folder / "state" / identity / "job.json"
            file.rename(file.with_name("kept"))
            (file / "x").mkdir(parents=True)
            server.ask("DELETE", f"/v1/videos/{first}").ok()
            while f"{identity}: waits until its end can be saved" not in server.log():
                assert server.video(identity)["status"] in ("queued", "in_progress"), server.log()
            server.get(f"/v1/videos/{identity}/content").refused(409, "video_not_ready", param="id")
            if goes_on:
                shutil.rmtree(file)
                server.until(identity, "completed")
                assert json.loads(file.read_text())["status"] == "completed"
        assert server.stop() == 0
        assert f"{identity}: stopped; it is queued for the next start" in server.log(), server.log()


def the_oldest_finished_ones_are_deleted(folder):
    with Server(folder, "keep=2") as server:
        ids = [server.create(seed=i).ok()["id"] for i in range(4)]
        server.until(ids[3], "completed")
        server.until_metric('jobs{status="completed"}', 2)
        assert [video["id"] for video in server.get("/v1/videos").ok()["data"]] == [ids[3], ids[2]]
        server.get(f"/v1/videos/{ids[0]}").refused(404, "not_found", param="id")
        assert f"{ids[0]}: deleted: of finished videos the last 2 are kept" in server.log()
        assert not (folder / "state" / ids[0]).exists() and (folder / "state" / ids[2] / "video.mp4").is_file()
        server.stop()
    with Server(folder, "keep=1") as server:
        assert [video["id"] for video in server.get("/v1/videos").ok()["data"]] == [ids[3]]


def a_lost_video_is_said(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        (folder / "state" / identity / "video.mp4").unlink()
        server.get(f"/v1/videos/{identity}/content").refused(404, "video_lost", identity, param="id")
        assert "video.mp4" in server.log()


def damaged_jobs_are_set_aside(folder):
    with Server(folder) as server:
        good = server.create(seed=1).ok()["id"]
        server.until(good, "completed")
        damaged = [server.create(LONG).ok()["id"]]
        damaged += [server.create().ok()["id"] for _ in range(12)]
        server.stop(signal.SIGKILL)
    state = folder / "state"

    def change(identity, **values):
        change_job(folder, identity, **values)
    (state / damaged[0] / "job.json").write_bytes(b"")
    (state / damaged[1] / "job.json").write_bytes(b"\0" * 4096)
    whole = (state / damaged[2] / "job.json").read_bytes()
    (state / damaged[2] / "job.json").write_bytes(whole[:len(whole) // 2])
    (state / damaged[3] / "job.json").write_text("[]")
    change(damaged[4], status="resting")
    change(damaged[5], number=-1)
    change(damaged[6], id=good)
    change(damaged[7], settings={"output": "/etc/passwd"})
    change(damaged[8], uploads=[{"key": "image", "file": "../../lock"}])
    change(damaged[9], uploads=[{"key": "image", "file": "image.png"}])
    change(damaged[10], status="completed")
    change(damaged[11], number=json.loads((state / good / "job.json").read_text())["number"])
    change(damaged[12], settings="x")
    (state / "video_0").mkdir()
    (state / "note.txt").write_text("mine")
    unfinished = state / ("video_" + "0" * 32)
    unfinished.mkdir()
    (unfinished / "image.png").write_text("half")
    with Server(folder) as server:
        left = [video["id"] for video in server.get("/v1/videos").ok()["data"]]
        assert len(left) == 1 and left[0] in (good, damaged[11]), left
        for identity in damaged[:11]:
            assert (state / "damaged" / identity).is_dir(), identity
            assert identity in server.log(), identity
        assert not unfinished.exists() and (state / "note.txt").exists()
        server.until(server.create().ok()["id"], "completed")


def a_setting_that_is_no_longer_legal(folder):
    with Server(folder) as server:
        server.create(LONG).ok()
        bad = server.create().ok()["id"]
        server.stop(signal.SIGKILL)
    settings = json.loads((folder / "state" / bad / "job.json").read_text())["settings"]
    change_job(folder, bad, settings={**settings, "num_frames": "6"})
    with Server(folder) as server:
        first = [v["id"] for v in server.get("/v1/videos").ok()["data"] if v["id"] != bad][0]
        server.ask("DELETE", f"/v1/videos/{first}").ok()
        video = server.until(bad, "failed")
        assert video["error"]["code"] == "generation_failed" and "num_frames=6" in video["error"]["message"], video
        server.get(f"/v1/videos/{bad}/content").refused(404, "video_failed", "num_frames=6", param="id")
        server.retry(bad).ok()
        assert server.until(bad, "failed")["error"] == video["error"]


def what_waits_for_a_model_that_is_not_served(folder):
    """A wrong path in the command line fails no job: the server does not start."""
    other = folder / "other"
    shutil.copytree(harness.MODEL, other)
    with Server(folder) as server:
        identity = server.create({**LONG, "num_inference_steps": 300}).ok()["id"]
        server.until_computing(identity)
        server.stop(signal.SIGTERM)
    result = subprocess.run([harness.PROGRAM, "serve", other, "port=0", f"state={folder / 'state'}"], capture_output=True,
                            text=True, timeout=harness.PATIENCE)
    assert result.returncode == 1, result
    for words in (identity, "a video waits for models that are not served", pathlib.Path(harness.MODEL).name, "or delete"):
        assert words in result.stderr, (words, result.stderr)
    with Server(folder, models=[other, harness.MODEL]) as server:
        server.until(identity, "completed")


def refused_to_start(folder):
    def refused(*words, arguments, code=1):
        result = subprocess.run([str(word) for word in (harness.PROGRAM, "serve", *arguments)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=harness.PATIENCE)
        lines = [line for line in result.stderr.splitlines() if line.startswith("zoetrope: ")]
        assert result.returncode == code and len(lines) == 1, (result.returncode, result.stderr)
        for word in words:
            assert word in lines[0], (word, lines[0])
    with Server(folder) as server:
        refused(f"port={server.port}", "in use", arguments=[harness.MODEL, f"port={server.port}"])
        refused("state=", "another server", arguments=[harness.MODEL, "port=0", f"state={folder / 'state'}"])
    model = harness.MODEL
    refused("name a checkpoint folder", arguments=["port=0"])
    refused("neither a YAML file", arguments=["nowhere", "port=0"])
    refused("two models have the name", arguments=[model, model, "port=0"])
    refused("port=65536", arguments=[model, "port=65536"])
    refused("not an address of this machine", arguments=[model, "host=not a host", "port=0"])
    refused("state=", "must exist", arguments=[model, "port=0", f"state={folder / 'a' / 'b'}"])
    refused("prompt=x", "requests bring it", arguments=[model, "port=0", "prompt=x"])
    refused("output=x.mp4", arguments=[model, "port=0", "output=x.mp4"])
    refused("codec=vp9", "h264 or h265", arguments=[model, "port=0", "codec=vp9"])
    refused("cache_ratios=none.txt", "file or list of numbers", arguments=[model, "port=0", "cache_ratios=none.txt"])
    refused("crf=52", "51", arguments=[model, "port=0", "crf=52"])
    refused("unknown key 'prot'", arguments=[model, "prot=1"])
    refused("no such file", arguments=[model, "port=0", f"token_file={folder / 'none'}"])
    (folder / "empty").write_text("\n")
    refused("token_file", "empty", arguments=[model, "port=0", f"token_file={folder / 'empty'}"])
    (folder / "no-model").mkdir()
    refused("model_index.json", arguments=[folder / "no-model", "port=0"])


TESTS = {test.__name__: test for test in (
    after_sigterm, after_sigint, after_sigkill, long_ones_go_on_where_the_server_was_killed,
    a_journal_of_other_settings_is_dropped, a_damaged_journal_is_dropped, a_journal_outlives_other_failures,
    a_failed_one_goes_on_where_it_was, one_that_failed_at_its_end_computes_nothing_again, a_retried_one_counts_as_the_newest,
    what_is_left_of_a_journal_does_not_keep_a_job_from_its_run,
    previews_leave_the_journal_alone, streams_end_with_the_server, a_download_may_end_after_the_server, a_deleted_one_stays_deleted,
    what_kills_the_server_again_and_again_is_given_up, an_end_that_cannot_be_saved_is_not_told, the_oldest_finished_ones_are_deleted,
    a_lost_video_is_said, damaged_jobs_are_set_aside, a_setting_that_is_no_longer_legal, what_waits_for_a_model_that_is_not_served,
    refused_to_start)}

if __name__ == "__main__":
    sys.exit(run_script(TESTS))
