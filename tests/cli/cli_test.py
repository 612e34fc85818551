#!/usr/bin/env python3
"""The program as a user runs it: what works, and that every kind of bad input gets one clear sentence, an exit code that is
not 0, and leaves nothing behind.

    cli_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    cli_test.py --list                the names
"""
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

PROGRAM = MODEL = None
TESTS = {}
SMALL = ["height=32", "width=32", "num_frames=5", "num_inference_steps=2", "dtype=float32", "prompt=a red cat"]
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
           "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_hwloc_base_binding_policy": "none"}
if "ASAN_OPTIONS" in os.environ:
    # Open MPI is built without frame pointers: only full unwinding finds whose leak it is.
    MPI_ENV["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":fast_unwind_on_malloc=0"
SLOWER = int(os.environ.get("ZOETROPE_TEST_TIMEOUT_SCALE", "1"))  # sanitizers


class Skip(Exception):
    pass


def test(function):
    TESTS[function.__name__] = function
    return function


def unreported(result):
    """The result, unless a sanitizer found something: its exit code alone would pass for a refusal."""
    for words in ("Sanitizer: ", "runtime error: "):
        assert words not in result.stderr, f"a sanitizer's report:\n{result.stderr}"
    return result


def run_script(tests, use):
    """Lists the tests, or runs the one named last in a folder of its own, after `use` was given the words before it."""
    if sys.argv[1:] == ["--list"]:
        print(";".join(tests))
        return 0
    *words, name = sys.argv[1:]
    use(*words)
    with tempfile.TemporaryDirectory(prefix="zoetrope_cli_") as cwd:
        try:
            tests[name](cwd)
        except Skip as reason:
            print(f"skipped: {reason}")
            return 77
    print(f"{name}: passed")
    return 0


def run(arguments, cwd, timeout=240, env=None):
    return unreported(subprocess.run(
        [str(a) for a in arguments], cwd=cwd, timeout=timeout * SLOWER, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}))


def generate(cwd, *arguments, model=None, **options):
    return run([PROGRAM, "generate", model or MODEL, *SMALL, *arguments], cwd, **options)


