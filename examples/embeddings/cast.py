"""``python -m examples.embeddings.cast FOLDER``: writes the model in f16, half as large, with its tokenizer.

``--weights FOLDER`` of the other commands takes such a folder. Encoders in f16 compute the same with it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np

from .embedder import model_folder

_UNUSED = ("pooler.", "embeddings.position_ids")
"""The beginnings of the names of tensors that the encoder does not read."""


def cast(source: Path, target: Path) -> int:
    """Converts the tensors of the model in ``source`` to f16, writes them to ``target``, and copies the tokenizer.
    Returns the size of the tensors in bytes. Raises ``ValueError`` if a weight is too large for f16."""
    from safetensors.numpy import load_file, save_file

    halves = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if name.startswith(_UNUSED):
            continue
        with np.errstate(over="ignore"):
            half = weight.astype(np.float16)
        if not np.isfinite(half).all():
            raise ValueError(f"{name} has a weight of {np.abs(weight).max():g}, which f16 does not hold")
        halves[name] = half
    target.mkdir(parents=True, exist_ok=True)
    save_file(halves, target / "model.safetensors")
    shutil.copyfile(source / "tokenizer.json", target / "tokenizer.json")
    return sum(half.nbytes for half in halves.values())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.embeddings.cast", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write the model")
    parser.add_argument("--weights", metavar="FOLDER", type=Path, help="the model to cast (that of the package)")
    options = parser.parse_args(arguments)
    try:
        source = model_folder(options.weights)
        if source.resolve() == options.folder.resolve():
            parser.error("the two folders are the same")
        nbytes = cast(source, options.folder)
    except (OSError, ModuleNotFoundError, ValueError) as error:
        sys.exit(str(error))
    print(f"{options.folder / 'model.safetensors'}: {nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
