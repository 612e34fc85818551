"""What a server refuses: fields of the API with random values, bodies that are too large or end early, slow clients,
foreign pages, wrong tokens, paths that are none. It answers each in JSON, and goes on.

refusals_test.py PROGRAM MODEL NAME
"""
import base64
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import random
import shutil
import sys

import harness
from harness import LONG, SMALL, Server, end_sending, form_body, mark_failed, png, read_all, run_script

FIELDS = ["prompt", "negative_prompt", "model", "size", "seconds", "num_frames", "fps", "num_inference_steps", "guidance_scale",
          "guidance_scale_2", "flow_shift", "seed", "lora", "lora_high", "lora_low", "width", "height", "max_area", "mode",
          "conditioning_scale", "segment_frame_length", "prev_segment_conditioning_frames", "boundary_ratio", "scheduler", "recipe",
          "sigma_grid", "sigmas", "timesteps", "max_sequence_length", "mask_padding_tokens", "cache", "cache_threshold",
          "cache_max_skips", "cache_retention", "cache_ratios", "cache_coefficients", "cache_retention_steps",
          "cache_interval", "vae_tiling", "image", "input_reference", "last_image", "control_video", "mask",
          "reference_images", "pose_video", "face_video", "background_video", "latents"]
VALUES = [None, True, False, 0, 1, -1, 5, 7, 2**31, 2**63, -2**63, 2**64, 1e308, 0.5, -0.0, "", " ", "0", "-1", "1e9", "nan", "inf",
          "-inf", "default", "true", "32x32", "32X32", "0x0", "x", "99999x99999", "-32x32", "1.5", "../../etc/passwd", "/etc/passwd",
          "a\u0000b", "\ufffd\u202e", "\x1b[31m", "é" * 300, "x" * 40000, [], [1], [1, 0.5], ["a"], [[1]], {}, {"name": "x"},
          {"name": "../x", "scale": 1}, {"image_url": "file:///etc/passwd"}, {"image_url": "http://127.0.0.1/"},
          {"image_url": "data:image/png;base64,AAAA"}, "data:image/png;base64,!!!!", "data:image/png;base64,",
          "unipc", "lightning_4", "mag", "cfg", "tea", "animate", "replace", "legacy", "1,0.5,0.25", "Wan2.1-T2V-1.3B"]


def is_answer(answer):
    """JSON in the form of the API, no error of the server's own."""
    assert answer.status < 500 or answer.status == 503, (answer.status, answer.body[:300])
    document = answer.json()
    if answer.status != 200:
        error = document["error"]
        assert set(error) == {"message", "type", "code", "param"} and error["message"], document
        assert all(ord(c) >= 32 for c in error["message"]), document
    return answer


def every_field_with_random_values(folder):
    generator = random.Random(20261125)
    with Server(folder) as server:
        codes = {}
        for number in range(700):
            body = dict(SMALL)
            for _ in range(generator.choice((1, 1, 1, 2, 3))):
                body[generator.choice(FIELDS)] = generator.choice(VALUES)
            answer = is_answer(server.ask("POST", "/v1/videos/plan", body=body))
            codes[answer.status] = codes.get(answer.status, 0) + 1
        # Both happen often enough for the test to say something.
        assert codes.get(200, 0) >= 30 and codes.get(400, 0) > 300, codes
        for name in FIELDS:  # none of them is unknown
            answer = server.ask("POST", "/v1/videos/plan", body={**SMALL, name: {"a": 1}})
            assert answer.status == 400 and answer.json()["error"]["code"] != "unknown_parameter", (name, answer.body)
        server.until(server.create().ok()["id"], "completed")
        assert sorted(p.name for p in (folder / "state").iterdir() if p.is_dir())[1:] == []


