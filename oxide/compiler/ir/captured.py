"""Arrays from outside of a kernel as hidden parameters behind its own ones; see ``Captured`` in ``signature``."""

from __future__ import annotations

from collections.abc import Mapping

from oxide.compiler.signature.untyped_arguments import ArrayType, Captured

from .module import Module
from .values import Argument, Value

CAPTURED = "oxide.captured."


def take_captured(module: Module, kernel: str, arrays: Mapping[int, Captured]) -> tuple[int, ...]:
    """Adds the words of each array that the module reaches to the parameters of the kernel's function, and replaces the
    calls of ``oxide.captured.N``. A device function that needs the address gets it from its callers. Returns the
    numbers of the arrays, in the order of the hidden parameters."""
    symbols = [symbol for symbol in module.functions if symbol.startswith(CAPTURED)]
    numbers = sorted(int(symbol.removeprefix(CAPTURED)) for symbol in symbols)
    for place, number in enumerate(numbers):
        symbol, name = f"{CAPTURED}{number}", f"%.captured.{place}"
        addresses: dict[str, Argument] = {}
        for reaching in _reaching(module, symbol):
            words = arrays[number].type.words if reaching == kernel else ("ptr",)
            arguments = [Argument(f"{name}.{word}", type_) for word, type_ in enumerate(words)]
            module.functions[reaching].arguments += arguments
            addresses[reaching] = arguments[ArrayType.ADDRESS if reaching == kernel else 0]
        for reaching, address in addresses.items():
            function = module.functions[reaching]
            replaced: dict[Value, Value] = {}
            for call in function.calls:
                if call.called == symbol:
                    replaced[call] = address
                    call.block.instructions.remove(call)
                elif call.called in addresses:
                    call.operands.append(address)
            function.replace(replaced)
        del module.functions[symbol]
    return tuple(numbers)


def _reaching(module: Module, symbol: str) -> list[str]:
    """Returns the functions that call a function, directly or through others."""
    found = [symbol]
    for callee in found:  # which grows
        callers = [each.symbol for each in module.defined if any(call.called == callee for call in each.calls)]
        found += [caller for caller in callers if caller not in found]
    return found[1:]
