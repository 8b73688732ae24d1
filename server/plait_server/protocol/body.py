"""What all bodies have in common."""

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """Strict: ``true`` is not 1, ``"1"`` is not 1, and what is unknown is refused. ``null`` means not given."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())