def files_in(folder):
    return sorted(str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*"))


def sentence(result):
    lines = [line for line in result.stderr.splitlines() if line.startswith("zoetrope: ")]
    assert len(lines) == 1, f"{len(lines)} error lines instead of one:\n{result.stderr}"
    return lines[0]


def refused(cwd, result, *words, left=()):
    """Exit code, one sentence that holds every word, and no file but `left`."""
    assert result.returncode not in (0, -11, -6, 134, 139), f"exit code {result.returncode}\n{result.stderr}"
    line = sentence(result)
    for word in words:
        assert word in line, f"'{word}' is not in: {line}"
    found = [f for f in files_in(cwd) if not any(f == k or f.startswith(k + "/") for k in left)]
    assert not found, f"left behind: {found}"


# ---- what works ----

@test
def version_and_help(cwd):
    assert run([PROGRAM, "--version"], cwd).stdout.startswith("zoetrope ")
    text = run([PROGRAM, "generate", "--help"], cwd)
    assert text.returncode == 0
    for key in ("prompt", "num_inference_steps", "ulysses_shards", "comm_timeout"):
        assert key in text.stdout, key
    assert run([PROGRAM], cwd).returncode == 2
    assert run([PROGRAM, "no_such_command"], cwd).returncode == 2


@test
def inspect_counts_a_whole_checkpoint(cwd):
    result = run([PROGRAM, "inspect", MODEL], cwd)
    assert result.returncode == 0, result.stderr
    assert "0 missing, 0 of wrong shape, 0 unexpected" in result.stdout
    assert "text_encoder" in result.stdout and "WanPipeline" in result.stdout


@test
def inspect_names_what_is_missing(cwd):
    model = copy_model(cwd)
    rewrite(model / "vae" / "diffusion_pytorch_model.safetensors", lambda t: t.pop("decoder.conv_in.bias"))
    result = run([PROGRAM, "inspect", model], cwd)
    assert result.returncode == 1
    assert "decoder.conv_in.bias" in result.stdout and "1 missing" in result.stdout


@test
def generate_writes_each_kind_of_output(cwd):
    for output, expected in (("clip.mp4", ["clip.mp4"]), ("clip.gif", ["clip.gif"]),
                             ("frames/", ["frames"] + [f"frames/{i:04}.png" for i in range(5)])):
        result = generate(cwd, f"output={output}")
        assert result.returncode == 0, result.stderr
        assert files_in(cwd) == expected, files_in(cwd)
        for path in (pathlib.Path(cwd) / name for name in expected):
            assert path.is_dir() or path.stat().st_size > 100, path
        shutil.rmtree(cwd)
        os.mkdir(cwd)
    for phase in ("Load", "Prepare", "Inference", "Conditioning", "Denoise", "VAE decode", "host formatting"):
        assert phase in result.stdout, phase


@test
def metadata_stands_in_the_video(cwd):
    assert generate(cwd, "output=clip.mp4", "seed=77").returncode == 0
    data = (pathlib.Path(cwd) / "clip.mp4").read_bytes()
    for text in (b"a red cat", b"77", b"wan21_t2v", b"zoetrope"):
        assert text in data, text


@test
def a_configuration_file_is_read_and_the_command_line_wins(cwd):
    yaml = pathlib.Path(cwd) / "run.yml"
    yaml.write_text(f"model: {MODEL}\nprompt: a dog\nheight: 32\nwidth: 32\nnum_frames: 5\n"
                    "num_inference_steps: 9\ndtype: float32\nflow_shift: 7\n")
    result = run([PROGRAM, "generate", yaml, "num_inference_steps=2", "output=a.gif"], cwd)
    assert result.returncode == 0, result.stderr
    assert "2 steps" in result.stderr and "flow_shift 7 instead of 3" in result.stderr, result.stderr


@test
def a_distilled_model_runs_its_own_few_steps_without_guidance(cwd):
    result = generate(cwd, "output=a.gif", "dump=one", "sigmas=1,0.75,0.5,0.25", "guidance_scale=1", "flow_shift=5")
    assert result.returncode == 0, result.stderr
    assert "4 steps, guidance off" in result.stderr and "4 denoising steps, as sigmas says" in result.stderr
    yaml = pathlib.Path(cwd) / "run.yml"
    yaml.write_text(f"model: {MODEL}\ntimesteps: [1000, 750, 500, 250]\nguidance_scale: 1\nflow_shift: 5\n")
    assert run([PROGRAM, "generate", yaml, *SMALL, "output=b.gif", "dump=two"], cwd).returncode == 0
    one, two = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("one", "two"))
    assert one["latents.3"] == two["latents.3"] and "latents.4" not in one


@test
def magcache_reuses_the_steps_that_the_published_curve_says(cwd):
    result = generate(cwd, "output=a.gif", "num_inference_steps=50", "cache=mag", "cache_ratios=wan2.1_t2v_14b")
    assert result.returncode == 0, result.stderr
    pattern = "CCCCCCCCCC..C..C..C..C..C..C..C..C..C..C..C.C.C.CC".replace(".", "r")
    assert f"MagCache reused {pattern.count('r')} of 50 steps ({pattern})" in result.stdout, result.stdout


CACHES = {"mag": ["cache_ratios=wan2.2_t2v_a14b"], "tea": ["cache_coefficients=1,0", "cache_threshold=2"],
          "sen": ["cache_threshold=1"], "cfg": []}


