#!/usr/bin/env python3
"""Checks the dependency rules between the modules (docs/architecture.md), and a few rules about names and files.

    check_dependencies.py ROOT          exit 1 and a line per violation
    check_dependencies.py --self-test   plants one violation of every kind and expects each to be reported
"""
import pathlib
import re
import stat
import sys
import tempfile

IO = ["io/media", "io/weights"]


def pipeline(*parts):
    return ["pipeline/" + part for part in parts]


PIPELINE = ["pipeline", *pipeline("settings", "ranks", "model_files", "inputs", "outputs", "planning", "records", "stages", "checks")]
MODELS = ["models/sampling", "models/encoders", "models/lora", "models/reference", "models/wan"]
# A module may include itself and the modules named here. Public headers are in include/zoetrope/.
# Third-party headers and those of the system are included with <>, so a name in quotes is always one of ours.
MODULES = {
    "base": [],
    "text": ["base"],
    "trace": ["base"],
    "tensor": ["base"],
    "device": ["tensor", "trace", "base"],
    "kernels": ["device", "tensor", "trace", "base"],
    "machine": ["kernels", "device", "tensor", "trace", "base"],
    "comm": ["device", "tensor", "trace", "base"],
    "parallel": ["base"],
    "attention": ["kernels", "parallel", "comm", "device", "tensor", "trace", "base"],
    "video_plugin": [],
    "io/media": ["video_plugin", "tensor", "base"],
    "io/weights": ["tensor", "base"],
    "models/testing": ["io/weights", "tensor", "base"],
    "models/sampling": ["tensor", "base"],
    "models/encoders": ["kernels", *IO, "device", "tensor", "trace", "base"],
    "models/lora": ["io/weights", "tensor", "base"],
    "models/reference": ["models/encoders", "io/weights", "device", "tensor", "base"],
    "models/wan": ["models/reference", "models/encoders", "planner", "attention", "kernels", "io/weights", "device", "tensor", "trace",
                   "base"],
    # A run, from what was asked for to what is written: each part knows only parts above it.
    "pipeline/settings": ["text", "models/sampling", "attention", "kernels", "io/media", "tensor", "base"],
    "pipeline/ranks": [*pipeline("settings"), "models/encoders", "planner", "kernels", "io/weights", "comm", "parallel", "device",
                       "tensor", "base"],
    "pipeline/model_files": [*pipeline("settings"), "text", "models/encoders", "models/lora", "models/wan", "attention", "io/weights",
                             "comm", "tensor", "base"],
    "pipeline/inputs": [*pipeline("model_files", "settings"), "models/encoders", "planner", "io/media", "comm", "device", "tensor", "base"],
    "pipeline/outputs": [*pipeline("settings"), *IO, "tensor", "trace", "base"],
    "pipeline/planning": [*pipeline("outputs", "inputs", "model_files", "ranks", "settings"), "text", "models/sampling", "models/encoders",
                          "models/wan", "planner", "machine", "attention", "kernels", *IO, "comm", "parallel", "trace", "base"],
    "pipeline/records": [*pipeline("outputs", "inputs", "model_files", "ranks", "settings"), "models/sampling", "attention", "io/weights",
                         "comm", "tensor", "trace", "base"],
    "pipeline/stages": [*pipeline("records", "planning", "outputs", "inputs", "model_files", "ranks", "settings"), "text",
                        "models/sampling", "models/encoders", "models/wan", "attention", *IO, "comm", "parallel", "device", "tensor",
                        "trace", "base"],
    "pipeline/checks": [*pipeline("stages", "planning", "model_files", "ranks", "settings"), "models/sampling", "models/reference",
                        "models/wan", "attention", "io/weights", "comm", "parallel", "device", "tensor", "base"],
    "pipeline": [*PIPELINE, "models/sampling", "planner", "attention", "kernels", *IO, "comm", "tensor", "trace", "base"],
    "planner": ["parallel", "trace", "base"],
    "plan_report": [*pipeline("planning", "outputs", "model_files", "settings"), "planner", "attention", "base"],
    "problems": [],
    "bench": ["problems", *PIPELINE, "machine", *MODELS, "planner", "io/weights", "attention", "parallel", "kernels", "comm", "device",
              "trace", "tensor", "base"],
    "server": ["pipeline", *pipeline("stages", "records", "outputs", "model_files", "ranks", "settings"), "models/sampling", "io/media", "comm", "trace", "tensor", "base"],
    "python": ["plan_report", "pipeline", *pipeline("planning", "model_files", "settings"), "attention", "io/weights", "comm", "tensor", "base"],
    "cli": ["server", "bench", "text", "problems", "plan_report", *PIPELINE, "machine", *MODELS, "planner", "attention", "kernels", *IO,
            "comm", "parallel", "device", "tensor", "trace", "base"],
}
# These are next to src/, not in it: nothing of them is installed.
NEXT_TO_SRC = {"problems", "bench", "server", "cli", "python"}
# A public header counts as the module that implements it.
PUBLIC = {
    "api.h": "base", "error.h": "base", "version.h": "base", "trace.h": "trace", "mpi.h": "comm", "index_range.h": "base", "tensor.h": "tensor", "head_slot.h": "tensor",
    "communicator.h": "comm", "context_layout.h": "parallel", "attention.h": "attention", "model.h": "pipeline/settings", "sampling.h": "models/sampling", "video.h": "io/media", "zoetrope.h": "pipeline",
}
# Words that may not be in a module's code at all, comments aside.
FORBIDDEN_NAMES = {
    **dict.fromkeys(MODELS, re.compile(r"\bcomm::")),
    "kernels": re.compile(r"\b(comm|parallel|attention)::"),
    "comm": re.compile(r"\b(kernels|attention|parallel)::"),
    "planner": re.compile(r"\b(Stream|ThreadTeam|Arena)\b"),
}
# Where pipeline and cli know the Wan family: what opens a model's folder, what a run holds and computes, and the stages
# that run transformer and VAE. Everything else takes plain values.
WAN = re.compile(r'\bwan::|"models/wan/')
KNOWS_WAN = {"src/pipeline/" + name for name in (
    "checks/forward_bounds.cpp", "checks/forward_checks.cpp", "checks/forward_checks.h", "model_files/model_folder.cpp", "model_files/model_folder.h",
    "planning/model_configs.cpp", "planning/model_configs.h", "planning/run_workload.cpp", "planning/run_workload.h", "stages/condition_ranks.cpp", "stages/decode_frames.cpp",
    "stages/denoise.cpp", "stages/denoise.h", "stages/model_weights.cpp", "stages/model_weights.h")}
