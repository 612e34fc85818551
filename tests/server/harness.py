"""What the scripts of this folder share: a server of its own for each test, on a port that it picked, and requests over
Python's http.client and plain sockets. Has no test of its own. A test waits for a status, never for a time.
"""
import errno
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
import zlib

SLOWER = int(os.environ.get("ZOETROPE_TEST_TIMEOUT_SCALE", "1"))  # sanitizers
PATIENCE = 120 * SLOWER  # seconds until a test gives up
PROGRAM = MODEL = None
SMALL = {"prompt": "a red ball", "size": "32x32", "num_frames": 5, "num_inference_steps": 2}
LONG = {**SMALL, "num_inference_steps": 1000}
PIPELINES = pathlib.Path(__file__).resolve().parents[1] / "golden" / "pipelines"  # small models


def run_script(tests):
    """Lists the tests, or runs the one named last in a folder of its own: PROGRAM MODEL NAME."""
    global PROGRAM, MODEL
    if sys.argv[1:] == ["--list"]:
        print(";".join(tests))
        return 0
    PROGRAM, MODEL, name = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="zoetrope_server_") as folder:
        tests[name](pathlib.Path(folder))
    print(f"{name}: passed")
    return 0


def compressed_frames(mp4):
    """What the file's mdat box holds: all of its frames, and nothing of the tags."""
    at = 0
    while at < len(mp4):
        size = int.from_bytes(mp4[at:at + 4], "big")
        if mp4[at + 4:at + 8] == b"mdat":
            return mp4[at + 8:at + size]
        at += size
    raise AssertionError("the file has no frames")


def slow_profile(folder, devices=1):
    """The key for a machine that takes a second a layer: every job is long, and keeps a journal."""
    links = f"links: [{{name: host, members: {devices}, kind: switch, bandwidth: 10, latency: 1}}]\n" if devices > 1 else ""
    profile = folder / "slow.yml"
    profile.write_text(
        f"description: for a test\ndevices: {devices}\nmemory: 80\nmemory_bandwidth: 100\nlayer_overhead: 1000000\ntoken_seconds: 0.3\n"
        f"host_read: 5\ndevices_per_host: {devices}\n{links}"
        "bf16: {peak: 0.1, gemm: 0.7, attention: 0.5, convolution: 0.5}\n"
        "float32: {peak: 0.1, gemm: 0.8, attention: 0.5, convolution: 0.5}\n")
    return f"hardware={profile}"


def change_job(folder, identity, **values):
    """What the next server reads of a job."""
    path = folder / "state" / identity / "job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def mark_failed(folder, identity):
    """Lets the next server take a completed job for one that failed."""
    (folder / "state" / identity / "video.mp4").unlink()
    change_job(folder, identity, status="failed", error="memory ran out", seed=None)


def block_video(folder, identity):
    """Lets a job that runs fail when its video is complete: a folder has that name, because nothing is forbidden to root."""
    place = folder / "state" / identity / "video.mp4"
    (place / "x").mkdir(parents=True)
    return place


class Answer:
    def __init__(self, response):
        self.status, self.body = response.status, response.read()
        self.fields = {name.lower(): value for name, value in response.getheaders()}

    def json(self):
        return json.loads(self.body)

    def refused(self, status, code, *words, param=None):
        """An error object of OpenAI's API, with one sentence that holds every word."""
        assert self.status == status, f"{self.status} instead of {status}: {self.body[:400]}"
        error = self.json()["error"]
        assert set(error) == {"message", "type", "code", "param"}, error
        assert error["code"] == code, error
        assert error["param"] == param, error
        assert "\n" not in error["message"] and error["message"], error
        for word in words:
            assert word in error["message"], f"'{word}' is not in: {error['message']}"
        return self

    def ok(self):
        assert self.status == 200, f"{self.status}: {self.body[:400]}"
        return self.json()