@test
def every_cache_states_what_it_saved_and_how_far_it_is_off(cwd):
    for cache, words in CACHES.items():
        result = generate(cwd, "output=a.gif", "num_inference_steps=15", f"cache={cache}", "cache_compare=true", *words)
        assert result.returncode == 0, result.stderr
        line = [l for l in result.stdout.splitlines() if l.startswith("Step cache: ")][0]
        assert "of 15 steps" in line and "s saved" in line, line
        off = [l for l in result.stdout.splitlines() if "Latents against no cache" in l][0]
        assert 0 < float(off.split()[-1]) < 1, off


@test
def a_cache_that_reuses_nothing_changes_nothing(cwd):
    def latents(name, *words):
        result = generate(cwd, "output=a.gif", f"dump={name}", "num_inference_steps=6", *words)
        assert result.returncode == 0, result.stderr
        return read_tensors(pathlib.Path(cwd) / name / "run.safetensors")["latents.5"][2]
    plain = latents("none")
    for cache, words in CACHES.items():
        nothing = ["cache_interval=1"] if cache == "cfg" else ["cache_threshold=0"]
        assert latents(cache, f"cache={cache}", *words, *nothing) == plain, cache


@test
def every_solver_can_be_chosen(cwd):
    latents = set()
    for scheduler in ("unipc", "flow_match_euler", "dpmpp"):
        assert generate(cwd, "output=a.gif", f"dump={scheduler}", f"scheduler={scheduler}").returncode == 0
        latents.add(read_tensors(pathlib.Path(cwd) / scheduler / "run.safetensors")["latents.1"][2])
    assert len(latents) == 3


@test
def one_seed_gives_one_video_on_any_number_of_ranks(cwd):
    result = generate(cwd, "output=a.gif", "ranks=4", "attention=ulysses_ring", "ulysses_shards=2",
                      "data_parallelism=1", "compare_one_rank=true")
    assert result.returncode == 0, result.stderr
    line = [l for l in result.stdout.splitlines() if "relative L2" in l][0]
    assert float(line.split()[-1]) <= 1e-5, line


@test
def injected_latents_and_dump_make_a_run_repeat(cwd):
    assert generate(cwd, "output=a.gif", "dump=one", "seed=5").returncode == 0
    assert generate(cwd, "output=b.gif", "dump=two", "seed=6", "latents=one/run.safetensors").returncode == 0
    one, two = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("one", "two"))
    assert {"latents.init", "latents.1", "velocity.0", "frames", "prompt_embeds"} <= set(one), sorted(one)
    assert one["latents.1"] == two["latents.1"] and one["frames"] == two["frames"]


@test
def a_trace_is_json(cwd):
    assert generate(cwd, "output=a.gif", "trace=t.json", "ranks=2").returncode == 0
    assert json.loads((pathlib.Path(cwd) / "t.json").read_text())["traceEvents"]


# ---- options ----

def refused_option(name, words, *arguments):
    def body(cwd):
        refused(cwd, generate(cwd, "output=clip.mp4", *arguments), *words)
    body.__name__ = name
    test(body)


refused_option("unknown_key_names_the_nearest", ["unknown key 'heigth'", "'height'"], "heigth=32")
refused_option("a_value_that_does_not_parse", ["num_inference_steps=many", "whole number"], "num_inference_steps=many")
refused_option("a_value_out_of_range", ["guidance_scale=1000", "0 to 100"], "guidance_scale=1000")
refused_option("a_height_the_model_cannot_make", ["height=40", "32 and 48"], "height=40")
refused_option("a_frame_count_the_model_cannot_make", ["num_frames=6", "5 and 9"], "num_frames=6")
refused_option("an_unknown_cache", ["cache=mga", "none, mag, tea, sen, cfg"], "cache=mga")
refused_option("a_cache_without_guidance", ["cache=sen", "guidance is off"], "cache=sen", "guidance_scale=1")
refused_option("a_cache_that_was_not_published_for_the_model", ["no ratios were published", "wan2.1_t2v_14b"],
               "cache=mag")
