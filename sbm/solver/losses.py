"""The losses by name; this goes when the programs ask `sbm.losses` itself."""

from sbm.losses import LOSSES, MOST_RESTING, Loss

__all__ = ["LOSSES", "MOST_RESTING", "Loss", "find_loss"]


def find_loss(name: str) -> Loss:
    """Return the loss of a name that `Settings` let pass."""
    return LOSSES[name]
