"""A Triton model that answers by script instead of sampling. ``script`` documents the script, ``model`` the rest."""