refused_option("ratios_that_are_not_two_a_step", ["cache_ratios", "two a step"], "cache=mag", "cache_ratios=1,1,1")
refused_option("a_key_of_another_cache", ["cache_interval", "cache=cfg"], "cache=sen", "cache_interval=2")
refused_option("a_comparison_without_a_cache", ["cache_compare", "cache=none"], "cache_compare=true")
refused_option("the_cfg_cache_over_guidance_branches", ["data_parallelism=2", "cache=cfg"], "ranks=2", "cache=cfg",
               "data_parallelism=2")
refused_option("sigmas_that_rise", ["sigmas", "value 2 of 2", "must fall"], "sigmas=0.5,1")
refused_option("sigmas_above_one", ["sigmas=1000,500", "value 1", "0 to 1"], "sigmas=1000,500")
refused_option("sigmas_with_the_final_zero", ["sigmas", "leave the final 0 out"], "sigmas=1,0.5,0")
refused_option("sigmas_that_are_no_numbers", ["sigmas=1,a", "'a' is not a finite number"], "sigmas=1,a")
refused_option("timesteps_above_the_training_ones", ["timesteps", "at most 1000"], "timesteps=1001,500")
refused_option("sigmas_and_timesteps", ["sigmas and timesteps", "one of them"], "sigmas=1,0.5", "timesteps=1000,500")
refused_option("an_unknown_scheduler", ["scheduler=ddim", "unipc, flow_match_euler, dpmpp"], "scheduler=ddim")
refused_option("a_dtype_that_does_not_exist", ["dtype=fp8", "bf16, float32"], "dtype=fp8")
refused_option("ulysses_degree_that_does_not_divide", ["ulysses_shards=3", "1, 2, 4"], "ranks=4", "ulysses_shards=3")
refused_option("ulysses_degree_above_the_heads", ["8", "1, 2, 4"], "ranks=8", "ulysses_shards=8")
refused_option("ulysses_degree_below_one", ["ulysses_shards=0", "1, 2, 4"], "ranks=4", "ulysses_shards=0")
refused_option("a_negative_ulysses_degree", ["ulysses_shards=-2", "1, 2, 4"], "ranks=4", "ulysses_shards=-2")
refused_option("degrees_that_do_not_make_the_ranks", ["3"], "ranks=4", "context_parallelism=3")
refused_option("tensor_parallelism_is_not_built", ["tensor"], "ranks=2", "tensor_parallelism=2")
refused_option("fsdp_is_not_built", ["fsdp"], "ranks=2", "fsdp_parallelism=2")
refused_option("data_parallelism_without_guidance", ["guidance"], "ranks=2", "data_parallelism=2", "guidance_scale=1")
refused_option("an_unknown_strategy_names_the_nearest", ["ulyses_ring", "ulysses_ring"], "ranks=2",
               "attention=ulyses_ring")
refused_option("a_strategy_contradicted_by_a_key", ["ring", "ulysses_shards"], "ranks=4", "attention=ring",
               "ulysses_shards=2")
refused_option("a_feature_that_does_not_exist_yet", ["dcn_context_parallelism", "not built"], "dcn_context_parallelism=2")
refused_option("an_unknown_output_extension", [".mp4", ".gif"], "output=clip.avi")
refused_option("a_folder_that_is_not_there", ["nowhere"], "output=nowhere/clip.mp4")
refused_option("a_second_guidance_without_a_second_expert", ["guidance_scale_2", "one expert"], "guidance_scale_2=3")
refused_option("a_missing_latents_file", ["none.safetensors"], "latents=none.safetensors")
refused_option("a_word_that_is_no_key", ["hello", "key=value"], "hello")
refused_option("a_word_too_long_for_a_file_name", ["too long"], "x" * 5000)
refused_option("a_trace_that_cannot_be_written", ["nowhere"], "trace=nowhere/t.json")
refused_option("a_dump_that_cannot_be_written", ["dump=/proc/zoetrope"], "dump=/proc/zoetrope")


