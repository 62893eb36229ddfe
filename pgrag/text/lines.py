"""Entities and relations as lines of a context."""

from __future__ import annotations

import json

_JSON = json.JSONEncoder(ensure_ascii=False)


def entity_line(name: str, type_: str, description: str) -> str:
    """An entity as one line of JSON; the store counts tokens over exactly this."""
    return _JSON.encode({"entity": name, "type": type_, "description": description}) + "\n"


def relation_line(source: str, target: str, description: str) -> str:
    """A relation as one line of JSON; the store counts tokens over exactly this."""
    return _JSON.encode({"entity1": source, "entity2": target, "description": description}) + "\n"
