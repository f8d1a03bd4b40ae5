"""What is known by name: read by everybody, added to in one way, taken back by tests."""

import pytest

from polyhead.codecs import CODECS
from polyhead.engine.backends import BACKENDS
from polyhead.errors import BackendError, ConfigError, PlanError
from polyhead.project.strategies import STRATEGIES
from polyhead.registry import Registry
from polyhead.tasks.kinds import KINDS


class Lamp:
    def __init__(self, name):
        self.name = name


class Torch(Lamp):
    pass


def lamps():
    registry = Registry("lamp", unknown=PlanError)
    registry.register(Lamp("small"))
    registry.register(Lamp("large"))
    return registry


@pytest.mark.parametrize(
    "registry", [KINDS, STRATEGIES, CODECS, BACKENDS], ids=["kinds", "strategies", "codecs", "backends"]
)
def test_nothing_is_written_into_a_registry_but_by_registering(registry):
    name = next(iter(registry))
    with pytest.raises(TypeError):
        registry[name] = None
    with pytest.raises(TypeError):
        del registry[name]
    assert len(registry) == len(list(registry)) >= 4


def test_a_name_is_taken_once_but_the_same_class_may_come_again():
    registry, again = lamps(), Lamp("small")
    registry.register(again)
    assert registry["small"] is again and list(registry) == ["small", "large"]
    with pytest.raises(ConfigError, match="there is a lamp 'small' already.*give the new lamp another name"):
        registry.register(Torch("small"))
    assert registry["small"] is again


def test_an_unknown_name_is_answered_with_the_nearest_and_all_others():
    with pytest.raises(PlanError, match="there is no lamp 'smal'.*Allowed: small, large.*did you mean 'small'"):
        lamps().named("smal")
    with pytest.raises(PlanError, match="there is no lamp 'x'.*choose one of these, or register a lamp of this name"):
        lamps().named("x")
    with pytest.raises(ConfigError, match="there is no kind 'tagginh'.*did you mean 'tagging'"):
        KINDS.named("tagginh")
    with pytest.raises(BackendError, match="there is no backend 'tourch'.*did you mean 'torch'"):
        BACKENDS.named("tourch")


def test_what_is_registered_for_a_while_is_taken_back_after_errors_too():
    registry = lamps()
    small = registry["small"]
    with pytest.raises(RuntimeError), registry.temporary():
        registry.register(Lamp("small"))
        registry.register(Lamp("new"))
        assert "new" in registry and registry["small"] is not small
        raise RuntimeError
    assert list(registry) == ["small", "large"] and registry["small"] is small
