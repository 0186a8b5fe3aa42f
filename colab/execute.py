"""Executes the notebooks and stores what they print and draw, or compares it.

    python colab/execute.py [NAME...]           # executes and stores
    python colab/execute.py --check [NAME...]   # executes and compares

Kernels run on the CPU. Numbers may differ by rounding, figures a little; times in
seconds are not compared. `benchmark` measures the machine of its reader: its outputs
are not stored, and it is executed only if it is named.
"""

import argparse
import base64
import hashlib
import io
import os
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
UNSTORED = ("benchmark",)
NAMES = sorted(p.stem for p in HERE.glob("*.ipynb") if p.stem not in UNSTORED)
SECONDS = re.compile(r"\d+(\.\d+)? ?(s|seconds)\b")
NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?")


def code_cells(notebook):
    """The cells that are executed, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def code_hash(notebook):
    """Changes with the code, and so tells whether outputs are of the present one."""
    sources = ["".join(cell["source"]) for cell in code_cells(notebook)]
    return hashlib.sha256("\n\0".join(sources).encode()).hexdigest()[:16]


def printed(cell):
    """What a code cell has printed."""
    texts = (o["text"] for o in cell["outputs"] if o["output_type"] == "stream")
    return "".join("".join(text) for text in texts)


def figures(cell):
    """PNG files that a code cell has drawn."""
    found = (output.get("data", {}).get("image/png") for output in cell["outputs"])
    return [base64.b64decode("".join(data)) for data in found if data]


def execute(name):
    """A notebook with its outputs: nothing on stderr, nothing of who has run it."""
    import nbclient
    import nbformat

    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=900,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
    )
    hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "MPLBACKEND")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    client.execute(env=kept | {"JAX_PLATFORMS": "cpu"})
    for cell in code_cells(notebook):
        cell["metadata"] = {}
        streams, others = [], []
        for output in cell["outputs"]:
            (streams if output["output_type"] == "stream" else others).append(output)
        for output in streams:
            if output["name"] == "stderr":
                print(f"{name}, on stderr: {output['text']}", file=sys.stderr)
        text = "".join(o["text"] for o in streams if o["name"] == "stdout")
        first = [nbformat.v4.new_output("stream", text=text)] if text else []
        cell["outputs"] = first + others
        for output in others:
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = _in_few_colors(data["image/png"])
    install = code_cells(notebook)[0]
    install["outputs"] = []  # where it installs, it tells what pip has done
    notebook["metadata"]["p2pjax"] = {"executed_code": code_hash(notebook)}
    for key in [key for key in notebook["metadata"]["language_info"] if key != "name"]:
        del notebook["metadata"]["language_info"][key]
    return notebook


def differences(stored, fresh):
    """Where two executions of a notebook differ by more than rounding, in sentences."""
    found = []
    pairs = zip(code_cells(stored), code_cells(fresh), strict=True)
    for number, (one, other) in enumerate(pairs, 1):
        old, new = (SECONDS.sub("a time", printed(cell)) for cell in (one, other))
        if _words(old) != _words(new):
            found.append(f"cell {number} says otherwise:\n{old}\n---\n{new}")
        elif not all(map(_is_close, _numbers(old), _numbers(new))):
            found.append(f"cell {number} has other numbers:\n{old}\n---\n{new}")
        drawings = figures(one), figures(other)
        if len(drawings[0]) != len(drawings[1]):
            found.append(f"cell {number} draws another number of figures")
        elif not all(map(_looks_alike, *drawings)):
            found.append(f"cell {number} draws something else")
    return found


def _in_few_colors(data):
    """A figure in base64 with 256 colours: a third of the bytes."""
    from PIL import Image

    figure = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    file = io.BytesIO()
    figure.quantize(256).save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _words(text):
    return NUMBER.sub("#", text).split()


def _numbers(text):
    return [float(number.group()) for number in NUMBER.finditer(text)]


def _is_close(one, other):
    """Accuracies after tens of rounds, in which rounding errors grow."""
    return abs(one - other) <= 0.03 + 0.05 * abs(one)


def _looks_alike(one, other):
    """By small grey copies."""
    import numpy as np
    from PIL import Image

    small = [
        np.asarray(Image.open(io.BytesIO(png)).convert("L").resize((32, 32)), float)
        for png in (one, other)
    ]
    return np.abs(small[0] - small[1]).mean() < 0.05 * 255


def main():
    """Executes what is named, or all, one after the other."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {*NAMES, *UNSTORED}
    if unknown:
        parser.error(f"no notebook {', '.join(sorted(unknown))}")
    failed = False
    for name in arguments.names or NAMES:
        begin = time.monotonic()
        fresh = execute(name)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
        path = HERE / f"{name}.ipynb"
        if arguments.check and name not in UNSTORED:
            stored = nbformat.read(path, as_version=4)
            for difference in differences(stored, fresh):
                failed = True
                print(f"{name}, {difference}", flush=True)
        elif name not in UNSTORED:
            path.write_text(nbformat.writes(fresh) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
