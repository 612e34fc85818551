#!/usr/bin/env python3
"""Commands and keys as users write them, in words and in files; and that every kind of bad option gets one clear sentence, an
exit code that is not 0, and leaves nothing behind.

    options_test.py PROGRAM MODEL NAME    runs one test (exit 77: skipped, with the reason)
    options_test.py --list                the names
"""
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import (PATIENCE, SMALL, files_in, generate, refused, run, run_script, sentence, unreported,
                     write_tensors)  # noqa: E402

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


@test
def a_configuration_file_is_read_and_the_command_line_wins(cwd):
    yaml = pathlib.Path(cwd) / "run.yml"
    yaml.write_text(f"model: {harness.MODEL}\nprompt: a dog\nheight: 32\nwidth: 32\nnum_frames: 5\n"
                    "num_inference_steps: 9\ndtype: float32\nflow_shift: 7\n")
    result = run([harness.PROGRAM, "generate", yaml, "num_inference_steps=2", "output=a.gif"], cwd)
    assert result.returncode == 0, result.stderr
    assert "2 steps" in result.stderr and "flow_shift 7 instead of 3" in result.stderr, result.stderr


@test
def a_value_of_a_configuration_file_can_be_taken_back(cwd):
    yaml = pathlib.Path(cwd) / "run.yml"
    yaml.write_text(f"model: {harness.MODEL}\nranks: 4\nulysses_shards: 2\nflow_shift: 7\n")
    result = run([harness.PROGRAM, "generate", yaml, *SMALL, "output=a.gif", "ranks=1", "ulysses_shards=default",
                  "flow_shift=default"], cwd)
    assert result.returncode == 0, result.stderr
    assert "instead of" not in result.stderr, result.stderr


@test
def a_conflict_of_keys_says_where_each_was_written(cwd):
    (pathlib.Path(cwd) / "run.yml").write_text(f"model: {harness.MODEL}\nranks: 4\nulysses_shards: 2\n")
    refused(cwd, run([harness.PROGRAM, "generate", "run.yml", *SMALL, "output=a.gif", "ranks=1"], cwd),
            "ulysses_shards=2 (run.yml line 3) does not divide", left=["run.yml"])
    refused(cwd, run([harness.PROGRAM, "inspect", harness.MODEL, "height=40"], cwd), "height=40 (command line)",
            left=["run.yml"])
    (pathlib.Path(cwd) / "attention.yml").write_text("input: qkv.safetensors\n")
    refused(cwd, run([harness.PROGRAM, "attention", "attention.yml", "shape=1x8x1x8"], cwd),
            "input=qkv.safetensors (attention.yml line 1)", "shape=1x8x1x8 (command line)",
            left=["run.yml", "attention.yml"])


@test
def keys_may_have_two_dashes_in_front(cwd):
    result = run([harness.PROGRAM, "generate", "--model", harness.MODEL, "--prompt", "a red cat", "--height=32", "width=32",
                  "--num-frames", "5", "--num-inference_steps=2", "--dtype", "fp32", "--output=a=b.gif"], cwd)
    assert result.returncode == 0, result.stderr
    assert "32 x 32 x 5" in result.stderr and "2 steps" in result.stderr and "float32" in result.stderr, result.stderr
    assert files_in(cwd) == ["a=b.gif"]
    for command, words in (("attention", ["--shape", "1x16x2x8"]), ("tune", ["--list", "true"]),
                           ("plan", ["wan2.1_t2v_1.3b", "--hardware", "h100_8"]),
                           ("inspect", [harness.MODEL, "--num-frames", "5"]), ("bench", ["peak", "--seconds", "0.01"])):
        result = run([harness.PROGRAM, command, *words], cwd, env={"XDG_CACHE_HOME": cwd})
        assert result.returncode == 0, (command, result.stderr)


@test
def keys_with_dashes_are_the_same_run(cwd):
    keys, runs = [*harness.SMALL, "seed=7", "output=a.gif", "trace=t.json"], set()
    for words in (keys, [word for key in keys for word in ("--" + key).replace("_", "-").split("=", 1)]):
        result = run([harness.PROGRAM, "generate", harness.MODEL, *words], cwd)
        assert result.returncode == 0, result.stderr
        runs.add((json.load(open(f"{cwd}/t.json"))["otherData"]["command"], open(f"{cwd}/a.gif", "rb").read()))
    assert len(runs) == 1, runs


@test
def a_key_with_dashes_and_no_value(cwd):
    for words in (["--prompt"], ["--prompt", "--seed", "5"]):
        refused(cwd, generate(cwd, *words), "--prompt has no value", "prompt=VALUE")


@test
def a_mistyped_command_gets_a_hint(cwd):
    result = run([harness.PROGRAM, "generat", harness.MODEL], cwd)
    assert result.returncode == 2 and "did you mean 'generate'?" in sentence(result), result.stderr
    result = run([harness.PROGRAM, "configs/demo.yml"], cwd)
    assert result.returncode == 2 and "there are: attention, bench" in sentence(result), result.stderr


@test
def every_command_has_help(cwd):
    listed = run([harness.PROGRAM, "--help"], cwd)
    assert listed.returncode == 0
    for command in ("attention", "bench", "calibrate", "convert", "generate", "inspect", "int8", "plan", "run", "serve", "synthesize", "tune", "verify"):
        assert f"\n  {command} " in listed.stdout, command
        for words in ([command, "--help"], [command, "model", "-h"]):
            text = run([harness.PROGRAM, *words], cwd)
            assert text.returncode == 0 and f"Usage: zoetrope {command} " in text.stdout, command


