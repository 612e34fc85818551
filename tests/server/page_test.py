"""The page in a browser without a window, driven over Chromium's debugging pipe; skipped where it is not installed.

page_test.py PROGRAM MODEL NAME
"""
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from harness import LONG, PATIENCE, PIPELINES, SMALL, Server, mark_failed, png, run_script, write_style

SKIPPED = 77


class Browser:
    """Chromium at the page of a server. Everything that it reports as wrong is in `complaints`."""

    def __init__(self, folder, server, width=1280, height=1000, dark=False):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            print("skipped: chromium is not installed")
            sys.exit(SKIPPED)
        to_browser, self.out = os.pipe()
        self.answers, from_browser = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   f"--user-data-dir={folder / 'browser'}", "--remote-debugging-pipe", "about:blank"]
        # The pipe is at descriptors 3 and 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(["sh", "-c", shell, "sh", *command], pass_fds=(to_browser, from_browser),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.complaints, self.session, self.asked = 0, b"", [], None, []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
            self.call("Emulation.setEmulatedMedia",
                      features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
            self.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
            self.until("document.readyState === 'complete' && document.getElementById('model') !== null")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        while self.runs():  # its other processes still write to its folder, which is removed next
            time.sleep(0.01)
        os.close(self.out)
        os.close(self.answers)

    def runs(self):
        """Whether a process of its group does."""
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            except OSError:  # it has ended meanwhile
                continue
            if int(group) == self.process.pid and state not in "ZX":
                return True
        return False

    def receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.answers, 65536)
            assert part, "the browser has ended"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(message)
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(given["exceptionDetails"])
        elif method == "Log.entryAdded" and "status of 404" not in given["entry"]["text"]:  # no preview yet
            self.complaints.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(given["request"]["url"])
        return message

    def call(self, method, **given):
        self.number += 1
        message = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"never: {expression}\n{self.value('document.body.innerText')}\n{self.complaints}"
            time.sleep(0.05)
        return value

    def fill(self, identity, text):
        self.value(f"""(() => {{ const field = document.getElementById({json.dumps(identity)}); field.value = {json.dumps(text)};
                    field.dispatchEvent(new Event("input", {{bubbles: true}})); }})()""")

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


SMALL_FORM = {"width": "32", "height": "32", "fps": "8", "seconds": "0.5", "steps": "2"}


def a_video_by_hand(folder):
    with Server(folder) as server, Browser(folder, server) as page:
        page.until("document.getElementById('model').value !== ''")
        page.fill("prompt", "<img src=x onerror=alert(1)> & a \"red\" ball")
        for identity, text in SMALL_FORM.items():
            page.fill(identity, text)
        page.until("document.getElementById('plan').innerText.includes('of memory')")
        assert "5 frames of 32x32, 2 steps" in page.value("document.getElementById('plan').innerText")
        page.value("document.getElementById('create').click()")
        page.until("document.querySelectorAll('#gallery li').length === 1")
        assert page.value("document.querySelector('#gallery .job-prompt').textContent") == "<img src=x onerror=alert(1)> & a \"red\" ball"
        assert page.value("document.querySelectorAll('#gallery img').length") == 0, "a prompt became markup"
        page.until("document.querySelector('#gallery video').readyState >= 1")
        page.value("[...document.querySelectorAll('#gallery button')].find(b => b.textContent === 'Copy command').click()")
        page.until("document.querySelector('#gallery code').textContent.startsWith('zoetrope generate model=')")
        page.fill("prompt", "other")
        page.value("[...document.querySelectorAll('#gallery button')].find(b => b.textContent === 'Use settings').click()")
        assert page.value("document.getElementById('prompt').value").startswith("<img")
        page.value("[...document.querySelectorAll('#gallery button')].find(b => b.textContent === 'Delete').click()")
        page.until("document.querySelectorAll('#gallery li').length === 0")
        assert server.get("/v1/videos").ok()["data"] == []
        assert not page.complaints, page.complaints
        assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "blob:", "about:", "data:")) for url in page.asked), page.asked


def the_queue_is_followed(folder):
    with Server(folder) as server:
        first, second = server.create({**LONG, "size": "160x96"}).ok()["id"], server.create(prompt="the second").ok()["id"]
        with Browser(folder, server, width=390, height=844, dark=True) as page:
            page.until("document.querySelectorAll('#queue li').length === 2")
            page.until("/Step [0-9]+ of 1000/.test(document.querySelector('#queue .job-line').textContent)")
            before = page.value("document.querySelector('#queue .job-line').textContent")
            page.until(f"document.querySelector('#queue .job-line').textContent !== {json.dumps(before)}")
            assert page.value("document.documentElement.scrollWidth") <= 390, "wider than a phone"
            assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 21, 19)"
            page.value("document.querySelector('#queue button').click()")
            page.until("document.querySelectorAll('#gallery li').length === 1")
            server.get(f"/v1/videos/{first}").refused(404, "not_found", param="id")
            assert server.video(second)["status"] == "completed"
            assert not page.complaints, page.complaints


