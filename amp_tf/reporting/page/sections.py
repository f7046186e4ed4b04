"""The parts of the page, each from the document alone."""

from __future__ import annotations

import collections
import os.path
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_tf.reporting.layers import layer_of
from amp_tf.reporting.page import charts
from amp_tf.reporting.page.words import count, milliseconds, number, operations, path, plain_shape, share, text

Document = Mapping[str, Any]
_MOST_ROWS = 15
_MOST_LAYERS = 250
_MOST_MEASURED, _WORTH_TELLING = 3, 0.02  # kinds of steps; of the time of the longest
_NO_FIGURES = (
    "There are no figures: this report was not asked for before the graphs were rewritten. Set AMP_TF_REPORT=folder, "
    "or make it with amp-tf report."
)
_NO_GRAPHS = "No graph came to amp_tf, so there is nothing to show; the line below says why."


def title(document: Document) -> str:
    """The program's name, without its folder."""
    program = str(document["process"].get("program", "")) or "a rewrite"
    first, _, rest = program.partition(" ")
    return f"{os.path.basename(first)} {rest}".strip()


def origin(document: Document) -> str:
    """When and with what it ran."""
    about = document["process"]
    parts = [about.get("made"), about.get("host"), f"{about['seconds']:,.0f} s" if "seconds" in about else None]
    parts += [f"{name} {about[name]}" for name in ("tensorflow", "keras", "python", "amp_tf") if about.get(name)]
    ended = f" Ended {about['ended']}." if about.get("ended") else ""
    return f'<p class="origin">{text(" · ".join(filter(None, parts)))}.{text(ended)}</p>' if any(parts) else ""


def _section(key: str, heading: str, *parts: str) -> str:
    return f'<section><h3 id="{key}">{heading}</h3>{"".join(parts)}</section>'


def _table(heads: Sequence[str], rows: Iterable[str], *, is_wide: bool = False) -> str:
    """A table; a wide one falls apart into blocks on a phone."""
    head = "".join(f"<th>{name}</th>" for name in heads)
    kind = ' class="wide"' if is_wide else ""
    body = "".join(rows)
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _left(count: int, what: str) -> str:
    return f"<p>{count:,} more {what} are in the JSON file.</p>" if count > 0 else ""


def hero(document: Document) -> str:
    """The one number on top."""
    figures = document["figures"]
    if figures is None:
        return f'<p class="note">{text(_NO_FIGURES if document["graphs"] else _NO_GRAPHS)}</p>'
    part = figures["products_share_f16"]
    if part is None:
        words = "no matrix product or convolution of known size was seen"
        return f'<section class="hero"><p class="big">–</p><p>{words}</p></section>'
    products = figures["products"]
    kinds = " and ".join(document["precisions"]) or "16 bit"
    words = f"{operations(products['f16'])} of {operations(products['f16'] + products['float32'])}"
    bar = charts.split_bar(products["f16"], products["float32"], sum(products.values()), f"{share(part)} in 16 bit")
    unknown = figures["products_unknown"]
    known = "work of known size" if unknown else "work"
    more = f" The sizes of {count(unknown)} more products are unknown before they run." if unknown else ""
    return (
        f'<section class="hero"><p class="big">{share(part)}</p><p>of the products’ {known} runs in {text(kinds)}: '
        f"{words} (matrix products and convolutions, one run of each graph).{more}</p>{bar}</section>"
    )


def tiles(document: Document) -> str:
    """The other counts."""
    figures = document["figures"] or {}
    found = [("nodes converted", f"{count(document['converted'])} of {count(document['total'])}", "")]
    times = figures.get("estimated_ms")
    casts = f"about {milliseconds(times['casts'])}" if times else ""
    found.append(("casts inserted", count(document["casts"]), casts))
    if times:
        costs = [f"by costs {device['costs']}" for device in document["devices"] if device.get("costs")]
        saved = ", ".join([f"{milliseconds(times['float32'])} in float32", *costs])
        found.append(("estimated, with casts", milliseconds(times["now"]), saved))
    found += [(f"measured, {name}", taken, more) for name, taken, more in _measured(document)]
    folded = sum(graph["folded"] for graph in document["graphs"])
    hoisted = sum(graph["hoisted"] or 0 for graph in document["graphs"])
    found.append(("normalizations folded", count(folded), f"{count(hoisted)} reads moved out of loops"))
    for curve in document["loss_scales"]:
        found.append((f"loss scale, {curve['label']}", _scale(curve["scale"]), f"{count(curve['skipped'])} skipped"))
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}<small>{text(more)}</small></dd></div>"
        for name, value, more in found
    )
    summary = document["summary"] or document["why_nothing"] or ""
    return f'<dl class="tiles">{cells}</dl><p class="summary">{text(summary)}</p>'


