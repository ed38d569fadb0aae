"""The contract as JSON schemas, as its models have them.

    python -m tests.contract_files        writes docs/contract/

`tests/test_contract.py` fails if the files say something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnkeeper.contract import VERSION
from turnkeeper.schemas import schemas

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "contract"

OLD = "docs/contract/ has another version: `make contract`"
CHANGED = (
    f"the contract is not that of version {VERSION} any more: raise VERSION in "
    "turnkeeper/contract.py, by the rule in docs/contract.md, then `make contract`"
)


def published() -> dict[str, dict[str, Any]]:
    """The schemas that lie in the folder, by name."""
    return {f.stem: json.loads(f.read_text()) for f in FOLDER.glob("*.json")}


def to_do(there: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What brings published schemas up to date; None if they say what the models do."""
    if there == schemas():
        return None
    versions = {schema["$id"].split(":")[3] for schema in there.values()}
    return CHANGED if VERSION in versions else OLD


def write() -> None:
    """Write the files; what was published as a version stays as it was."""
    there, now = published(), schemas()
    if to_do(there) == CHANGED:
        raise SystemExit(CHANGED)
    for name in there.keys() - now.keys():
        (FOLDER / f"{name}.json").unlink()
    for name, schema in now.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    write()
