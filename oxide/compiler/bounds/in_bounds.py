"""LLVM IR of the bounds check ``oxide.in_bounds`` and the alignment check ``oxide.aligned``.

The front end calls ``oxide.in_bounds`` at every access, with the index, the slice's length and the index of the
access's fault site. For an access of two or three axes it calls ``oxide.in_bounds.2`` or ``oxide.in_bounds.3`` for each
axis. The indices and lengths of the other axes are further arguments, because a fault reports the indices and lengths
of all axes. If the comparison fails, a separate function off the hot path claims and fills the fault record
(``records.FAULT``). One unsigned comparison covers both ends: a negative index is a huge unsigned number, and no length
reaches 2**63. ``oxide.aligned`` checks a vector's address in the same way: its bits below the vector's size must be 0.
"""

from __future__ import annotations

from oxide.compiler.ir.recognise import bounds_check, out_of_bounds
from oxide.driver.records import FAULT

_NO_ASSERTIONS = """
define i1 @oxide.aligned(ptr %context, i64 %low_bits, i32 %site) alwaysinline {
  ret i1 true
}

define void @oxide.assertion_failed(ptr %context, i32 %site) alwaysinline {
  ret void
}
"""

_AXES = (1, 2, 3)


def _parameters(axes: int) -> str:
    """Returns the parameters of the function that checks one axis of an access with ``axes`` axes."""
    return f"ptr %context, i64 %index, i64 %length, i32 %site{_others(axes)}"


def _head(axes: int) -> str:
    """Returns the head of the function that checks one axis of an access with ``axes`` axes."""
    return f"define i1 @{bounds_check(axes)}({_parameters(axes)}) alwaysinline"


def _fault(axes: int) -> str:
    """Returns the symbol of the function that fills the fault record for an access with ``axes`` axes."""
    return f"oxide.fault.{axes}" if axes > 1 else "oxide.fault"


def _others(axes: int) -> str:
    """Returns the parameters, or the arguments, for the indices and the lengths of an access's other axes."""
    return "".join(f", i64 %index.{other}, i64 %length.{other}" for other in range(axes - 1))


UNCHECKED = "\n".join([*(f"{_head(axes)} {{\n  ret i1 true\n}}" for axes in _AXES), _NO_ASSERTIONS])


def _check(head: str, test: str, call: str, weights: str = "") -> str:
    """Returns the function that returns whether a test holds. If the test fails, the function makes a call."""
    return f"""{head} {{
  %inside = {test}
  br i1 %inside, label %good, label %bad{weights}
bad:
  call void {call}
  ret i1 false
good:
  ret i1 true
}}"""


_INSIDE = "icmp ult i64 %index, %length"
_REPORTS = "\n".join(_check(_head(axes), _INSIDE, "@oxide.report(i32 %site) nomerge") for axes in _AXES)
REPORTING = f"""
declare void @oxide.report(i32) nounwind willreturn memory(inaccessiblemem: readwrite)
{_REPORTS}
{_NO_ASSERTIONS}"""
"""A form of the checks for inspecting optimised IR: if a call of ``oxide.report`` remains, LLVM has not removed the
check of its access."""


def checked(kernel_id: int, scope: str, *, hardware_registers: bool = False) -> str:
    """Returns the IR of a kernel's checks. ``scope`` is the synchronisation scope of the fault record's atomic claim.

    With ``hardware_registers``, on a GPU, the code that fills the record is inlined into the check. The inlined code
    reads the thread's coordinates by instructions that LLVM does not merge with others, so that the coordinates occupy
    no registers before a check fails. A call instead would cost registers: the calling convention fixes the places of
    values that are live across it, and a kernel needs as many registers as its most demanding path, even if that path
    is never taken. A naive matrix product takes 40 registers a thread with the call and 32 without, so that 6 or 8
    blocks fit a multiprocessor. On the CPU the code that fills the record is a function, which takes the coordinates by
    value: if the context's address were passed to the function, LLVM could not keep the context in registers.
    """
    coordinates = [f"{register}.{axis}" for register in ("ctaid", "tid") for axis in "xyz"]
    declarations = "\n".join(f"declare i32 @oxide.register.{name}(ptr)" for name in coordinates)
    reads = "\n".join(f"  %{name} = call i32 @oxide.register.{name}(ptr %context)" for name in coordinates)
    values = ", ".join(["", *(f"i32 %{name}" for name in coordinates)])
    before_call, before_fill = reads, ""
    if hardware_registers:
        reads = "\n".join(f'  %{name} = call i32 asm sideeffect "mov.u32 $0, %{name};", "=r"()' for name in coordinates)
        values, before_call, before_fill = "", "", reads
    inlined = "alwaysinline" if hardware_registers else "noinline cold"
    fields = [f"{field}[{axis}]" for field in ("block", "thread") for axis in range(3)]
    stores = "\n".join(_store("i32", f"%{name}", field) for name, field in zip(coordinates, fields, strict=True))
    checks = "\n\n".join(
        f"""{_check(_head(axes), _INSIDE, f"@{out_of_bounds(axes)}({_parameters(axes)})", ", !prof !0")}

define void @{out_of_bounds(axes)}({_parameters(axes)}) alwaysinline {{
  %record = call ptr @oxide.fault_record(ptr %context)
{before_call}
  call void @{_fault(axes)}(ptr %record, i64 %index, i64 %length, i32 %site{_others(axes)}{values})
  ret void
}}

define void @{_fault(axes)}(ptr %record, i64 %index, i64 %length, i32 %site{_others(axes)}{values}) {inlined} {{
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %claim
claim:
  %exchange = cmpxchg ptr %record, i32 0, i32 1 {scope} monotonic monotonic
  %claimed = extractvalue {{ i32, i1 }} %exchange, 1
  br i1 %claimed, label %fill, label %done
fill:
{_stores_of_others(axes)}
{before_fill}
{_store("i32", "%site", "site")}
{_store("i64", str(kernel_id), "kernel_id")}
{_store("i64", "%index", "index")}
{_store("i64", "%length", "length")}
{stores}
  br label %done
done:
  ret void
}}"""
        for axes in _AXES
    )
    aligned = _check(
        "define i1 @oxide.aligned(ptr %context, i64 %low_bits, i32 %site) alwaysinline",
        "icmp eq i64 %low_bits, 0",
        "@oxide.assertion_failed(ptr %context, i32 %site)",
        ", !prof !0",
    )
    return f"""
{declarations}
declare ptr @oxide.fault_record(ptr)

{checks}

{aligned}

define void @oxide.assertion_failed(ptr %context, i32 %site) alwaysinline {{
  %record = call ptr @oxide.fault_record(ptr %context)
{before_call}
  call void @{_fault(1)}(ptr %record, i64 0, i64 0, i32 %site{values})
  ret void
}}

!0 = !{{!"branch_weights", i32 2000, i32 1}}
"""


def _stores_of_others(axes: int) -> str:
    """Returns the IR that stores the indices and the lengths of an access's other axes."""
    return "\n".join(
        _store("i64", f"%{what}.{other}", f"{field}[{other}]")
        for other in range(axes - 1)
        for what, field in (("index", "other_indices"), ("length", "other_lengths"))
    )


def _store(kind: str, value: str, field: str) -> str:
    offset = FAULT.offset(field)
    at = f"%at.{offset}"
    align = 4 if kind == "i32" else 8
    return f"  {at} = getelementptr i8, ptr %record, i64 {offset}\n  store {kind} {value}, ptr {at}, align {align}"