def settings_are_those_of_the_video(folder):
    """Where they are the program's defaults, too, which are not the server's."""
    with Server(folder, "num_inference_steps=3", "guidance_scale=2", "negative_prompt=dull") as server:
        models = server.get("/v1/models").ok()["data"]
        program = {key: models[0]["program_defaults"][key] for key in ("num_inference_steps", "guidance_scale", "negative_prompt")}
        assert program["num_inference_steps"] == 50 and program["negative_prompt"] == "", program
        server.until(server.create({**SMALL, **program}).ok()["id"], "completed")
        with Browser(folder, server) as page:
            page.until("document.querySelectorAll('#gallery li').length === 1")
            assert page.value("document.getElementById('steps').value") == "3"
            page.value("[...document.querySelectorAll('#gallery button')].find(b => b.textContent === 'Use settings').click()")
            shown = [page.value(f"document.getElementById('{identity}').value") for identity in ("steps", "guidance", "negative")]
            assert shown == ["50", f"{program['guidance_scale']:g}", ""], shown


def use_settings(page, prompt):
    page.value(f"[...document.querySelectorAll('#gallery button')].find(b => b.ariaLabel === 'Use the settings of: {prompt}').click()")


def settings_without_a_field_are_used_again(folder):
    loras = folder / "loras"
    write_style(loras)
    request = {**SMALL, "num_inference_steps": 4, "seed": 5, "recipe": "lightning_4", "lora": "style:0.5", "crf": 20}
    with Server(folder, f"lora_folder={loras}") as server:
        first = server.until(server.create(request).ok()["id"], "completed")
        with Browser(folder, server) as page:
            page.until("document.querySelectorAll('#gallery li').length === 1")
            warning = page.value("document.querySelector('#gallery .warning').textContent")
            assert warning.startswith("style.safetensors: 1 of 2 keys match no tensor"), warning
            assert page.value("document.getElementById('kept').hidden")
            use_settings(page, SMALL["prompt"])
            kept = page.value("[...document.querySelectorAll('#kept-list span')].map(e => e.textContent)")
            assert {"lora: style:0.5", "crf: 20", "sigmas: 1,0.75,0.5,0.25"} < set(kept), kept
            page.value("document.getElementById('create').click()")
            page.until("document.querySelectorAll('#gallery li').length === 2")
            page.value("[...document.querySelectorAll('#kept-list button')].find(b => b.ariaLabel === 'Remove: crf').click()")
            page.value("document.getElementById('create').click()")
            page.until("document.querySelectorAll('#gallery li').length === 3")
        third, second, _ = server.get("/v1/videos").ok()["data"]
        assert second["settings"] == first["settings"], (first, second)
        assert third["settings"] == {key: value for key, value in first["settings"].items() if key != "crf"}, third


def choose_picture(data):
    """A script that chooses a file with these bytes."""
    return f"""(() => {{ const files = new DataTransfer(); files.items.add(new File([new Uint8Array({list(data)})], "x.png"));
             document.getElementById("picture").files = files.files; document.getElementById("picture").dispatchEvent(new Event("change")); }})()"""


def a_picture_shapes_the_video(folder):
    """Where the server has a max_area, until a size is chosen."""
    settings = folder / "area.yml"
    settings.write_text(f"model: {PIPELINES / 'wan22_ti2v'}\nmax_area: 4096\nheight: 32\nwidth: 64\nnum_frames: 5\n")
    with Server(folder, models=[settings]) as server, Browser(folder, server) as page:
        page.until("document.getElementById('model').value !== ''")
        page.fill("prompt", "a ball")

        def planned(size):
            page.until(f"document.getElementById('plan').innerText.includes('5 frames of {size},')")
        planned("64x32")
        page.value(choose_picture(png(64, 128)))
        planned("32x64")
        page.fill("width", "32")
        planned("32x32")
        page.value("document.getElementById('size').value = 'picture'; document.getElementById('size').dispatchEvent(new Event('change'))")
        planned("32x64")
        assert not page.complaints, page.complaints


def a_picture_is_not_used_again(folder):
    """The one that is chosen is of another video."""
    choose = choose_picture(b"x")
    shown = "[document.getElementById('picture').files.length, document.getElementById('missing').textContent]"
    with Server(folder, models=[PIPELINES / "wan22_ti2v"]) as server:
        parts = [("size", "32x32"), ("num_frames", "5"), ("num_inference_steps", "1")]
        for more in ([("prompt", "with"), ("image", png(32, 32), "x.png")], [("prompt", "without")]):
            server.until(server.form([*parts, *more]).ok()["id"], "completed")
        with Browser(folder, server) as page:
            page.until("document.querySelectorAll('#gallery li').length === 2")
            page.value(choose)
            use_settings(page, "with")
            assert page.value(shown) == [0, "That video began with a picture: choose it again."], page.value(shown)
            page.value(choose)
            assert page.value(shown) == [1, ""], page.value(shown)
            use_settings(page, "without")
            assert page.value(shown) == [0, ""], page.value(shown)


