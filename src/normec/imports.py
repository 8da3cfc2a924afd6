"""Objects named by an import path, `package.module:object`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from normec.errors import BadInput, nearest


def looks_like_import_path(text: str) -> bool:
    """Whether a setting names an object (`package.module:object`) and not a built-in or a file."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def load_object(setting: str, path: str) -> Any:
    """The callable at an import path; modules of the working directory are found too.

    Raises:
        BadInput: where the module, or the name in it, does not exist, fails to import or cannot be called.
    """
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises while it is imported
        raise BadInput(setting, f"={path!r}: importing {module_name} failed ({type(error).__name__}: {error}).") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise BadInput(setting, f"={path!r}: {module_name} has no callable {name}. {nearest(name, known)}")
    return found
