"""`python -m tx bench`: how fast the paths are, beside others'."""

HELP = "measure attention, decoding or training beside PyTorch and the reference"
EXAMPLES = """
What counts is the ratio of two paths in one run. Close what else keeps the processor busy.

examples:
  python -m tx bench attention
  python -m tx bench decode
"""


def add_arguments(parser):
    parser.add_argument("what", choices=("attention", "decode", "train"))


def run(args):
    from .. import bench

    bench.run(args.what)
