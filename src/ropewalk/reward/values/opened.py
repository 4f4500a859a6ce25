"""What lies inside objects. Stand-alone; runs inside sandboxes, in trusted runs only.

`parts` opens an object as far as that changes nothing. What it cannot open and does not know to be empty it names, so
that a grader can say that there may be more than it saw.
"""

from __future__ import annotations

import array
import contextlib
import dis
import gc
import io
import itertools
import marshal
import types
from typing import Any

import encode  # type: ignore[import-not-found]

CONTAINERS = (list, tuple, dict, set, frozenset)
"""Of builtin types, themselves and no subclass."""
BYTES_MAX = 1_000_000
"""Of a stream, a file or a buffer."""
_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_TRANSPARENT = frozenset(
    {
        *("builtins.list", "builtins.tuple", "builtins.dict", "builtins.set", "builtins.frozenset", "builtins.object"),
        *("builtins.mappingproxy", "types.MappingProxyType", "builtins.dict_keys", "builtins.dict_values"),
        *("builtins.dict_items", "builtins.slice", "builtins.method", "builtins.cell", "builtins.property"),
        *("builtins.staticmethod", "builtins.classmethod", "builtins.super", "builtins.BaseException"),
        *("builtins.list_iterator", "builtins.tuple_iterator", "builtins.list_reverseiterator", "builtins.reversed"),
        *("builtins.str_iterator", "builtins.str_ascii_iterator", "builtins.bytes_iterator", "builtins.iterator"),
        *("builtins.bytearray_iterator", "builtins.dict_keyiterator", "builtins.dict_valueiterator"),
        *("builtins.dict_itemiterator", "builtins.dict_reversekeyiterator", "builtins.dict_reversevalueiterator"),
        *("builtins.dict_reverseitemiterator", "builtins.set_iterator", "builtins.callable_iterator"),
        *("builtins.map", "builtins.filter", "builtins.zip", "builtins.enumerate", "builtins.GenericAlias"),
        *("types.GenericAlias", "types.UnionType", "types.SimpleNamespace", "builtins.odict_iterator"),
        *("collections.deque", "collections.OrderedDict", "collections.defaultdict", "functools.partial"),
        *("collections._deque_iterator", "collections._deque_reverse_iterator", "builtins.memory_iterator"),
        *("_collections._deque_iterator", "_collections._deque_reverse_iterator"),
        *("functools._lru_cache_wrapper", "functools.KeyWrapper", "operator.itemgetter", "operator.attrgetter"),
        *("operator.methodcaller", "builtins.odict_keys", "builtins.odict_values", "builtins.odict_items"),
        *("builtins.async_generator_asend", "builtins.coroutine_wrapper", "builtins.async_generator_athrow"),
        *("builtins.getset_descriptor", "builtins.member_descriptor", "builtins.wrapper_descriptor"),
        *("builtins.method_descriptor", "builtins.classmethod_descriptor", "builtins.method-wrapper"),
        *("_thread._local", "_abc._abc_data", "_asyncio.Future", "_asyncio.Task", "contextvars.Token"),
        *("builtins.int", "builtins.float", "builtins.complex", "builtins.bool", "builtins.str", "builtins.bytes"),
        *("builtins.bytearray", "builtins.range", "decimal.Decimal", "datetime.date", "datetime.datetime"),
        *("datetime.time", "datetime.timedelta", "builtins.BaseExceptionGroup"),
        *("itertools._tee", "itertools._tee_dataobject", "itertools.groupby", "itertools._grouper"),
        *("ast.AST", "_contextvars.Token", "_json.Scanner", "_json.Encoder", "_struct.unpack_iterator", "_csv.reader"),
        *("_csv.writer", "xml.etree.ElementTree.TreeBuilder"),
        *("builtins.TaskStepMethWrapper", "_asyncio.TaskStepMethWrapper", "_asyncio.FutureIter", "builtins.Context"),
    }
)  # fmt: skip
"""The garbage collector knows all that they hold."""
_EMPTY = frozenset(
    {
        *("builtins.NoneType", "builtins.ellipsis", "builtins.NotImplementedType", "builtins.frame", "builtins.module"),
        *("builtins.traceback", "builtins.code", "_thread.lock", "_thread.RLock", "re.Pattern", "re.Match"),
        *("_sre.SRE_Scanner",),
        *("_random.Random", "_hashlib.HASH", "_hashlib.HMAC", "_blake2.blake2b", "_blake2.blake2s", "_md5.md5"),
        *("_sha1.sha1", "_sha256.sha256", "_sha512.sha512", "_hashlib.HASHXOF", "weakref.ReferenceType"),
        *("weakref.ProxyType", "weakref.CallableProxyType", "builtins.weakref", "builtins.weakproxy"),
        *("builtins.weakcallableproxy", "_struct.Struct", "decimal.Context", "datetime.timezone", "datetime.tzinfo"),
        *("zoneinfo.ZoneInfo", "_contextvars.Context", "contextvars.Context", "contextvars.ContextVar"),
        *("_contextvars.ContextVar", "posix.DirEntry", "posix.ScandirIterator", "os.stat_result", "select.epoll"),
        *("builtins.PyCapsule", "builtins.async_generator_wrapped_value", "builtins.builtin_function_or_method"),
        *("string.Formatter", "builtins.fieldnameiterator", "builtins.formatteriterator", "_operator.itemgetter"),
        *("unicodedata.UCD", "_queue.Empty", "_csv.Dialect", "builtins.ellipsis", "select.poll", "_abc_data"),
        *("_collections._tuplegetter", "builtins.type", "decimal.ContextManager"),
        *("_thread._ThreadHandle", "builtins.NoDefaultType", "typing.NoDefaultType"),
    }
)  # fmt: skip
"""They hold nothing that is not a name, a clue to other objects that are looked at themselves, or unreadable."""
_LOOPS = frozenset({"asyncio.unix_events", "asyncio.selector_events", "asyncio.base_events"})
_WAITING = ("_ready", "_scheduled", "_asyncgens", "_exception_handler", "_task_factory", "_default_executor")
"""Of an event loop: what it is yet to call. Its own pipe and selector hold nothing of a test's."""
_STEPPED = (itertools.count, itertools.cycle, itertools.repeat)
_COMPUTES = frozenset({"BINARY_OP", "CALL_FUNCTION_EX", "MAKE_FUNCTION"})
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD"})
_native: dict[type, str] = {}
_plain: dict[type, bool] = {}