def _measured(document: Document) -> list[tuple[str, str, str]]:
    """For each kind of steps that took long its name, the time of one, and of how many that is the median."""
    rows = document.get("steps", [])  # reports of before have none
    longest = max((row["seconds"] for row in rows), default=0.0)
    return [
        (row["what"], milliseconds(row["median_ms"]), f"a step, the median of {count(row['steps'])}")
        for row in rows
        if row["steps"] > 1 and row["seconds"] >= _WORTH_TELLING * longest
    ][:_MOST_MEASURED]


def blockers(document: Document) -> str:
    """What keeps work in float32, ranked by what it is worth."""
    rows = document["blockers"]
    if not rows:
        return ""
    gaining = [row for row in rows if (row["gain"] or 0.0) > 0]
    others = [row for row in rows if row not in gaining]
    whole = max((row["gain"] for row in gaining), default=0.0)
    rows_shown = (_blocker(row, whole) for row in gaining[:_MOST_ROWS])
    table = _table(("Blocker", "Would become 16 bit", "What takes it away"), rows_shown, is_wide=True)
    return _section(
        "blockers",
        "What keeps work in float32",
        "<p>Found by deciding again without each, alone. 16 bit is no aim in itself: what is kept for accuracy is kept "
        "for a reason.</p>",
        table if gaining else _nothing_gained(rows),
        _together(document["together"]),
        _without_gain(others),
    )


def _nothing_gained(rows: Sequence[Mapping[str, Any]]) -> str:
    """That no blocker that was tried is worth anything; nothing where none was."""
    tried = sum(row["gain"] is not None for row in rows)
    if not tried:
        return ""
    which = "one of them" if tried == len(rows) else "one of those that were tried"
    return f"<p>Nothing becomes 16 bit if {which} alone is taken away.</p>"


def _blocker(row: Mapping[str, Any], whole: float) -> str:
    gain = operations(row["gain"])
    bar = charts.split_bar(row["gain"], 0.0, whole, gain)
    products = f", {operations(row['gain_products'])} of it products" if row["gain_products"] else ""
    return (
        f"<tr><td>{_name(row)}<small>such as {_node_link(row['example'])}</small></td>"
        f"<td class='graph'>{gain}{bar}<small>{count(row['gain_nodes'])} nodes{products}"
        f"</small></td><td>{text(row['remedy'])}</td></tr>"
    )


def _name(row: Mapping[str, Any]) -> str:
    what = f" ({text(row['kind'])})" if row["what"] else ""
    return f"<b>{text(row['what'] or row['kind'])}</b>{what}"


def _together(together: Mapping[str, Any] | None) -> str:
    if together is None:
        return ""
    names = ", ".join(text(root["what"] or root["kind"]) for root in together["roots"])
    return f"<p><b>Together</b> {names}: {operations(together['gain'])} would become 16 bit.</p>"


