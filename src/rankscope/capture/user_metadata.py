"""What the job puts into its traces by ``add_metadata``: text that cannot break the file."""

from __future__ import annotations

import json

from rankscope.capture.notices import warn
from rankscope.rundir.metadata import kineto_json


class UserNotes:
    """Values as JSON text, by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def add(self, key: str, value: object) -> None:
        """Keep a value that JSON can say."""
        self.by_key[json.loads(kineto_json(str(key)))] = kineto_json(value)

    def add_json(self, key: str, text: str) -> None:
        """Keep a value that is given as JSON text; what is none is left out, with a warning."""
        try:
            self.add(key, json.loads(text))
        except (TypeError, ValueError) as error:
            # Torch would put it into the file as it is, and the file would be no JSON.
            warn(f"add_metadata_json({key!r}): the value is no JSON and is left out: {error}")
