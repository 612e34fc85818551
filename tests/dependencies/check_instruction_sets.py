#!/usr/bin/env python3
"""Holds the wall between files that are compiled for wider instruction sets than the floor and all others.

    check_instruction_sets.py FLOOR NM BUILD                 exit 1 and a line per breach
    check_instruction_sets.py FLOOR NM --skip                exit 77: BUILD is no release
    check_instruction_sets.py FLOOR NM --self-test COMPILER  compiles a breach of every kind and expects each to be reported

FLOOR is the flag of the instruction set that every CPU must have. What a wider file shares with others by name, an inline
function or an instance of a template that was not inlined, is in every object that uses it, and the linker keeps one
of them: where that is the wider, the whole program stops on other CPUs with an illegal instruction. The same happens
to what runs before main(), when nobody has asked the CPU. Neither shows on the CPU of whoever builds. Allowed is what
is in the namespace that src/kernels/simd.h keeps for such files, where all that define it have the same flags.

Whether a function is inlined is up to the optimizer, so this speaks of release builds: of others it is not asked, and
they are for CPUs that have it all. Weak data is the same whoever compiled it. What an object calls before the CPU was
asked is not seen here.
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

# What flags of instruction sets begin with; others of the kind -m… are about tuning, code models or the linker.
BRING = ("-march=", "-msse", "-mavx", "-mamx", "-mfma", "-mf16c", "-mbmi", "-mlzcnt", "-mpopcnt", "-mmovbe", "-mgfni",
         "-mvaes", "-mvpclmulqdq", "-maes", "-mpclmul", "-msha", "-madx")
UNREADABLE = "__gnu_lto_slim"  # an object that holds the compiler's notes for the linker and no code yet
WEAK_FUNCTION = "W"
OWN = "::avx512::"  # ZOETROPE_SIMD of wider files
START = ("_GLOBAL__sub_I_", "__static_initialization_and_destruction")
COMMANDS = "compile_commands.json"


def wider_flags(command, floor):
    """Flags of instruction sets beyond the floor. Of several -march the last one holds."""
    flags = [flag for flag in command if flag.startswith(BRING)]
    base = [flag for flag in flags if flag.startswith("-march=")][-1:]
    return [flag for flag in base if flag != floor] + [flag for flag in flags if not flag.startswith("-march=")]


def wider_objects(build, floor):
    """(source, object, flags) of every object that is compiled for more than the floor."""
    if not (build / COMMANDS).is_file():
        return
    for entry in json.loads((build / COMMANDS).read_text(encoding="utf-8")):
        command = entry.get("arguments") or shlex.split(entry["command"])
        flags = wider_flags(command, floor)
        if flags:
            output = entry.get("output") or command[command.index("-o") + 1]
            yield entry["file"], pathlib.Path(entry["directory"]) / output, " ".join(flags)


def symbols(nm, path):
    """(kind, name) of what an object defines."""
    lines = subprocess.run([nm, "-C", "--defined-only", str(path)], check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        _, kind, name = line.split(" ", 2)
        yield kind, name


def breaches(build, floor, nm):
    build = pathlib.Path(build)
    objects = list(wider_objects(build, floor))
    if not objects:
        yield (f"{build / COMMANDS}: is not there or says that no file is compiled for more than {floor}, so that nothing "
               "was checked; generate the build with Ninja or Makefiles")
    own = {}  # name: the first source that defines it, and its flags
    for source, path, flags in objects:
        if not path.is_file():
            yield f"{path}: not there; build it first"
            continue
        names = list(symbols(nm, path))
        if not names or any(name.startswith(UNREADABLE) for _, name in names):
            yield f"{path}: its symbols cannot be read, or it has none; build without optimisation at link time"
        for kind, name in names:
            where = f"{source}: {name} in {path} is compiled with {flags}"
            if name.startswith(START):
                yield f"{where} and runs before main() on every CPU; make its variables constexpr"
            if kind != WEAK_FUNCTION:
                continue
            first, its_flags = own.setdefault(name, (source, flags))
            if OWN not in name:
                yield (f"{where} and may be linked for all; move its caller into a file without these flags, or force it "
                       "inline, or give it internal linkage (an unnamed namespace)")
            elif its_flags != flags:
                yield (f"{where}, but in {first} with {its_flags}, and either may be linked for both; force it inline, or "
                       "give it internal linkage (an unnamed namespace)")


# Sources of which each is compiled for more than the floor, and what of it is reported. Functions whose address is taken
# are there, whatever the optimizer makes of their calls.
PLANTED = {
    "inline_function.cpp": ("inline int shared(int x) { return x + 1; }\nint (*use())(int) { return shared; }\n",
                            "shared(int)"),
    "template.cpp": ("template <typename T> T twice(T x) { return x + x; }\nfloat (*use())(float) { return twice; }\n",
                     "float twice<float>(float)"),
    "member.cpp": ("template <typename T> struct Box { T x; T get() const { return x; } };\n"
                   "float (Box<float>::*use())() const { return &Box<float>::get; }\n", "Box<float>::get() const"),
    "library.cpp": ("#include <algorithm>\n"
                    "const int& (*use())(const int&, const int&) { return std::max<int>; }\n", "std::max<int>"),
    "virtual_function.cpp": ("struct Base { virtual int f() { return 1; } };\nBase* use() { return new Base; }\n", "Base::f()"),
    "namespace_of_the_floor.cpp": ("namespace kernels { inline namespace avx2 { inline int f() { return 1; } } }\n"
                                   "int (*use())() { return kernels::f; }\n", "kernels::avx2::f()"),
    "before_main.cpp": ("float f();\nfloat table = f();\n", "_GLOBAL__sub_I_"),
}
KEPT = {
    "unnamed.cpp": "namespace { template <typename T> T twice(T x) { return x + x; } }\n"
                   "float (*use())(float) { return twice; }\n",
    "of_its_own_type.cpp": "namespace { struct Own {}; }\ntemplate <typename T> int count(T*) { return 1; }\n"
                           "int (*keep)(Own*) = count;\n",
    "forced.cpp": "__attribute__((always_inline)) inline int shared(int x) { return x + 1; }\n"
                  "int use(int x) { return shared(x); }\n",
    "namespace_of_its_own.cpp": "namespace kernels { inline namespace avx512 { inline int f() { return 1; } } }\n"
                                "int (*use())() { return kernels::f; }\n",
    "data.cpp": "template <typename T> inline constexpr T kZeros[64] = {};\nconst float* use() { return kZeros<float>; }\n",
}


def self_test(floor, nm, compiler):
    wider = ["-march=x86-64-v4"]
    cases = {"wider/" + name: (text, wider) for name, (text, _) in PLANTED.items()}
    cases.update({"wider/" + name: (text, wider) for name, text in KEPT.items()})
    cases.update({"floor/" + name: (text, ["-mtune=generic", "-mno-avx512f", "-mcmodel=small"]) for name, (text, _) in PLANTED.items()})
    shared = "namespace_of_its_own.cpp"
    cases["widest/" + shared] = (KEPT[shared], [*wider, "-mavx512bf16"])
    cases["wider/empty.cpp"] = ("", wider)
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        assert len(list(breaches(build, floor, nm))) == 1, "a build without commands is not reported"
        (build / COMMANDS).write_text("[]")
        assert len(list(breaches(build, floor, nm))) == 1, "a build without wider files is not reported"
        commands = []
        for name, (text, flags) in cases.items():
            source = build / name
            source.parent.mkdir(exist_ok=True)
            source.write_text(text)
            command = [compiler, "-std=c++20", "-O3", floor, *flags, "-o", name + ".o", "-c", name]
            subprocess.run(command, cwd=build, check=True)
            commands.append({"directory": folder, "command": shlex.join(command), "file": name, "output": name + ".o"})
        absent = {**commands[0], "file": "absent.cpp", "output": "absent.cpp.o"}
        (build / COMMANDS).write_text(json.dumps([*commands, absent]))
        found = list(breaches(build, floor, nm))
    for name, (_, symbol) in PLANTED.items():
        assert any(line.startswith(f"wider/{name}: ") and symbol in line for line in found), f"not reported: {symbol} of {name}"
    assert any(line.startswith(f"widest/{shared}: ") for line in found), "not reported: a function of two sets of flags"
    assert any("empty.cpp.o: its symbols" in line for line in found), "not reported: an object without symbols"
    assert any("absent.cpp.o: not there" in line for line in found), "not reported: an object that is not there"
    for name in KEPT:
        assert not any(line.startswith(f"wider/{name}:") for line in found), f"reported without reason: {name}"
    assert not any(line.startswith("floor/") for line in found), "reported without reason: files of the floor"
    print(f"{len(PLANTED) + 5} planted breaches reported")


if __name__ == "__main__":
    if sys.argv[3] == "--self-test":
        self_test(sys.argv[1], sys.argv[2], sys.argv[4])
    elif sys.argv[3] == "--skip":
        print("skipped: what is inlined in this build is not what a release inlines")
        sys.exit(77)
    else:
        reported = list(breaches(sys.argv[3], sys.argv[1], sys.argv[2]))
        print("\n".join(reported) or "every object that is compiled for more keeps it for itself")
        sys.exit(1 if reported else 0)
