"""All commands of ``batholith`` in one program; :mod:`.program` imports the one that is called."""

from .command_table import new_program

app = new_program()
