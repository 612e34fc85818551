#!/usr/bin/env python3
"""Man pages and completions, which are made from --help: complete, without warnings, and at work in real shells.

    manual_test.py PROGRAM PAGES NAME    runs one test (exit 77: skipped, with the reason); PAGES: the folder of man
                                         pages that are installed
    manual_test.py --list                the names
"""
import gzip
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import harness  # noqa: E402
from harness import Skip, refused, run, run_script  # noqa: E402

PAGES = None
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def printed(cwd, *words):
    result = run([harness.PROGRAM, *words], cwd)
    assert result.returncode == 0 and result.stdout, result.stderr
    return result.stdout


def commands(cwd):
    return re.findall(r"^  (\w+) ", printed(cwd, "--help"), re.M)


def needs(shell):
    if shutil.which(shell) is None:
        raise Skip(f"{shell} is not installed")


@test
def every_key_is_in_its_man_page_and_in_each_completion(cwd):
    names = commands(cwd)
    assert "generate" in names and len(names) >= 12, names
    scripts = {shell: printed(cwd, "completion", shell) for shell in ("bash", "zsh", "fish")}
    page = printed(cwd, "man")
    for command in names:
        assert f"zoetrope\\-{command} (1)" in page, command
        own = printed(cwd, "man", command)
        keys = re.findall(r"^  (\w+)  .*\]$", printed(cwd, command, "--help"), re.M)
        assert keys or command in ("completion", "man"), command
        assert not keys or own.index("\n.SH KEYS\n") < own.index(f"\n.B {keys[0]}\n") < own.index("\n.SH EX"), command
        for key in keys:
            assert f"\n.B {key}\n" in own, (command, key)
            line = next(line for line in scripts["bash"].splitlines() if line.startswith(f"    {command}) words='"))
            assert f"{key}=" in re.split("[ ']", line), (command, key)
            assert f"'{key}:" in scripts["zsh"] and f"{key}=" in scripts["fish"], (command, key)
    # Those of generate, where it has them too.
    for command in ("plan", "inspect", "serve"):
        assert re.search(rf"^    {command}\) words=.* num_frames=", scripts["bash"], re.M), command


@test
def the_man_page_of_every_command_is_installed(cwd):
    wanted = {f"zoetrope-{command}.1.gz": command for command in commands(cwd)} | {"zoetrope.1.gz": ""}
    assert set(wanted) == set(path.name for path in PAGES.glob("*.gz")), "cmake/ZoetropePackage.cmake lists the commands"
    for name, command in wanted.items():
        assert gzip.decompress((PAGES / name).read_bytes()).decode() == printed(cwd, "man", *command.split()), name


@test
def man_pages_have_no_warning_of_mandoc(cwd):
    needs("mandoc")
    for command in ["", *commands(cwd)]:
        (pathlib.Path(cwd) / "page.1").write_text(printed(cwd, "man", *command.split()))
        result = run(["mandoc", "-Tlint", "-Wwarning", "page.1"], cwd)
        assert result.returncode == 0, (command, result.stdout)


@test
def man_pages_have_no_warning(cwd):
    needs("groff")
    for command in ["", *commands(cwd)]:
        (pathlib.Path(cwd) / "page.1").write_text(printed(cwd, "man", *command.split()))
        result = run(["groff", "-man", "-Tutf8", "-k", "-ww", "page.1"], cwd)
        assert result.returncode == 0 and not result.stderr, (command, result.stderr)
        # What roff would take for a request, or for an escape, is there as text.
        assert command != "generate" or all(
            words in re.sub(r"\s+", " ", re.sub(".\b", "", result.stdout)) for words in (".mov, .webm", "4k + 1", "1 … 4093"))