def refused_option(name, words, *arguments):
    def body(cwd):
        refused(cwd, generate(cwd, "output=clip.mp4", *arguments), *words)
    body.__name__ = name
    test(body)


refused_option("unknown_key_names_the_nearest", ["unknown key 'heigth'", "'height'"], "heigth=32")
refused_option("steps_by_another_programs_name", ["unknown key 'steps'", "'num_inference_steps'"], "steps=2")
refused_option("frames_by_another_programs_name", ["unknown key 'frames'", "'num_frames'"], "--frames", "5")
refused_option("guidance_by_another_programs_name", ["unknown key 'cfg'", "'guidance_scale'"], "cfg=5")
refused_option("a_solver_by_another_programs_name", ["scheduler=euler", "did you mean flow_match_euler?"],
               "scheduler=euler")
refused_option("a_size_in_one_word", ["size=832x480", "width=832 height=480"], "size=832x480")
refused_option("another_device", ["device=cuda", "CPUs"], "device=cuda")
refused_option("a_batch_of_videos", ["batch_size=2", "one video"], "batch_size=2")
refused_option("a_value_that_does_not_parse", ["num_inference_steps=many", "whole number"], "num_inference_steps=many")
refused_option("a_value_out_of_range", ["guidance_scale=1000", "0 to 100"], "guidance_scale=1000")
refused_option("a_height_the_model_cannot_make", ["height=40", "32 and 48"], "height=40")
refused_option("a_frame_count_the_model_cannot_make", ["num_frames=6", "5 and 9"], "num_frames=6")
refused_option("an_unknown_cache", ["cache=mga", "none, mag, tea, sen, cfg, drift"], "cache=mga")
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
refused_option("tensor_that_does_not_divide", ["tensor_parallelism=3", "1, 2, 4"], "ranks=4", "tensor_parallelism=3")
refused_option("fsdp_that_does_not_divide", ["does not divide the 3 ranks", "1, 3"], "ranks=3", "fsdp_parallelism=2")
refused_option("data_parallelism_without_guidance", ["guidance"], "ranks=2", "data_parallelism=2", "guidance_scale=1")
refused_option("an_unknown_strategy_names_the_nearest", ["ulyses_ring", "ulysses_ring"], "ranks=2",
               "attention=ulyses_ring")
refused_option("a_strategy_contradicted_by_a_key", ["ring", "ulysses_shards"], "ranks=4", "attention=ring",
               "ulysses_shards=2")
refused_option("a_feature_that_does_not_exist_yet", ["quantization=int8", "not built"], "quantization=int8")
refused_option("an_unknown_output_extension", [".mp4", ".gif"], "output=clip.avi")
refused_option("a_folder_that_is_not_there", ["nowhere"], "output=nowhere/clip.mp4")
refused_option("a_second_guidance_without_a_second_expert", ["guidance_scale_2", "one expert"], "guidance_scale_2=3")
refused_option("a_missing_latents_file", ["none.safetensors"], "latents=none.safetensors")
refused_option("a_word_that_is_no_key", ["hello", "key=value"], "hello")
refused_option("a_word_too_long_for_a_file_name", ["is neither a YAML file", "nor key=value"], "x" * 5000)
refused_option("a_trace_that_cannot_be_written", ["nowhere"], "trace=nowhere/t.json")
refused_option("a_dump_that_cannot_be_written", ["dump=/proc/zoetrope"], "dump=/proc/zoetrope")


@test
def no_prompt(cwd):
    refused(cwd, run([harness.PROGRAM, "generate", harness.MODEL, "output=a.gif"], cwd), "prompt")


@test
def a_prompt_that_is_not_utf8(cwd):
    result = subprocess.run([harness.PROGRAM.encode(), b"generate", harness.MODEL.encode(),
                             *(s.encode() for s in SMALL), b"prompt=\xff\xfe cat", b"output=a.gif"], cwd=cwd, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=PATIENCE)
    result.stderr = result.stderr.decode(errors="replace")
    refused(cwd, unreported(result), "UTF-8")


@test
def a_model_folder_that_is_not_there(cwd):
    refused(cwd, run([harness.PROGRAM, "generate", "prompt=x", "model=nowhere"], cwd), "nowhere", "folder")


@test
def latents_of_the_wrong_shape(cwd):
    write_tensors(pathlib.Path(cwd) / "l.safetensors", {"x": ("F32", [1, 16, 1, 4, 4], bytes(4 * 256))})
    refused(cwd, generate(cwd, "latents=l.safetensors", "output=a.gif"), "l.safetensors", "[1, 16, 1, 4, 4]",
            "[1, 16, 2, 4, 4]", left=["l.safetensors"])


@test
def yaml_with_an_unknown_key_names_file_and_line(cwd):
    (pathlib.Path(cwd) / "x.yml").write_text("prompt: a cat\nwidht: 32\n")
    refused(cwd, run([harness.PROGRAM, "generate", "x.yml"], cwd), "x.yml line 2", "widht", "width", left=["x.yml"])


if __name__ == "__main__":
    sys.exit(run_script(TESTS, harness.use))
