"""Execute the notebooks and write each .ipynb beside its script.

Usage: ``python tools/notebooks.py [NAME ...]``, or ``make notebooks``; a NAME is the
start of a file's, such as 03. The scripts in notebooks/ are the source, in jupytext's
percent format; a fresh kernel runs each in its long form, on real data where
IM3F_DATA_DIR names their folder. ``--text`` runs nothing, and only brings text that has
changed over into the notebooks. Needs the extra "notebooks".
"""

import base64
import io
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 3600  # seconds a cell
COLOURS = 64  # of a picture: plots look the same with so many, and are half the size


def execute(path):
    """Run a script's cells in a fresh kernel; return the notebook with its outputs."""
    notebook = jupytext.read(path)
    NotebookClient(
        notebook,
        timeout=LONGEST,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        record_timing=False,
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":  # warnings say where they were raised
                output.text = output.text.replace(f"{ROOT}/", "")
                output.text = re.sub(r"/\S*/site-packages/", "", output.text)
                output.text = re.sub(
                    r"\S*/ipykernel_\S*\.py:", "cell, line ", output.text
                )
    return notebook


def retell(path):
    """Return the script as a notebook with the outputs of the one that is there."""
    notebook = jupytext.read(path)
    old = nbformat.read(path.with_suffix(".ipynb"), 4)
    new, was = (
        [cell for cell in x.cells if cell.cell_type == "code"] for x in (notebook, old)
    )
    if [cell.source for cell in new] != [cell.source for cell in was]:
        raise SystemExit(f"{path.name}: its code has changed, execute it.")
    for cell, before in zip(new, was, strict=True):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    notebook.metadata = old.metadata
    return notebook


def shrink(notebook):
    """Store pictures in few colours."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    for data in [out.data for out in outputs if "image/png" in out.get("data", {})]:
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        if picture.mode == "P":
            continue
        small = io.BytesIO()
        picture.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode()


def check(notebook):
    """Refuse a notebook whose outputs name folders of this machine."""
    folders = [ROOT, Path.home(), sys.prefix, tempfile.gettempdir()]
    folders.append(os.environ.get("IM3F_DATA_DIR", ROOT))
    for cell in notebook.cells:
        told = [output.get("data", output) for output in cell.get("outputs", [])]
        text = json.dumps([{**one, "image/png": None} for one in told])
        for folder in folders:
            if f"{folder}/" in text:
                raise SystemExit(f"An output names {folder}: {cell.source}")


def main(arguments):
    """Execute the scripts whose names start as given, or all."""
    names = [x for x in arguments if x != "--text"]
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        if names and not path.name.startswith(tuple(names)):
            continue
        start = time.perf_counter()
        notebook = (retell if "--text" in arguments else execute)(path)
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"  # jupytext's are random: other ones each time
        shrink(notebook)
        target = path.with_suffix(".ipynb")
        nbformat.write(notebook, target)
        check(notebook)
        size, seconds = target.stat().st_size, time.perf_counter() - start
        print(f"{target.name}: {seconds:.0f} s, {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
