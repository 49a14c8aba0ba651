"""LLVM's optimisation pipeline, the same for both back ends."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm


def optimise(module: Any, machine: Any, exported: str) -> None:
    """Runs LLVM's O3 on a module in which ``exported`` is the only function called from outside."""
    _keep_inside(module, exported)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def simplify(module: Any, machine: Any, exported: str) -> None:
    """Everything inlined, values in registers, and no more: a third of the time, for functions that seldom run."""
    _keep_inside(module, exported)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3)))


def _keep_inside(module: Any, exported: str) -> None:
    for function in module.functions:
        if not function.is_declaration and function.name != exported:
            function.linkage = "internal"
