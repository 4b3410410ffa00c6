"""Everything that a user can cause to go wrong, and the exit code each ends in.

A message says what was expected, what was got and what to do, in one piece, so that the
command line can print it as it stands.
"""

INTERRUPTED = 130  # exit code: by a second Ctrl-C, or by one where nothing is to be saved


class GPTError(Exception):
    """A failure that the user is told of in one message, without a traceback."""

    exit_code = 1


class UsageError(GPTError):
    """The command line asked for something that cannot be done."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file or `--set` holds a wrong key or value, or values that contradict each other."""


class DeviceError(UsageError):
    """The device, precision or compiler that was asked for is not to be had here."""


class TextError(GPTError):
    """The text cannot be found, read or decoded."""


class CheckpointError(GPTError):
    """A checkpoint is missing, damaged or not one of ours."""


class TrainingError(GPTError):
    """Training cannot go on."""


class Interrupted(GPTError):
    """The run was asked to stop, and its state is saved; by a signal, 128 + its number."""

    exit_code = INTERRUPTED
