"""Entry: what the `hamdam` command runs first. It starts nothing itself: it hands over to __main__.py."""
import gc


def main() -> int:
    """Importing makes a hundred thousand objects and no garbage: looking for it all the while takes a sixth longer."""
    gc.disable()
    from .__main__ import main as command

    gc.freeze()
    gc.enable()
    return command()
