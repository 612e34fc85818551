"""What the package consists of: its stub, its marker, its configurations."""
import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import zoetrope
from zoetrope import _core

FOLDER = pathlib.Path(zoetrope.__file__).parent


def names_of_stub(body):
    names = {}
    for item in body:
        if isinstance(item, ast.ClassDef):
            names[item.name] = names_of_stub(item.body)
        elif isinstance(item, ast.FunctionDef):
            names[item.name] = None
    return names


def names_of(thing):
    names = {}
    for name, value in vars(thing).items():
        if name.startswith("__") and name != "__init__":
            continue
        if inspect.isclass(value):
            names[name] = names_of(value)
        elif callable(value) or isinstance(value, property):
            names[name] = None
    return names


def test_the_stub_has_every_name():
    stub = names_of_stub(ast.parse((FOLDER / "_core.pyi").read_text()).body)
    assert stub == names_of(_core)
    assert set(stub["Pipeline"]) >= {"__init__", "generate", "close"}


def test_the_package_is_typed():
    assert (FOLDER / "py.typed").exists()
    for name in zoetrope.__all__:
        public = getattr(zoetrope, name)
        function = public.__init__ if inspect.isclass(public) and public is not zoetrope.Error else public
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            for parameter in list(signature.parameters.values()):
                typed = parameter.annotation is not inspect.Parameter.empty
                assert parameter.name == "self" or typed, (name, parameter)


def test_errors_have_the_name_that_is_imported():
    assert f"{zoetrope.Error.__module__}.{zoetrope.Error.__name__}" == "zoetrope.Error"


def test_version():
    assert zoetrope.__version__.count(".") == 2


@pytest.mark.skipif("ZOETROPE_INSTALLED" not in os.environ, reason="ctest sets it where the package is installed")
def test_an_installed_package_needs_no_source_tree():
    """Its configurations are its own, and the library has no path into a build folder."""
    assert str(FOLDER).startswith(os.environ["ZOETROPE_INSTALLED"])
    library = next(FOLDER.glob("_core*.so"))
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic, dynamic
    assert (FOLDER / "configs" / "wan2.1_t2v_1.3b.yml").exists()
    described = zoetrope.WanPipeline.from_pretrained("wan2.1_t2v_1.3b", weights="random").describe("a cat")
    assert f"{FOLDER}/configs/wan2.1_t2v_1.3b" in described, described


def test_what_is_not_there_says_why():
    code = "import sys; sys.modules['torch'] = None\nimport zoetrope\nimport zoetrope.diffusers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "torch" in done.stderr.splitlines()[-1], done.stderr
