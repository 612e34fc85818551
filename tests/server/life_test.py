"""The life of a job: created, listed, watched, sent, cancelled, and what is said of it on the way.

life_test.py PROGRAM MODEL NAME
"""
import base64
import json
import pathlib
import shlex
import socket
import struct
import subprocess
import sys
import time

import harness
from harness import LONG, PATIENCE, PIPELINES, SMALL, Server, compressed_frames, events_of, png, run_script, write_style


def a_video_from_prompt_to_file(folder):
    with Server(folder) as server:
        created = server.create(seed=7, guidance_scale=3).ok()
        assert created["object"] == "video" and created["status"] == "queued" and created["progress"] == 0, created
        assert created["size"] == "32x32" and created["num_frames"] == 5 and created["prompt"] == SMALL["prompt"], created
        identity = created["id"]
        video = server.until(identity, "completed")
        assert video["progress"] == 100 and video["seed"] == 7 and video["error"] is None, video
        assert video["completed_at"] >= video["created_at"], video
        assert video["settings"]["guidance_scale"] == "3" and "seed=7" in video["command"], video
        content = server.get(f"/v1/videos/{identity}/content")
        assert content.status == 200 and content.fields["content-type"] == "video/mp4", content.fields
        assert content.body[4:8] == b"ftyp" and int(content.fields["content-length"]) == len(content.body)
        # No path of the server is in the file or in what is said of it.
        assert str(folder).encode() not in content.body and str(folder) not in json.dumps(video)
        gone = server.ask("DELETE", f"/v1/videos/{identity}").ok()
        assert gone == {"id": identity, "object": "video.deleted", "deleted": True}, gone
        server.get(f"/v1/videos/{identity}").refused(404, "not_found", identity, param="id")
        server.get(f"/v1/videos/{identity}/content").refused(404, "not_found", identity, param="id")
        assert not (folder / "state" / identity).exists()


def the_same_settings_make_the_same_bytes(folder):
    with Server(folder) as server:
        ids = [server.create(seed=seed).ok()["id"] for seed in (3, 3, 4)]
        for identity in ids:
            server.until(identity, "completed")
        a, b, c = (server.get(f"/v1/videos/{identity}/content").body for identity in ids)
        assert a == b and a != c


def the_command_makes_it_again(folder):
    """With what the server gave to the model. Nothing of it is a path."""
    with Server(folder, "dtype=float32", "weights=random", "weights_seed=4", "ranks=2") as server:
        queued = server.create(seed=3, negative_prompt="@home").ok()
        identity = queued["id"]
        command = server.until(identity, "completed")["command"]
        assert sorted(queued["command"].split()) == sorted(command.split()), (queued["command"], command)
        made = server.get(f"/v1/videos/{identity}/content").body
    for word in ("dtype=float32", "weights=random", "weights_seed=4"):
        assert word in command.split(), command
    assert "ranks" not in command and "threads" not in command and "/" not in command, command
    program, verb, model, *words = shlex.split(command)
    assert (program, verb, model) == ("zoetrope", "generate", f"model={pathlib.Path(MODEL()).name}"), command
    subprocess.run([harness.PROGRAM, verb, f"model={MODEL()}", "threads=1", "ranks=2", *words], cwd=folder, check=True,
                   capture_output=True)
    assert compressed_frames((folder / f"{identity}.mp4").read_bytes()) == compressed_frames(made)


def how_the_file_is_encoded(folder):
    with Server(folder, "crf=40") as server:
        kept, best, other = (server.create(seed=3, **more).ok()["id"] for more in ({}, {"crf": 0}, {"codec": "h265", "size": "64x32"}))
        for identity in (kept, best, other):
            server.until(identity, "completed")
        small, large, h265 = (server.get(f"/v1/videos/{identity}/content").body for identity in (kept, best, other))
        assert len(small) < len(large), (len(small), len(large))
        assert b"avc1" in large and b"hvc1" in h265
        assert "crf=0" in server.video(best)["command"] and "codec=h265" in server.video(other)["command"]
        for path in ("/v1/videos", "/v1/videos/plan"):
            for settings, param, says in (({"codec": "vp9"}, "codec", "h264 or h265"), ({"crf": 52}, "crf", "51"),
                                          ({"codec": "h266"}, "codec", "h265")):
                refused = server.ask("POST", path, body={**SMALL, **settings})
                refused.refused(400, "invalid_value", says, param=param)
        for settings in ({}, {"codec": "h265", "crf": 30, "size": "64x32"}):
            assert server.ask("POST", "/v1/videos/plan", body={**SMALL, **settings}).ok()["fits"]


