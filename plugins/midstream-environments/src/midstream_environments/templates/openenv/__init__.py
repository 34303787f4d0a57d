"""An environment of OpenEnv, exported from a recipe of midstream."""

from .client import WorldClient
from .models import WorldAction, WorldObservation, WorldState

__all__ = ["WorldAction", "WorldClient", "WorldObservation", "WorldState"]
