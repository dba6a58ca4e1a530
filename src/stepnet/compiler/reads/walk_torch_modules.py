"""The walk over modules of torch: their parameters, buffers and modules, and the hooks around them."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as _torch_module
from torch.nn.utils import parametrize

from .code_facts import words
from .kinds import caches, read_whole
from .trust import is_trusted_class
from .walk_containers import ContainerWalk

_TABLES = ("_parameters", "_buffers", "_modules")
_TABLE_READERS = words(
    """parameters named_parameters buffers named_buffers children named_children modules named_modules
    state_dict _parameters _buffers _modules get_submodule get_parameter get_buffer apply extra_repr"""
)
_MODULE_NOISE = frozenset(nn.Module().__dict__) - {"training"}  # which has places of its own here
HOOKS = tuple(name for name, held in vars(nn.Module()).items() if "hook" in name and isinstance(held, dict))
OF_BACKWARD_HOOKS = ("register_full_backward_hook",)  # what stands for those of a module among its names
MODULE_HOOKS = tuple(name for name in vars(_torch_module) if name.startswith("_global_") and "hook" in name)


class TorchModuleWalk(ContainerWalk):
    """Modules, with what torch calls around them."""

    def _module(self, module: nn.Module) -> None:
        kind = type(module)
        self.key.append(kind)
        self._known_class(kind)
        whole = self.everything or read_whole(kind)
        own = module.__dict__
        self.hold(own)
        self._hooks(own)
        for name in _TABLES:
            table = own.get(name)
            self.hold(table)
            if table:
                self.key.append(name)
                self._attributes(table, whole or not self.names.isdisjoint(_TABLE_READERS))
        if caches(module):
            for name in own["_modules"]["parametrizations"]._modules:
                if whole or name in self.names:
                    made = parametrize._cache.get((id(module), name))
                    self.visit(made)
                    if made is None:
                        self.uncached.append((module, name))
        self._attributes(own, whole, but=_MODULE_NOISE)
        if not is_trusted_class(kind):  # last: its code may lead to more than a walk goes through
            self._class(kind)

    def _told_by_content(self, module: Any) -> None:
        """Such a module is its content, its tensors, and the hooks on it."""
        kind = type(module)
        as_written = "content" in vars(kind) and kind.forward.__module__ == kind.__module__
        content = module.content if as_written else None
        parts: list[nn.Module] = list(module.modules()) if content is not None else []
        if content is None or any("forward" in vars(part) or caches(part) for part in parts):
            self._module(module)
            return
        self.key += (kind, content, module.training)
        for part in parts:
            own = part.__dict__
            self.hold(own)
            self._hooks(own)
            for name in _TABLES:
                self.hold(own[name])
            for name in _TABLES[:2]:
                self._attributes(own[name], all_of_them=True)

    def _hooks(self, own: dict[str, Any]) -> None:
        """What torch calls around a module with these attributes."""
        if not self.hooks and not self.everything:
            self.hooks = True
            for name in MODULE_HOOKS:
                if vars(_torch_module)[name]:
                    self.visit(vars(_torch_module)[name])
        if self.everything:
            self.holders += [own[name] for name in HOOKS if isinstance(own.get(name), dict)]
        for name in filter(own.get, HOOKS):
            if name.startswith("_backward"):
                self.named(OF_BACKWARD_HOOKS)
            self.visit(own[name])
