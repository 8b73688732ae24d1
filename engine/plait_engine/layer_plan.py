"""config.json to layer plan: what each layer is and what it keeps. Refuses what it does not understand."""

from dataclasses import dataclass

from plait_engine.state.spec import StateGroup, StateSpec, group_specs


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