def _without_gain(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    items = "".join(
        f"<li>{_name(row)}: {count(row['nodes'])} nodes, "
        f"{operations(row['operations'])}, such as {_node_link(row['example'])}"
        f"{'' if row['gain'] is not None else '; not tried'}</li>"
        for row in rows
    )
    words = f"{len(rows)} more that gain nothing alone, or were not tried"
    return f"<details><summary>{words}</summary><ul>{items}</ul></details>"


def _node_link(name: str) -> str:
    return f'<button type="button" class="node" data-node="{text(name)}">{text(_short(name))}</button>'


def _short(name: str) -> str:
    """The end of a long name, by which people know it."""
    return name if len(name) <= 60 else f"…{name[-58:]}"


def ops(document: Document) -> str:
    """Work and nodes by op and precision."""
    rows = [row for row in document["ops"] if sum(row["operations"].values())]
    is_known = bool(rows)
    rows = rows or [row for row in document["ops"] if row["nodes"]["f16"]]
    if not rows:
        return ""
    key = "operations" if is_known else "nodes"
    whole = max(sum(row[key].values()) for row in rows)
    heads = ("Op", "Work" if is_known else "Nodes", "Nodes in 16 bit")
    table = _table(heads, (_op(row, key, whole) for row in rows[:_MOST_ROWS]))
    return _section("ops", "By op", _LEGEND, table, _left(len(rows) - _MOST_ROWS, "ops"))


def _op(row: Mapping[str, Any], key: str, whole: float) -> str:
    f16, float32 = row[key]["f16"], row[key]["float32"]
    words = operations(f16 + float32) if key == "operations" else count(f16 + float32)
    bar = charts.split_bar(f16, float32, whole, f"{share(f16 / (f16 + float32))} of {words} in 16 bit")
    nodes = row["nodes"]
    return (
        f"<tr><th scope='row'>{text(row['op'])}</th><td class='graph'>{words}{bar}</td>"
        f"<td>{count(nodes['f16'])} of {count(sum(nodes.values()))}</td></tr>"
    )


_LEGEND = '<p class="legend"><span class="f16"></span> 16 bit <span class="float32"></span> float32</p>'


def casts(document: Document) -> str:
    """Where casts are and what they cost, by layer."""
    layers: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for graph in document["graphs"]:
        for cast in graph["inserted_casts"]:
            layers[cast["layer"]].append(cast)
    if not layers:
        return ""

    ranked = sorted(layers.items(), key=lambda item: (-_time(item[1]), -_moved(item[1])))
    whole = max(_moved(found) for _, found in ranked)
    rows = (_casts_of(layer, found, whole) for layer, found in ranked[:_MOST_ROWS])
    table = _table(("Layer", "Casts", "Bytes moved", "Estimated"), rows)
    return _section("casts", "Casts", table, _left(len(ranked) - _MOST_ROWS, "layers with casts"))


def _casts_of(layer: str, found: Sequence[Mapping[str, Any]], whole: float) -> str:
    down, moved = sum(cast["from"] == "float32" for cast in found), number(_moved(found), "B")
    is_known = any(cast["estimated_ms"] is not None for cast in found)
    return (
        f"<tr><th scope='row'>{path(layer or '(no layer)')}</th><td>{down} to 16 bit, {len(found) - down} back</td>"
        f"<td class='graph'>{moved}{charts.split_bar(_moved(found), 0.0, whole, moved)}</td>"
        f"<td>{milliseconds(_time(found)) if is_known else 'unknown'}</td></tr>"
    )


def _scale(value: float) -> str:
    return count(value) if value >= 1 else f"{value:.4g}"


def _time(casts: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(cast["estimated_ms"] or 0.0 for cast in casts))


def _moved(casts: Sequence[Mapping[str, Any]]) -> float:
    return float(sum((cast["bytes"] or 0.0) * cast["runs"] for cast in casts))


def shapes(document: Document) -> str:
    """Products with sizes that 16-bit hardware is slow with."""
    advice = document["shape_advice"]
    if not any(advice["operations"].values()) and not advice["rows"]:
        return ""
    grades = ", ".join(f"{text(grade)}: {operations(work)}" for grade, work in advice["operations"].items())
    rows = [
        f"<tr><th scope='row'>{path(row['layer'] or '(no layer)')}<small>{text(row['op'])}</small></th>"
        f"<td>{text(plain_shape(row['sizes']))}</td><td>{operations(row['operations'])}</td>"
        f"<td>{text(row['text'] or row['grade'])}</td></tr>"
        for row in advice["rows"][:_MOST_ROWS]
    ]
    return _section(
        "shapes",
        "Sizes of products",
        "<p>All sizes work in 16 bit. Efficient on tensor cores are multiples of 8 from 64 on. "
        f"Work by grade: {grades}.</p>",
        _table(("Products", "Sizes", "Work", "Better"), rows) if rows else "",
        _left(len(advice["rows"]) + advice["more"] - len(rows), "products"),
    )


def loss_scale(document: Document) -> str:
    """The loss scale over time."""
    curves = [charts.curve(curve["points"], curve["label"]) for curve in document["loss_scales"] if curve["points"]]
    return _section("loss-scale", "Loss scale", *curves) if curves else ""


def layers(document: Document) -> str:
    """A search for nodes, and the layers with their nodes, which are opened on demand."""
    work: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0, 0])
    for graph in document["graphs"]:
        for node in graph["nodes"]:
            row, is_f16 = work[layer_of(node["name"])], node["precision"] != "float32"
            row[not is_f16] += (node.get("operations") or 0.0) * (node.get("runs") or 1.0)
            row[2 if is_f16 else 3] += 1
    ranked = sorted(work.items(), key=lambda item: (-sum(item[1][:2]), -sum(item[1][2:])))
    whole = max((sum(row[:2]) for _, row in ranked), default=0.0)
    items = "".join(_layer(layer, row, whole) for layer, row in ranked[:_MOST_LAYERS])
    left = len(ranked) - _MOST_LAYERS
    more = f"<p>{left:,} more layers: search for their nodes.</p>" if left > 0 else ""
    return _section("nodes", "Layers and nodes", _SEARCH, _LEGEND, f'<div class="layers">{items}</div>', more)