def fields_that_there_are_not(folder):
    with Server(folder) as server:
        for name, near in (("num_frame", "num_frames"), ("steps", "num_inference_steps"), ("promt", "prompt"),
                           ("Prompt", "prompt")):
            server.create(**{name: 1}).refused(400, "unknown_parameter", f"'{name}'", near, param=name)
        for name in ("ranks", "memory_limit", "model_path", "output", "dump", "trace", "prompts", "num_videos", "batch_size",
                     "attention", "transformer", "weight_cache", "n", "user", "__proto__", ""):
            answer = server.create(**{name: 1})
            assert answer.status == 400 and answer.json()["error"]["code"] == "unknown_parameter", (name, answer.body)
        server.create(prompt="").refused(400, "invalid_value", "prompt", param="prompt")
        server.create(prompt=None).refused(400, "invalid_value", "prompt", param="prompt")
        server.create(prompt=5).refused(400, "invalid_value", "prompt: must be text", param="prompt")
        server.create(size="33x32").refused(400, "invalid_value", "width=33", "multiple of 16", param="width")
        server.create(size="32x32", width=32).refused(400, "invalid_value", "leave out width", param="size")
        server.create(num_frames=6).refused(400, "invalid_value", "num_frames=6", "4k + 1", param="num_frames")
        server.create(num_inference_steps=0).refused(400, "invalid_value", "num_inference_steps=0", param="num_inference_steps")
        server.create(lora="style").refused(400, "invalid_value", "lora_folder", param="lora")
        server.create(prompt="default").ok()  # a word of key=value, and no prompt of it
        for parts in ([("prompt", "a"), ("prompt", "b")], [("size", "32x32"), ("width", "32"), ("prompt", "a")],
                      [("prompt", "a", "x.txt")], [("prompt", b"\xff\xfe")], [("image", "text"), ("prompt", "a")],
                      [("image", b"", "x.png"), ("prompt", "a")], [("image", b"GIF89a", "x.png"), ("prompt", "a")],
                      [("control_video", b"#EXTM3U\nfile:///etc/passwd\n", "x.mp4"), ("prompt", "a")]):
            is_answer(server.form(parts)).refused(400, "invalid_value", param=server.form(parts).json()["error"]["param"])


def bodies_that_are_none(folder):
    with Server(folder, "max_upload=1") as server:
        def ask(body, kind="application/json"):
            return is_answer(server.ask("POST", "/v1/videos", body=body, fields={"Content-Type": kind}))
        for body in (b"", b"{", b"[]", b"1", b'"x"', b'{"prompt": "a", "prompt": "b"}', b"\xff", b"{" * 100000, b'{"a": ' * 500,
                     b'{"prompt": "\xff"}', b"nul", b'{"prompt": 1e999}'):
            answer = ask(body)
            assert answer.status == 400, (body[:50], answer.status)
        ask(b"x", "text/plain").refused(415, "unsupported_content_type")
        ask(b"prompt=a", "application/x-www-form-urlencoded").refused(415, "unsupported_content_type")
        ask(b'{"prompt": "a"}', "Application/JSON ; charset=utf-8").ok()
        ask(b"x", "multipart/form-data").refused(400, "malformed_request")
        ask(b"x", "multipart/form-data; boundary=").refused(400, "malformed_request")
        ask(b"x", "multipart/form-data; boundary=b").refused(400, "malformed_request")
        form, kind = form_body([("prompt", "a")])
        boundary = kind.partition("; ")[2]
        for kind in (f"Multipart/Form-Data; {boundary}", f"multipart/form-data; {boundary}; charset=utf-8",
                     f"multipart/form-data; charset=utf-8;Boundary={boundary[9:]} "):
            ask(form, kind).ok()
        large = server.ask("POST", "/v1/videos", body=b"x" * 1_000_001).refused(413, "body_too_large", "1000001")
        assert large.fields["connection"] == "close"
        server.form([("prompt", "a"), ("image", b"x" * 2_000_000, "x.png")]).refused(413, "body_too_large")
        body, kind = form_body([("x" * 8000, "y"), ("prompt", "a")])
        is_answer(server.ask("POST", "/v1/videos", body=body, fields={"Content-Type": kind}))
        body, kind = form_body([(f"f{i}", "y") for i in range(3000)])
        is_answer(server.ask("POST", "/v1/videos", body=body, fields={"Content-Type": kind}))
        picture = "data:image/png;base64," + base64.b64encode(png(16, 16)).decode()
        server.create(input_reference=picture).refused(400, "invalid_value", "image: this model", param="image")
        server.create(input_reference={"image_url": picture}).refused(400, "invalid_value", "image: this model", param="image")


