"""Accesses without a bounds check of their own."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


def load_unchecked(context: Any, builder: Any, dtype: Any, address: Any) -> Any:
    """Returns the element at an address. The load is marked as having no bounds check of its own."""
    loaded = builder.load(address)
    mark_unchecked(builder, loaded)
    return context.data_model_manager[dtype].from_data(builder, loaded)


def mark_unchecked(builder: Any, access: Any) -> None:
    """Marks a load or store as having no bounds check of its own. Only the verifier of the IR reads this mark."""
    access.set_metadata("oxide.unchecked", builder.module.add_metadata([ir.Constant(ir.IntType(1), 1)]))
