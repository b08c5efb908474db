"""What a module does, operation by operation, apart from the weights that it does it with."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Doings(NamedTuple):
    steps: tuple[Any, ...]
    """Each operation with its arguments; a tensor stands as a number, in the order of appearance."""
    names: list[str]
    """The weights in that order, as the module names them."""
    weights: list[Tensor]


def doings(module: nn.Module, inputs: tuple[Tensor, ...]) -> Doings:
    """What happens when the module is called. Modules of equal steps differ in nothing but their weights."""
    names = {id(tensor): name for name, tensor in (*module.named_buffers(), *module.named_parameters())}
    watcher = Watcher(names, inputs)
    with torch.no_grad(), watcher:
        module(*inputs)
    return Doings(tuple(watcher.steps), [names[id(tensor)] for tensor in watcher.weights], watcher.weights)


class Watcher(TorchDispatchMode):
    def __init__(self, names: dict[int, str], inputs: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names
        self.numbers: dict[int, int] = {}
        self.seen: list[Tensor] = []  # kept, as the id of a tensor that is gone may be given to another
        self.steps: list[Any] = []
        self.weights: list[Tensor] = []
        for tensor in inputs:
            self.number(tensor)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, form = tree_flatten((args, kwargs or {}))
        step = [str(operation), str(form), *(self.described(each) for each in given)]
        result = operation(*args, **(kwargs or {}))
        made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
        self.steps.append((*step, *(self.number(tensor) for tensor in made)))
        return result

    def described(self, argument: Any) -> Any:
        if not isinstance(argument, Tensor):
            return repr(argument)
        if id(argument) in self.numbers:
            return self.number(argument)
        if id(argument) not in self.names:
            return "constant", id(argument)
        self.weights.append(argument)
        return self.number(argument), str(argument.shape), str(argument.dtype)

    def number(self, tensor: Tensor) -> int:
        """Of a tensor; a new one gets the next."""
        if id(tensor) not in self.numbers:
            self.numbers[id(tensor)] = len(self.seen)
            self.seen.append(tensor)
        return self.numbers[id(tensor)]
