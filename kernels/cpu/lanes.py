"""Sixteen lanes: vectors of 16 float32 or 16 int32, and one instruction each, for numba. No algorithm.

Every operation is an intrinsic that compiled functions call; its `emit` builds the same instructions inside a larger
intrinsic (tiles.py). Memory is given by address, an int64: who passes one keeps its owner alive. What a processor has
no instruction for is put together of others here and in sums.py, so that all above runs on any of them.
"""
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

WIDTH = 16
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
FLOATS, INTS = ir.VectorType(F32, WIDTH), ir.VectorType(I32, WIDTH)


class Lanes(types.Type):
    """One register: 16 numbers of `element`."""

    def __init__(self, element: str, llvm_type: ir.VectorType) -> None:
        self.llvm_type = llvm_type
        super().__init__(name=f"lanes({element})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, kind.llvm_type)


FloatLanes, IntLanes = Lanes("f32", FLOATS), Lanes("i32", INTS)
ADDRESS = types.int64


class _Bfloat(ir.Type):  # llvmlite has none
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


BF16 = _Bfloat()
Emit = Callable[..., Any]


def operation(result: Any, *arguments: Any) -> Callable[[Emit], Any]:
    """Makes `emit(builder, *values)` an intrinsic of these numba types; the function stays reachable as `.emit`."""

    def declare(emit: Emit) -> Any:
        signature = result(*arguments)

        def build(context: Any, builder: ir.IRBuilder, found: Any, values: Any) -> Any:
            made = emit(builder, *values)
            return context.get_dummy_value() if result is types.none else made

        takes = {
            0: lambda typing: (signature, build),
            1: lambda typing, a: (signature, build),
            2: lambda typing, a, b: (signature, build),
            3: lambda typing, a, b, c: (signature, build),
            4: lambda typing, a, b, c, d: (signature, build),
        }[len(arguments)]
        takes.__name__ = takes.__qualname__ = emit.__name__
        made = intrinsic(takes)
        made.emit = emit
        made.__doc__ = emit.__doc__
        return made

    return declare


def outlined(name: str, count: int, emit: Emit) -> Any:
    """An intrinsic of `count` addresses that calls `emit(builder, *addresses)` as a function of its own.

    Whatever calls it only calls it: a body of a thousand instructions is compiled once and not copied to each caller.
    """

    def build(context: Any, b: ir.IRBuilder, signature: Any, values: Any) -> Any:
        function = b.module.globals.get(f"hamdam.{name}")
        if function is None:
            function = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64] * count), f"hamdam.{name}")
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            emit(inner, *function.args)
            inner.ret_void()
        b.call(function, values)
        return context.get_dummy_value()

    signature = types.none(*(ADDRESS,) * count)
    takes = {
        4: lambda typing, a, b, c, d: (signature, build),
        5: lambda typing, a, b, c, d, e: (signature, build),
        6: lambda typing, a, b, c, d, e, f: (signature, build),
    }[count]
    takes.__name__ = takes.__qualname__ = name
    return intrinsic(takes)


def pointer(b: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    return b.inttoptr(address, kind.as_pointer())


def call(b: ir.IRBuilder, name: str, result: ir.Type, *values: Any) -> Any:
    """Calls an LLVM intrinsic, or a function of the C library."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), values)


def const(kind: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * WIDTH) if isinstance(kind, ir.VectorType) else ir.Constant(kind, value)


# Memory


@operation(FloatLanes, ADDRESS)
def load(b, address):
    """16 float32 in a row."""
    return b.load(pointer(b, address, FLOATS), align=4)


@operation(IntLanes, ADDRESS)
def load_ints(b, address):
    """64 bytes, as they are."""
    return b.load(pointer(b, address, INTS), align=4)


@operation(FloatLanes, ADDRESS)
def load_half(b, address):
    """16 float16, widened."""
    return b.fpext(b.load(pointer(b, address, ir.VectorType(F16, WIDTH)), align=2), FLOATS)


@operation(types.none, ADDRESS, FloatLanes)
def store(b, address, x):
    b.store(x, pointer(b, address, FLOATS), align=4)


@operation(types.none, ADDRESS, IntLanes)
def store_ints(b, address, x):
    b.store(x, pointer(b, address, INTS), align=4)


@operation(types.none, ADDRESS, IntLanes)
def store_bytes(b, address, x):
    """The low byte of each lane: 16 bytes."""
    small = ir.VectorType(I8, WIDTH)
    b.store(b.trunc(x, small), pointer(b, address, small), align=1)


@operation(types.none, ADDRESS, IntLanes)
def store_shorts(b, address, x):
    """The low half of each lane: 32 bytes."""
    small = ir.VectorType(I16, WIDTH)
    b.store(b.trunc(x, small), pointer(b, address, small), align=2)


@operation(types.none, ADDRESS)
def prefetch(b, address):
    """Asks for 64 bytes, into the second level of cache: there more requests can be under way at once."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [pointer(b, address, I8), *(const(I32, n) for n in (0, 2, 1))])


def _peek(result: Any, kind: ir.Type, name: str) -> Any:
    def emit(b, address):
        return b.load(pointer(b, address, kind), align=4)

    emit.__name__ = name
    return operation(result, ADDRESS)(emit)


def _poke(argument: Any, kind: ir.Type, name: str) -> Any:
    def emit(b, address, x):
        b.store(b.trunc(x, kind) if kind is I16 else x, pointer(b, address, kind))

    emit.__name__ = name
    return operation(types.none, ADDRESS, argument)(emit)


peek_int, poke_int = _peek(types.int32, I32, "peek_int"), _poke(types.int32, I32, "poke_int")
peek_float, poke_float = _peek(types.float32, F32, "peek_float"), _poke(types.float32, F32, "poke_float")
peek_long = _peek(types.int64, I64, "peek_long")
poke_long = _poke(types.int64, I64, "poke_long")
peek_double = _peek(types.float64, ir.DoubleType(), "peek_double")
poke_short = _poke(types.int32, I16, "poke_short")


@operation(types.float32, ADDRESS)
def peek_half(b, address):
    """One float16, widened."""
    return b.fpext(b.load(pointer(b, address, F16), align=2), F32)


@operation(types.int32, ADDRESS)
def peek_byte(b, address):
    """One byte without a sign."""
    return b.zext(b.load(pointer(b, address, I8), align=1), I32)


@operation(types.int32, ADDRESS)
def peek_short(b, address):
    """Two bytes without a sign."""
    return b.zext(b.load(pointer(b, address, I16), align=2), I32)


@operation(types.none, ADDRESS, types.int64)
def add_long(b, address, x):
    """Adds to the int64 there."""
    at = pointer(b, address, I64)
    b.store(b.add(b.load(at), x), at)


@operation(types.int64)
def clock(b):
    """The processor's cycle counter; it runs at a constant rate."""
    return call(b, "llvm.readcyclecounter", I64)


# Lanes from scalars


@operation(FloatLanes, types.float32)
def splat(b, x):
    return _splat(b, x)


@operation(IntLanes, types.int32)
def splat_ints(b, x):
    return _splat(b, x)


@operation(IntLanes, ADDRESS)
def repeat_ints(b, address):
    """The 4 bytes there, 16 times."""
    return _splat(b, b.load(pointer(b, address, I32), align=1))


@operation(FloatLanes, ADDRESS)
def repeat(b, address):
    """The float32 there, 16 times."""
    return _splat(b, b.load(pointer(b, address, F32), align=4))


def _splat(b, x):
    kind = ir.VectorType(x.type, WIDTH)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * WIDTH))


