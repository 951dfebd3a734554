"""The YAML file: its model, its JSON Schema, and errors that say file:line:column."""
