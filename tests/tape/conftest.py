"""The backend of these tests; see there."""

from plain_backend import backend as backend
