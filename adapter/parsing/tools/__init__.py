"""Tool calls in a reply: one file per family of formats, and ``registry`` that gives each its name."""
