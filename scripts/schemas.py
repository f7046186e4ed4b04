"""The JSON Schemas of what amp_tf writes, made of the types of what it writes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from amp_tf.precision import Precision
from amp_tf.tools.comparing.comparison import Comparison

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOR_EVER = "Fields may be added to this version, never taken away or given another meaning."
PLAIN = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
SIZE = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}  # JSON has no infinity
# Entries that ``to_dict`` adds to the fields of these dataclasses.
ADDED: dict[type, dict[str, Any]] = {
    Comparison: {
        "is_healthy": bool,
        "mends": Annotated[bool, "whether patterns were found that fix all outputs"],
        "line": Annotated[str, "the environment variable to set; empty where nothing fixes all"],
        "worth": Annotated[str, "what the line does and costs, for people"],
    },
}


def comparison() -> str:
    what = "What amp_tf.compare(…).to_dict() and amp-tf compare --json give."
    errors = 'Errors are relative, in the L2 norm; what is infinite is the text "inf".'
    said = f"{what} {FOR_EVER} {errors}"
    return _text(
        "Comparison of amp_tf, version 1", said, _of_version_1(Comparison, "amp_tf.comparison")
    )


def _text(title: str, description: str, schema: Mapping[str, Any]) -> str:
    whole = {"$schema": DIALECT, "title": title, "description": description, **schema}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _of_version_1(kind: type, name: str) -> dict[str, Any]:
    schema = _Schema().of(kind)
    head = {"schema": {"const": name}, "schema_version": {"const": 1}}
    return {
        **schema,
        "properties": {**head, **schema["properties"]},
        "required": [*head, *schema["required"]],
    }


class _Schema:
    """Makes schemas of types."""

    def of(self, kind: Any) -> dict[str, Any]:
        if kind is Any:
            return {}
        if kind is float:
            return dict(SIZE)
        if kind is Precision:
            return {"enum": [precision.value for precision in Precision if precision.is_f16]}
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if dataclasses.is_dataclass(kind):
            fields = {**typing.get_type_hints(kind, include_extras=True), **ADDED.get(kind, {})}
            return self._object(fields, list(fields), _attributes(kind))
        return self._of_generic(typing.get_origin(kind), typing.get_args(kind))

    def _of_generic(self, origin: Any, parts: Sequence[Any]) -> dict[str, Any]:
        if origin is Annotated:
            return self._annotated(*parts)
        if origin in (types.UnionType, typing.Union):
            return {"anyOf": list(map(self.of, parts))}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        if origin is tuple and parts[-1] is not ...:
            items = list(map(self.of, parts))
            return {
                "type": "array",
                "prefixItems": items,
                "minItems": len(parts),
                "maxItems": len(parts),
            }
        return {"type": "array", "items": self.of(parts[0])}

    def _annotated(self, kind: Any, *notes: Any) -> dict[str, Any]:
        schema = self.of(kind)
        for note in notes:
            if isinstance(note, str):
                schema["description"] = note
            else:
                schema = {"enum": list(note)}
        return schema

    def _object(
        self, fields: Mapping[str, Any], required: Sequence[str], descriptions: Mapping[str, str]
    ) -> dict[str, Any]:
        properties = {name: self.of(kind) for name, kind in fields.items()}
        for name, schema in properties.items():
            if name in descriptions:
                schema["description"] = descriptions[name]
        return {"type": "object", "properties": properties, "required": list(required)}


def _attributes(kind: type) -> dict[str, str]:
    """Reads the descriptions of a class' fields, from its docstring or comments with a colon."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", listed.partition("\n\n")[0]):
        names, _, words = " ".join(entry.split()).partition(": ")
        found.update(dict.fromkeys(names.split(", "), words.rstrip(".").replace("``", "")))
    above: list[str] = []
    for code, _, words in (line.partition("#: ") for line in inspect.getsource(kind).splitlines()):
        above.append(words)
        if name := re.match(r"    (\w+): ", code):
            found[name[1]] = " ".join(above).strip().replace("``", "") or found.get(name[1], "")
        if code.strip():
            above.clear()
    return {name: words for name, words in found.items() if words}


SCHEMAS: dict[str, Callable[[], str]] = {
    "amp_tf/tools/comparing/comparison-1.schema.json": comparison,
}