@test
def no_prompt(cwd):
    refused(cwd, run([PROGRAM, "generate", MODEL, "output=a.gif"], cwd), "prompt")


@test
def a_prompt_that_is_not_utf8(cwd):
    result = subprocess.run([PROGRAM.encode(), b"generate", MODEL.encode(), *(s.encode() for s in SMALL),
                             b"prompt=\xff\xfe cat", b"output=a.gif"], cwd=cwd, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=240 * SLOWER)
    result.stderr = result.stderr.decode(errors="replace")
    refused(cwd, unreported(result), "UTF-8")


@test
def a_model_folder_that_is_not_there(cwd):
    refused(cwd, run([PROGRAM, "generate", "prompt=x", "model=nowhere"], cwd), "nowhere", "folder")


@test
def latents_of_the_wrong_shape(cwd):
    write_tensors(pathlib.Path(cwd) / "l.safetensors", {"x": ("F32", [1, 16, 1, 4, 4], bytes(4 * 256))})
    refused(cwd, generate(cwd, "latents=l.safetensors", "output=a.gif"), "l.safetensors", "[1, 16, 1, 4, 4]",
            "[1, 16, 2, 4, 4]", left=["l.safetensors"])


@test
def yaml_with_an_unknown_key_names_file_and_line(cwd):
    (pathlib.Path(cwd) / "x.yml").write_text("prompt: a cat\nwidht: 32\n")
    refused(cwd, run([PROGRAM, "generate", "x.yml"], cwd), "x.yml line 2", "widht", "width", left=["x.yml"])


# ---- checkpoints ----

