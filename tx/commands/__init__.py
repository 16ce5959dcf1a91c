"""The commands of `python -m tx`, one module each: `HELP`, `EXAMPLES`, `add_arguments(parser)`, `run(args)`.

They read arguments and print; what they do is done by the modules of `tx`, imported when they run.
"""
