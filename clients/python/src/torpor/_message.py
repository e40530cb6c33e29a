# SPDX-License-Identifier: Apache-2.0
"""Messages out of what a caller gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from torpor import errors

P = ParamSpec("P")
M = TypeVar("M")

_WANTED = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number from -2147483648 to 2147483647",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_INT64: "a whole number from -9223372036854775808 to 9223372036854775807",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number from 0 to 18446744073709551615",
    FieldDescriptor.CPPTYPE_STRING: "text that UTF-8 can hold",
}


def message(kind: Callable[P, M], /, *args: P.args, **fields: P.kwargs) -> M:
    """`kind(**fields)`. Protobuf does not say which value it refuses:
    InvalidArgument does."""
    try:
        return kind(*args, **fields)
    except ValueError:
        for name, value in fields.items():
            _check(kind, name, value)
        raise


def _check(kind: Any, name: str, value: object) -> None:
    try:
        kind(**{name: value})
    except ValueError as error:
        wanted = _WANTED.get(kind.DESCRIPTOR.fields_by_name[name].cpp_type, str(error))
        raise errors.InvalidArgument(
            f"{name}: got {value!r}, wanted {wanted}"
        ) from None
