"""What a class reads as a step makes it, which the step's code does not name, is part of the step's key."""

from __future__ import annotations

import types

import pytest

from key_changes import changes_are_seen

PLANS_ON_DISK = False  # keys alone tell steps apart


class Ways:
    """Each gives what makes a class out of a number, by code of its own, and a step that has it do so."""

    def by_a_base(gain):
        class Config:
            def __init_subclass__(cls):
                cls.gain = gain[0]

        def step(x, h):
            class Own(Config):
                pass

            return x * Own.gain

        return step

    def by_type(gain):
        class Config:
            def __init_subclass__(cls):
                cls.gain = gain[0]

        return lambda x, h: x * type("Own", (Config,), {}).gain

    def by_new_class(gain):
        class Config:
            def __init_subclass__(cls):
                cls.gain = gain[0]

        return lambda x, h: x * types.new_class("Own", (Config,)).gain

    def by_what_it_holds(gain):
        class Field:
            def __set_name__(self, owner, name):
                owner.gain = gain[0]

        def step(x, h):
            class Own:
                field = Field()

            return x * Own.gain

        return step

    def by_its_metaclass(gain):
        class Meta(type):
            @classmethod
            def __prepare__(cls, name, bases):
                return {"gain": gain[0]}

        def step(x, h):
            class Own(metaclass=Meta):
                pass

            return x * Own.gain

        return step

    def by_what_its_metaclass_calls(gain):
        class Meta(type):
            def __init__(cls, name, bases, space):
                cls.gain = gain[0]

        def step(x, h):
            class Own(metaclass=Meta):
                pass

            return x * Own.gain

        return step

    def by_what_stands_for_a_base(gain):
        class Entry:
            def __mro_entries__(self, bases):
                return (type("Base", (), {"gain": gain[0]}),)

        entry = Entry()

        def step(x, h):
            class Own(entry):
                pass

            return x * Own.gain

        return step


WAYS = {name: way for name, way in vars(Ways).items() if isinstance(way, types.FunctionType)}


@pytest.mark.parametrize("name", WAYS)
def test_what_a_class_is_made_of(name):
    gain = [2.0]
    step = WAYS[name](gain)
    changes_are_seen(step, lambda: gain.__setitem__(0, 3.0))
    assert step(1.0, 0.0) == 3.0