def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (e["dtype"], e["shape"], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def rewrite(path, change):
    tensors = read_tensors(path)
    change(tensors)
    write_tensors(path, tensors)


def copy_model(cwd):
    target = pathlib.Path(cwd) / "model"
    shutil.copytree(MODEL, target)
    return target


VAE = "vae/diffusion_pytorch_model.safetensors"


def refused_file(name, words, change, target=VAE):
    """`change(path)` breaks one file of a copy of the model."""
    def body(cwd):
        model = copy_model(cwd)
        change(model / target)
        refused(cwd, generate(cwd, "output=clip.mp4", model=model), *words, left=["model"])
    body.__name__ = name
    test(body)


def with_header(edit):
    """Replaces the header by what `edit(dict, bytes of data)` returns: text or dict."""
    def change(path):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        made = edit(json.loads(data[8:8 + size]), data[8 + size:])
        text = made if isinstance(made, bytes) else json.dumps(made).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return change


def edit_entry(**fields):
    def edit(header, _):
        header["decoder.conv_in.bias"].update(fields)
        return header
    return with_header(edit)


def duplicate(header, _):
    entry = json.dumps(header["decoder.conv_in.bias"])
    return (json.dumps(header)[:-1] + f', "decoder.conv_in.bias": {entry}}}').encode()


def overlap(header, _):
    header["decoder.conv_in.bias"]["data_offsets"] = [
        o + 4 for o in header["decoder.conv_in.bias"]["data_offsets"]]
    return header


refused_file("safetensors_missing", ["vae"], lambda p: p.unlink())
refused_file("safetensors_empty", [VAE], lambda p: p.write_bytes(b""))
refused_file("safetensors_truncated", [VAE], lambda p: p.write_bytes(p.read_bytes()[:-100]))
refused_file("safetensors_with_bytes_left_over", [VAE], lambda p: p.write_bytes(p.read_bytes() + b"xxxx"))
refused_file("safetensors_header_of_2_to_63", [VAE],
             lambda p: p.write_bytes(struct.pack("<Q", 1 << 63) + p.read_bytes()[8:]))
refused_file("safetensors_header_past_the_end", [VAE],
             lambda p: p.write_bytes(struct.pack("<Q", 1 << 30) + p.read_bytes()[8:]))
refused_file("safetensors_header_not_json", [VAE], with_header(lambda h, d: b"{not json"))
refused_file("safetensors_header_nested_deeply", [VAE], with_header(lambda h, d: b'{"a":' * 100000 + b"1" + b"}" * 100000))
refused_file("safetensors_offsets_past_the_end", [VAE, "decoder.conv_in.bias"], edit_entry(data_offsets=[0, 1 << 40]))
refused_file("safetensors_offsets_reversed", [VAE, "decoder.conv_in.bias"], edit_entry(data_offsets=[100, 52]))
refused_file("safetensors_shape_overflows", [VAE, "decoder.conv_in.bias"], edit_entry(shape=[1 << 40, 1 << 40]))
refused_file("safetensors_unknown_dtype", [VAE, "decoder.conv_in.bias", "F33"], edit_entry(dtype="F33"))
refused_file("safetensors_duplicate_name", [VAE, "decoder.conv_in.bias"], with_header(duplicate))
refused_file("safetensors_overlap", [VAE], with_header(overlap))
refused_file("a_tensor_is_missing", ["decoder.conv_in.bias", "missing"],
             lambda p: rewrite(p, lambda t: t.pop("decoder.conv_in.bias")))
refused_file("a_tensor_has_the_wrong_shape", ["decoder.conv_in.bias", "[6, 2]", "[12]"],
             lambda p: rewrite(p, lambda t: t.update({"decoder.conv_in.bias": (
                 "F32", [6, 2], t["decoder.conv_in.bias"][2])})))


def edit_json(change):
    def body(path):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
    return body


INDEX = "transformer/diffusion_pytorch_model.safetensors.index.json"


def all_shards(name):
    return edit_json(lambda v: v["weight_map"].update({k: name for k in list(v["weight_map"])[:1]}))


refused_file("an_index_names_an_absent_shard", ["absent.safetensors"], all_shards("absent.safetensors"), INDEX)
refused_file("an_index_climbs_out_of_the_folder", ["../../x.safetensors"], all_shards("../../x.safetensors"), INDEX)
refused_file("an_index_with_an_absolute_path", ["/x.safetensors"], all_shards("/x.safetensors"), INDEX)
refused_file("a_config_field_is_missing", ["config.json", "num_layers"],
             edit_json(lambda v: v.pop("num_layers")), "transformer/config.json")
refused_file("a_config_field_is_absurd", ["config.json", "num_attention_heads"],
             edit_json(lambda v: v.update(num_attention_heads=-4)), "transformer/config.json")
refused_file("a_config_field_of_the_wrong_type", ["config.json", "ffn_dim"],
             edit_json(lambda v: v.update(ffn_dim="many")), "transformer/config.json")
refused_file("a_config_is_not_json", ["config.json"], lambda p: p.write_text("{"), "transformer/config.json")
refused_file("a_class_that_is_not_supported", ["model_index.json", "StableDiffusionPipeline"],
             edit_json(lambda v: v.update(_class_name="StableDiffusionPipeline")), "model_index.json")
refused_file("a_class_that_the_layers_are_not_of", ["WanImageToVideoPipeline"],
             edit_json(lambda v: v.update(_class_name="WanImageToVideoPipeline")), "model_index.json")
refused_file("no_tokenizer", ["tokenizer"], lambda p: shutil.rmtree(p), "tokenizer")
refused_file("a_broken_tokenizer", ["tokenizer.json"], lambda p: p.write_text("{}"), "tokenizer/tokenizer.json")


# ---- disks, signals ----

@test
def an_unwritable_folder(cwd):
    if os.geteuid() == 0:
        # Root may write anywhere; a folder of /proc takes files from nobody.
        refused(cwd, generate(cwd, "output=/proc/clip.mp4"), "/proc")
        return
    folder = pathlib.Path(cwd) / "locked"
    folder.mkdir(mode=0o500)
    refused(cwd, generate(cwd, "output=locked/clip.mp4"), "locked", left=["locked"])


@test
def no_space_left(cwd):
    disk = pathlib.Path(cwd) / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], stderr=subprocess.DEVNULL).returncode:
        raise Skip("mounting a tmpfs is not allowed here")
    try:
        for output in ("disk/clip.mp4", "disk/clip.gif", "disk/frames/"):
            result = generate(cwd, f"output={output}", "height=128", "width=128")
            assert result.returncode not in (0, -6, -11), result.stderr
            assert "space" in sentence(result) or "full" in sentence(result), sentence(result)
            left = [f for f in files_in(disk) if f != "frames"]
            assert not left, left
    finally:
        subprocess.run(["umount", disk], check=True)


