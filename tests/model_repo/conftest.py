"""In a running model repository ``common`` lies beside ``model.py``; here it is ``model_repo/common``."""

from __future__ import annotations

import sys

import model_repo.common

# An alias, not an entry in sys.path: there, model_repo/transformers would hide the library of that name.
sys.modules["common"] = model_repo.common