@operation(IntLanes)
def lane_numbers(b):
    """0 … 15."""
    return ir.Constant(INTS, list(range(WIDTH)))


# Arithmetic


def _binary(kind: Any, name: str, method: str) -> Any:
    def emit(b, x, y):
        return getattr(b, method)(x, y)

    emit.__name__ = name
    return operation(kind, kind, kind)(emit)


add, sub, mul, div = (_binary(FloatLanes, name, "f" + name) for name in ("add", "sub", "mul", "div"))
add_ints, sub_ints, shift_left, shift_right, and_ints, or_ints = (
    _binary(IntLanes, name, method)
    for name, method in (("add_ints", "add"), ("sub_ints", "sub"), ("shift_left", "shl"), ("shift_right", "ashr"),
                         ("and_ints", "and_"), ("or_ints", "or_"))
)


@operation(FloatLanes, FloatLanes, FloatLanes, FloatLanes)
def fma(b, x, y, z):
    """x y + z, rounded once."""
    return call(b, "llvm.fma.v16f32", FLOATS, x, y, z)


@operation(FloatLanes, FloatLanes, FloatLanes)
def larger(b, x, y):
    """The larger of two; y where either is not a number."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@operation(FloatLanes, FloatLanes)
def absolute(b, x):
    return b.bitcast(b.and_(b.bitcast(x, INTS), const(INTS, 0x7FFFFFFF)), FLOATS)


@operation(FloatLanes, FloatLanes)
def rounded(b, x):
    """To the nearest whole number, halves to the even one."""
    return call(b, "llvm.rint.v16f32", FLOATS, x)


@operation(IntLanes, FloatLanes)
def to_ints(b, x):
    """Of whole numbers that fit."""
    return b.fptosi(x, INTS)


@operation(FloatLanes, IntLanes, types.int32, FloatLanes, FloatLanes)
def where_less(b, lanes, bound, x, y):
    """x in lanes whose number is below `bound`, else y."""
    return b.select(b.icmp_signed("<", lanes, _splat(b, bound)), x, y)


LOG2E = 1.4426950408889634
_EXP2 = (0.00132647004, 0.00967153394, 0.05550734, 0.240222418, 0.693146977, 1.0)  # 2**x, |x| <= 0.5, minimax


@operation(FloatLanes, FloatLanes)
def exp(b, x):
    """e to the x: relative error below 1.4e-6, where |x| < 16 below 4e-7, and e to the 0 is 1. Above 88 it is e to the
    88, below -87 it is 0; not a number stays so."""
    low, high = const(FLOATS, -87.0), const(FLOATS, 88.0)
    clamped = b.select(b.fcmp_ordered("<", x, low), low, b.select(b.fcmp_ordered(">", x, high), high, x))
    scaled = b.fmul(clamped, const(FLOATS, LOG2E))
    whole = call(b, "llvm.rint.v16f32", FLOATS, scaled)
    # x log2(e) - whole with the rounding of the product put back, so that large x are as exact as small ones
    part = call(b, "llvm.fma.v16f32", FLOATS, clamped, const(FLOATS, LOG2E), b.fneg(whole))
    value = const(FLOATS, _EXP2[0])
    for factor in _EXP2[1:]:
        value = call(b, "llvm.fma.v16f32", FLOATS, value, part, const(FLOATS, factor))
    power = b.shl(b.fptosi(whole, INTS), const(INTS, 23))
    made = b.bitcast(b.add(b.bitcast(value, INTS), power), FLOATS)
    made = b.select(b.fcmp_ordered("<", x, low), const(FLOATS, 0.0), made)
    return b.select(b.fcmp_unordered("uno", x, x), x, made)