@test
def a_write_that_fails_midway(cwd):
    """As on a full disk, where nothing may be mounted."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for output in ("clip.mp4", "clip.gif", "frames/"):
        result = unreported(subprocess.run(
            [PROGRAM, "generate", MODEL, *SMALL, f"output={output}", "height=128", "width=128"], cwd=cwd, text=True,
            errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240 * SLOWER, preexec_fn=limit))
        refused(cwd, result, output.rstrip("/"))


def interrupt(cwd, wait_for, *arguments, signals=(signal.SIGINT,), environment=None, command=None):
    """Starts a long run, sends the signals once `wait_for` stands on standard error, and gives back the result."""
    process = subprocess.Popen(
        command or [PROGRAM, "generate", MODEL, *SMALL, *arguments], cwd=cwd, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environment or {})})
    seen = ""
    while wait_for not in seen:
        line = process.stderr.readline()
        assert line, f"ended before '{wait_for}':\n{seen}"
        seen += line
    begin = time.time()
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=120 * SLOWER)
    return unreported(subprocess.CompletedProcess([], process.returncode, out, seen + err)), time.time() - begin


@test
def ctrl_c_while_denoising(cwd):
    result, _ = interrupt(cwd, "Denoise: step 1 of", "output=clip.mp4", "num_inference_steps=1000", "ranks=2",
                          "height=128", "width=128")
    assert result.returncode == 130, result.returncode
    refused(cwd, result, "interrupted")


@test
def ctrl_c_while_encoding(cwd):
    result, _ = interrupt(cwd, "Decode: frame 1 of", "output=clip.mp4", "num_inference_steps=1", "height=128",
                          "width=128", "num_frames=801")
    assert result.returncode == 130, result.returncode
    refused(cwd, result, "interrupted")


# Layers that take long beside two calls of kill().
LONG_STEPS = ["height=256", "width=256", "num_frames=81", "num_inference_steps=100"]
# As of two Ctrl-C in a row; two of one number might be delivered as one.
TWICE = (signal.SIGINT, signal.SIGTERM)


@test
def a_second_ctrl_c_ends_at_once_and_leaves_nothing(cwd):
    for output in ("clip.mp4", "frames/"):
        result, _ = interrupt(cwd, "Denoise: step 1 of", f"output={output}", "dump=tensors", *LONG_STEPS, signals=TWICE)
        assert -result.returncode in TWICE, result.returncode
        assert not files_in(cwd), files_in(cwd)


@test
def a_second_ctrl_c_while_encoding_leaves_nothing(cwd):
    # Unfinished frames stand in the folder by then.
    result, _ = interrupt(cwd, "Decode: frame 1 of", "output=frames/", "num_inference_steps=1", "height=128",
                          "width=128", "num_frames=801", signals=TWICE)
    assert -result.returncode in TWICE, result.returncode
    assert not files_in(cwd), files_in(cwd)


@test
def a_termination_that_is_followed_by_a_kill_leaves_nothing(cwd):
    process = subprocess.Popen([PROGRAM, "generate", MODEL, *SMALL, "output=clip.mp4", *LONG_STEPS], cwd=cwd, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while "Denoise: step 1 of" not in (line := process.stderr.readline()):
        assert line, "ended early"
    assert files_in(cwd), "there is nothing that could be left"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2 * SLOWER)
    process.kill()
    process.communicate()
    assert not files_in(cwd), files_in(cwd)


# ---- under MPI ----

def mpirun(*blocks):
    if not shutil.which("mpirun"):
        raise Skip("mpirun is not installed")
    words = ["mpirun"]
    for i, (count, arguments) in enumerate(blocks):
        words += ([":"] if i else []) + ["-n", str(count), PROGRAM, "generate", MODEL, *SMALL, *arguments]
    return words


@test
def mpi_gives_what_threads_give(cwd):
    common = ["ulysses_shards=2", "attention=ulysses_ring", "data_parallelism=1"]
    result = run(mpirun((4, common + ["output=a.gif", "dump=mpi", "threads=1"])), cwd, env=MPI_ENV)
    assert result.returncode == 0, result.stderr
    assert generate(cwd, "output=b.gif", "dump=threads", "ranks=4", "threads=4", *common).returncode == 0
    mpi, threads = (read_tensors(pathlib.Path(cwd) / d / "run.safetensors") for d in ("mpi", "threads"))
    # Transports never change a bit.
    assert mpi["latents.1"] == threads["latents.1"]


@test
def mpi_bad_input_is_said_once(cwd):
    refused(cwd, run(mpirun((3, ["output=a.gif", "height=40"])), cwd, env=MPI_ENV), "height=40", "32 and 48")


@test
def mpi_ranks_that_disagree_are_refused(cwd):
    result = run(mpirun((1, ["output=a.gif"]), (1, ["output=a.gif", "seed=9"])), cwd, env=MPI_ENV)
    refused(cwd, result, "disagree", "rank 1", "seed=9")


@test
def mpi_error_of_one_rank_ends_all(cwd):
    # Rank 0 alone writes, and cannot.
    result = run(mpirun((3, ["output=nowhere/a.gif"])), cwd, env=MPI_ENV)
    refused(cwd, result, "nowhere")


@test
def mpi_ctrl_c_leaves_nothing(cwd):
    # mpirun ends the ranks, and kills them a second later: within one of these steps.
    for words in (LONG_STEPS, ["height=128", "width=128", "num_inference_steps=1000"]):
        result, _ = interrupt(cwd, "Denoise: step 1 of", environment=MPI_ENV,
                              command=mpirun((2, ["output=clip.mp4", "threads=1", *words])))
        assert result.returncode != 0
        assert not files_in(cwd), files_in(cwd)


@test
def mpi_a_stopped_rank_is_named(cwd):
    stop_rank(cwd, 1)


@test
def mpi_a_stopped_writer_is_named_and_leaves_nothing(cwd):
    stop_rank(cwd, 0)


def stop_rank(cwd, rank):
    words = mpirun((2, ["output=a.gif", "num_inference_steps=1000", "height=128", "width=128", "comm_timeout=3",
                        "threads=1"]))
    process = subprocess.Popen(words, cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, **MPI_ENV})
    seen = ""
    while "Denoise: step 1 of" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, stdout=subprocess.PIPE).stdout.split()
    assert len(ranks) == 2, ranks
    variable = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    stopped = [p for p in ranks if variable in pathlib.Path(f"/proc/{p}/environ").read_bytes().split(b"\0")]
    os.kill(int(stopped[0]), signal.SIGSTOP)
    try:
        out, err = process.communicate(timeout=90 * SLOWER)
    finally:
        try:
            os.kill(int(stopped[0]), signal.SIGCONT)
        except ProcessLookupError:
            pass
    result = unreported(subprocess.CompletedProcess([], process.returncode, out, seen + err))
    refused(cwd, result, "rank 0", "rank 1", "step")


def use(program, model):
    global PROGRAM, MODEL
    PROGRAM, MODEL = program, model


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