def numbers_of_a_step_cache_in_a_file(folder):
    """The server's default: jobs say the numbers, and no path."""
    file = folder / "ratios.json"
    file.write_text("[1, 1,\n 0.5, 0.25]\n")
    with Server(folder, "cache=mag", f"cache_ratios={file}") as server:
        file.unlink()
        assert server.ask("POST", "/v1/videos/plan", body=SMALL).ok()["fits"]
        video = server.until(server.create().ok()["id"], "completed")
        assert video["settings"]["cache_ratios"] == "1,1,0.5,0.25", video
        assert "cache_ratios=1,1,0.5,0.25" in video["command"], video
        other = server.create(cache_ratios="1,1").ok()["id"]
        assert server.until(other, "completed")["settings"]["cache_ratios"] == "1,1"
        for path in (file, "/etc/passwd"):
            server.create(cache_ratios=str(path)).refused(400, "invalid_value", "list of numbers", param="cache_ratios")


def ranges_of_a_file(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        path = f"/v1/videos/{identity}/content"
        whole = server.get(path).body
        size = len(whole)
        for text, begin, end in (("0-0", 0, 1), ("0-99", 0, 100), ("10-", 10, size), ("-7", size - 7, size),
                                 (f"5-{size + 10}", 5, size), (f"-{size + 10}", 0, size),
                                 (f"{size - 1}-{2**64 - 1}", size - 1, size)):
            part = server.get(path, fields={"Range": f"bytes={text}"})
            wanted = 206 if end - begin < size else 200
            assert part.status == wanted and part.body == whole[begin:end], f"{text}: {part.status}, {len(part.body)}"
            if wanted == 206:
                assert part.fields["content-range"] == f"bytes {begin}-{end - 1}/{size}", part.fields
        for text in (f"{size}-", f"{size + 5}-{size + 9}", "-0"):
            part = server.get(path, fields={"Range": f"bytes={text}"}).refused(416, "range_not_satisfiable", str(size))
            assert part.fields["content-range"] == f"bytes */{size}"
        # Several ranges, and what is none, get the whole.
        for text in ("bytes=0-1,4-5", "bytes=9-3", "bytes=x-", "lines=1-2", "bytes=", "bytes=--5",
                     "bytes=99999999999999999999999-"):
            part = server.get(path, fields={"Range": text})
            assert part.status == 200 and part.body == whole, f"{text}: {part.status}"
        tag = server.get(path).fields["etag"]
        assert server.get(path, fields={"Range": "bytes=0-4", "If-Range": tag}).status == 206
        assert server.get(path, fields={"Range": "bytes=0-4", "If-Range": '"other"'}).status == 200
        head = server.ask("HEAD", path)
        assert head.status == 200 and head.body == b"" and int(head.fields["content-length"]) == size
        head = server.ask("HEAD", path, fields={"Range": "bytes=0-4"})  # which is for GET alone
        assert head.status == 200 and int(head.fields["content-length"]) == size, head.fields
        server.get(path + "?variant=thumbnail").refused(400, "invalid_value", "thumbnail", param="variant")


def pages_of_the_list(folder):
    with Server(folder) as server:
        assert server.get("/v1/videos").ok()["data"] == []
        ids = [server.create(LONG if i == 0 else SMALL, seed=i).ok()["id"] for i in range(5)]
        page = server.get("/v1/videos").ok()
        assert [v["id"] for v in page["data"]] == ids[::-1] and not page["has_more"] and page["object"] == "list"
        for order, wanted in (("asc", ids), ("desc", ids[::-1])):
            seen, after = [], ""
            while True:
                page = server.get(f"/v1/videos?limit=2&order={order}{after}").ok()
                assert len(page["data"]) <= 2
                assert page["first_id"] == page["data"][0]["id"] and page["last_id"] == page["data"][-1]["id"]
                seen += [v["id"] for v in page["data"]]
                if not page["has_more"]:
                    break
                after = "&after=" + page["last_id"]
            assert seen == wanted, (order, seen, wanted)
        for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order"),
                             ("after=video_0", "after")):
            server.get("/v1/videos?" + query).refused(400, "invalid_value", param=param)
        server.get("/v1/videos?colour=red").refused(400, "unknown_parameter", "colour", param="colour")
        server.get("/v1/videos?limit=1&limit=2").refused(400, "invalid_value", "twice", param="limit")


