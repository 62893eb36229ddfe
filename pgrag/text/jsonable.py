"""The JSON form of what pgrag returns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any


def jsonable(value: Any) -> Any:
    """Dataclasses and mappings become objects, sequences arrays, datetimes ISO 8601, NaN and infinity null, and
    decimals, the amounts of money, plain numbers (pydantic would write them as strings).

    Raises TypeError for other types.
    """
    match value:
        case Enum():
            return value.value
        case None | bool() | int():
            return value
        case str() | Path():
            return str(value)
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case datetime():
            return value.isoformat()
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case list() | tuple():
            return [jsonable(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"no JSON form for {type(value).__name__}")
