#!/usr/bin/env python3
"""Asks a server for many videos while clients cancel, send nonsense, are slow and vanish, and checks that nothing is lost,
nothing hangs, memory stays flat and every answer is one of the protocol. Prints a report; exit code 1 where one fails.

    tools/server_soak.py PROGRAM MODEL [requests=1000] [seed=1] [clients=8]

Then measures what a request costs beside the generation itself.
"""
import collections
import json
import os
import pathlib
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "server"))
import harness  # noqa: E402

SHORT = {"prompt": "a red ball", "size": "32x32", "num_frames": 1, "num_inference_steps": 1, "guidance_scale": 1}


class Soak:
    def __init__(self, server, requests, seed):
        self.server, self.requests, self.seed = server, requests, seed
        self.lock = threading.Lock()
        self.next = 0
        self.counts = collections.Counter()
        self.codes = collections.Counter()
        self.wrong = []
        self.to_finish = set()
        self.memory = []

    def resident(self):
        return int(pathlib.Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def check(self, answer, *codes):
        with self.lock:
            self.codes[answer.status] += 1
        try:
            document = answer.json()
        except ValueError:
            self.wrong.append(f"no JSON: {answer.status} {answer.body[:80]}")
            return None
        if answer.status not in codes or (answer.status != 200 and set(document["error"]) != {"message", "type", "code", "param"}):
            self.wrong.append(f"{answer.status} {answer.body[:200]}")
        return document if answer.status == 200 else None

    def create(self, seed):
        while True:
            answer = self.server.create(SHORT, seed=seed)
            video = self.check(answer, 200, 429)
            if answer.status != 429:
                return video["id"]
            time.sleep(0.05)

    def one(self, number):
        generator = random.Random(self.seed * 1_000_003 + number)
        kind = generator.choices(("video", "cancel", "bad body", "bad field", "slow", "vanish", "watch", "look"),
                                 (30, 15, 15, 15, 5, 8, 6, 6))[0]
        self.counts[kind] += 1
        server = self.server
        if kind == "video":
            identity = self.create(number)
            with self.lock:
                self.to_finish.add(identity)
        elif kind == "cancel":
            identity = self.create(number)
            self.check(server.ask("DELETE", f"/v1/videos/{identity}"), 200)
            self.check(server.get(f"/v1/videos/{identity}"), 404)
        elif kind == "bad body":
            body = bytes(generator.randrange(256) for _ in range(generator.randrange(300)))
            self.check(server.ask("POST", "/v1/videos", body=body, fields={"Content-Type": "application/json"}), 400)
        elif kind == "bad field":
            field = generator.choice(("num_frames", "size", "seed", "promt", "cache", "lora", "image", "fps"))
            self.check(server.create(SHORT, **{field: generator.choice((-7, "x", {"a": 1}))}), 400)
        elif kind == "slow":
            text = json.dumps({**SHORT, "seed": number}).encode()
            head = f"POST /v1/videos/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            with server.socket() as wire:
                for part in (head.encode()[:20], head.encode()[20:], text[:5], text[5:]):
                    wire.sendall(part)
                    time.sleep(0.05)
                if not harness.read_all(wire).startswith(b"HTTP/1.1 200"):
                    self.wrong.append("a slow request was not answered")
        elif kind == "vanish":
            wire = server.socket()
            wire.sendall(b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"[
                :generator.randrange(1, 110)])
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.close()
        elif kind == "watch":
            identity = self.create(number)
            with self.lock:
                self.to_finish.add(identity)
            events = harness.events_of(server.get(f"/v1/videos/{identity}/events").body)
            if not events or events[-1][0] != "completed":
                self.wrong.append(f"the events of {identity} end with {events[-1:]}")
        else:
            for path in ("/health", "/v1/videos?limit=5", "/v1/models"):
                self.check(server.get(path), 200)

    def client(self):
        while True:
            with self.lock:
                number = self.next
                self.next += 1
                if number % 50 == 0:
                    self.memory.append(self.resident())
            if number >= self.requests:
                return
            try:
                self.one(number)
            except Exception as error:  # noqa: BLE001 (one client's failure is a finding, and the others go on)
                self.wrong.append(f"request {number}: {type(error).__name__}: {error}")

    def run(self, clients):
        threads = [threading.Thread(target=self.client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for identity in self.to_finish:
            video = self.server.until(identity, "completed", "failed")
            content = self.server.get(f"/v1/videos/{identity}/content")
            if video["status"] != "completed" or content.status != 200 or content.body[4:8] != b"ftyp":
                self.wrong.append(f"{identity}: {video['status']}, {content.status}")
        self.memory.append(self.resident())


def overhead(server):
    """Milliseconds: to queue a request, to look at one, and of a whole job beside its run."""
    first = server.create(harness.LONG).ok()["id"]
    server.until_computing(first)
    queued, looked = [], []
    ids = []
    for seed in range(40):
        begin = time.perf_counter()
        ids.append(server.create(SHORT, seed=seed).ok()["id"])
        queued.append(1000 * (time.perf_counter() - begin))
        begin = time.perf_counter()
        server.video(ids[-1])
        looked.append(1000 * (time.perf_counter() - begin))
    server.ask("DELETE", f"/v1/videos/{first}").ok()
    begin = time.perf_counter()
    taken = sum(server.until(identity, "completed")["seconds_taken"] for identity in ids)
    del begin
    return statistics.median(queued), statistics.median(looked), 1000 * taken / len(ids)


def generate_seconds(folder, count):
    """Milliseconds of a video in `zoetrope generate` of the same videos in one process, its start not counted."""
    def seconds(videos):
        words = [f"{key}={value}" for key, value in SHORT.items() if key != "size"]
        begin = time.perf_counter()
        subprocess.run([harness.PROGRAM, "generate", harness.MODEL, *words, "width=32", "height=32", "threads=1", "summary=none",
                        f"num_videos={videos}", f"output={folder / 'x.mp4'}"], check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin
    return 1000 * (seconds(count + 1) - seconds(1)) / count


def main():
    harness.PROGRAM, harness.MODEL = sys.argv[1:3]
    settings = {"requests": "1000", "seed": "1", "clients": "8", **dict(word.split("=", 1) for word in sys.argv[3:])}
    with tempfile.TemporaryDirectory(prefix="zoetrope_soak_") as folder, \
            harness.Server(folder, "queue=200", "log=none", "request_timeout=5") as server:
        queued, looked, taken = overhead(server)
        alone = generate_seconds(pathlib.Path(folder), 40)
        soak = Soak(server, int(settings["requests"]), int(settings["seed"]))
        begin = time.monotonic()
        soak.run(int(settings["clients"]))
        seconds = time.monotonic() - begin
        left = [video for video in server.get("/v1/videos?limit=100").ok()["data"] if video["status"] in ("queued", "in_progress")]
        if left:
            soak.wrong.append(f"{len(left)} jobs hang")
        threads = len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))
        files = len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))
        code = server.stop()
    early, late = soak.memory[len(soak.memory) // 4], soak.memory[-1]
    print(f"{soak.requests} requests by {settings['clients']} clients in {seconds:.1f} s, seed {soak.seed}")
    print("  kinds:", ", ".join(f"{count} {kind}" for kind, count in soak.counts.most_common()))
    print("  status codes:", ", ".join(f"{count} x {status}" for status, count in sorted(soak.codes.items())))
    print(f"  videos: {len(soak.to_finish)} to finish, all of them did" if not soak.wrong else "  videos: see below")
    print(f"  resident: {early / 1e6:.1f} MB after a quarter, {late / 1e6:.1f} MB at the end; {threads} threads, {files} descriptors; exit code {code}")
    print(f"  to queue a request {queued:.2f} ms, to look at one {looked:.2f} ms (medians, while a job runs)")
    print(f"  a job's run {taken:.2f} ms, the same in zoetrope generate {alone:.2f} ms")
    if late > early * 1.1 + 10e6:
        soak.wrong.append("memory grows")
    if code != 0:
        soak.wrong.append(f"the server ended with {code}")
    for line in soak.wrong[:20]:
        print("WRONG:", line)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