class Unopened(Exception):
    """It may hold more than can be seen."""


def native_type(kind: type) -> str:
    """The nearest class among its bases that is not written in Python."""
    found = _native.get(kind)
    if found is None:
        found = next((_name(base) for base in type.mro(kind) if _is_native(base)), "builtins.object")
        _native[kind] = found
    return found


def parts(value: Any, name_of_type: str) -> list[Any]:
    """What is directly in an object of such a native type.

    Raises:
        Unopened: it may hold more.
    """
    if type(value).__module__ in _LOOPS and "_ready" in (held := vars(value)):
        return [held[name] for name in _WAITING if name in held]
    if isinstance(value, io.IOBase) and type(value).__module__ in ("_io", "io"):
        return _of_stream(value)
    if (
        isinstance(value, tuple)
        or name_of_type in _TRANSPARENT
        or isinstance(value, BaseException)
        or name_of_type.startswith("typing.")
    ):
        return gc.get_referents(value)
    if name_of_type in _EMPTY:
        return []
    if name_of_type == "xml.etree.ElementTree.Element":
        return [value.tag, value.text, value.tail, value.attrib, *gc.get_referents(value)]
    if isinstance(value, array.array):
        return [value.tobytes(), value.tolist()] if len(value) <= BYTES_MAX // 8 else _fail(value)
    if isinstance(value, _STEPPED):
        return [*value.__reduce__()[1], *gc.get_referents(value)]
    if name_of_type == "_queue.SimpleQueue" and value.empty():
        return []
    if isinstance(value, itertools.zip_longest):
        return []  # made in tests it is another; reading it once an iterator in it is exhausted crashes the interpreter
    if name_of_type.startswith("itertools.") or name_of_type.endswith("range_iterator"):
        return [*(value.__reduce__()[1] if "range" in name_of_type else ()), *gc.get_referents(value)]
    return _of_buffer(value)


def is_all_plain(container: Any) -> bool:
    """Whether nothing directly in it is an object that no value can be made of."""
    return all(map(is_plain_type, map(type, gc.get_referents(container))))


def is_plain_type(kind: type) -> bool:
    """Whether a value can be made of all such objects."""
    known = _plain.get(kind)
    if known is None:
        known = _plain[kind] = kind is type(None) or any(base in encode._ENCODERS for base in type.mro(kind))
    return known


def mark(value: Any) -> int | None:
    """Of plain data: another for whatever is not equal. None for what holds anything else."""
    try:
        return hash(marshal.dumps(value, 2))
    except ValueError:
        return None


def computes(code: Any) -> bool:
    """Whether code does more than one call and look up names: then there are values that nobody saw."""
    # From Python 3.14 on an item is looked up by an operator.
    steps = [step.opname for step in dis.get_instructions(code) if step.argrepr != "[]"]
    calls = sum(step in _CALLS for step in steps)
    return (
        any(isinstance(part, types.CodeType) for part in code.co_consts)
        or not _COMPUTES.isdisjoint(steps)
        or calls > 1
        or (calls > 0 and any("BACKWARD" in step for step in steps))
    )


def _of_buffer(value: Any) -> list[Any]:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        raise Unopened(native_type(type(value))) from error
    with view:
        if view.nbytes > BYTES_MAX:
            _fail(value)
        found: list[Any] = [view.tobytes()]
        with contextlib.suppress(NotImplementedError, TypeError):
            found.append(view.tolist())
        return found


def _of_stream(value: Any) -> list[Any]:
    """Its contents, wherever it stands."""
    try:
        if isinstance(value, (io.BytesIO, io.StringIO)):
            if value.closed:
                return []
            held: Any = io.BytesIO.getvalue(value) if isinstance(value, io.BytesIO) else io.StringIO.getvalue(value)
            return [held, *gc.get_referents(value)] if len(held) <= BYTES_MAX else _fail(value)
        if isinstance(value, io.TextIOWrapper):
            if not value.closed and value.writable():
                value.flush()
            return [value.buffer]
        if isinstance(value, (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)):
            if not value.closed and value.writable():
                value.flush()
            return [value.raw]
        if isinstance(value, io.BufferedRWPair):
            return gc.get_referents(value)
    except (ValueError, OSError):
        return []  # closed, or detached
    return gc.get_referents(value)


def _fail(value: Any) -> Any:
    raise Unopened(f"a large {native_type(type(value))}")


def _is_native(kind: type) -> bool:
    if kind is object:
        return False
    for held in type.__dict__["__dict__"].__get__(kind).values():
        if isinstance(held, _DESCRIPTORS) and held.__objclass__ is kind:
            return True
        if isinstance(held, types.BuiltinFunctionType) and held.__self__ is kind:
            return True
    return False


def _name(kind: type) -> str:
    module = type.__dict__["__module__"].__get__(kind)
    return f"{module}.{type.__dict__['__qualname__'].__get__(kind)}"
