"""What the program says of its keys, so that scripts keep no lists of their own."""
import re
import subprocess


def words_of(program, command, key):
    """The legal words of a key, as `PROGRAM COMMAND --help` lists them."""
    said = subprocess.run([program, command, "--help"], text=True, stdout=subprocess.PIPE, check=True).stdout
    line = re.search(rf"^  {key} .*\[([^;\]]*)", said, re.MULTILINE)
    return line[1].split(", ")