def cancelled_within_a_step(folder):
    with Server(folder) as server:
        first, second = server.create(LONG).ok()["id"], server.create().ok()
        assert second["queue_position"] in (0, 1), second
        server.until_computing(first)
        assert server.video(second["id"])["queue_position"] == 1
        server.get(f"/v1/videos/{first}/content").refused(409, "video_not_ready", "in_progress", param="id")
        server.get(f"/v1/videos/{second['id']}/content").refused(409, "video_not_ready", "queued", param="id")
        server.ask("DELETE", f"/v1/videos/{first}").ok()
        server.until(second["id"], "completed")
        assert server.metric('runs_total{status="cancelled"}') == 1
        assert server.metric("steps_total") < 900, "the cancelled run went on"
        assert not (folder / "state" / first).exists()
        server.ask("DELETE", f"/v1/videos/{first}").refused(404, "not_found", param="id")


def a_waiting_one_is_deleted(folder):
    with Server(folder) as server:
        first, second = server.create(LONG).ok()["id"], server.create().ok()["id"]
        server.ask("DELETE", f"/v1/videos/{second}").ok()
        server.ask("DELETE", f"/v1/videos/{first}").ok()
        third = server.create().ok()["id"]
        server.until(third, "completed")
        assert server.metric('runs_total{status="completed"}') == 1
        assert [p.name for p in (folder / "state").iterdir() if p.is_dir()] == [third]


def events_until_the_end(folder):
    with Server(folder) as server:
        identity = server.create(num_inference_steps=3).ok()["id"]
        stream = server.get(f"/v1/videos/{identity}/events")
        assert stream.status == 200 and stream.fields["content-type"] == "text/event-stream", stream.fields
        events = events_of(stream.body)
        assert events[-1][0] == "completed" and events[-1][1]["status"] == "completed", events[-1]
        assert all(name == "progress" for name, _ in events[:-1])
        progress = [video["progress"] for _, video in events]
        assert progress == sorted(progress) and progress[-1] == 100, progress
        # Of a finished one there is the end alone.
        assert [name for name, _ in events_of(server.get(f"/v1/videos/{identity}/events").body)] == ["completed"]
        server.get("/v1/videos/video_0/events").refused(404, "not_found", param="id")


