"""config.json to layer plan: what each layer is and what it keeps. Refuses what it does not understand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plait_engine.state.spec import PagedSpec, SlotSpec, StateGroup, StateSpec, group_specs

KINDS = {
    "full_attention": "full_attention",
    "attention": "full_attention",
    "global": "full_attention",
    "*": "full_attention",
    "G": "full_attention",
    "sliding_attention": "sliding_attention",
    "local": "sliding_attention",
    "L": "sliding_attention",
    "linear_attention": "linear_attention",
    "mamba": "linear_attention",
    "mamba2": "linear_attention",
    "recurrent": "linear_attention",
    "M": "linear_attention",
    "conv": "conv",
    "short_conv": "conv",
    "mlp": "mlp",
    "-": "mlp",
    "moe": "moe",
    "E": "moe",
}
"""Every spelling of a layer kind that config.json files use, and the one name that Plait uses for it."""


class LayerPlanError(ValueError):
    """The layer kinds in config.json are absent, contradictory, unknown, or too many or few for the model."""


@dataclass(frozen=True)
class LayerPlan:
    """One layer: its mixer kind (vocabulary of transformers' ``layer_types``), its feed-forward kind, its state."""

    index: int
    kind: str
    mlp: str
    specs: tuple[StateSpec, ...]


@dataclass(frozen=True)
class ModelPlan:
    """All layers, and the state groups that they form."""

    layers: tuple[LayerPlan, ...]
    groups: tuple[StateGroup, ...]

    @classmethod
    def of(cls, layers: tuple[LayerPlan, ...], page_size: int) -> "ModelPlan":
        return cls(layers, group_specs(tuple(layer.specs for layer in layers), page_size))


Reader = Callable[[Any, Mapping[str, Any], int], list[str]]
# How each key of config.json spells the kinds of ``n`` layers. A spelling may give any number of kinds, of any name:
# what it gave is checked afterwards, and printed when it is wrong.


def _listed(value: Any, _config: Mapping[str, Any], _n: int) -> list[str]:
    return [str(kind) for kind in value]


def _indices(other: str) -> Reader:
    def kinds(value: Any, _config: Mapping[str, Any], n: int) -> list[str]:
        return ["full_attention" if i in value else other for i in range(max(n, *(i + 1 for i in value), 0))]

    return kinds


def _period(value: Any, config: Mapping[str, Any], n: int) -> list[str]:
    offset = config.get("attn_layer_offset", 0)
    return ["full_attention" if i % value == offset else "linear_attention" for i in range(n)]


def _every(other: str) -> Reader:
    def kinds(value: Any, _config: Mapping[str, Any], n: int) -> list[str]:
        if isinstance(value, str):  # one letter for each layer of a repeated pattern
            return [value[i % len(value)] for i in range(n)]
        return [other if (i + 1) % value else "full_attention" for i in range(n)]

    return kinds


SPELLINGS: dict[str, Reader] = {
    "layer_types": _listed,
    "layers_block_type": _listed,
    "hybrid_override_pattern": _listed,
    "attn_layer_indices": _indices("linear_attention"),
    "full_attn_idxs": _indices("conv"),
    "attn_layer_period": _period,
    "full_attention_interval": _every("linear_attention"),
    "sliding_window_pattern": _every("sliding_attention"),
    "_sliding_window_pattern": _every("sliding_attention"),
}
"""``sliding_window`` alone is a width and says nothing about which layers have it, so it is not in this list."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model: ``text_config`` in multimodal models."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def layer_kinds(
    config: Mapping[str, Any], known: frozenset[str], default: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The kind of each layer, in Plait's names. ``known`` are the kinds that the architecture implements, ``default`` a
    spelling that its published configurations leave out; without one, silence is an error."""
    text = text_config(config)
    n = text.get("num_hidden_layers")
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise LayerPlanError(f"num_hidden_layers in config.json must be a positive integer, not {n!r}")
    given = dict(_spelled(config, n)) or dict(_spelled({"num_hidden_layers": n, **(default or {})}, n))
    if not given:
        raise LayerPlanError(
            f"config.json does not say what its {n} layers are; it needs one of {', '.join(SPELLINGS)}"
        )
    _check(given, n, known)
    first = next(iter(given.values()))
    return tuple(KINDS[kind] for kind in first)


def _spelled(config: Mapping[str, Any], n: int) -> Iterator[tuple[str, list[str]]]:
    """Where kinds are given, and which."""
    text = text_config(config)
    places = [("", config)] if text is config else [("text_config.", text), ("", config)]
    for place, values in places:
        for key, read in SPELLINGS.items():
            if values.get(key) is None:
                continue
            try:
                yield place + key, read(values[key], values, n)
            except (TypeError, ZeroDivisionError) as error:
                raise LayerPlanError(f"{place}{key} in config.json cannot be read: {values[key]!r}") from error


def _check(given: dict[str, list[str]], n: int, known: frozenset[str]) -> None:
    problems = [f"{source} names {len(kinds)} layers, but num_hidden_layers is {n}"
                for source, kinds in given.items() if len(kinds) != n]  # fmt: skip
    unknown = {kind for kinds in given.values() for kind in kinds if KINDS.get(kind) not in known}
    if unknown:
        problems.append(
            f"unknown to this architecture: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}"
        )
    if len({tuple(KINDS.get(kind, kind) for kind in kinds) for kinds in given.values()}) > 1:
        problems.append(f"{' and '.join(given)} disagree")
    if problems:
        raise LayerPlanError(f"layer kinds in config.json: {'; '.join(problems)}\n{_table(given)}")


def _table(given: dict[str, list[str]]) -> str:
    """One line for each layer: index, and the kind that each source gives."""
    longest = max(len(kinds) for kinds in given.values())
    rows = [[str(i), *(kinds[i] if i < len(kinds) else "(none)" for kinds in given.values())] for i in range(longest)]
    return _aligned([["index", *given], *rows])


def describe(plan: ModelPlan) -> str:
    """A table of the plan: index, kind, feed-forward, state tensors, bytes that the layer's state costs."""
    rows = [["index", "kind", "mlp", "state", "bytes"]]
    for layer in plan.layers:
        states = "; ".join(_tensors(spec) for spec in layer.specs) or "none"
        rows.append([str(layer.index), layer.kind, layer.mlp, states, ", ".join(map(_cost, layer.specs)) or "0"])
    return _aligned(rows)


def _tensors(spec: StateSpec) -> str:
    tensors = " ".join(f"{t.name}{list(t.shape)}:{str(t.dtype).removeprefix('torch.')}" for t in spec.tensors)
    window = f" window {spec.window}" if isinstance(spec, PagedSpec) and spec.window is not None else ""
    return tensors.replace(", ", ",") + window


def _cost(spec: StateSpec) -> str:
    n_bytes = sum(t.n_bytes for t in spec.tensors)
    if isinstance(spec, SlotSpec):
        return f"{n_bytes} per slot"
    return f"{n_bytes} per token" if spec.ratio == 1 else f"{n_bytes} per {spec.ratio} tokens"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
