#!/usr/bin/env python3
"""Asks for videos for a long time and checks that nothing is lost, nothing hangs, every answer is as it should be, and that
memory, descriptors and threads stay flat. Prints a report; exit code 1 where a check fails.

    tools/soak.py runs PROGRAM MODEL [seconds=600 | runs=N] [seed=1] [json=FILE]
    tools/soak.py server PROGRAM MODEL [seconds=600 | requests=N] [seed=1] [clients=8] [json=FILE]

runs    one process makes videos of mixed sizes, frames, ranks, strategies, step caches, dtypes, batches, LoRA files and
        quantised weights; some are cancelled, and some requests are wrong. The same seed asks for the same runs.
server  clients of one server ask for videos, cancel, send nonsense, are slow and vanish.

`runs` is of soak_runs, next to the program; keep=memory, descriptor or thread has it leave that behind, to be found.
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

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "server"))
import harness  # noqa: E402

SHORT = {"prompt": "a red ball", "size": "32x32", "num_frames": 1, "num_inference_steps": 1, "guidance_scale": 1}
MOST_OPEN = 40  # videos that are not looked at yet; a server keeps a thousand that ended
# With an arena for every thread, how much glibc holds depends on which thread freed what.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
LORAS = ROOT / "tests" / "golden" / "loras"
LORA_MODEL = ROOT / "tests" / "golden" / "pipelines" / "wan21_t2v"  # whose LORAS they are


class Usage:
    """What a process has, measured again and again."""

    def __init__(self, process):
        self.process = process
        self.samples = []  # memory, descriptors, threads

    def measure(self):
        folder = pathlib.Path(f"/proc/{self.process}")
        memory = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.samples.append((memory, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))))

    def grown(self, busy=0):
        """What is more in the last quarter than in the second: memory by 3 % and 4 MB, the others by any. `busy`: as many
        descriptors and threads come and go with clients."""
        second, last = (self.samples[len(self.samples) * begin // 4:len(self.samples) * end // 4] for begin, end in ((1, 2), (3, 4)))
        if not second or not last:
            return ["nothing: there are too few samples"]
        wrong = []
        for name, of, more in (("memory", 0, None), ("descriptors", 1, busy), ("threads", 2, busy)):
            # What is kept is in every sample: of memory the least counts, because a run that happens to be under way has
            # more, and a quarter may have few samples.
            least = min if name == "memory" else statistics.median
            before, after = (least(sample[of] for sample in part) for part in (second, last))
            if after > (before * 1.03 + 4e6 if more is None else before + more):
                wrong.append(f"{name} {'grows' if name == 'memory' else 'grow'}: {before:.0f}, later {after:.0f}")
        return wrong

    def report(self):
        quarters = [self.samples[len(self.samples) * part // 4:len(self.samples) * (part + 1) // 4] for part in range(4)]
        return {name: [statistics.median(sample[of] for sample in quarter) for quarter in quarters if quarter]
                for of, name in enumerate(("memory_bytes", "descriptors", "threads"))}


def print_usage(usage):
    report = usage.report()
    memory = ", ".join(f"{value / 1e6:.1f}" for value in report["memory_bytes"])
    print(f"  resident {memory} MB, descriptors {report['descriptors']}, threads {report['threads']} (medians of quarters)")


# ---- runs in one process ----

class Runs:
    """Draws runs, and what each has to be answered."""

    def __init__(self, folder, seed, keep):
        self.folder, self.keep = folder, keep
        self.random = random.Random(seed)
        self.models = [[]]
        quantised = folder / "int8.safetensors"
        subprocess.run([harness.PROGRAM, "convert", pathlib.Path(harness.MODEL) / "transformer", f"out={quantised}", "format=int8_rows",
                        "tensors=false"], check=True, stdout=subprocess.DEVNULL)
        self.models += [[f"transformer={quantised}"], [f"transformer={quantised}", "weights_in_memory=as_stored"]]
        if pathlib.Path(harness.MODEL).resolve() == LORA_MODEL:
            self.models += [[f"lora={LORAS / name}.safetensors:0.5"] for name in ("original", "peft")]

    def draw(self):
        choose = self.random.choice
        steps = choose((1, 2, 6, 12))
        ranks = choose((1, 1, 2, 3, 4))
        words = [f"model={harness.MODEL}", "prompt=" + choose(("a red ball", "a green square", "two cats")), f"seed={self.random.randrange(99)}",
                 f"width={16 * choose((2, 3, 4))}", f"height={16 * choose((2, 3, 4))}", f"num_frames={choose((1, 5, 9))}",
                 f"num_inference_steps={steps}", f"guidance_scale={choose((1, 4))}", f"ranks={ranks}", f"threads={choose((1, 2, 4))}",
                 f"output={self.folder / choose(('a.gif', 'a.png', 'a.mp4'))}",
                 *choose(self.models)]
        words.append(f"dtype={choose(('float32', 'bf16'))}")
        if ranks > 1:
            words += choose(([], ["attention=ring"], ["attention=ulysses"], ["attention=gather"], ["attention=ring", "softmax=fixed_max"],
                             ["kv_exchange_dtype=int8"], ["attention=ring", "data_parallelism=1"]))
        words += choose(([], [], ["cache=cfg"], ["cache=mag", "cache_ratios=wan2.1_t2v_14b"], ["cache=drift"], ["num_videos=3", "batch_size=2"],
                         ["keep_weights=all", "num_videos=2"], ["vae_tiling=true"], ["preview=2"]))
        if any(word.startswith("cache=") for word in words):
            words.append("guidance_scale=4")
        if any(word.startswith("num_videos") for word in words):
            words[words.index(next(word for word in words if word.startswith("output")))] = f"output={self.folder / 'clips'}/"
        kind = self.random.choices(("made", "cancelled", "wrong"), (70, 18, 12))[0]
        if kind == "cancelled":
            words.append(f"soak_cancel={self.random.randrange(1, 3)}")
        if kind == "wrong":
            words.append(choose(("width=33", "num_frames=4", "ranks=0", "scheduler=none", "promt=a", "attention=rings",
                                 "transformer=/nowhere", "latents=/nowhere", "output=/nowhere/a.gif", "lora=/nowhere",
                                 "memory_limit=0.001")))
        return kind, words + ([f"soak_keep={self.keep}"] if self.keep else [])


def soak_runs(settings):
    wrong, counts = [], collections.Counter()
    with tempfile.TemporaryDirectory(prefix="zoetrope_soak_") as folder:
        folder = pathlib.Path(folder)
        runs = Runs(folder, int(settings["seed"]), settings["keep"])
        with open(folder / "said", "wb") as said:
            process = subprocess.Popen([pathlib.Path(harness.PROGRAM).with_name("soak_runs")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, **ONE_ARENA})
        usage = Usage(process.pid)
        begin, most = time.monotonic(), int(settings["runs"] or 0)
        while len(usage.samples) < most if most else time.monotonic() - begin < float(settings["seconds"]):
            kind, words = runs.draw()
            process.stdin.write("\t".join(words) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
            if not answer:
                wrong.append(f"the process ended: {(folder / 'said').read_text(errors='replace')[-400:]}\n  {words}")
                break
            counts[answer.split(":")[0]] += 1
            # A run may end before its cancellation.
            if not answer.startswith({"made": ("done",), "cancelled": ("cancelled", "done"), "wrong": ("refused: ",)}[kind]):
                wrong.append(f"'{answer}' to {kind}: {' '.join(words)}")
            usage.measure()
        seconds = time.monotonic() - begin
        process.stdin.close()
        code = process.wait()
    if code != 0:
        wrong.append(f"the process ended with {code}")
    wrong += usage.grown()
    print(f"{len(usage.samples)} runs in one process in {seconds:.1f} s, seed {settings['seed']}")
    print("  answers:", ", ".join(f"{count} {answer}" for answer, count in counts.most_common()))
    return {"runs": len(usage.samples), "seconds": seconds, "answers": dict(counts)}, usage, wrong


# ---- clients of a server ----

class Soak:
    def __init__(self, server, requests, seconds, seed):
        self.server, self.seed = server, seed
        self.requests = requests  # 0: until the seconds are over
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.next = 0
        self.counts = collections.Counter()
        self.codes = collections.Counter()
        self.wrong = []
        self.to_finish = collections.deque()
        self.finished = 0
        self.usage = Usage(server.process.pid)

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
        generator = random.Random(seed)
        mixed = {**SHORT, "size": generator.choice(("32x32", "48x32", "64x48")), "num_frames": generator.choice((1, 1, 5)),
                 "num_inference_steps": generator.choice((1, 1, 3)), "guidance_scale": generator.choice((1, 1, 4))}
        while True:
            answer = self.server.create(mixed, seed=seed)
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
                self.to_finish.append(identity)
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
                self.to_finish.append(identity)
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
                if number >= self.requests if self.requests else time.monotonic() >= self.end:
                    return
                self.next += 1
                if number % 10 == 0:
                    self.usage.measure()
            try:
                self.one(number)
                self.settle(MOST_OPEN)
            except Exception as error:  # noqa: BLE001 (one client's failure is a finding, and the others go on)
                self.wrong.append(f"request {number}: {type(error).__name__}: {error}")

    def run(self, clients):
        threads = [threading.Thread(target=self.client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.settle(0)

    def settle(self, most):
        """Looks at the oldest videos, all but so many: a server deletes those that ended long ago."""
        while True:
            with self.lock:
                if len(self.to_finish) <= most:
                    return
                identity = self.to_finish.popleft()
                self.finished += 1
            video = self.server.until(identity, "completed", "failed")
            content = self.server.get(f"/v1/videos/{identity}/content")
            if video["status"] != "completed" or content.status != 200 or content.body[4:8] != b"ftyp":
                self.wrong.append(f"{identity}: {video['status']}, {content.status}")


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


def soak_server(settings):
    with tempfile.TemporaryDirectory(prefix="zoetrope_soak_") as folder, \
            harness.Server(folder, "queue=200", "log=none", "request_timeout=5", environment=ONE_ARENA) as server:
        queued, looked, taken = overhead(server)
        alone = generate_seconds(pathlib.Path(folder), 40)
        clients = int(settings["clients"])
        soak = Soak(server, int(settings["requests"] or 0), float(settings["seconds"]), int(settings["seed"]))
        begin = time.monotonic()
        soak.run(clients)
        seconds = time.monotonic() - begin
        left = [video for video in server.get("/v1/videos?limit=100").ok()["data"] if video["status"] in ("queued", "in_progress")]
        if left:
            soak.wrong.append(f"{len(left)} jobs hang")
        code = server.stop()
    if code != 0:
        soak.wrong.append(f"the server ended with {code}")
    soak.wrong += soak.usage.grown(busy=clients)
    print(f"{soak.next} requests by {clients} clients in {seconds:.1f} s, seed {soak.seed}")
    print("  kinds:", ", ".join(f"{count} {kind}" for kind, count in soak.counts.most_common()))
    print("  status codes:", ", ".join(f"{count} x {status}" for status, count in sorted(soak.codes.items())))
    print(f"  videos: {soak.finished} to finish, {'all of them did' if not soak.wrong else 'see below'}; exit code {code}")
    print(f"  to queue a request {queued:.2f} ms, to look at one {looked:.2f} ms (medians, while a job runs)")
    print(f"  a job's run {taken:.2f} ms, the same in zoetrope generate {alone:.2f} ms")
    return {"requests": soak.next, "seconds": seconds, "kinds": dict(soak.counts), "status": dict(soak.codes)}, soak.usage, soak.wrong


def main(words):
    keys = {"seconds": "600", "seed": "1", "json": ""}
    keys |= {"runs": {"runs": "", "keep": ""}, "server": {"requests": "", "clients": "8"}}.get(words[0] if words else "", {})
    given = dict(word.partition("=")[::2] for word in words[3:])
    if len(words) < 3 or words[0] not in ("runs", "server") or set(given) - set(keys):
        print(__doc__.strip())
        return 2
    harness.PROGRAM, harness.MODEL = (str(pathlib.Path(path).resolve()) for path in words[1:3])
    settings = {**keys, **given}
    report, usage, wrong = (soak_runs if words[0] == "runs" else soak_server)(settings)
    print_usage(usage)
    for line in wrong[:20]:
        print("WRONG:", line)
    if settings["json"]:
        report |= {"seed": int(settings["seed"]), "quarters": usage.report(), "wrong": wrong}
        pathlib.Path(settings["json"]).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