# What a module's tests may use beyond its own rules: ranks, recorded runs, tables of a real model.
TEST_EXTRA = {
    "io/media": ["io/weights", "trace"],
    "io/weights": ["trace"],
    "models/sampling": ["io/weights"],
    "models/encoders": ["models/testing"],
    "models/lora": ["models/wan"],
    "models/wan": ["models/testing", "comm"],
    **dict.fromkeys(PIPELINE, ["models/testing", *PIPELINE, *MODELS, *IO, "planner", "machine", "comm", "parallel", "device", "tensor",
                                 "trace"]),
}
# Lines of a file that people write; longer ones are divided by subject. tools/ are programs of one file each.
MOST_LINES = 600
WRITTEN = {".h", ".cpp", ".py", ".sh", ".cmake", ".txt"}
MEASURED = ("include", "src", "cli", "server", "python", "problems", "bench", "examples", "cmake", "tests", "demo")
RECORDED = ("tests", "golden")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def module_of(path):
    """The module of a file, from its path below src/ or, of those next to it, from the root."""
    parts = path.split("/")
    for module in ("/".join(parts[:2]), parts[0]):
        if module in MODULES:
            return module
    return "no module"


def module_of_include(path):
    return PUBLIC.get(path.split("/")[1], "?" + path) if path.startswith("zoetrope/") else module_of(path)


def sources(root):
    """Every C++ file of a module, and its module."""
    for folder in (root / "src", *(root / module for module in sorted(NEXT_TO_SRC))):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp", ".inc"):
                yield path, module_of(path.relative_to(root / "src" if folder.name == "src" else root).as_posix())


def too_long(root):
    for folder in MEASURED:
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root)
            if path.suffix not in WRITTEN or inside.parts[:len(RECORDED)] == RECORDED:
                continue
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MOST_LINES:
                yield f"{inside}: {lines} lines, more than {MOST_LINES}; divide it by subject"