def a_video_of_one_frame(folder):
    with Server(folder, "num_frames=1", "fps=240", "height=32", "width=32", "num_inference_steps=1") as server, Browser(folder, server) as page:
        page.until("document.getElementById('model').value !== ''")
        page.fill("prompt", "a ball")
        page.until("document.getElementById('plan').innerText.includes('for 1 frame of 32x32, 1 step.')")
        page.value("document.getElementById('create').click()")
        page.until("document.querySelectorAll('#gallery li').length === 1")
        page.fill("seconds", "1")
        use_settings(page, "a ball")
        page.value("document.getElementById('create').click()")
        page.until("document.querySelectorAll('#gallery li').length === 2")
        assert [video["num_frames"] for video in server.get("/v1/videos").ok()["data"]] == [1, 1]


def more_after_the_last_was_deleted(folder):
    with Server(folder) as server:
        first = server.create().ok()["id"]
        server.until(first, "completed")
    state = folder / "state"
    for number in range(2, 61):
        identity = f"video_{number:032x}"
        shutil.copytree(state / first, state / identity)
        file = state / identity / "job.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "id": identity, "number": number}))
    with Server(folder) as server, Browser(folder, server) as page:
        page.until("document.querySelectorAll('#gallery li').length === 50 && !document.getElementById('more').hidden")
        page.value("[...document.querySelectorAll('#gallery li:last-child button')].find(b => b.textContent === 'Delete').click()")
        page.until("document.querySelectorAll('#gallery li').length === 49")
        server.ask("DELETE", f"/v1/videos/video_{12:032x}").ok()  # elsewhere
        page.value("document.getElementById('more').click()")
        page.until("document.querySelectorAll('#gallery li').length === 58 && document.getElementById('more').hidden")


def a_failed_one_is_tried_again(folder):
    with Server(folder) as server:
        identity = server.create().ok()["id"]
        server.until(identity, "completed")
        server.stop()
    mark_failed(folder, identity)
    again = "[...document.querySelectorAll('#gallery button')].find(b => b.textContent === 'Try again')"
    with Server(folder, "queue=1") as server:
        running = server.create(LONG).ok()["id"]
        server.until_computing(running)  # before that it takes the one place of the queue
        waiting = server.create().ok()["id"]
        with Browser(folder, server) as page:
            page.until("document.querySelector('#gallery .error') && document.querySelector('#gallery .error').textContent === 'memory ran out'")
            page.until(f"document.querySelectorAll('#queue li').length === 2 && {again}.click() === undefined")
            page.until("document.querySelector('#gallery').innerText.includes('the queue is full')")
            for each in (running, waiting):
                server.ask("DELETE", f"/v1/videos/{each}").ok()
            page.value(f"{again}.click()")
            page.until("document.querySelector('#gallery video') && document.querySelectorAll('#gallery li').length === 1")
            assert server.video(identity)["status"] == "completed"


def refusals_are_shown(folder):
    with Server(folder) as server, Browser(folder, server) as page:
        page.until("document.getElementById('model').value !== ''")
        page.fill("prompt", "a")
        page.fill("width", "16384")
        page.fill("height", "16384")
        page.fill("seconds", "200")
        page.until("document.getElementById('plan').innerText.includes('memory: this run needs')")
        assert page.value("document.getElementById('create').disabled")
        for identity, text in {**SMALL_FORM, "fps": "7"}.items():
            page.fill(identity, text)
        page.until("document.getElementById('plan').innerText.includes('of memory')")
        assert not page.value("document.getElementById('create').disabled")


def the_token_is_asked_for(folder):
    with Server(folder, "token=abc") as server:
        with Browser(folder, server) as page:
            page.until("document.getElementById('token-dialog').open")
            page.fill("token", "abc")
            page.value("document.querySelector('#token-form button').click()")
            page.until("document.getElementById('model').value !== ''")
            for identity, text in {"prompt": "a ball", **SMALL_FORM}.items():
                page.fill(identity, text)
            page.value("document.getElementById('create').click()")
            page.until("document.querySelector('#gallery video') && document.querySelector('#gallery video').src.startsWith('blob:')")


def everything_has_a_name(folder):
    with Server(folder) as server:
        server.until(server.create().ok()["id"], "completed")
        with Browser(folder, server) as page:
            page.until("document.querySelectorAll('#gallery li').length === 1")
            nameless = page.value("""[...document.querySelectorAll('input, select, textarea, button, video, progress')].filter(
                (e) => !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute('aria-label')).map((e) => e.outerHTML)""")
            assert nameless == [], nameless
            assert page.value("document.documentElement.lang") == "en"


TESTS = {test.__name__: test for test in (
    a_video_by_hand, the_queue_is_followed, settings_are_those_of_the_video,
    settings_without_a_field_are_used_again, a_picture_shapes_the_video, a_picture_is_not_used_again, a_video_of_one_frame,
    more_after_the_last_was_deleted, a_failed_one_is_tried_again, refusals_are_shown, the_token_is_asked_for, everything_has_a_name)}

if __name__ == "__main__":
    sys.exit(run_script(TESTS))