_SEARCH = (
    '<form class="search" role="search"><label>Find a node and the way its decision came <input type="search" '
    'autocomplete="off" spellcheck="false" placeholder="a part of its name, or an op"></label></form>'
    '<div class="found" aria-live="polite"></div>'
)


def _layer(layer: str, row: Sequence[float], whole: float) -> str:
    f16, float32, converted, kept = row
    words = f"{operations(f16 + float32)}, {count(converted)} of {count(converted + kept)} nodes in 16 bit"
    return (
        f'<details data-layer="{text(layer)}"><summary><span>{path(layer or "(no layer)")}</span>'
        f"{charts.split_bar(f16, float32, whole, words)}<small>{words}</small></summary></details>"
    )


def graphs(document: Document) -> str:
    """The graphs and functions."""
    rows = (
        f"<tr><th scope='row'>{text(_short(graph['function']) or f'graph {place + 1}')}</th>"
        f"<td>{text(graph['way'])}</td><td>{count(graph['converted'])} of {count(graph['total'])}</td>"
        f"<td>{count(graph['casts'])}</td><td>{text(graph['why_nothing'] or graph['precision'] or '')}</td></tr>"
        for place, graph in enumerate(document["graphs"][:_MOST_LAYERS])
    )
    heads = ("Graph", "Came by", "Converted", "Casts", "Precision, or why none")
    return _section("graphs", "Graphs", _table(heads, rows), _left(len(document["graphs"]) - _MOST_LAYERS, "graphs"))


def settings(document: Document) -> str:
    """Settings in force, devices, hooks."""
    rows = [
        f"<tr><th scope='row'>{text(row['field'])}</th><td>{text(row['value'])}</td><td>{text(row['from'])}</td></tr>"
        for row in document["settings"]
        if row["from"] != "default"
    ]
    table = _table(("Setting", "Value", "From"), rows) if rows else "<p>All settings have their defaults.</p>"
    hooks = document["hooks"]
    known = ({name: value for name, value in device.items() if value is not None} for device in document["devices"])
    notes = [", ".join(f"{name} {value}" for name, value in device.items()) for device in known]
    notes += [f"{name}: {value}" for name, value in hooks.items() if value and name != "not_installed"]
    notes += [f"not installed: {home} ({why})" for home, why in hooks.get("not_installed", {}).items()]
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    return _section("settings", "Settings and devices", table, f"<ul>{items}</ul>")


PARTS: tuple[Callable[[Document], str], ...] = (
    *(hero, tiles, blockers, ops, casts, shapes, loss_scale, layers, graphs, settings),
)


def comparison(documents: Sequence[Document]) -> str:
    """The main figures of several runs side by side."""
    figures = [document["figures"] or {} for document in documents]
    times = [found.get("estimated_ms") or {} for found in figures]
    measured = [{name: taken for name, taken, _ in _measured(document)} for document in documents]
    rows = {
        **{
            f"measured, a step of {name}": [found.get(name, "–") for found in measured]
            for name in dict.fromkeys(name for found in measured for name in found)
        },
        "products’ work in 16 bit": [share(found.get("products_share_f16")) for found in figures],
        "nodes converted": [f"{count(one['converted'])} of {count(one['total'])}" for one in documents],
        "casts": [count(one["casts"]) for one in documents],
        "estimated, in float32": [milliseconds(found.get("float32")) for found in times],
        "estimated, with casts": [milliseconds(found.get("now")) for found in times],
        "skipped steps": [count(sum(curve["skipped"] for curve in one["loss_scales"])) for one in documents],
        "largest blocker": [_largest(one) for one in documents],
    }
    links = [f'<a href="#run{place}">{text(title(one))}</a>' for place, one in enumerate(documents)]
    body = (
        f"<tr><th scope='row'>{text(name)}</th>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows.items()
    )
    heading = f'<header><p class="brand">amp_tf report</p><h1>{len(documents)} runs side by side</h1></header>'
    return heading + _table(["", *links], body)


def _largest(document: Document) -> str:
    first = next((row for row in document["blockers"] if row["gain"]), None)
    return f"{first['what'] or first['kind']} ({operations(first['gain'])})" if first else "none"