class Server:
    """`zoetrope serve`, until the end of the block."""

    def __init__(self, folder, *settings, models=None, launcher=(), environment=None):
        self.folder = pathlib.Path(folder)
        self.command = [*launcher, PROGRAM, "serve", *(models or [MODEL]), "port=0", f"state={self.folder / 'state'}", "threads=1",
                        *settings]
        self.errors = open(self.folder / "errors.txt", "ab")
        self.process = subprocess.Popen([str(word) for word in self.command], stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)$", line.strip())
        assert found, f"no address in '{line}':\n{self.log()}"
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if self.process.poll() is None:
            if self.command[0] == "mpirun":  # which ends its processes only where it can
                self.process.terminate()
                try:
                    self.process.wait(timeout=PATIENCE)
                except subprocess.TimeoutExpired:
                    pass
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        log = self.log()
        if failure is not None:
            print(f"the server's log:\n{log}", file=sys.stderr)
        for words in ("Sanitizer: ", "runtime error: "):
            assert words not in log, f"a sanitizer's report:\n{log}"

    def log(self):
        return (self.folder / "errors.txt").read_text(errors="replace")

    def ask(self, method, path, body=None, fields=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        fields = dict(fields or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            fields.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=body, headers=fields)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def create(self, settings=None, **more):
        return self.ask("POST", "/v1/videos", body={**(settings or SMALL), **more})

    def retry(self, identity):
        return self.ask("POST", f"/v1/videos/{identity}/retry")

    def form(self, parts, path="/v1/videos", fields=None):
        body, content_type = form_body(parts)
        return self.ask("POST", path, body=body, fields={"Content-Type": content_type, **(fields or {})})

    def video(self, identity):
        return self.get(f"/v1/videos/{identity}").ok()

    def until(self, identity, *statuses):
        """The video when it has one of these statuses."""
        end = time.monotonic() + PATIENCE
        while True:
            video = self.video(identity)
            if video["status"] in statuses:
                return video
            assert video["status"] in ("queued", "in_progress"), video
            assert time.monotonic() < end, video
            time.sleep(0.02)

    def until_computing(self, identity):
        """When the job is in its steps. With LONG it stays there for a thousand."""
        end = time.monotonic() + PATIENCE
        while self.video(identity).get("run", {}).get("step", 0) < 1:
            assert time.monotonic() < end, self.video(identity)
            time.sleep(0.02)

    def until_phase(self, identity, phase):
        """When the job is in this phase. It must last longer than a request takes."""
        end = time.monotonic() + PATIENCE
        while self.video(identity).get("run", {}).get("phase") != phase:
            assert time.monotonic() < end, self.video(identity)
            assert self.video(identity)["status"] in ("queued", "in_progress"), f"it ended before {phase} was seen"
            time.sleep(0.002)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def raw(self, data):
        """What the server answers to these bytes, until it closes the connection."""
        with self.socket() as wire:
            try:
                wire.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return read_all(wire)

    def metric(self, name):
        text = self.get("/metrics").body.decode()
        found = re.search(rf"^zoetrope_{re.escape(name)} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def until_metric(self, name, value):
        """Requests are counted after their answers."""
        end = time.monotonic() + PATIENCE
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}, not {value}"

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)


def end_sending(wire):
    """Closes our half of the connection. A server that has answered and closed before resets it: shutdown then fails."""
    try:
        wire.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def read_all(wire):
    data = b""
    while True:
        try:
            part = wire.recv(65536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


def form_body(parts):
    """multipart/form-data of (name, text) and (name, bytes, filename)."""
    boundary, body = uuid.uuid4().hex, b""
    for name, value, *file in parts:
        named = f'; filename="{file[0]}"' if file else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n'.encode()
        body += (b"Content-Type: application/octet-stream\r\n\r\n" if file else b"\r\n")
        body += (value if isinstance(value, bytes) else str(value).encode()) + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def png(width, height):
    """A picture of one colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + b"\x40\x80\xc0" * width for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_tensors(file, tensors):
    """`tensors`: name -> values, as float32."""
    header, data = {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_style(loras):
    """A LoRA `style` for MODEL in this folder, with a key that matches nothing."""
    config = json.loads((pathlib.Path(MODEL) / "transformer/config.json").read_text())
    width = config["num_attention_heads"] * config["attention_head_dim"]
    loras.mkdir()
    write_tensors(loras / "style.safetensors", {f"diffusion_model.blocks.{block}.ffn.2.diff_b": [0.01] * width for block in (0, 99)})


def events_of(data):
    """(name, video) of each event of a stream."""
    events = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert lines[0].startswith("event: ") and all(line.startswith("data: ") for line in lines[1:]), block
        events.append((lines[0][7:], json.loads("\n".join(line[6:] for line in lines[1:]))))
    return events
