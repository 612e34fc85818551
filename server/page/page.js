// The page of the server. All text that comes from elsewhere is set as text, never as markup.
"use strict";

const element = (id) => document.getElementById(id);
const state = { models: [], jobs: new Map(), cards: new Map(), watched: new Map(), listed: false, plan: 0, kept: {}, missing: [], token: sessionStorage.getItem("token") || "" };

// ---- asking the server ----------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  let message = `The server answers ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch (error) { /* no error object: the status has to do */ }
  throw new Refused(response.status, message);
}

const askJson = async (path, options) => (await ask(path, options)).json();

// ---- words ----------------------------------------------------------------------------------------------------------

function duration(seconds) {
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const about = (seconds) => (seconds < 1 ? duration(seconds) : `about ${duration(seconds)}`);
const gigabytes = (bytes) => (bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);
const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const say = (text) => { element("said").textContent = text; };
const shortened = (text) => (text.length > 60 ? `${text.slice(0, 57)}…` : text);

function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

// ---- the form -------------------------------------------------------------------------------------------------------

const SIZES = [[832, 480], [480, 832], [1280, 720], [720, 1280], [640, 640]];

// Settings of a video that the form shows; max_area made the size.
const SHOWN = ["prompt", "negative_prompt", "width", "height", "max_area", "num_frames", "fps", "num_inference_steps", "guidance_scale", "seed"];

// From which the server makes as many frames again; one frame is not 0 seconds.
const secondsOf = (frames, fps) => Number((Math.max(frames - 1, 1) / fps).toFixed(3));

function fillModels() {
  const select = element("model");
  select.replaceChildren(...state.models.map((model) => make("option", { value: model.id, textContent: model.id })));
  select.disabled = state.models.length < 2;
  fillDefaults();
}

function fillDefaults() {
  const model = state.models.find((each) => each.id === element("model").value);
  if (!model) return;
  const { size, max_area: area, fps, num_frames: frames, num_inference_steps: steps, guidance_scale: guidance, negative_prompt: negative } = model.defaults;
  const [width, height] = size.split("x").map(Number);
  const sizes = SIZES.some(([w, h]) => w === width && h === height) ? SIZES : [[width, height], ...SIZES];
  element("size").replaceChildren(
    ...(area ? [make("option", { value: "picture", textContent: "As the picture" })] : []),
    ...sizes.map(([w, h]) => make("option", { value: `${w}x${h}`, textContent: `${w} × ${h}` })),
    make("option", { value: "own", textContent: "Other (below)" }));
  element("size").value = area ? "picture" : size;
  element("width").value = width;
  element("height").value = height;
  element("fps").value = fps;
  element("seconds").value = secondsOf(frames, fps);
  element("steps").value = steps;
  element("guidance").value = guidance;
  element("negative").value = negative;
}

function formBody() {
  const body = new FormData();
  const add = (name, value) => { if (value !== "") body.append(name, value); };
  body.append("prompt", element("prompt").value.trim());
  add("model", element("model").value);
  if (element("size").value !== "picture") {
    add("width", element("width").value);
    add("height", element("height").value);
  }
  add("seconds", element("seconds").value);
  add("fps", element("fps").value);
  add("num_inference_steps", element("steps").value);
  add("guidance_scale", element("guidance").value);
  body.append("seed", element("seed").value === "" ? "-1" : element("seed").value);
  body.append("negative_prompt", element("negative").value);
  for (const [key, value] of Object.entries(state.kept)) body.append(key, value);
  if (element("picture").files.length > 0) body.append("input_reference", element("picture").files[0]);
  return body;
}

function showFormError(message) {
  element("form-error").textContent = message;
  element("form-error").hidden = message === "";
}

// What the same request would take, before the button is pressed.
async function plan() {
  const turn = ++state.plan;
  const shown = element("plan");
  if (!element("new-form").checkValidity()) {
    shown.replaceChildren("Say what it shows to see how long it takes.");
    return;
  }
  try {
    const answer = await askJson("v1/videos/plan", { method: "POST", body: formBody() });
    if (turn !== state.plan) return;
    const time = answer.predicted_seconds === null ? "Time unknown on this machine" : `Takes ${about(answer.predicted_seconds)}`;
    shown.replaceChildren(make("strong", { textContent: `${time}, ${gigabytes(answer.predicted_memory_bytes)} of memory` }),
      ` for ${counted(answer.num_frames, "frame")} of ${answer.size}, ${counted(answer.num_inference_steps, "step")}.`);
    if (!answer.fits) shown.replaceChildren(make("span", { className: "error", textContent: answer.reason }));
    element("create").disabled = !answer.fits;
    showFormError("");
  } catch (error) {
    if (turn !== state.plan) return;
    shown.replaceChildren(make("span", { className: "error", textContent: error.message }));
    element("create").disabled = false;
  }
}

let planTimer = 0;
function planSoon() {
  clearTimeout(planTimer);
  planTimer = setTimeout(plan, 400);
}

async function create(event) {
  event.preventDefault();
  const button = element("create");
  button.disabled = true;
  try {
    const video = await askJson("v1/videos", { method: "POST", body: formBody() });
    showFormError("");
    say("The video is queued.");
    update(video);
  } catch (error) {
    showFormError(error.message);
  }
  button.disabled = false;
}

function showPicture() {
  const file = element("picture").files[0];
  const shown = element("picture-shown");
  if (shown.src) URL.revokeObjectURL(shown.src);
  shown.hidden = element("picture-remove").hidden = !file;
  if (file) shown.src = URL.createObjectURL(file);
  else shown.removeAttribute("src");
  showMissing();
  planSoon();
}

// The files of the video whose settings are used: they stay with it.
function showMissing() {
  const others = [...new Set(state.missing)].filter((key) => key !== "image");
  const sentences = [];
  if (state.missing.includes("image") && element("picture").files.length === 0) sentences.push("That video began with a picture: choose it again.");
  if (others.length > 0) sentences.push(`That video had files that cannot be sent from here: ${others.join(", ").replaceAll("_", " ")}.`);
  element("missing").textContent = sentences.join(" ");
}

// The settings of that video that have no field.
function showKept() {
  element("kept").hidden = Object.keys(state.kept).length === 0;
  element("kept-list").replaceChildren(...Object.entries(state.kept).map(([key, value]) => {
    const words = key.replaceAll("_", " ");
    const remove = make("button", { type: "button", textContent: "Remove", "aria-label": `Remove: ${words}` });
    remove.addEventListener("click", () => {
      delete state.kept[key];
      showKept();
      element("create").focus();
      planSoon();
    });
    return make("li", {}, make("span", { textContent: `${words}: ${shortened(value)}` }), remove);
  }));
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

function jobLine(video) {
  const facts = [`${video.size}`, counted(video.num_frames, "frame"), video.model];
  if (video.status === "queued") {
    const wait = video.wait_seconds === null ? "" : `, begins in ${about(video.wait_seconds)}`;
    return [video.queue_position > 0 ? `${video.queue_position} before it${wait}` : `Next${wait}`, ...facts].join(" · ");
  }
  const run = video.run;
  const left = run.seconds_left === null ? "" : `, ${duration(run.seconds_left)} left`;
  const words = { loading: "Loading", denoising: `Step ${Math.min(run.step + 1, run.steps)} of ${run.steps}${left}`,
    decoding: `Decoding frame ${run.frame} of ${run.frames}${left}` };
  return [words[run.phase] || run.phase, ...facts].join(" · ");
}

const warningsOf = (video) => video.warnings.map((text) => make("p", { className: "warning", textContent: text }));

function queueCard(video) {
  const prompt = make("p", { className: "job-prompt" }), line = make("p", { className: "job-line" });
  const bar = make("progress", { max: 100, "aria-label": `Progress: ${shortened(video.prompt)}` });
  const preview = make("img", { className: "job-preview", alt: "", hidden: true });
  const cancel = make("button", { type: "button", textContent: "Cancel", "aria-label": `Cancel: ${shortened(video.prompt)}` });
  cancel.addEventListener("click", () => remove(video.id, cancel));
  const warnings = make("div");
  const item = make("li", {}, prompt, bar, line, warnings, preview, make("div", { className: "buttons" }, cancel));
  return { item, kind: "queue", number: video.number, show(now) {
    prompt.textContent = now.prompt;
    line.textContent = jobLine(now);
    bar.hidden = now.status !== "in_progress";
    bar.value = now.progress;
    if (warnings.children.length !== now.warnings.length) warnings.replaceChildren(...warningsOf(now));
  }, preview, previews: 0 };
}

function galleryCard(video) {
  const failed = video.status === "failed";
  const prompt = make("p", { className: "job-prompt", textContent: video.prompt });
  const took = video.seconds_taken === null ? "" : ` · took ${duration(video.seconds_taken)}`;
  const line = make("p", { className: "job-line", textContent: `${video.size} · ${video.seconds} s · ${video.model}${video.seed === null ? "" : ` · seed ${video.seed}`}${took}` });
  const item = make("li", { className: "card" });
  const buttons = make("div", { className: "buttons" });
  if (failed) {
    const refused = make("p", { className: "error", hidden: true });
    const retries = make("button", { type: "button", textContent: "Try again", "aria-label": `Try again: ${shortened(video.prompt)}` });
    retries.addEventListener("click", () => retry(video.id, retries, refused));
    buttons.append(retries);
    item.append(prompt, make("p", { className: "error", textContent: video.error.message }), line, ...warningsOf(video), buttons, refused);
  } else {
    const player = make("video", { controls: true, loop: true, playsInline: true, muted: true, preload: "metadata", "aria-label": video.prompt });
    const command = make("code", { textContent: video.command, hidden: true, tabIndex: 0 });
    const copy = make("button", { type: "button", textContent: "Copy command", "aria-label": `Copy the command that makes it again: ${shortened(video.prompt)}` });
    copy.addEventListener("click", async () => {
      command.hidden = false;
      try {
        await navigator.clipboard.writeText(video.command);
        copy.textContent = "Copied";
        say("The command is copied.");
        setTimeout(() => { copy.textContent = "Copy command"; }, 2000);
      } catch (error) {  // not permitted here: it is shown to be selected
        getSelection().selectAllChildren(command);
      }
    });
    const again = make("button", { type: "button", textContent: "Use settings", "aria-label": `Use the settings of: ${shortened(video.prompt)}` });
    again.addEventListener("click", () => useSettings(video));
    const save = make("button", { type: "button", textContent: "Save", "aria-label": `Save: ${shortened(video.prompt)}` });
    save.addEventListener("click", async () => {
      const url = await contentUrl(video);
      make("a", { href: url, download: `${video.id}.mp4` }).click();
    });
    buttons.append(save, again, copy);
    item.append(player, prompt, line, ...warningsOf(video), buttons, command);
    showPlayer(player, video);
  }
  const gone = make("button", { type: "button", textContent: "Delete", "aria-label": `Delete: ${shortened(video.prompt)}` });
  gone.addEventListener("click", () => remove(video.id, gone));
  buttons.append(gone);
  return { item, kind: "gallery", number: video.number, show() {}, release() { if (video.url) URL.revokeObjectURL(video.url); } };
}

// A player sends no token, so with one the video is fetched here.
async function contentUrl(video) {
  const path = `v1/videos/${video.id}/content`;
  if (!state.token) return path;
  if (!video.url) video.url = URL.createObjectURL(await (await ask(path)).blob());
  return video.url;
}

function showPlayer(player, video) {
  const seen = new IntersectionObserver(async (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    try {
      player.src = await contentUrl(video);
    } catch (error) {
      say(error.message);
    }
  }, { rootMargin: "200px" });
  seen.observe(player);
}

// A job's settings omit what equals the program's defaults, whatever those of the server are.
function useSettings(video) {
  const settings = video.settings;
  element("prompt").value = video.prompt;
  element("model").value = video.model;
  fillDefaults();
  state.kept = Object.fromEntries(Object.entries(settings).filter(([key]) => !SHOWN.includes(key)));
  showKept();
  state.missing = video.uploads;
  element("picture").value = "";
  showPicture();
  const [width, height] = video.size.split("x");
  element("width").value = width;
  element("height").value = height;
  element("size").value = video.size;
  if (element("size").selectedIndex < 0) element("size").value = "own";
  element("fps").value = video.fps;
  element("seconds").value = secondsOf(video.num_frames, video.fps);
  element("seed").value = video.seed === null ? "" : video.seed;
  const listed = settings.sigmas ?? settings.timesteps;
  element("steps").value =
    listed ? listed.split(",").length : settings.num_inference_steps ?? state.models[0].program_defaults.num_inference_steps;
  for (const [id, key] of [["guidance", "guidance_scale"], ["negative", "negative_prompt"]])
    element(id).value = settings[key] ?? state.models[0].program_defaults[key];
  element("prompt").focus();
  planSoon();
}

async function retry(id, button, refused) {
  button.disabled = true;
  try {
    update(await askJson(`v1/videos/${id}/retry`, { method: "POST" }));
    say("The video is queued again.");
  } catch (error) {
    button.disabled = false;
    refused.textContent = error.message;
    refused.hidden = false;
    say(error.message);
  }
}

async function remove(id, button) {
  button.disabled = true;
  try {
    await ask(`v1/videos/${id}`, { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) {
      button.disabled = false;
      say(error.message);
      return;
    }
  }
  forget(id);
  say("Deleted.");
}

function forget(id) {
  const card = state.cards.get(id);
  if (card) takeAway(card);
  state.cards.delete(id);
  state.jobs.delete(id);
  stopWatching(id);
  arrange();
}

function takeAway(card) {
  if (card.release) card.release();
  if (card.item.contains(document.activeElement)) element("gallery-title").focus();
  card.item.remove();
}

function arrange() {
  element("queue-empty").hidden = element("queue").children.length > 0;
  element("gallery-empty").hidden = element("gallery").children.length > 0;
}

function update(video) {
  const waits = video.status === "queued" || video.status === "in_progress";
  const kind = waits ? "queue" : "gallery";
  const before = state.cards.get(video.id);
  state.jobs.set(video.id, video);
  // One that is tried again has a new number; it may have failed again since the last look.
  if (!before || before.kind !== kind || before.number !== video.number) {
    if (before) takeAway(before);
    const card = waits ? queueCard(video) : galleryCard(video);
    state.cards.set(video.id, card);
    place(card.item, element(kind), video, waits);
    if (before && !waits) say(video.status === "completed" ? "A video is completed." : "A video failed.");
  }
  state.cards.get(video.id).show(video);
  if (video.status === "in_progress") watch(video.id);
  arrange();
}

// The queue has the oldest first, the gallery the newest.
function place(item, list, video, oldestFirst) {
  item.dataset.number = video.number;
  for (const other of list.children) {
    const number = Number(other.dataset.number);
    if (oldestFirst ? number > video.number : number < video.number) {
      list.insertBefore(item, other);
      return;
    }
  }
  list.append(item);
}

// ---- following the server -------------------------------------------------------------------------------------------

// Events by fetch, as EventSource sends no token.
async function watch(id) {
  if (state.watched.has(id)) return;
  const control = new AbortController();
  state.watched.set(id, control);
  try {
    const response = await ask(`v1/videos/${id}/events`, { signal: control.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      text += value;
      let end = text.indexOf("\n\n");
      for (; end >= 0; end = text.indexOf("\n\n")) {
        takeEvent(id, text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  } catch (error) { /* the next look at the list says how it is */ }
  state.watched.delete(id);
}

function takeEvent(id, block) {
  const lines = block.split("\n");
  const name = (lines.find((line) => line.startsWith("event: ")) || "").slice(7);
  const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (!data) return;
  if (name === "deleted") {
    forget(id);
    return;
  }
  const video = JSON.parse(data);
  update(video);
  if (video.run) preview(video);
}

async function preview(video) {
  const card = state.cards.get(video.id);
  if (!card || card.kind !== "queue" || card.previews === video.run.previews) return;
  card.previews = video.run.previews;
  try {
    const picture = URL.createObjectURL(await (await ask(`v1/videos/${video.id}/preview`)).blob());
    if (card.preview.src) URL.revokeObjectURL(card.preview.src);
    card.preview.src = picture;
    card.preview.alt = "Preview of the video";
    card.preview.hidden = false;
  } catch (error) { /* there is none yet */ }
}

function stopWatching(id) {
  const control = state.watched.get(id);
  if (control) control.abort();
  state.watched.delete(id);
}

async function look() {
  try {
    const page = await askJson("v1/videos?limit=50");
    const seen = new Set(page.data.map((video) => video.id));
    page.data.forEach(update);
    for (const [id, video] of state.jobs)
      if (!seen.has(id) && (!page.has_more || video.status === "in_progress" || video.status === "queued")) {
        try {
          update(await askJson(`v1/videos/${id}`));
        } catch (error) {
          if (error.status === 404) forget(id);
        }
      }
    if (!state.listed) {
      state.listed = true;
      element("more").hidden = !page.has_more;
    }
    const health = await askJson("health");
    const { queued, in_progress: runs } = health.jobs;
    element("server-state").textContent = runs + queued === 0 ? "Ready" : `${runs} running, ${queued} waiting`;
  } catch (error) {
    element("server-state").textContent = error.message;
    if (error.status === 401) askForToken();
  }
}

// From the oldest that is shown; where that was deleted elsewhere, from the one before.
async function more() {
  const oldest = [...state.jobs.values()].reduce((a, b) => (a && a.number < b.number ? a : b), null);
  try {
    const page = await askJson(`v1/videos?limit=50${oldest ? `&after=${encodeURIComponent(oldest.id)}` : ""}`);
    page.data.forEach(update);
    element("more").hidden = !page.has_more;
  } catch (error) {
    if (error.status !== 400 || !oldest) throw error;
    forget(oldest.id);
    await more();
  }
}

function askForToken() {
  if (!element("token-dialog").open) element("token-dialog").showModal();
}

async function begin() {
  try {
    state.models = (await askJson("v1/models")).data;
    fillModels();
    plan();
  } catch (error) {
    element("server-state").textContent = error.message;
    if (error.status === 401) askForToken();
    return;
  }
  await look();
}

element("token-form").addEventListener("submit", () => {
  state.token = element("token").value;
  sessionStorage.setItem("token", state.token);
  begin();
});
element("new-form").addEventListener("submit", create);
element("new-form").addEventListener("input", (event) => {
  if (event.target.id === "width" || event.target.id === "height") element("size").value = "own";
  planSoon();
});
element("size").addEventListener("change", () => {
  if (element("size").value === "own") {
    document.querySelector("details").open = true;
    element("width").focus();
    return;
  }
  if (element("size").value !== "picture") [element("width").value, element("height").value] = element("size").value.split("x");
  planSoon();
});
element("model").addEventListener("change", () => { fillDefaults(); planSoon(); });
element("picture").addEventListener("change", showPicture);
element("picture-remove").addEventListener("click", () => { element("picture").value = ""; showPicture(); });
element("more").addEventListener("click", () => more().catch((error) => say(error.message)));
setInterval(() => { if (!document.hidden && state.models.length > 0) look(); else if (!document.hidden && !element("token-dialog").open) begin(); }, 3000);
begin();
