"""Assigning a checkpoint's tensors to a model's parameters, each exactly once. It knows no architecture."""
from collections.abc import Iterable, Mapping

from torch import Tensor

from ..errors import ModelError

LISTED = 5  # names in an error; a wrong checkpoint can have thousands


def assign(parameters: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copies each tensor over the parameter of its name, converting the dtype.

    Raises ModelError where a name comes twice, a shape differs, or names are missing or unexpected: a parameter left as
    it was allocated would answer with garbage, and a tensor left over means that the model is another one.
    """
    assigned: set[str] = set()
    unexpected: list[str] = []
    for name, tensor in tensors:
        parameter = parameters.get(name)
        if parameter is None:
            unexpected.append(name)
            continue
        if name in assigned:
            raise ModelError(f"tensor {name} is in the checkpoint twice")
        if tensor.shape != parameter.shape:
            wanted = list(parameter.shape)
            raise ModelError(f"tensor {name} has the shape {list(tensor.shape)}; the configuration asks for {wanted}")
        parameter.copy_(tensor)
        assigned.add(name)
    missing = [name for name in parameters if name not in assigned]
    if missing or unexpected:
        found = (("missing", missing), ("unexpected", unexpected))
        listed = "; ".join(f"{what}: {_listing(names)}" for what, names in found if names)
        raise ModelError(f"the checkpoint does not fit its configuration; {listed}")


def _listing(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
