"""zoetrope.plan() against the file that the program writes."""
import json

import numpy
import pytest
import zoetrope
from conftest import TINY, program

KEYS = {"hardware": "h100_8", "ranks": [1, 2, 4], "height": 480, "width": 832, "num_frames": 17}


def written(tmp_path, *words):
    file = tmp_path / "plan.json"
    program("plan", *words, f"json={file}")
    return json.loads(file.read_text())


def test_is_the_file_of_the_program(tmp_path):
    words = ["wan2.1_t2v_1.3b", "hardware=h100_8", "ranks=1,2,4", "height=480", "width=832", "num_frames=17"]
    for ranks in ([1, 2, 4], numpy.array([1, 2, 4])):
        assert zoetrope.plan("wan2.1_t2v_1.3b", **{**KEYS, "ranks": ranks}) == written(tmp_path, *words)


def test_figures_and_folders(tmp_path):
    words = [TINY, "hardware=cpu", "objective=throughput", "what_if.memory=x2", "dtype=float32"]
    answer = zoetrope.plan(TINY, hardware="cpu", objective="throughput", what_if={"memory": "x2"}, dtype="float32")
    assert answer == written(tmp_path, *words)
    assert answer["what_if"] == {"memory": "x2"}


def test_where_nothing_fits():
    answer = zoetrope.plan("wan2.1_t2v_14b", hardware="h100_8", memory_limit=1.0)
    assert not answer["plans"][0]["fits"]


@pytest.mark.parametrize("keys, words", [
    ({"hardware": "h100_9"}, "h100_9"), ({"rank": 2}, "did you mean 'ranks'"), ({"ranks": []}, "ranks="),
    ({"ranks": 0}, "'0' is not a number of ranks"), ({"ranks": [1, 5000]}, "5000"), ({"ranks": "1,,2"}, "''"),
    ({"ranks": "4x"}, "'4x'"), ({"json": "a.json"}, "json: is a key of the program"), ({"top": 3}, "top"),
    ({"objective": "beauty"}, "objective"), ({"what_if": {"nothing": 1}}, "nothing")])
def test_refusals(keys, words):
    with pytest.raises(zoetrope.Error) as raised:
        zoetrope.plan("wan2.1_t2v_1.3b", **{"hardware": "h100_8", **keys})
    assert words in str(raised.value), str(raised.value)


def test_a_model_is_needed():
    with pytest.raises(zoetrope.Error, match="one model"):
        zoetrope.plan(ranks=2)
    with pytest.raises(zoetrope.Error, match="did you mean wan2.1_t2v_14b"):
        zoetrope.plan("wan2.1_t2v_14")
    with pytest.raises(TypeError, match="prompt: a value of type object"):
        zoetrope.plan("wan2.1_t2v_14b", prompt=object())
