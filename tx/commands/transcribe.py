"""`python -m tx transcribe`: recordings as text."""

from warnings import catch_warnings

from .terminal import note, status, waiting

HELP = "write down what is said in recordings (wav files, English)"
EXAMPLES = """
Any sample rate, mono or stereo, any length: the model hears up to 30 s at a time, and a longer recording is
cut where it is quietest. Where the text goes round in a loop, the model tries again with bolder draws.
Samples are integers of 8 to 32 bits or floats. Other formats: ffmpeg -i IN -ac 1 -ar 16000 OUT.wav

examples:
  python -m tx transcribe talk.wav
  python -m tx transcribe monday.wav tuesday.wav > notes.txt
"""


def add_arguments(parser):
    parser.add_argument("files", nargs="+", metavar="FILE.wav", help="recordings")
    parser.add_argument("--model", default="whisper-tiny.en", metavar="SOURCE",
                        help="a Whisper for English (default: %(default)s)")  # fmt: skip


def run(args):
    from ..apps.audio import read_wav

    with waiting("looking at the files"), catch_warnings(action="ignore"):  # each comes with its file
        for file in args.files:
            read_wav(file)  # a file that cannot be read is refused before any work is done
    with waiting(f"loading {args.model}"):
        from ..apps.transcription import Transcriber

        transcribe = Transcriber(args.model)
    for number, file in enumerate(args.files):
        if len(args.files) > 1:
            print(f"\n{file}:" if number else f"{file}:")
        _write_down(transcribe, file)


def _write_down(transcribe, file):
    """Print the text of a recording, a line for each window, as soon as it is there."""

    def on_text(text, stop, length):
        status("")
        if text:
            print(text, flush=True)
        if stop < length:
            status(f"listening … {stop:.0f} of {length:.0f} s")

    status("listening …")
    with catch_warnings(action="always"):  # two files may have the same to say
        text = transcribe(file, on_text=on_text)
    if not text:
        note(f"({file}: nothing is said.)")
