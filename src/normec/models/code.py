"""A hash of what user-defined functions and objects compute, so that a run does not resume with another loss of the same name."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

PLAIN = (bool, int, float, str, bytes, type(None))


def code_of(thing: Any) -> str | None:
    """A hash of the code of a function, a class, a module or any object; None where all of it comes from installed packages.

    For a function it covers the bytecode, the constants, the defaults and closed-over plain values, and the same for what the function
    names in its own module. For an object it covers the methods of its class and, for a module, hooks and an instance's own functions. The
    values that a function
    reads elsewhere (files, installed packages, objects) are not seen.
    """
    digest = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    _add(thing, digest, seen)
    if isinstance(thing, nn.modules.loss._Loss):  # options, and weights of classes
        seen.add(id(thing))
        for value in thing.state_dict().values():
            digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest() if seen else None


def _add(thing: Any, digest: Any, seen: set[int]) -> None:
    if isinstance(thing, PLAIN):
        digest.update(f"{thing!r};".encode())
    elif isinstance(thing, functools.partial):
        seen.add(id(thing))
        for part in (thing.func, *thing.args, *(each for item in sorted(thing.keywords.items()) for each in item)):
            _add(part, digest, seen)
    elif isinstance(thing, MethodType):
        _add(thing.__func__, digest, seen)
        _add(thing.__self__, digest, seen)
    elif isinstance(thing, FunctionType):
        _add_function(thing, digest, seen)
    elif isinstance(thing, type):
        _add_class(thing, digest, seen)
    else:
        _add_object(thing, digest, seen)


def _add_function(function: FunctionType, digest: Any, seen: set[int]) -> None:
    digest.update(f"{function.__module__}.{function.__qualname__};".encode())
    if id(function) in seen or _known(function.__module__):
        return
    seen.add(id(function))
    _add_code(function.__code__, digest)
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    named = [function.__globals__[name] for name in sorted(_names(function.__code__)) if name in function.__globals__]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells, *named):
        if isinstance(value, (*PLAIN, FunctionType, type, functools.partial, nn.Module)):
            _add(value, digest, seen)


def _add_class(kind: type, digest: Any, seen: set[int]) -> None:
    if id(kind) in seen or _known(kind.__module__):
        return
    seen.add(id(kind))
    for base in kind.__mro__[1:]:
        _add_class(base, digest, seen)
    for name, value in sorted(vars(kind).items()):
        inner = inspect.unwrap(value.__func__ if isinstance(value, (classmethod, staticmethod)) else value) if callable(value) else value
        for part in (inner.fget, inner.fset) if isinstance(inner, property) else (inner,):
            if isinstance(part, FunctionType):
                digest.update(name.encode())
                _add_function(part, digest, seen)


def _add_object(thing: Any, digest: Any, seen: set[int]) -> None:
    if isinstance(thing, nn.Module):
        for part in thing.modules():
            _add_class(type(part), digest, seen)
            for name, value in sorted(vars(part).items()):
                if isinstance(value, PLAIN) and name != "training":
                    digest.update(f"{name}={value!r};".encode())
                for own in value.values() if isinstance(value, dict) and name.endswith("_hooks") else (value,):
                    if isinstance(own, (FunctionType, MethodType, functools.partial)):
                        digest.update(name.encode())
                        _add(own, digest, seen)
    else:
        _add_class(type(thing), digest, seen)
        for name, value in sorted(getattr(thing, "__dict__", {}).items()):
            if isinstance(value, PLAIN):
                digest.update(f"{name}={value!r};".encode())


def _add_code(code: CodeType, digest: Any) -> None:
    digest.update(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts[1:] if code.co_consts and isinstance(code.co_consts[0], str) else code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(constant, digest)
        else:
            text = repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
            digest.update(text.encode())


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


@functools.cache
def _known(module: str | None) -> bool:
    """Whether a module is this library's, or an installed one: a run notes the versions that matter, and compares them."""
    name = str(module)
    if f"{name}.".startswith(("normec.", "builtins.")) or name in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file or file.startswith(sysconfig.get_path("stdlib"))


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
