"""Dicts whose changes a watcher counts (PyDict_AddWatcher), since Python itself counts them no more."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from stepnet.errors import BuildError

from .build import build

_TEXT = """
#include <stdint.h>
#include <stdlib.h>

/* What is known of a dict. It is never freed: its count can be read when the dict is gone; then it serves
   another dict, and counts on. All of this runs with Python's lock held. */
struct known {
    void *dict;
    int64_t changes;
    struct known *next;
};

enum { HEADS = 1 << 14, GONE = 5 /* PyDict_EVENT_DEALLOCATED */ };
static struct known *heads[HEADS], *spare;

static struct known **head(void *dict) {
    return &heads[((uintptr_t)dict >> 4) % HEADS];
}

/* Called by Python before each change of a watched dict. */
int sn_changed(int event, void *dict, void *key, void *value) {
    (void)key, (void)value;
    for (struct known **at = head(dict); *at; at = &(*at)->next) {
        struct known *known = *at;
        if (known->dict != dict)
            continue;
        ++known->changes;
        if (event == GONE) {
            *at = known->next;
            known->next = spare;
            spare = known;
        }
        return 0;
    }
    return 0;
}

/* The word that counts the changes of a dict; null where there is no memory. */
int64_t *sn_count_of(void *dict) {
    struct known **first = head(dict);
    for (struct known *known = *first; known; known = known->next)
        if (known->dict == dict)
            return &known->changes;
    struct known *known = spare;
    if (known)
        spare = known->next;
    else if (!(known = calloc(1, sizeof *known)))
        return NULL;
    known->dict = dict;
    known->next = *first;
    *first = known;
    return &known->changes;
}
"""


def watcher() -> Callable[[Any], int] | None:
    """A function that gives the address of the word that counts the changes of a dict; None where no more
    watchers can be had, or C cannot be built.

    >>> place = watcher()
    >>> if place is not None:  # Python 3.12 and later
    ...     held = {}
    ...     count = ctypes.c_int64.from_address(place(held))
    ...     before, held["name"] = count.value, 1
    ...     assert count.value == before + 1
    """
    try:
        functions = build(_TEXT).under_lock
        add, watch = ctypes.pythonapi.PyDict_AddWatcher, ctypes.pythonapi.PyDict_Watch
    except (BuildError, AttributeError):
        return None
    add.argtypes, add.restype = [ctypes.c_void_p], ctypes.c_int
    watch.argtypes, watch.restype = [ctypes.c_int, ctypes.py_object], ctypes.c_int
    count_of = functions.sn_count_of
    count_of.argtypes, count_of.restype = [ctypes.py_object], ctypes.c_void_p
    try:
        number = add(ctypes.cast(functions.sn_changed, ctypes.c_void_p))
    except RuntimeError:  # Python has room for a few
        return None

    def place(held: Any) -> int:
        at = count_of(held)
        if not at:
            raise MemoryError
        watch(number, held)
        return at

    return place