@test
def bash_completes_commands_keys_and_values(cwd):
    (pathlib.Path(cwd) / "models").mkdir()
    for name in ("run.yml", "notes.txt", "height a.yml", "a b.mp4"):
        (pathlib.Path(cwd) / name).touch()
    (pathlib.Path(cwd) / "complete.bash").write_text(f"""
source <({harness.PROGRAM} completion bash)
compopt() {{ :; }}
for line in "$@"; do
  COMP_LINE=$line COMP_POINT=${{#line}}
  _zoetrope
  (IFS=:; echo "${{COMPREPLY[*]}}")
done
""")

    def complete(*lines, breaks="COMP_WORDBREAKS=$' \\t\\n\"=<>;|&(:'"):
        result = run(["bash", "-c", f"{breaks}; source complete.bash \"$@\"", "bash", *lines], cwd)
        assert result.returncode == 0 and not result.stderr, result.stderr
        return result.stdout.split("\n")[:-1]
    assert complete("zoetrope ge", "zoetrope generate soft", "zoetrope generate softmax=f", "zoetrope man pl",
                    "zoetrope completion z", "zoetrope generate mod", "zoetrope generate model=mod", "zoetrope generate run",
                    'zoetrope generate prompt="a red ball" heig', "zoetrope generate nothing_like_this",
                    "zoetrope bench ke", "zoetrope attention mod", "zoetrope convert n", "zoetrope generate output=a",
                    "zoetrope generate num_frames=") == [
        "generate", "softmax=", "fixed_max", "plan", "zsh", "model=:mode=:models/", "models", "run.yml",
        "height=:height\\ a.yml", "", "kernel:kernel=", "", "", "a b.mp4", ""]
    assert complete("zoetrope generate softmax=f", breaks="COMP_WORDBREAKS=' '") == ["softmax=fixed_max"]
    assert set(complete("zoetrope generate attention=")[0].split(":")) == {"auto", "flash", "gather", "ring", "ulysses", "ulysses_ring"}
    assert complete("zoetrope ")[0].split(":") == [*commands(cwd), "--help", "--version"]


def typed(cwd, shell, start, keys, wanted):
    """What is typed into an interactive shell, tabs for completion, becomes the command with the words `wanted`."""
    for name in ("run.yml", "a b.mp4"):
        (pathlib.Path(cwd) / name).touch()
    terminal, inside = pty.openpty()
    process = subprocess.Popen(shell, cwd=cwd, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
                               env={**os.environ, "TERM": "dumb", "HOME": str(cwd), "HISTFILE": ""})
    os.close(inside)
    seen = ""

    def read_until(words):
        nonlocal seen
        end = time.monotonic() + 120 * harness.SLOWER
        while words not in seen:
            assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], f"no '{words}' in:\n{seen}"
            seen += os.read(terminal, 1 << 16).decode(errors="replace")
    try:
        os.write(terminal, f"{start}; zoetrope() {{ printf '<%s>' \"$@\"; }}; echo read''y\n".encode())
        read_until("ready")
        os.write(terminal, f"{keys}\n".encode())
        read_until("".join(f"<{word}>" for word in wanted))
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


KEYS_TYPED = "zoetrope gen\tsoftm\tfix\trun.y\toutput=a\t"
WORDS_TYPED = ["generate", "softmax=fixed_max", "run.yml", "output=a b.mp4"]


@test
def tabs_in_bash_complete(cwd):
    typed(cwd, ["bash", "--noprofile", "--norc", "-i"], f"source <({harness.PROGRAM} completion bash)", KEYS_TYPED, WORDS_TYPED)


@test
def tabs_in_zsh_complete(cwd):
    needs("zsh")
    start = f"autoload -U compinit; compinit -u -D; source <({harness.PROGRAM} completion zsh)"
    typed(cwd, ["zsh", "-f", "-i"], start, KEYS_TYPED, WORDS_TYPED)


@test
def fish_completes_commands_keys_and_values(cwd):
    needs("fish")
    for line, wanted in (("zoetrope ", "inspect"), ("zoetrope ge", "generate"), ("zoetrope generate softmax=f", "softmax=fixed_max"),
                         ("zoetrope man pl", "plan"), ("zoetrope plan obj", "objective=")):
        script = f"{harness.PROGRAM} completion fish | source; complete -C '{line}'"
        result = run(["fish", "-c", script], cwd, env={"HOME": str(cwd)})
        words = [word.split("\t")[0] for word in result.stdout.splitlines()]
        assert wanted in words and not result.stderr, (line, result.stdout, result.stderr)


@test
def other_words_are_refused(cwd):
    refused(cwd, run([harness.PROGRAM, "completion", "tcsh"], cwd), "'tcsh'", "bash, zsh or fish")
    refused(cwd, run([harness.PROGRAM, "completion"], cwd), "one word", "bash, zsh or fish")
    refused(cwd, run([harness.PROGRAM, "man", "generat"], cwd), "no command 'generat'")
    refused(cwd, run([harness.PROGRAM, "man", "plan", "tune"], cwd), "one command")


def use(program, pages):
    global PAGES
    harness.PROGRAM, PAGES = program, pathlib.Path(pages)


if __name__ == "__main__":
    sys.exit(run_script(TESTS, use))
