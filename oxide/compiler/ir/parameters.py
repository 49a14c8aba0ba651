"""A kernel's parameters as IR: the types of an entry point's parameters, and the entry point's call of the kernel's
function."""

from __future__ import annotations

from collections.abc import Mapping

from oxide.compiler.signature.signature import Closed, NumbaParameter, Parameter
from oxide.compiler.signature.untyped_arguments import ArrayType, Captured

from .module import Function, Module, reached
from .values import Argument


def word_types(parameters: tuple[Closed, ...]) -> list[str]:
    """Returns the types of the words by which a launch passes the parameters. A scalar or a captured number is one
    word. A slice is its address and then the length of each axis. An argument with numba-cuda's semantics is passed as
    numba-cuda's words."""
    types: list[str] = []
    for parameter in parameters:
        if isinstance(parameter, NumbaParameter):
            types += parameter.type.words
        elif parameter.lifted is not None:
            types += word_types(parameter.lifted.parts)
        else:
            scalar = parameter.kind == "scalar"
            types += [parameter.scalar.memory_type] if scalar else ["ptr", *["i64"] * parameter.ndim]
    return types


def element_type(parameter: Parameter) -> str | None:
    """Returns the type in memory of a slice's elements, or None for complex numbers."""
    return None if parameter.scalar.part else parameter.scalar.memory_type


def argument_types(parameters: tuple[Closed, ...], function: Function) -> list[tuple[str, ...]]:
    """Returns, for each parameter, the LLVM types of the arguments that carry it to a kernel's function."""
    types = iter([argument.type for argument in function.arguments[1:]])
    return [tuple(next(types) for _ in word_types((parameter,))) for parameter in parameters]


def call(function: Function, context: str, words: list[str], types: list[str]) -> tuple[str, str]:
    """Returns the declaration of a kernel's function, and the lines that call it with ``words`` of types ``types``. A
    word is truncated if the function takes a narrower type: a bool is passed as a byte."""
    inner = [argument.type for argument in function.arguments][1:]
    lines: list[str] = []
    arguments = [f"ptr {context}"]
    for number, (word, outer_type, inner_type) in enumerate(zip(words, types, inner, strict=True)):
        if outer_type != inner_type:
            lines.append(f"  %narrowed.{number} = trunc {outer_type} {word} to {inner_type}")
            word = f"%narrowed.{number}"
        arguments.append(f"{inner_type} {word}")
    lines.append(f'  call void @"{function.symbol}"({", ".join(arguments)})')
    declaration = f'declare void @"{function.symbol}"({", ".join(["ptr", *inner])})'
    return declaration, "\n".join(lines)


# Arrays from outside of a kernel, as hidden parameters behind its own ones; see ``signature/untyped_arguments.py``

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
        for reaching in reached(symbol, module.callers)[1:]:
            words = arrays[number].type.words if reaching == kernel else ("ptr",)
            arguments = [Argument(f"{name}.{word}", type_) for word, type_ in enumerate(words)]
            module.functions[reaching].arguments += arguments
            addresses[reaching] = arguments[ArrayType.ADDRESS if reaching == kernel else 0]
        for reaching, address in addresses.items():
            function = module.functions[reaching]
            for call in function.calls:
                if call.called in addresses:
                    call.operands.append(address)
            function.supersede({call: address for call in function.calls if call.called == symbol})
        del module.functions[symbol]
    return tuple(numbers)
