"""libdevice's functions of words on the CPU: differences, averages, bytes, the upper and lower words of doubles.

The C library has none of them. They are exact, so both devices give the same bits. NVIDIA's CUDA Math API defines each
of them.
"""

from __future__ import annotations


def definitions(symbol: str) -> list[str]:
    """Returns a list with the IR that defines ``symbol``; [] for any other function."""
    if symbol not in _BODIES:
        return []
    result, parameters, body = _BODIES[symbol]
    listed = ", ".join(f"{kind} %p{number}" for number, kind in enumerate(parameters.split()))
    lines = "\n".join(f"  {line}" for line in body.split("; "))
    return [f"define {result} @{symbol}({listed}) alwaysinline {{\n{lines}\n  ret {result} %r\n}}"]


def _difference(greater: str) -> str:
    return (
        f"%c = icmp {greater} i32 %p0, %p1; %a = sub i32 %p0, %p1; %b = sub i32 %p1, %p0; "
        "%d = select i1 %c, i32 %a, i32 %b; %r = add i32 %d, %p2"
    )


def _average(extend: str, rounding: int) -> str:
    return (
        f"%a = {extend} i32 %p0 to i64; %b = {extend} i32 %p1 to i64; %s = add i64 %a, %b; "
        f"%t = add i64 %s, {rounding}; %h = ashr i64 %t, 1; %r = trunc i64 %h to i32"
    )


def _product(shift: str) -> str:
    return (
        f"%a = shl i32 %p0, 8; %x = {shift} i32 %a, 8; %b = shl i32 %p1, 8; %y = {shift} i32 %b, 8; %r = mul i32 %x, %y"
    )


def _permutation() -> str:
    """Returns the body of ``byte_perm``: three bits select each byte of the result among the eight bytes of the first
    two parameters."""
    lines = [
        "%a = zext i32 %p0 to i64; %b = zext i32 %p1 to i64; %high = shl i64 %b, 32; %all = or i64 %a, %high",
        "%names = zext i32 %p2 to i64",
    ]
    last = "0"
    for n in range(4):
        lines += [
            f"%n{n} = lshr i64 %names, {4 * n}; %m{n} = and i64 %n{n}, 7; %o{n} = shl i64 %m{n}, 3",
            f"%h{n} = lshr i64 %all, %o{n}; %y{n} = and i64 %h{n}, 255; %z{n} = shl i64 %y{n}, {8 * n}",
            f"%r{n} = or i64 {last}, %z{n}",
        ]
        last = f"%r{n}"
    return "; ".join([*lines, f"%r = trunc i64 {last} to i32"])


_BODIES = {
    "__nv_byte_perm": ("i32", "i32 i32 i32", _permutation()),
    "__nv_saturatef": (
        "float",
        "float",
        "%positive = fcmp ogt float %p0, 0.0; %below = fcmp olt float %p0, 1.0; "
        "%least = select i1 %below, float %p0, float 1.0; %r = select i1 %positive, float %least, float 0.0",
    ),
    "__nv_half2float": ("float", "i16", "%r = call float @oxide.f16.widen(i16 %p0)"),
    "__nv_float2half_rn": ("i16", "float", "%r = call i16 @oxide.f16.narrow(float %p0)"),
    "__nv_sad": ("i32", "i32 i32 i32", _difference("sgt")),
    "__nv_usad": ("i32", "i32 i32 i32", _difference("ugt")),
    "__nv_hadd": ("i32", "i32 i32", _average("sext", 0)),
    "__nv_rhadd": ("i32", "i32 i32", _average("sext", 1)),
    "__nv_uhadd": ("i32", "i32 i32", _average("zext", 0)),
    "__nv_urhadd": ("i32", "i32 i32", _average("zext", 1)),
    "__nv_mul24": ("i32", "i32 i32", _product("ashr")),
    "__nv_umul24": ("i32", "i32 i32", _product("lshr")),
    "__nv_double2hiint": (
        "i32",
        "double",
        "%w = bitcast double %p0 to i64; %h = lshr i64 %w, 32; %r = trunc i64 %h to i32",
    ),
    "__nv_double2loint": ("i32", "double", "%w = bitcast double %p0 to i64; %r = trunc i64 %w to i32"),
    "__nv_hiloint2double": (
        "double",
        "i32 i32",
        "%h = zext i32 %p0 to i64; %l = zext i32 %p1 to i64; %s = shl i64 %h, 32; %w = or i64 %s, %l; "
        "%r = bitcast i64 %w to double",
    ),
}
