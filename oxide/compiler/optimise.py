"""LLVM's optimisation pipeline, the same for both back ends."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm


def optimise(module: Any, machine: Any, exported: str) -> None:
    """Runs LLVM's O3 on a module in which ``exported`` is the only function called from outside."""
    for function in module.functions:
        if not function.is_declaration and function.name != exported:
            function.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