def not_executable(root):
    for folder in (*MEASURED, "tools", ".ci"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not path.stat().st_mode & stat.S_IXUSR and path.open("rb").read(2) == b"#!":
                yield f"{path.relative_to(root)}: begins with #! and is not executable; chmod +x"


def violations(root):
    root = pathlib.Path(root)
    yield from too_long(root)
    yield from not_executable(root)
    for path, module in sources(root):
        inside = path.relative_to(root).as_posix()
        if module not in MODULES:
            yield f"{inside}: belongs to no module (MODULES)"
            continue
        test = "test" in path.stem
        may = {module, *MODULES[module], *(TEST_EXTRA.get(module, []) if test else [])}
        code = strip_comments(path.read_text(encoding="utf-8"))
        for number, line in enumerate(code.splitlines(), 1):
            where = f"{inside}:{number}"
            include = INCLUDE.match(line)
            if include:
                target = module_of_include(include.group(1))
                if target not in may:
                    yield f'{where}: {module} may not include "{include.group(1)}" ({target})'
            elif not test and module in FORBIDDEN_NAMES and FORBIDDEN_NAMES[module].search(line):
                yield f"{where}: {module} may not name {FORBIDDEN_NAMES[module].search(line).group()}"
        if module in (*PIPELINE, "server", "cli", "python") and not test and inside not in KNOWS_WAN and WAN.search(code):
            yield f"{inside}: may not name {WAN.search(code).group()}; it takes plain values (KNOWS_WAN)"
        if "_mm_prefetch(" in code:
            yield f"{inside}: _mm_prefetch() does not compile in the debug preset; use __builtin_prefetch()"
        if path.suffix == ".h" and "#pragma once" not in code:
            yield f"{inside}: a header needs #pragma once"


def self_test():
    planted = {
        "src/kernels/x.cpp": '#include "comm/inproc.h"\n',
        "src/comm/x.cpp": '#include "kernels/norm/norm.h"\n',
        "src/models/wan/x.cpp": "void f() { comm::barrier(); }\n",
        "src/models/wan/y.h": '#pragma once\n#include "zoetrope/communicator.h"\n',
        "src/planner/x.cpp": '#include "device/stream.h"\n',
        "src/base/x.h": "int f();\n",
        "src/parallel/x.cpp": '#include "zoetrope/tensor.h"\n',
        "src/attention/x.cpp": '#include "bench/peak.h"\n',
        "src/pipeline/x.cpp": '#include "cli/progress.h"\n',
        "src/kernels/x_test.cpp": '#include "problems/attention.h"\n',
        "src/io/media/x.cpp": '#include "tests/attention/attention_case.h"\n',
        "src/io/media/y.cpp": '#include "io/weights/weights.h"\n',
        "src/io/x.cpp": "int f();\n",
        "src/planner/z.cpp": '#include "attention/strategy.h"\n',
        "bench/y.cpp": '#include "examples/shapes.h"\n',
        "src/planner/y.cpp": '#include "models/wan/config.h"\n',
        "src/pipeline/y.cpp": '#include "models/wan/config.h"\n',
        "src/pipeline/planning/x.cpp": "wan::VaeConfig config;\n",
        "src/pipeline/settings/x.cpp": '#include "pipeline/model_files/model_folder.h"\n',
        "cli/z.cpp": "wan::VaeConfig config;\n",
        "src/pipeline/planning/plan.h": '#pragma once\n#include "pipeline/stages/decode_frames.h"\n',
        "src/models/encoders/x.cpp": '#include "models/wan/config.h"\n',
        "src/models/lora/x.cpp": '#include "models/wan/tensor_tables.h"\n',
        "src/models/sampling/x.cpp": '#include "io/weights/safetensors.h"\n',
        "src/models/wan/w.cpp": '#include "models/testing/golden.h"\n',
        "src/models/encoders/y.cpp": '#include "models/other.h"\n',
        "bench/z_test.cpp": '#include "cli/command.h"\n',
        "problems/x.h": '#pragma once\n#include "base/error.h"\n',
        "cli/x.cpp": '#include "examples/shapes.h"\n',
        "cli/y.h": "int f();\n",
        "python/bindings/x.cpp": '#include "cli/plan.h"\n',
        "python/bindings/y.cpp": '#include "models/wan/config.h"\n',
        "cli/w.cpp": '#include "python/bindings/bindings.h"\n',
        "src/kernels/y.cpp": "void f(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }\n",
        "tests/cli/long_test.py": "pass\n" * (MOST_LINES + 1),
        "tools/x.py": "#!/usr/bin/env python3\n",
    }
    harmless = {
        "src/models/wan/z.cpp": '// never comm::send\n#include "attention/attention.h"\n#include <vector>\n',
        "src/models/wan/z_test.cpp": '#include "zoetrope/communicator.h"\n#include "models/testing/golden.h"\n',
        "src/pipeline/stages/denoise.cpp": '#include "models/wan/config.h"\nwan::VaeConfig config;\n',
        "src/models/lora/x_test.cpp": '#include "models/wan/tensor_tables.h"\n',
        "bench/allowed.cpp": '#include "problems/attention.h"\n#include "zoetrope/attention.h"\n',
        "tests/cli/full_test.py": "pass\n" * MOST_LINES,
        "tests/golden/x/recorded.txt": "1\n" * (MOST_LINES + 1),
        "cli/allowed.cpp": '#include "bench/peak.h"\n#include "zoetrope/zoetrope.h"\n',
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**planted, **harmless}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = list(violations(folder))
    for name in planted:
        assert any(line.startswith(name) for line in found), f"not reported: {name}"
    for name in harmless:
        assert not any(line.startswith(name) for line in found), f"reported without reason: {name}"
    print(f"{len(planted)} planted violations reported")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        lines = list(violations(sys.argv[1]))
        print("\n".join(lines) or "every dependency rule holds")
        sys.exit(1 if lines else 0)