def events_end_where_a_job_is_deleted(folder):
    with Server(folder) as server:
        identity = server.create(LONG).ok()["id"]
        server.until_computing(identity)
        with server.socket() as wire:
            wire.sendall(f"GET /v1/videos/{identity}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = b""
            while b"event: progress" not in data:
                data += wire.recv(65536)
            seen = json.loads(data[data.index(b"data: ") + 6:].split(b"\n")[0])
            assert seen["run"]["phase"] == "denoising" and seen["run"]["steps"] == 1000, seen
            server.ask("DELETE", f"/v1/videos/{identity}").ok()
            while part := wire.recv(65536):
                data += part
        assert b"event: deleted" in data and data.endswith(b"0\r\n\r\n"), data[-300:]
        deleted = json.loads(data[data.index(b"event: deleted"):].split(b"data: ")[1].split(b"\n")[0])
        assert deleted["id"] == identity and deleted["prompt"] == LONG["prompt"], deleted


def a_vanished_watcher_leaves_nothing(folder):
    with Server(folder) as server:
        identity = server.create(LONG).ok()["id"]
        server.until_computing(identity)
        wires = [server.socket() for _ in range(8)]
        for wire in wires:
            wire.sendall(f"GET /v1/videos/{identity}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert b"200" in wire.recv(64)
        for wire in wires:  # reset, not closed in order
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.close()
        while server.metric("event_streams") > 0:
            pass
        assert server.video(identity)["status"] == "in_progress"


def a_plan_runs_nothing(folder):
    with Server(folder) as server:
        plan = server.ask("POST", "/v1/videos/plan", body=SMALL).ok()
        assert plan["fits"] and plan["reason"] is None and plan["size"] == "32x32" and plan["num_frames"] == 5, plan
        assert plan["predicted_memory_bytes"] > 1_000_000, plan
        larger = server.ask("POST", "/v1/videos/plan", body={**SMALL, "size": "512x512", "num_frames": 81}).ok()
        assert larger["predicted_memory_bytes"] > plan["predicted_memory_bytes"], (plan, larger)
        huge = server.ask("POST", "/v1/videos/plan", body={**SMALL, "size": "16384x16384", "num_frames": 4093}).ok()
        assert not huge["fits"] and "memory: this run needs" in huge["reason"], huge
        refused = server.create(size="16384x16384", num_frames=4093)
        refused.refused(422, "does_not_fit", "memory: this run needs")
        assert server.get("/v1/videos").ok()["data"] == []
        assert [p.name for p in (folder / "state").iterdir()] == ["lock"]


def steps_of_a_recipe(folder):
    """A list of noise levels says how many steps there are, whatever the key says."""
    unset = {key: value for key, value in SMALL.items() if key != "num_inference_steps"}
    with Server(folder, "recipe=lightning_4", "num_inference_steps=1000") as server:
        assert server.get("/v1/models").ok()["data"][0]["defaults"]["num_inference_steps"] == 4
        assert server.ask("POST", "/v1/videos/plan", body=unset).ok()["num_inference_steps"] == 4
        server.create().refused(400, "invalid_value", "of 4 steps", param="num_inference_steps")
        server.create(num_inference_steps=4).ok()
        # One in six steps has a preview.
        levels = ",".join(str(1 - step / 160) for step in range(160))
        identity = server.create(settings=unset, sigmas=levels).ok()["id"]
        server.until_computing(identity)
        end = time.monotonic() + PATIENCE
        while server.get(f"/v1/videos/{identity}/preview").status == 404:
            assert time.monotonic() < end, "no preview"
            assert server.video(identity)["status"] == "in_progress", "no preview"


def seconds_and_frames(folder):
    with Server(folder, "fps=8") as server:
        for body, frames, seconds in (({"seconds": "1"}, 9, "1.125"), ({"seconds": 2}, 17, "2.125"),
                                      ({"seconds": 1, "fps": 16}, 17, "1.062"), ({"seconds": "1", "num_frames": 9}, 9, "1.125")):
            plan = server.ask("POST", "/v1/videos/plan", body={"prompt": "x", "size": "32x32", **body}).ok()
            assert plan["num_frames"] == frames, (body, plan)
        server.ask("POST", "/v1/videos/plan", body={"prompt": "x", "seconds": 1, "num_frames": 17}).refused(
            400, "invalid_value", "17", param="seconds")


def one_model_and_another(folder):
    other = folder / "other-model"
    other.symlink_to(pathlib.Path(MODEL()).resolve())
    with Server(folder, models=[MODEL(), other]) as server:
        models = server.get("/v1/models").ok()
        names = [model["id"] for model in models["data"]]
        assert names == [pathlib.Path(MODEL()).name, "other-model"] and models["object"] == "list", models
        model = server.get("/v1/models/other-model").ok()
        assert model["object"] == "model" and set(model["defaults"]) == set(model["program_defaults"]), model
        server.get("/v1/models/none").refused(404, "model_not_found", "none", param="model")
        ids = [server.create(model=name, seed=1).ok()["id"] for name in (*names, *names)]
        videos = [server.until(identity, "completed") for identity in ids]
        assert [video["model"] for video in videos] == [*names, *names]
        assert len({server.get(f"/v1/videos/{identity}/content").body.count(b"moov") for identity in ids}) == 1
        server.create(model="none").refused(404, "model_not_found", "none", names[0], param="model")


def what_is_counted(folder):
    with Server(folder) as server:
        health = server.get("/health").ok()
        assert health["status"] == "ok" and health["jobs"]["queued"] == 0, health
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        server.create(size="33x32")
        assert server.metric('jobs{status="completed"}') == 1
        assert server.metric("steps_total") == 2
        server.until_metric('http_requests_total{method="POST",code="200"}', 1)
        server.until_metric('http_requests_total{method="POST",code="400"}', 1)
        assert server.metric("resident_bytes") > 1_000_000
        assert server.metric("denoise_seconds_total") > 0
        server.get(f"/v1/videos/{identity}/preview").refused(404, "no_preview", param="id")


def a_preview_while_it_runs(folder):
    with Server(folder) as server:
        server.get("/v1/videos/video_none/preview").refused(404, "not_found", param="id")
        identity = server.create(settings=LONG, preview=1).ok()["id"]
        server.until_computing(identity)
        end = time.monotonic() + PATIENCE
        while (answer := server.get(f"/v1/videos/{identity}/preview")).status == 404:
            assert time.monotonic() < end, "no preview"
        assert answer.body.startswith(b"GIF89a") and answer.body.endswith(b";"), answer.body[:20]
        server.create(preview=0).refused(400, "invalid_value", "preview", param="preview")


def pictures_for_models_that_take_none(folder):
    with Server(folder) as server:
        parts = [("prompt", "a red ball"), ("size", "32x32"), ("num_frames", "5")]
        server.form([*parts, ("input_reference", png(32, 32), "x.png")]).refused(
            400, "invalid_value", "image: this model", "leave it out", param="image")
        assert [p.name for p in (folder / "state").iterdir()] == ["lock"], "an upload was left behind"
        assert server.form([*parts, ("num_inference_steps", "1")]).ok()["status"] == "queued"


def a_video_from_a_picture(folder):
    with Server(folder, models=[PIPELINES / "wan21_i2v"]) as server:
        parts = [("prompt", "a red ball"), ("size", "32x32"), ("num_frames", "5"), ("num_inference_steps", "2"), ("seed", "1")]
        server.form(parts).refused(400, "invalid_value", "image", param="image")
        for broken in (b"\x89PNG\r\n\x1a\n", png(32, 32)[:60], b"\xff\xd8\xff" + b"x" * 100):
            answer = server.form([*parts, ("input_reference", broken, "../../x.png")])
            answer.refused(400, "invalid_value", "image", param="image")
            assert str(folder) not in answer.body.decode(), answer.body
        assert [p.name for p in (folder / "state").iterdir()] == ["lock"], "an upload was left behind"
        ids = [server.form([*parts, ("input_reference", png(32, side), "../../x.png")]).ok()["id"] for side in (32, 32, 64)]
        data = "data:image/png;base64," + base64.b64encode(png(32, 32)).decode()
        body = {**dict(parts), "input_reference": {"image_url": data}}
        ids.append(server.ask("POST", "/v1/videos", body=body).ok()["id"])
        videos = [server.until(identity, "completed") for identity in ids]
        assert "image=image.png" in videos[0]["command"], videos[0]
        files = [server.get(f"/v1/videos/{identity}/content").body for identity in ids]
        assert files[0] == files[1] == files[3]
        assert all(str(folder).encode() not in data for data in files), "the file names a folder of the server"
        assert sorted(p.name for p in (folder / "state" / ids[0]).iterdir()) == ["image.png", "job.json", "video.mp4"]


def an_area_is_for_pictures(folder):
    """That of the server; a request without a picture, or with a size, has height and width."""
    settings = folder / "area.yml"
    settings.write_text(f"model: {PIPELINES / 'wan22_ti2v'}\nmax_area: 4096\nheight: 32\nwidth: 64\n")
    with Server(folder, models=[settings]) as server:
        parts = [("prompt", "a"), ("num_frames", "5")]
        picture = ("image", png(64, 128), "x.png")
        for more, size in (([("size", "96x64")], "96x64"), ([("max_area", "default")], "64x32"),
                           ([("size", "96x64"), ("max_area", "default")], "96x64"), ([picture], "32x64"),
                           ([picture, ("size", "96x64")], "96x64")):
            plan = server.form([*parts, *more], path="/v1/videos/plan").ok()
            assert plan["size"] == size, (more[0][0], plan)
        server.form([*parts, ("size", "96x64"), ("max_area", "4096")]).refused(
            400, "invalid_value", "leave max_area out", param="max_area")


def lists_of_a_form(folder):
    """OpenAI's client repeats NAME[] for each item as soon as there is a file."""
    with Server(folder, models=[PIPELINES / "wan21_vace"]) as server:
        parts = [("prompt", "a"), ("size", "32x32"), ("num_frames", "5"), ("sigmas[]", "1"), ("sigmas[]", "0.5"),
                 ("reference_images[]", png(32, 32), "x.png"), ("reference_images[]", png(32, 64), "y.png")]
        video = server.form(parts).ok()
        assert video["settings"]["sigmas"] == "1,0.5" and video["uploads"] == ["reference_images"] * 2, video
        server.form([*parts, ("seed[]", "1")]).refused(400, "unknown_parameter", "did you mean 'seed'", param="seed[]")


def a_budget_holds_with_any_guidance(folder):
    """Blocks in int8 are chosen for the guidance that the server has by default, not for that of its first request."""
    file = folder / "int8.json"
    measured = subprocess.run([harness.PROGRAM, "int8", MODEL(), "num_timesteps=1", f"int8_calibration={file}"],
                              capture_output=True, text=True)
    assert measured.returncode == 0, measured.stderr
    least = measured.stdout.split("budget  blocks that fit\n")[1].splitlines()
    budget = next(line.split()[0] for line in least if line.split()[1] not in ("0", "6"))
    with Server(folder, "dtype=int8", "int8_layers=auto", f"int8_calibration={file}", f"budget={budget}") as server:
        ids = [server.create(guidance_scale=guidance).ok()["id"] for guidance in (1, 5)]
        for identity in ids:
            server.until(identity, "completed")
        for path in ("/v1/videos", "/v1/videos/plan"):
            refused = server.ask("POST", path, body={**SMALL, "guidance_scale": 8})
            refused.refused(400, "invalid_value", "guidance_scale=8", f"more than budget={budget}", param="guidance_scale")


def warnings_of_a_run(folder):
    """Keys of a LoRA that are left out are named in its job, also by the next server."""
    loras = folder / "loras"
    write_style(loras)
    with Server(folder, f"lora_folder={loras}") as server:
        plain, styled = (server.create(**more).ok()["id"] for more in ({}, {"lora": "style"}))
        assert server.until(plain, "completed")["warnings"] == []
        [warning] = server.until(styled, "completed")["warnings"]
        assert warning.startswith("style.safetensors: 1 of 2 keys match no tensor"), warning
        server.stop()
    with Server(folder, f"lora_folder={loras}") as server:
        assert server.video(styled)["warnings"] == [warning]


def MODEL():
    return harness.MODEL


TESTS = {test.__name__: test for test in (
    a_video_from_prompt_to_file, the_same_settings_make_the_same_bytes, the_command_makes_it_again, how_the_file_is_encoded,
    numbers_of_a_step_cache_in_a_file, ranges_of_a_file, pages_of_the_list, an_area_is_for_pictures, lists_of_a_form,
    cancelled_within_a_step, a_waiting_one_is_deleted, events_until_the_end, events_end_where_a_job_is_deleted,
    a_vanished_watcher_leaves_nothing, a_plan_runs_nothing, seconds_and_frames, one_model_and_another, what_is_counted,
    a_preview_while_it_runs, steps_of_a_recipe, pictures_for_models_that_take_none, a_video_from_a_picture,
    a_budget_holds_with_any_guidance, warnings_of_a_run)}

if __name__ == "__main__":
    sys.exit(run_script(TESTS))