def requests_that_are_none(folder):
    generator = random.Random(7)
    with Server(folder) as server:
        def status(data):
            answer = server.raw(data)
            return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0
        host = b"Host: localhost\r\n"
        for data, wanted in ((b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET /\r\n\r\n", 400), (b"\r\n\r\n", 400), (b"\0\0\0\0\r\n\r\n", 400),
                             (b"GET  / HTTP/1.1\r\n" + host + b"\r\n", 400), (b"GET / HTTP/2\r\n" + host + b"\r\n", 400),
                             (b"GET http://localhost/ HTTP/1.1\r\n" + host + b"\r\n", 400), (b"BREW / HTTP/1.1\r\n" + host + b"\r\n", 501),
                             (b"GET /health HTTP/1.1\r\n" + host + host + b"\r\n", 400), (b"GET /health HTTP/1.1\r\n" + host + b" a: b\r\n\r\n", 400),
                             (b"GET /health HTTP/1.1\r\n" + host + b"A\0: b\r\n\r\n", 400),
                             (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n" + host + b"\r\n", 414),
                             (b"GET /health HTTP/1.1\r\n" + host + b"A: " + b"a" * 40000 + b"\r\n\r\n", 431),
                             (b"GET /health HTTP/1.1\r\n" + host + b"A: b\r\n" * 9000 + b"\r\n", 431),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nabcde", 415),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n", 400),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 1e3\r\n\r\n", 400),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
                             (b"POST /v1/videos HTTP/1.1\r\n" + host + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
                             (b"GET /health HTTP/1.0\r\n" + host + b"\r\n", 200), (b"GET /health HTTP/1.1\r\n" + host + b"\r\nmore", 200),
                             (b"GET /health HTTP/1.1\r\n" + host + b"Range: bytes=5-2,1-\r\n\r\n", 200)):
            assert status(data) == wanted, (data[:80], status(data), wanted)
        whole = b"POST /v1/videos/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n"
        whole += b'{"prompt": "a", "seed": 12345}'
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            with server.socket() as wire:
                wire.sendall(data)
                end_sending(wire)
                answer = read_all(wire)
                assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:80]
                assert b"HTTP/1.1 500" not in answer, answer
        server.get("/health").ok()


def paths_that_are_none(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        (folder / "secret").write_text("secret")
        for path in ("/v1", "/v1/", "/v1/video", "/v1/videos/", "/v1/videos/x/y", f"/v1/videos/{identity}/", f"/v1/videos/{identity}/job.json",
                     f"/v1/videos/{identity}/content/", "/v1/videos/../../secret", "/v1/videos/..%2f..%2fsecret/content",
                     "/v1/videos/%2e%2e/content", "/v1/videos/%2e%2e%2fsecret", "//etc/passwd", "/page.css/../../secret", "/%00",
                     "/v1/videos/%0a", "/v1/videos/%ff%fe", f"/v1/videos/{identity}%00/content", "/..", "/.", "/index.html%0d%0aX:y",
                     f"/v1/videos/{identity.upper()}", "/v1/videos/lock/content", "/v1/videos/damaged"):
            answer = server.get(path)
            assert answer.status == 404, (path, answer.status)
            assert b"secret" not in answer.body.replace(path.encode(), b"") or "secret" in path
            answer.json()
        for method, path, allowed in (("POST", "/health", "GET"), ("DELETE", "/v1/videos", "GET, POST"), ("PUT", "/v1/videos", "GET, POST"),
                                      ("PATCH", f"/v1/videos/{identity}", "GET, DELETE"), ("POST", f"/v1/videos/{identity}", "GET, DELETE"),
                                      ("GET", "/v1/videos/plan", "POST"), ("GET", f"/v1/videos/{identity}/retry", "POST"), ("OPTIONS", "/v1/videos", "GET, POST")):
            answer = server.ask(method, path).refused(405, "method_not_allowed")
            assert answer.fields["allow"] == allowed and "access-control-allow-origin" not in answer.fields, answer.fields


def foreign_pages(folder):
    with Server(folder, "allowed_hosts=videos.example") as server:
        def plan(**fields):
            return server.ask("POST", "/v1/videos/plan", body=SMALL, fields={k.replace("_", "-"): v for k, v in fields.items()})
        port = server.port
        plan(Host="evil.example").refused(403, "host_not_allowed", "evil.example")
        plan(Host=f"localhost.evil.example:{port}").refused(403, "host_not_allowed")
        plan(Host="127.0.0.1.evil.example").refused(403, "host_not_allowed")
        for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "videos.example", "10.1.2.3"):
            plan(Host=host).ok()
        here = f"127.0.0.1:{port}"
        plan(Host=here, Origin=f"http://{here}").ok()
        for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}", f"http://localhost:{port}", "file://", f"ftp://{here}",
                       f"http://{here}.evil.example"):
            plan(Host=here, Origin=origin).refused(403, "origin_not_allowed")
        for site in ("cross-site", "same-site"):
            plan(Sec_Fetch_Site=site).refused(403, "origin_not_allowed")
            server.get("/v1/videos", fields={"Sec-Fetch-Site": site}).refused(403, "origin_not_allowed")
            assert server.get("/", fields={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status == 200
        plan(Sec_Fetch_Site="same-origin").ok()


def tokens(folder):
    (folder / "token").write_text("s3cret token\n")
    with Server(folder, f"token_file={folder / 'token'}") as server:
        server.get("/health").ok()
        for path in ("/v1/videos", "/metrics", "/v1/models", "/none"):
            answer = server.get(path).refused(401, "invalid_api_key", "Authorization")
            assert answer.fields["www-authenticate"] == "Bearer", answer.fields
        for wrong in ("Bearer", "Bearer ", "Bearer s3cret", "Bearer s3cret token2", "Basic s3cret token", "s3cret token", "Bearer S3CRET TOKEN"):
            server.get("/v1/videos", fields={"Authorization": wrong}).refused(401, "invalid_api_key")
        server.get("/v1/videos", fields={"Authorization": "Bearer s3cret token"}).ok()
        server.get("/v1/videos", fields={"Authorization": "bearer s3cret token"}).ok()
        # Refused before its body is read.
        answer = server.raw(b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert "s3cret" not in server.log()


def a_full_queue(folder):
    with Server(folder, "queue=2") as server:
        first = server.create(LONG).ok()["id"]
        server.until_computing(first)
        waiting = [server.create().ok()["id"] for _ in range(2)]
        full = server.create().refused(429, "queue_full", "2 jobs wait")
        assert 1 <= int(full.fields["retry-after"]) <= 3600
        server.ask("DELETE", f"/v1/videos/{waiting[0]}").ok()
        server.create().ok()
        server.create().refused(429, "queue_full")
        assert server.metric("queue_length") == server.metric("queue_limit") == 2


def failed_one(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        server.retry(identity).refused(409, "video_not_failed", "completed", param="id")
        server.stop()
    mark_failed(folder, identity)
    return identity


def what_is_not_retried(folder):
    identity = failed_one(folder)
    path = f"/v1/videos/{identity}/retry"
    with Server(folder, "queue=1") as server:
        server.retry("video_none").refused(404, "not_found", param="id")
        server.ask("POST", path + "?seed=8").refused(400, "unknown_parameter", "seed", param="seed")
        server.ask("POST", path, body={"seed": 8}).refused(400, "unknown_parameter", "send no fields")
        server.form([("seed", "8")], path=path).refused(400, "unknown_parameter", "send no fields")
        server.ask("POST", path, body=b"seed").refused(400, "invalid_json")
        first = server.create(LONG).ok()["id"]
        server.until_computing(first)
        server.retry(first).refused(409, "video_not_failed", "in_progress", param="id")
        waiting = server.create().ok()["id"]
        server.retry(waiting).refused(409, "video_not_failed", "queued", param="id")
        full = server.retry(identity).refused(429, "queue_full", "the queue is full")
        assert int(full.fields["retry-after"]) >= 1
        server.ask("DELETE", f"/v1/videos/{waiting}").ok()
        file = folder / "state" / identity / "job.json"
        file.rename(file.with_name("kept"))
        (file / "x").mkdir(parents=True)
        server.retry(identity).refused(500, "storage_failed", "its log says why")
        assert server.video(identity)["error"]["message"] == "memory ran out"
        shutil.rmtree(file)
        file.with_name("kept").rename(file)
        assert server.ask("POST", path, body={}).ok()["status"] == "queued"
        assert json.loads(file.read_text())["status"] == "queued", "it is told before it is saved"


def a_model_that_is_served_no_longer(folder):
    """A failed job does not keep the server from starting, and a retried one will not."""
    identity = failed_one(folder)
    other = folder / "other"
    other.symlink_to(pathlib.Path(harness.MODEL).resolve())
    with Server(folder, models=[other]) as server:
        server.retry(identity).refused(404, "model_not_found", "there are: other", param="model")
        assert server.video(identity)["status"] == "failed"


def retried_and_deleted_at_once(folder):
    identity = failed_one(folder)
    with Server(folder) as server:
        first = server.create(LONG).ok()["id"]
        server.until_computing(first)

        def at_once(methods):
            paths = {"POST": f"/v1/videos/{identity}/retry", "DELETE": f"/v1/videos/{identity}"}
            with concurrent.futures.ThreadPoolExecutor(len(methods)) as pool:
                return [answer.status for answer in pool.map(lambda method: server.ask(method, paths[method]), methods)]
        assert sorted(at_once(["POST"] * 8)) == [200] + [409] * 7
        assert server.metric("queue_length") == 1
        codes = at_once(["POST", "DELETE"] * 4)
        assert sorted(codes[1::2]) == [200] + [404] * 3 and set(codes[::2]) <= {404, 409}, codes
        assert server.metric("queue_length") == 0 and not (folder / "state" / identity).exists()


def slow_and_vanishing_clients(folder):
    with Server(folder, "connections=4", "request_timeout=1") as server:
        # More than there are places, none of which ever sends a request: others are still served.
        wires = [server.socket() for _ in range(12)]
        for wire in wires:
            wire.sendall(b"GET /health HTTP/1.1\r\n")
        end = 0
        while end < 20:
            try:
                end += server.get("/health").status == 200
            except (ConnectionError, http.client.HTTPException):
                pass  # beyond the limit, until the first have had their second
        answers = [read_all(wire) for wire in wires]
        assert all(not a or a.startswith((b"HTTP/1.1 408", b"HTTP/1.1 503")) for a in answers), answers
        # Half a body, then nothing; then gone.
        half = b'POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"prompt":'
        for closes in (False, True):
            answer = b""
            while not answer or answer.startswith(b"HTTP/1.1 503"):  # the first ones still have their places
                with server.socket() as wire, contextlib.suppress(ConnectionError):
                    wire.sendall(half)
                    if closes:
                        end_sending(wire)
                    answer = read_all(wire)
            assert answer.startswith(b"HTTP/1.1 400" if closes else b"HTTP/1.1 408"), (closes, answer)
        with server.socket() as wire, contextlib.suppress(ConnectionError):
            wire.sendall(half)
        for wire in wires:
            wire.close()
        answer = None
        while answer is None or answer.status in (408, 503):  # the latter of a request that took a second on its way
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                answer = server.get("/v1/videos")
        assert answer.ok()["data"] == []


def a_refused_upload_gives_its_memory_back(folder):
    """At once, and not when its connection ends. There is memory for two of the largest."""
    with Server(folder, "max_upload=1") as server:
        def uploading(wire):
            wire.sendall(b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n")

        def is_refused(wire):
            uploading(wire)
            wire.settimeout(0.5)
            try:
                return wire.recv(12) == b"HTTP/1.1 503"
            except TimeoutError:  # it waits for the body
                return False
        with contextlib.ExitStack() as stack:
            first, second, third = (stack.enter_context(server.socket()) for _ in range(3))
            uploading(first)
            uploading(second)
            while not is_refused(third):  # the first two may not have begun
                third = stack.enter_context(server.socket())
            first.sendall(b"x" * 900000)
            assert first.recv(12) == b"HTTP/1.1 415"
            read_all(first)
            assert not is_refused(stack.enter_context(server.socket()))


def too_many_connections_are_told(folder):
    """Whoever goes on sending meanwhile still reads the answer."""
    with Server(folder, "connections=2") as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            wire = stack.enter_context(server.socket())
            wire.sendall(b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        busy = b""
        while not busy.startswith(b"HTTP/1.1 503"):  # the two may not have begun
            wire = stack.enter_context(server.socket())
            wire.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                busy = wire.recv(12)
        for _ in range(20):
            wire.sendall(b"GET /health HTTP/1.1\r\n")
        assert b"too_many_connections" in read_all(wire)


def a_state_folder_that_is_lost(folder):
    """The server's fault, not the request's, and its path is for the log alone."""
    with Server(folder) as server:
        shutil.rmtree(folder / "state")
        for answer in (server.create(), server.form([*SMALL.items(), ("image", png(32, 32), "x.png")])):
            answer.refused(500, "storage_failed", "its log says why")
            assert answer.json()["error"]["type"] == "server_error" and str(folder) not in answer.body.decode(), answer.body
        assert str(folder / "state") in server.log() and server.get("/v1/videos").ok()["data"] == []


def what_cannot_be_deleted_stays(folder):
    """A folder takes the place of the job's file, because nothing is forbidden to root."""
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        file = folder / "state" / identity / "job.json"
        file.rename(file.with_name("kept"))
        (file / "x").mkdir(parents=True)
        server.ask("DELETE", f"/v1/videos/{identity}").refused(500, "storage_failed", "its log says why")
        assert server.video(identity)["status"] == "completed" and "cannot be deleted from" in server.log(), server.log()
        shutil.rmtree(file)
        file.with_name("kept").rename(file)
        assert server.ask("DELETE", f"/v1/videos/{identity}").ok()["deleted"]
        assert not file.parent.exists()


def streams_leave_places_for_requests(folder):
    with Server(folder, "connections=6") as server:
        identity = server.create(LONG).ok()["id"]
        server.until_computing(identity)
        wires, codes = [], []
        for _ in range(5):
            wire = server.socket()
            wire.sendall(f"GET /v1/videos/{identity}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            codes.append(wire.recv(12))
            wires.append(wire)
        assert codes == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 503"] * 2, codes
        server.get("/health").ok()
        for wire in wires:
            wire.close()


def control_characters_in_the_log(folder):
    with Server(folder, "log=requests") as server:
        server.get("/v1/videos/%1b%5b31m").refused(404, "not_found", "\\x1b", param="id")
        server.get("/v1/videos/%1b%5b31m%0aforged").refused(404, "not_found")
        server.get("/%0aforged%1b[2J").refused(404, "not_found")
        server.stop()
        log = server.log()
        assert "/v1/videos/%1b%5b31m%0aforged: 404" in log, log
        assert "\x1b" not in log and not any(line.startswith("forged") for line in log.splitlines()), log


def named_loras(folder):
    (folder / "loras").mkdir()
    (folder / "loras" / "style.safetensors").write_bytes(b"not a file of tensors")
    (folder / "outside.safetensors").write_bytes(b"x")
    with Server(folder, f"lora_folder={folder / 'loras'}") as server:
        for name in ("other", "../outside", "/etc/passwd", "..", "style.txt"):
            server.create(lora=name).refused(400, "invalid_value", "there are: style", param="lora")
        server.create(lora={"name": "../outside", "scale": 1}).refused(400, "invalid_value", param="lora")
        server.create(lora={"path": "/etc/passwd"}).refused(400, "invalid_value", "name", param="lora")
        for lora in ("style:0.5", {"name": "style", "scale": 0.5}, [{"name": "style"}], "style.safetensors"):
            answer = server.create(lora=lora).refused(400, "invalid_value", "style.safetensors")
            assert str(folder) not in answer.body.decode(), answer.body


TESTS = {test.__name__: test for test in (
    every_field_with_random_values, fields_that_there_are_not, bodies_that_are_none, requests_that_are_none,
    paths_that_are_none, foreign_pages, tokens, a_full_queue, what_is_not_retried, a_model_that_is_served_no_longer,
    retried_and_deleted_at_once, slow_and_vanishing_clients,
    streams_leave_places_for_requests, a_refused_upload_gives_its_memory_back, too_many_connections_are_told, a_state_folder_that_is_lost, what_cannot_be_deleted_stays, control_characters_in_the_log, named_loras)}

if __name__ == "__main__":
    sys.exit(run_script(TESTS))
